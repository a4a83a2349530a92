// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A small attention problem on the CPU backend with a hand-made plan, and its fp64 answer.
#pragma once

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "core/convert.h"
#include "cpu/cpu_backend.h"
#include "hand_plan.h"

namespace plait::test {

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Counted by the operator new of allocation_test.cpp.
inline std::atomic<long> allocation_count{0};

/// Values of any floating dtype, kept as doubles after rounding.
struct Values {
  DType dtype = DType::kF32;
  std::vector<char> bytes;

  Values() = default;
  Values(DType type, std::int64_t count) : dtype(type), bytes(at(count * size_of(type))) {}
  double get(std::int64_t i) const { return load_element(dtype, bytes.data(), i); }
  void set(std::int64_t i, double value) { store_element(dtype, bytes.data(), i, value); }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes.size()) / size_of(dtype); }
  void fill(std::mt19937_64& random, double spread) {
    std::normal_distribution<double> normal(0.0, spread);
    for (std::int64_t i = 0; i < size(); ++i) set(i, normal(random));
  }
};

struct Case {
  AttentionSpec spec;
  std::vector<HandRequest> requests;
  Values q, k, v;
  std::vector<std::int32_t> page_ids;
  std::vector<std::uint8_t> mask;
  std::vector<float> slopes, sink, k_scales, v_scales;
  float k_scale = 1.0F, v_scale = 1.0F;
  std::vector<std::int32_t> q_rope, k_rope;
  std::int32_t num_pages = 0;
  std::int32_t threads = 2;
  bool state = false;
  bool measure = false;          // with the times of the workers
  mutable long allocations = 0;  // of the last run

  std::int32_t total_q() const {
    std::int32_t total = 0;
    for (const HandRequest& r : requests) total += r.qo_len;
    return total;
  }

  /// Fills every operand; unread slots of the cache hold NaN.
  void make(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    q = Values(spec.q_dtype, std::int64_t{total_q()} * spec.num_qo_heads * spec.head_dim_qk);
    q.fill(random, 1.0);
    std::int32_t listed = 0;
    std::int64_t tokens = 0;
    std::int64_t mask_bytes = 0;
    for (const HandRequest& r : requests) {
      listed += (r.kv_len + spec.page_size - 1) / spec.page_size;
      tokens += r.kv_len;
      mask_bytes += (std::int64_t{r.qo_len} * r.kv_len + 7) / 8;
    }
    num_pages = listed + 3;
    const std::int64_t slots =
        spec.kv_kind == KvKind::kRagged ? tokens : std::int64_t{num_pages} * spec.page_size;
    k = Values(spec.kv_dtype, slots * spec.num_kv_heads * spec.head_dim_qk);
    v = Values(spec.kv_dtype, slots * spec.num_kv_heads * spec.head_dim_vo);
    for (std::int64_t i = 0; i < k.size(); ++i) k.set(i, std::numeric_limits<double>::quiet_NaN());
    for (std::int64_t i = 0; i < v.size(); ++i) v.set(i, std::numeric_limits<double>::quiet_NaN());
    for (std::int32_t i = 0; i < num_pages; ++i) page_ids.push_back(i);
    std::shuffle(page_ids.begin(), page_ids.end(), random);
    page_ids.resize(at(listed));
    std::normal_distribution<double> normal(0.0, 1.0);
    std::int32_t list = 0;
    for (const HandRequest& r : requests) {
      for (std::int32_t j = 0; j < r.kv_len; ++j) {
        for (std::int32_t h = 0; h < spec.num_kv_heads; ++h) {
          for (std::int32_t d = 0; d < spec.head_dim_qk; ++d)
            k.set(element(list, j, h, d, spec.head_dim_qk), normal(random));
          for (std::int32_t d = 0; d < spec.head_dim_vo; ++d)
            v.set(element(list, j, h, d, spec.head_dim_vo), normal(random));
        }
      }
      list += advance(r);
    }
    for (std::int64_t i = 0; i < mask_bytes; ++i)
      mask.push_back(static_cast<std::uint8_t>(random()));
    const auto floats = [&](std::vector<float>& target, std::int32_t count, double spread = 1.0) {
      for (std::int32_t i = 0; i < count; ++i) {
        target.push_back(static_cast<float>(normal(random) * spread));
      }
    };
    if (spec.alibi) floats(slopes, spec.num_qo_heads, 0.05);
    if (spec.sink) floats(sink, spec.num_qo_heads);
    if (spec.k_scale_per_head) floats(k_scales, spec.num_kv_heads);
    if (spec.v_scale_per_head) floats(v_scales, spec.num_kv_heads);
    std::uniform_int_distribution<std::int32_t> position(0, 4000);
    if (spec.rope.explicit_q_positions) {
      for (std::int32_t i = 0; i < total_q(); ++i) q_rope.push_back(position(random));
    }
    if (spec.rope.explicit_k_positions) {
      for (std::int64_t i = 0; i < tokens; ++i) k_rope.push_back(position(random));
    }
  }

  std::int32_t advance(const HandRequest& r) const {
    return spec.kv_kind == KvKind::kRagged ? r.kv_len
                                           : (r.kv_len + spec.page_size - 1) / spec.page_size;
  }

