// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "engine/shared_memory.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "engine/tensor_checks.h"

namespace plait::detail {
namespace {

// Unsigned throughout. Extents and strides are a caller's: whether they stay within the address
// space is asked before anything else.
using Size = std::uint64_t;

Size magnitude(std::int64_t stride) {
  return stride < 0 ? 0 - static_cast<Size>(stride) : static_cast<Size>(stride);
}

/// Bytes from one element of an axis to the next, whatever the direction.
Size step_of(const Tensor& t, std::int32_t axis) {
  return magnitude(t.strides[static_cast<std::size_t>(axis)]) * static_cast<Size>(size_of(t.dtype));
}

/// Bytes before and after a tensor's first element that the axes reach for which `counts` holds.
struct Reach {
  Size before = 0;
  Size after = 0;
  bool wraps = false;  // more than Size holds
};
template <class Counts>
Reach reach_of(const Tensor& t, Counts counts) {
  Reach reach;
  reach.after = static_cast<Size>(size_of(t.dtype));
  for (std::int32_t axis = 0; axis < t.rank; ++axis) {
    const auto a = static_cast<std::size_t>(axis);
    if (t.shape[a] <= 1 || !counts(step_of(t, axis))) continue;
    // The extent of an axis in elements, then in bytes.
    Size extent = 0;
    reach.wraps |=
        __builtin_mul_overflow(magnitude(t.strides[a]), static_cast<Size>(t.shape[a] - 1), &extent);
    reach.wraps |= __builtin_mul_overflow(extent, static_cast<Size>(size_of(t.dtype)), &extent);
    Size& side = t.strides[a] < 0 ? reach.before : reach.after;
    reach.wraps |= __builtin_add_overflow(side, extent, &side);
  }
  return reach;
}

/// Places modulo `modulus`: axes whose steps are its multiples stay in place.
struct Arc {
  Size begin;
  Size length;
};
Arc arc_of(const Tensor& t, Size modulus) {
  const Reach reach = reach_of(t, [&](Size step) { return step % modulus != 0; });
  return {(reinterpret_cast<std::uintptr_t>(t.data) - reach.before) % modulus,
          reach.before + reach.after};
}

bool apart_modulo(const Tensor& a, const Tensor& b, Size modulus) {
  const Arc first = arc_of(a, modulus);
  const Arc second = arc_of(b, modulus);
  // Not (second - first + modulus) % modulus: a modulus may be more than half of what Size holds.
  const Size distance = second.begin >= first.begin ? second.begin - first.begin
                                                    : modulus - (first.begin - second.begin);
  return first.length <= distance && second.length <= modulus - distance;
}

/// Whether their places differ modulo some stride of `t`, which is one of them: so do those of
/// views of one interleaved buffer.
bool apart_modulo_a_stride_of(const Tensor& t, const Tensor& a, const Tensor& b) {
  for (std::int32_t axis = 0; axis < t.rank; ++axis) {
    const Size step = step_of(t, axis);
    if (t.shape[static_cast<std::size_t>(axis)] > 1 && step > 0 && apart_modulo(a, b, step)) {
      return true;
    }
  }
  return false;
}

/// Where the elements of a tensor lie: [begin, end).
struct Span {
  Size begin;
  Size end;
};
Span span_of(const Tensor& t) {
  const Reach reach = reach_of(t, [](Size) { return true; });
  const auto first = reinterpret_cast<std::uintptr_t>(t.data);
  return {first - reach.before, first + reach.after};
}

/// The axis with the largest step forwards, if there is one.
std::optional<std::size_t> outermost_axis(const Tensor& t) {
  std::optional<std::size_t> outermost;
  for (std::size_t a = 0; a < static_cast<std::size_t>(t.rank); ++a) {
    if (t.shape[a] <= 1 || t.strides[a] <= 0) continue;
    if (!outermost || t.strides[a] > t.strides[*outermost]) outermost = a;
  }
  return outermost;
}

/// Takes an axis off both that has the same step in either, if all else lies within one step, as in
/// a pool whose pages have room behind them: then only elements of one page can meet, and all pages
/// are alike.
bool take_page_of(Tensor& a, Tensor& b) {
  const std::optional<std::size_t> of_a = outermost_axis(a);
  const std::optional<std::size_t> of_b = outermost_axis(b);
  if (!of_a || !of_b) return false;
  const Size step = step_of(a, static_cast<std::int32_t>(*of_a));
  if (step != step_of(b, static_cast<std::int32_t>(*of_b))) return false;
  a.shape[*of_a] = b.shape[*of_b] = 1;
  const Span first = span_of(a);
  const Span second = span_of(b);
  return std::max(first.end, second.end) - std::min(first.begin, second.begin) <= step;
}

bool provably_apart(Tensor a, Tensor b) {
  do {
    const Span first = span_of(a);
    const Span second = span_of(b);
    if (first.end <= second.begin || second.end <= first.begin ||
        apart_modulo_a_stride_of(a, a, b) || apart_modulo_a_stride_of(b, a, b)) {
      return true;
    }
  } while (take_page_of(a, b));
  return false;
}

/// The axis whose stride may take an element to the place of another one: the first, from the
/// smallest stride on, that is less than what the axes before it span.
std::optional<std::int32_t> folded_axis(const Tensor& t) {
  std::array<std::int32_t, kMaxRank> axes{};  // from the smallest stride on
  std::size_t count = 0;
  const auto stride_of = [&](std::int32_t axis) {
    return magnitude(t.strides[static_cast<std::size_t>(axis)]);
  };
  for (std::int32_t axis = t.rank - 1; axis >= 0; --axis) {
    if (t.shape[static_cast<std::size_t>(axis)] <= 1) continue;
    std::size_t place = count++;
    for (; place > 0 && stride_of(axes[place - 1]) > stride_of(axis); --place) {
      axes[place] = axes[place - 1];
    }
    axes[place] = axis;
  }
  Size span = 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (stride_of(axes[i]) < span) return axes[i];
    span += static_cast<Size>(t.shape[static_cast<std::size_t>(axes[i])] - 1) * stride_of(axes[i]);
  }
  return std::nullopt;
}

std::string indexed(const char* name, int index) {
  return index < 0 ? name : std::string(name) + "[" + std::to_string(index) + "]";
}

}  // namespace

