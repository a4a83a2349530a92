// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "check/transforms.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "check/random.h"
#include "core/convert.h"
#include "oracle/keys.h"

namespace plait::check {
namespace {

using oracle::HostTensor;
using oracle::Ints;
using oracle::Key;
using oracle::Problem;
using oracle::Source;

std::size_t z(std::int64_t value) { return static_cast<std::size_t>(value); }

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void copy_element(const HostTensor& from, std::int64_t from_element, HostTensor& to,
                  std::int64_t to_element) {
  const auto width = static_cast<std::size_t>(size_of(from.dtype));
  std::memcpy(static_cast<char*>(to.storage->data()) + z(to_element) * width,
              static_cast<const char*>(from.storage->data()) + z(from_element) * width, width);
}

// A NaN-filled tensor whose strides carry `padding` elements after each axis but the last.
HostTensor padded(DType dtype, Ints shape, const Ints& padding) {
  HostTensor out;
  out.dtype = dtype;
  out.strides.resize(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    out.strides[axis] = stride;
    stride = stride * std::max<std::int64_t>(shape[axis], 1) + (axis > 0 ? padding[axis] : 0);
  }
  out.shape = std::move(shape);
  out.storage = std::make_shared<oracle::Buffer>(stride * size_of(dtype), "tensor");
  for (std::int64_t n = 0; n < stride; ++n) store_element(dtype, out.storage->data(), n, kNan);
  return out;
}

// Copies `from` into `to`; axis a of `to` is axis order[a] of `from`.
void copy_permuted(const HostTensor& from, HostTensor& to, const std::vector<std::size_t>& order) {
  Ints index(to.shape.size(), 0);
  Ints source(index.size(), 0);
  for (std::int64_t n = 0; n < to.size(); ++n) {
    for (std::size_t axis = 0; axis < index.size(); ++axis) source[order[axis]] = index[axis];
    copy_element(from, from.at(source.data()), to, to.at(index.data()));
    for (std::size_t axis = index.size(); axis-- > 0;) {
      if (++index[axis] < to.shape[axis]) break;
      index[axis] = 0;
    }
  }
}

HostTensor restrided(const HostTensor& from, const std::vector<std::size_t>& order,
                     Random& random) {
  Ints shape;
  Ints padding;
  for (std::size_t axis : order) {
    shape.push_back(from.shape[axis]);
    padding.push_back(8 * random.integer(0, 3));
  }
  HostTensor out = padded(from.dtype, std::move(shape), padding);
  copy_permuted(from, out, order);
  return out;
}

// Sets to NaN what none of requests [begin, end) may read of the KV storage.
void poison_all_but(Problem& problem, std::int64_t begin, std::int64_t end) {
  std::map<oracle::Buffer*, std::vector<bool>> read;
  const auto mark = [&](const HostTensor& tensor, std::int64_t element, std::int64_t dim) {
    auto& flags = read[tensor.storage.get()];
    if (flags.empty()) flags.resize(z(tensor.storage->bytes() / size_of(tensor.dtype)));
    for (std::int64_t d = 0; d < dim; ++d) flags[z(element + d * tensor.strides.back())] = true;
  };
  mark(problem.k, 0, 0);
  mark(problem.v, 0, 0);
  for (std::int64_t request = begin; request < end; ++request) {
    for (std::int64_t row = 0; row < problem.qo_len(request);) {
      for (std::int64_t head = 0; head < problem.num_kv_heads; ++head) {
        for (const Key& key : oracle::listed_keys(problem, request, row, head)) {
          mark(problem.k, key.k_element, problem.head_dim_qk);
          mark(problem.v, key.v_element, problem.head_dim_vo);
        }
      }
      row = oracle::rows_alike(problem, request, row).second;
    }
  }
  // A file tensor may hold q as well.
  const auto queries = read.find(problem.q.storage.get());
  for (auto& [buffer, flags] : read) {
    if (queries != read.end() && queries->first == buffer) continue;
    for (std::size_t n = 0; n < flags.size(); ++n) {
      if (!flags[n]) {
        store_element(problem.kv_dtype, buffer->data(), static_cast<std::int64_t>(n), kNan);
      }
    }
  }
}

}  // namespace

void poison_unread(Problem& problem) { poison_all_but(problem, 0, problem.num_requests()); }

void poison_other_requests(Problem& problem, std::int64_t request) {
  poison_all_but(problem, request, request + 1);
}

Problem with_moved_pages(const Problem& problem, std::uint64_t seed) {
  Random random(seed);
  Problem out = problem;
  const std::int64_t pages = problem.k.shape[0];
  const std::int64_t pool = pages + random.integer(1, 9);
  Ints place(z(pool));
  for (std::int64_t n = 0; n < pool; ++n) place[z(n)] = n;
  for (std::int64_t n = 0; n < pages; ++n)
    std::swap(place[z(n)], place[z(random.integer(n, pool - 1))]);
  for (auto [from, to] : {std::pair{&problem.k, &out.k}, std::pair{&problem.v, &out.v}}) {
    Ints shape = from->shape;
    shape[0] = pool;
    *to = padded(from->dtype, shape, Ints(shape.size(), 0));
    Ints index(shape.size(), 0);
    for (std::int64_t n = 0; n < from->size(); ++n) {
      Ints moved = index;
      moved[0] = place[z(index[0])];
      copy_element(*from, from->at(index.data()), *to, to->at(moved.data()));
      for (std::size_t axis = index.size(); axis-- > 0;) {
        if (++index[axis] < from->shape[axis]) break;
        index[axis] = 0;
      }
    }
  }
  for (oracle::Level& level : out.levels) {
    for (std::int64_t& page : level.indices) page = place[z(page)];
  }
  return out;
}

Problem with_other_strides(const Problem& problem, std::uint64_t seed) {
  Random random(seed);
  Problem out = problem;
  out.q = restrided(problem.q, {0, 1, 2}, random);
  if (problem.paged_storage()) {
    // Exchanging the axes of the pool and the layout name leaves every element where it was read.
    out.hnd = !problem.hnd;
    out.k = restrided(problem.k, {0, 2, 1, 3}, random);
    out.v = restrided(problem.v, {0, 2, 1, 3}, random);
  } else {
    out.k = restrided(problem.k, {0, 1, 2}, random);
    out.v = restrided(problem.v, {0, 1, 2}, random);
  }
  return out;
}

bool can_slice(const Problem& problem) {
  return problem.mask != oracle::Mask::kCustom && problem.source != Source::kBsr &&
         problem.source != Source::kSelected;
}

Problem slice_requests(const Problem& problem, const std::vector<Slice>& slices,
                       std::int64_t page_size) {
  const bool ragged = problem.source == Source::kRagged;
  Problem out = problem;
  out.source = ragged ? Source::kRagged : Source::kPaged;
  out.hnd = false;
  out.page_size = ragged ? 0 : page_size;
  out.levels.clear();
  out.qo_indptr = {0};
  out.kv_indptr = {0};
  out.rope.q_positions.clear();
  out.rope.k_positions.clear();
  oracle::Level level;
  level.indptr = {0};
  std::int64_t tokens = 0;
  for (const Slice& slice : slices) {
    const std::int64_t rows = slice.row_end - slice.row_begin;
    const std::int64_t keys =
        oracle::kv_len(problem, slice.request) - (problem.qo_len(slice.request) - slice.row_end);
    out.qo_indptr.push_back(out.qo_indptr.back() + rows);
    tokens += keys;
    out.kv_indptr.push_back(tokens);
    const std::int64_t pages = (keys + page_size - 1) / page_size;
    level.indptr.push_back(level.indptr.back() + pages);
    level.last_page_len.push_back(keys == 0 ? 0 : keys - (pages - 1) * page_size);
    if (!problem.rope.q_positions.empty()) {
      const Ints& list = problem.rope.q_positions[z(slice.request)];
      out.rope.q_positions.emplace_back(list.begin() + slice.row_begin,
                                        list.begin() + slice.row_end);
    }
    if (!problem.rope.k_positions.empty()) {
      const Ints& list = problem.rope.k_positions[z(slice.request)];
      out.rope.k_positions.emplace_back(list.begin(), list.begin() + keys);
    }
  }
  for (std::int64_t page = 0; page < level.indptr.back(); ++page) level.indices.push_back(page);
  level.qo_indptr = out.qo_indptr;
  const auto pool = [&](std::int64_t dim) {
    return ragged ? Ints{tokens, problem.num_kv_heads, dim}
                  : Ints{level.indptr.back(), page_size, problem.num_kv_heads, dim};
  };
  out.k = padded(problem.k.dtype, pool(problem.head_dim_qk), Ints(4, 0));
  out.v = padded(problem.v.dtype, pool(problem.head_dim_vo), Ints(4, 0));
  out.q = padded(problem.q.dtype, {out.qo_indptr.back(), problem.num_qo_heads, problem.head_dim_qk},
                 Ints(3, 0));
  for (std::size_t n = 0; n < slices.size(); ++n) {
    const Slice& slice = slices[n];
    for (std::int64_t row = slice.row_begin; row < slice.row_end; ++row) {
      for (std::int64_t head = 0; head < problem.num_qo_heads; ++head) {
        for (std::int64_t d = 0; d < problem.head_dim_qk; ++d) {
          const std::int64_t from[] = {problem.qo_indptr[z(slice.request)] + row, head, d};
          const std::int64_t to[] = {out.qo_indptr[n] + row - slice.row_begin, head, d};
          copy_element(problem.q, problem.q.at(from), out.q, out.q.at(to));
        }
      }
    }
    const std::int64_t count = out.kv_indptr[n + 1] - out.kv_indptr[n];
    for (std::int64_t head = 0; head < problem.num_kv_heads; ++head) {
      const std::vector<Key> keys = oracle::listed_keys(problem, slice.request, 0, head);
      for (std::int64_t t = 0; t < count; ++t) {
        const std::int64_t page[] = {level.indptr[n] + t / page_size, t % page_size, head, 0};
        const std::int64_t flat[] = {out.kv_indptr[n] + t, head, 0};
        const Key& key = keys[z(t)];
        for (std::int64_t d = 0; d < problem.head_dim_qk; ++d) {
          copy_element(problem.k, key.k_element + d * problem.k.strides.back(), out.k,
                       out.k.at(ragged ? flat : page) + d);
        }
        for (std::int64_t d = 0; d < problem.head_dim_vo; ++d) {
          copy_element(problem.v, key.v_element + d * problem.v.strides.back(), out.v,
                       out.v.at(ragged ? flat : page) + d);
        }
      }
    }
  }
  if (ragged) {
    out.page_size = 0;
  } else {
    out.kv_indptr.clear();
    out.levels.push_back(std::move(level));
  }
  return out;
}

}  // namespace plait::check