  /// Element of token j of the request whose list begins at `list`.
  std::int64_t element(std::int32_t list, std::int32_t j, std::int32_t h, std::int32_t d,
                       std::int32_t dim) const {
    if (spec.kv_kind == KvKind::kRagged) {
      return (std::int64_t{list + j} * spec.num_kv_heads + h) * dim + d;
    }
    const std::int64_t page = page_ids[at(list + j / spec.page_size)];
    const std::int32_t slot = j % spec.page_size;
    if (spec.layout == KvLayout::kNhd) {
      return ((page * spec.page_size + slot) * spec.num_kv_heads + h) * dim + d;
    }
    return ((page * spec.num_kv_heads + h) * spec.page_size + slot) * dim + d;
  }

  struct Answer {
    std::vector<double> o, lse;
  };

  std::vector<double> rotated(const Values& x, std::int64_t base, std::int64_t pos) const;
  Answer reference() const;
  Answer run(const HandOptions& options) const;
};

inline std::vector<double> Case::rotated(const Values& x, std::int64_t base,
                                         std::int64_t pos) const {
  std::vector<double> row;
  for (std::int32_t d = 0; d < spec.head_dim_qk; ++d) row.push_back(x.get(base + d));
  if (spec.rope.kind == RopeKind::kNone) return row;
  const std::int32_t rotary = spec.rope.rotary_dim == 0 ? spec.head_dim_qk : spec.rope.rotary_dim;
  for (std::int32_t i = 0; i < rotary / 2; ++i) {
    double f = std::pow(spec.rope.theta, -2.0 * i / rotary);
    if (spec.rope.scaling == RopeScalingKind::kLinear) f /= spec.rope.factor;
    if (spec.rope.scaling == RopeScalingKind::kLlama31) {
      const double wavelength = 2.0 * 3.14159265358979323846 / f;
      const double old = static_cast<double>(spec.rope.original_max_position);
      if (wavelength > old / spec.rope.low_freq_factor) {
        f /= spec.rope.factor;
      } else if (wavelength >= old / spec.rope.high_freq_factor) {
        const double smooth = (old / wavelength - spec.rope.low_freq_factor) /
                              (spec.rope.high_freq_factor - spec.rope.low_freq_factor);
        f = (1 - smooth) * f / spec.rope.factor + smooth * f;
      }
    }
    const bool half = spec.rope.kind == RopeKind::kHalf;
    const std::size_t ia = at(half ? i : 2 * i);
    const std::size_t ib = at(half ? i + rotary / 2 : 2 * i + 1);
    const double c = std::cos(static_cast<double>(pos) * f);
    const double s = std::sin(static_cast<double>(pos) * f);
    const double a = row[ia];
    const double b = row[ib];
    row[ia] = a * c - b * s;
    row[ib] = b * c + a * s;
  }
  return row;
}

inline Case::Answer Case::reference() const {
  Answer answer;
  const std::int32_t g = spec.group_size();
  const double scale = effective_sm_scale(spec);
  std::int32_t list = 0;
  std::int32_t row = 0;
  std::int64_t mask_byte = 0;
  std::int64_t rope_k = 0;
  for (const HandRequest& r : requests) {
    for (std::int32_t i = 0; i < r.qo_len; ++i, ++row) {
      const std::int32_t pos = i + r.kv_len - r.qo_len;
      for (std::int32_t h = 0; h < spec.num_qo_heads; ++h) {
        const std::int32_t kh = h / g;
        const std::vector<double> qr =
            rotated(q, (std::int64_t{row} * spec.num_qo_heads + h) * spec.head_dim_qk,
                    spec.rope.explicit_q_positions ? q_rope[at(row)] : pos);
        std::vector<double> logits;
        std::vector<std::int32_t> keys;
        for (std::int32_t j = 0; j < r.kv_len; ++j) {
          if (spec.mask == MaskKind::kCausal && j > pos) continue;
          if (spec.window_left >= 0 && j < pos - spec.window_left) continue;
          if (spec.mask == MaskKind::kCustom) {
            const std::int64_t bit = std::int64_t{i} * r.kv_len + j;
            if (((mask[at(mask_byte + bit / 8)] >> (bit % 8)) & 1) == 0) continue;
          }
          const std::vector<double> kr =
              rotated(k, element(list, j, kh, 0, spec.head_dim_qk),
                      spec.rope.explicit_k_positions ? k_rope[at(rope_k + j)] : j);
          double s = 0.0;
          for (std::size_t d = 0; d < qr.size(); ++d) s += qr[d] * kr[d];
          s *= scale * (spec.k_scale_per_head ? k_scales[at(kh)] : k_scale);
          if (spec.logits_soft_cap > 0.0)
            s = spec.logits_soft_cap * std::tanh(s / spec.logits_soft_cap);
          if (spec.alibi) s += double{slopes[at(h)]} * (j - pos);
          logits.push_back(s);
          keys.push_back(j);
        }
        double max = -std::numeric_limits<double>::infinity();
        for (double s : logits) max = std::max(max, s);
        double sum = 0.0;
        std::vector<double> o(at(spec.head_dim_vo), 0.0);
        for (std::size_t n = 0; n < keys.size(); ++n) {
          const double w = spec.reduction == Reduction::kSoftmax
                               ? std::exp(logits[n] - max)
                               : 1.0 / (1.0 + std::exp(-(logits[n] + spec.sigmoid_bias)));
          sum += w;
          for (std::int32_t d = 0; d < spec.head_dim_vo; ++d)
            o[at(d)] += w * v.get(element(list, keys[n], kh, d, spec.head_dim_vo));
        }
        double factor = spec.v_scale_per_head ? v_scales[at(kh)] : v_scale;
        double lse = -std::numeric_limits<double>::infinity();
        if (spec.reduction == Reduction::kSoftmax) {
          lse = keys.empty() ? lse : max + std::log(sum);
          double denominator = sum;
          if (spec.sink && !state && !keys.empty()) denominator += std::exp(sink[at(h)] - max);
          factor = keys.empty() ? 0.0 : factor / denominator;
        }
        for (double x : o) answer.o.push_back(keys.empty() ? 0.0 : x * factor);
        answer.lse.push_back(lse);
      }
    }
    list += advance(r);
    rope_k += r.kv_len;
    mask_byte += (std::int64_t{r.qo_len} * r.kv_len + 7) / 8;
  }
  return answer;
}