bool same_places(const Tensor& a, const Tensor& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (std::int32_t axis = 0; axis < a.rank; ++axis) {
    const auto i = static_cast<std::size_t>(axis);
    if (a.shape[i] != b.shape[i] || (a.shape[i] > 1 && a.strides[i] != b.strides[i])) return false;
  }
  return true;
}

WrittenOperand::WrittenOperand(const char* name, const Tensor& tensor)
    : name_(name), tensor_(tensor), bytes_(bytes_of(name, tensor, -1)) {
  if (bytes_.begin == bytes_.end) return;
  if (const std::optional<std::int32_t> axis = folded_axis(tensor)) {
    refuse(std::string(name) + ".strides",
           std::to_string(tensor.strides[static_cast<std::size_t>(*axis)]) + " on axis " +
               std::to_string(*axis),
           "a place of its own for every element that is written");
  }
}

WrittenOperand::Bytes WrittenOperand::bytes_of(const char* name, const Tensor& tensor, int index) {
  const auto first = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (first == 0) return {};
  Size empty = 0;
  for (std::int32_t axis = 0; axis < tensor.rank; ++axis) {
    empty |= tensor.shape[static_cast<std::size_t>(axis)] == 0 ? 1 : 0;
  }
  if (empty != 0) return {first, first};
  const Reach reach = reach_of(tensor, [](Size) { return true; });
  if (reach.wraps || reach.before > first || reach.after > UINTPTR_MAX - first) {
    std::string strides;
    for (std::int32_t axis = 0; axis < tensor.rank; ++axis) {
      strides += axis == 0 ? "[" : ", ";
      strides += std::to_string(tensor.strides[static_cast<std::size_t>(axis)]);
    }
    refuse(indexed(name, index) + ".strides", strides + "] of shape " + shape_text(tensor),
           "strides within the address space");
  }
  return {first - reach.before, first + reach.after};
}

void WrittenOperand::look_closer(const char* name, const Tensor& other, int index,
                                 Bytes bytes) const {
  if (provably_apart(tensor_, other)) return;
  const std::uintptr_t shared =
      std::min(bytes.end, bytes_.end) - std::max(bytes.begin, bytes_.begin);
  refuse(name_,
         std::to_string(shared) + " bytes between which " + indexed(name, index) + " lies, too",
         "memory of its own");
}

void WrittenOperand::apart_from_or_in_place_of(const char* name, const Tensor& other) const {
  if (!same_places(tensor_, other)) apart_from(name, other);
}

}  // namespace plait::detail