inline Case::Answer Case::run(const HandOptions& options) const {
  const HandPlan hand(spec, requests, options);
  EngineOptions engine;
  engine.num_threads = threads;
  const auto backend = make_cpu_backend();
  Capacity capacity;
  capacity.max_kv_tokens = 4096;
  Attention::Options attention;
  attention.policy.num_workers = options.num_workers;
  attention.measure = measure;
  std::vector<PlanTarget> targets{backend->target(spec, attention.policy, engine)};
  const ExecutorRequest request{{&spec, 1}, targets, hand.bounds(), &capacity, &attention, &engine};
  const auto executor = backend->make_executor(request);
  executor->upload(hand.plan(), {});

  RunArgs args;
  args.q = Tensor::contiguous(q.bytes.data(), spec.q_dtype,
                              {total_q(), spec.num_qo_heads, spec.head_dim_qk});
  const auto cache = [&](const Values& values, std::int32_t dim) {
    if (spec.kv_kind == KvKind::kRagged) {
      return Tensor::contiguous(values.bytes.data(), spec.kv_dtype,
                                {values.size() / spec.num_kv_heads / dim, spec.num_kv_heads, dim});
    }
    if (spec.layout == KvLayout::kNhd) {
      return Tensor::contiguous(values.bytes.data(), spec.kv_dtype,
                                {num_pages, spec.page_size, spec.num_kv_heads, dim});
    }
    return Tensor::contiguous(values.bytes.data(), spec.kv_dtype,
                              {num_pages, spec.num_kv_heads, spec.page_size, dim});
  };
  args.k = cache(k, spec.head_dim_qk);
  args.v = cache(v, spec.head_dim_vo);
  const Tensor ids = Tensor::contiguous(page_ids.data(), DType::kI32,
                                        {static_cast<std::int64_t>(page_ids.size())});
  if (spec.kv_kind == KvKind::kPaged) args.page_ids = {&ids, 1};
  const auto vector = [](const auto& data, DType dtype) {
    return data.empty()
               ? Tensor{}
               : Tensor::contiguous(data.data(), dtype, {static_cast<std::int64_t>(data.size())});
  };
  if (spec.mask == MaskKind::kCustom) args.custom_mask = vector(mask, DType::kU8);
  args.alibi_slopes = vector(slopes, DType::kF32);
  args.sink = vector(sink, DType::kF32);
  args.k_scales = vector(k_scales, DType::kF32);
  args.v_scales = vector(v_scales, DType::kF32);
  args.k_scale = k_scale;
  args.v_scale = v_scale;
  args.q_rope_positions = vector(q_rope, DType::kI32);
  args.k_rope_positions = vector(k_rope, DType::kI32);
  const std::int64_t rows = std::int64_t{total_q()} * spec.num_qo_heads;
  Values o(state ? DType::kF32 : spec.o_dtype, rows * spec.head_dim_vo);
  for (std::int64_t i = 0; i < o.size(); ++i) o.set(i, std::numeric_limits<double>::quiet_NaN());
  std::vector<float> lse(at(rows), std::numeric_limits<float>::quiet_NaN());
  args.o =
      Tensor::contiguous(o.bytes.data(), o.dtype, {total_q(), spec.num_qo_heads, spec.head_dim_vo});
  if (spec.reduction == Reduction::kSoftmax) {
    args.lse = Tensor::contiguous(lse.data(), DType::kF32, {total_q(), spec.num_qo_heads});
  }
  args.state = state;
  const long before = allocation_count.load();
  executor->run(args);
  allocations = allocation_count.load() - before;
  Answer answer;
  for (std::int64_t i = 0; i < o.size(); ++i) answer.o.push_back(o.get(i));
  for (float x : lse) answer.lse.push_back(x);
  return answer;
}

}  // namespace plait::test
