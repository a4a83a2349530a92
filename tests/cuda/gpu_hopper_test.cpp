// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Family `hopper` through the public API, against a literal fp64 reference. Pools are poisoned with
// NaN wherever no request has a key, outputs before every run.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>

#include "core/convert.h"
#include "cuda/gpu_support.h"
#include "plait/attention.h"
#include "support/seed.h"

namespace plait::cuda {
namespace {

constexpr std::uint16_t kNan = 0xFFFF;  // of f16 and of bf16

/// A problem, its inputs on host and device, and the plan's view of it.
struct Case {
  AttentionSpec spec;
  Policy policy;
  bool shared_prefix = false;  // an outer view of one page list for all requests
  bool selected = false;       // pages are listed with positions, some left out
  bool state = false;
  std::vector<int> qo_len, kv_len;  // kv_len: of the request's own pages
  int prefix = 0;                   // tokens, whole pages

  std::string text() const {
    std::string s =
        std::string(to_string(spec.q_dtype)) + " dim " + std::to_string(spec.head_dim_qk) +
        " heads " + std::to_string(spec.num_qo_heads) + "/" + std::to_string(spec.num_kv_heads) +
        " page " + std::to_string(spec.page_size) +
        (spec.kv_kind == KvKind::kRagged ? " ragged" : "") +
        (spec.layout == KvLayout::kHnd ? " HND" : "") +
        (spec.mask == MaskKind::kCausal ? " causal" : "") + " window " +
        std::to_string(spec.window_left) + " cap " + std::to_string(spec.logits_soft_cap) +
        (spec.alibi ? " alibi" : "") + (spec.sink ? " sink" : "") + (state ? " state" : "") +
        (shared_prefix ? " prefix" : "") + (selected ? " selected" : "") + " qo";
    for (int n : qo_len) s += " " + std::to_string(n);
    s += " kv";
    for (int n : kv_len) s += " " + std::to_string(n);
    return s;
  }
};

class GpuHopper : public HopperTest {
 protected:
  static Engine engine() {
    EngineOptions options;
    options.device = {DeviceKind::kCuda, 0};
    options.family = "hopper";
    return Engine(options);
  }

  /// Runs the case; returns how many outputs are wrong and prints the first.
  void check(const Case& c, std::mt19937_64& random);
};

void GpuHopper::check(const Case& c, std::mt19937_64& random) {
  SCOPED_TRACE(c.text());
  const AttentionSpec& spec = c.spec;
  const DType dtype = spec.q_dtype;
  const int dim = spec.head_dim_qk;
  const auto dims = static_cast<std::size_t>(dim);
  const auto narrow = [&](double value) {
    return static_cast<std::uint16_t>(encode(dtype, value));
  };
  const auto widen = [&](std::uint16_t bits) { return decode(dtype, bits); };
  const int requests = static_cast<int>(c.qo_len.size());
  const int group = spec.group_size();
  const bool paged = spec.kv_kind == KvKind::kPaged;
  const int page = paged ? spec.page_size : 1;
  const int total_q = std::accumulate(c.qo_len.begin(), c.qo_len.end(), 0);

  // Page lists. Request r's keys are (slot in the pool, logical position), in order.
  struct Key {
    std::int64_t token;
    int position;
  };
  std::vector<std::vector<Key>> keys(static_cast<std::size_t>(requests));
  int num_lists = paged ? (c.prefix + page - 1) / page : 0;
  for (int n : c.kv_len) num_lists += paged ? (n + page - 1) / page : n;
  std::vector<int> ids(static_cast<std::size_t>(num_lists) + 3);
  std::iota(ids.begin(), ids.end(), 0);
  if (paged) std::shuffle(ids.begin(), ids.end(), random);
  const std::int64_t pool = static_cast<std::int64_t>(ids.size());
  std::size_t next = 0;
  std::vector<std::int32_t> prefix_ids;
  for (int i = 0; i < c.prefix; i += page) prefix_ids.push_back(ids[next++]);
  std::vector<std::int32_t> own_ids, positions, page_indptr{0}, last_page_len, qo_indptr{0};
  std::vector<int> total_len(static_cast<std::size_t>(requests));
  for (int r = 0; r < requests; ++r) {
    const auto at = static_cast<std::size_t>(r);
    qo_indptr.push_back(qo_indptr.back() + c.qo_len[at]);
    for (int i = 0; i < c.prefix; ++i) {
      keys[at].push_back(
          {std::int64_t{prefix_ids[static_cast<std::size_t>(i / page)]} * page + i % page, i});
    }
    int position = c.prefix;
    int last = 0;
    for (int i = 0; i < c.kv_len[at]; i += page) {
      if (c.selected && i > 0) position += page * static_cast<int>(random() % 3);
      const int tokens = std::min(page, c.kv_len[at] - i);
      const std::int64_t id = ids[next++];
      if (paged) {
        own_ids.push_back(static_cast<std::int32_t>(id));
        positions.push_back(position);
      }
      for (int t = 0; t < tokens; ++t) keys[at].push_back({id * page + t, position + t});
      position += paged ? page : 1;
      last = tokens;
    }
    total_len[at] = keys[at].empty() ? 0 : keys[at].back().position + 1;
    last_page_len.push_back(last);
    page_indptr.push_back(paged ? static_cast<std::int32_t>(own_ids.size())
                                : page_indptr.back() + c.kv_len[at]);
  }

  // Tensors.
  const std::int64_t token_count = pool * page;
  const std::int64_t width = std::int64_t{spec.num_kv_heads} * dim;
  std::normal_distribution<float> normal;
  DeviceArray<std::uint16_t> q(context_,
                               static_cast<std::size_t>(total_q * spec.num_qo_heads * dim));
  DeviceArray<std::uint16_t> k(context_, static_cast<std::size_t>(token_count * width));
  DeviceArray<std::uint16_t> v(context_, k.host.size());
  for (auto& x : q.host) x = narrow(normal(random));
  std::fill(k.host.begin(), k.host.end(), kNan);
  std::fill(v.host.begin(), v.host.end(), kNan);
  const auto offset = [&](std::int64_t token, int head) {
    if (paged && spec.layout == KvLayout::kHnd) {
      return ((token / page * spec.num_kv_heads + head) * page + token % page) * dim;
    }
    return token * width + std::int64_t{head} * dim;
  };
  std::vector<std::int64_t> used;
  for (const auto& list : keys) {
    for (const Key& key : list) used.push_back(key.token);
  }
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  for (std::int64_t token : used) {
    for (int head = 0; head < spec.num_kv_heads; ++head) {
      for (int d = 0; d < dim; ++d) {
        k.host[static_cast<std::size_t>(offset(token, head) + d)] = narrow(normal(random));
        v.host[static_cast<std::size_t>(offset(token, head) + d)] = narrow(normal(random));
      }
    }
  }
  DeviceArray<float> sink(context_, static_cast<std::size_t>(spec.num_qo_heads));
  for (auto& x : sink.host) x = normal(random);
  DeviceArray<float> slopes(context_, static_cast<std::size_t>(spec.num_qo_heads));
  for (auto& x : slopes.host) x = std::uniform_real_distribution<float>(-0.05F, 0.5F)(random);
  DeviceArray<std::int32_t> own(context_, std::max<std::size_t>(own_ids.size(), 1));
  DeviceArray<std::int32_t> prefix(context_, std::max<std::size_t>(prefix_ids.size(), 1));
  DeviceArray<std::int32_t> listed(context_, std::max<std::size_t>(positions.size(), 1));
  std::copy(own_ids.begin(), own_ids.end(), own.host.begin());
  std::copy(prefix_ids.begin(), prefix_ids.end(), prefix.host.begin());
  std::copy(positions.begin(), positions.end(), listed.host.begin());
  for (auto* a : {&q, &k, &v}) a->upload();
  for (auto* a : {&own, &prefix, &listed}) a->upload();
  sink.upload();
  slopes.upload();
  const std::size_t rows = static_cast<std::size_t>(total_q * spec.num_qo_heads);
  DeviceArray<std::uint16_t> o16(context_, rows * dims);
  DeviceArray<float> o32(context_, rows * dims);
  DeviceArray<float> lse(context_, rows);
  o16.poison(0xFF);
  o32.poison(0xFF);
  lse.poison(0xFF);

  // Plan and run.
  std::vector<View> views;
  const std::vector<std::int32_t> all_rows{0, total_q};
  const std::vector<std::int32_t> prefix_indptr{0, static_cast<std::int32_t>(prefix_ids.size())};
  const std::vector<std::int32_t> prefix_last{(c.prefix + page - 1) % page + 1};
  if (c.prefix > 0) {
    View view;
    view.row_indptr = all_rows;
    view.page_indptr = prefix_indptr;
    view.last_page_len = prefix_last;
    views.push_back(view);
  }
  View own_view;
  own_view.row_indptr = qo_indptr;
  own_view.page_indptr = page_indptr;
  if (paged) own_view.last_page_len = last_page_len;
  const bool listed_positions = c.selected && !positions.empty();
  if (listed_positions) own_view.positions = positions;
  views.push_back(own_view);
  Batch batch;
  batch.qo_indptr = qo_indptr;
  batch.views = views;
  Capacity capacity;
  capacity.max_requests = requests;
  capacity.max_query_rows = total_q;
  capacity.max_kv_tokens = *std::max_element(total_len.begin(), total_len.end()) + page;
  capacity.max_views = static_cast<std::int32_t>(views.size());
  if (c.policy.kind == PolicyKind::kFixedChunk) capacity.min_kv_chunk = c.policy.kv_chunk;
  Attention::Options options;
  options.policy = c.policy;
  options.checked = true;
  Attention attention(engine(), {spec}, capacity, options);
  ASSERT_EQ(attention.family(), "hopper");
  attention.plan(batch);

  const Device device{DeviceKind::kCuda, 0};
  const auto id_tensor = [&](const DeviceArray<std::int32_t>& array, std::size_t count) {
    return Tensor::contiguous(array.device(), DType::kI32, {static_cast<std::int64_t>(count)},
                              device);
  };
  std::vector<Tensor> id_tensors, position_tensors;
  if (paged) {
    if (c.prefix > 0) {
      id_tensors.push_back(id_tensor(prefix, prefix_ids.size()));
      position_tensors.emplace_back();
    }
    id_tensors.push_back(id_tensor(own, own_ids.size()));
    position_tensors.push_back(id_tensor(listed, positions.size()));
  }
  RunArgs args;
  args.q = Tensor::contiguous(q.device(), dtype, {total_q, spec.num_qo_heads, dim}, device);
  const auto pool_tensor = [&](const DeviceArray<std::uint16_t>& array) {
    if (!paged) {
      return Tensor::contiguous(array.device(), dtype, {pool, spec.num_kv_heads, dim}, device);
    }
    if (spec.layout == KvLayout::kHnd) {
      return Tensor::contiguous(array.device(), dtype, {pool, spec.num_kv_heads, page, dim},
                                device);
    }
    return Tensor::contiguous(array.device(), dtype, {pool, page, spec.num_kv_heads, dim}, device);
  };
  args.k = pool_tensor(k);
  args.v = pool_tensor(v);
  args.page_ids = id_tensors;
  if (listed_positions) args.positions = position_tensors;
  if (spec.sink) {
    args.sink = Tensor::contiguous(sink.device(), DType::kF32, {spec.num_qo_heads}, device);
  }
  if (spec.alibi) {
    args.alibi_slopes =
        Tensor::contiguous(slopes.device(), DType::kF32, {spec.num_qo_heads}, device);
  }
  args.state = c.state;
  args.k_scale = 0.75F;
  args.v_scale = 1.5F;
  args.o =
      c.state
          ? Tensor::contiguous(o32.device(), DType::kF32, {total_q, spec.num_qo_heads, dim}, device)
          : Tensor::contiguous(o16.device(), dtype, {total_q, spec.num_qo_heads, dim}, device);
  args.lse = Tensor::contiguous(lse.device(), DType::kF32, {total_q, spec.num_qo_heads}, device);
  attention.run(args);
  synchronize();
  attention.status();
  o16.download();
  o32.download();
  lse.download();

  // The reference, row by row.
  const auto widened = [&](const std::vector<std::uint16_t>& words) {
    std::vector<double> values(words.size());
    std::transform(words.begin(), words.end(), values.begin(), widen);
    return values;
  };
  const std::vector<double> wide_q = widened(q.host);
  const std::vector<double> wide_k = widened(k.host);
  const std::vector<double> wide_v = widened(v.host);
  double error = 0.0;
  double norm = 0.0;
  double worst_lse = 0.0;
  int wrong_rows = 0;
  std::vector<double> weight;
  for (int r = 0; r < requests; ++r) {
    const auto at = static_cast<std::size_t>(r);
    for (int i = 0; i < c.qo_len[at]; ++i) {
      const int position = i + total_len[at] - c.qo_len[at];
      for (int head = 0; head < spec.num_qo_heads; ++head) {
        const std::size_t row =
            static_cast<std::size_t>((qo_indptr[at] + i) * spec.num_qo_heads + head);
        double best = -std::numeric_limits<double>::infinity();
        weight.clear();
        for (const Key& key : keys[at]) {
          double s = -std::numeric_limits<double>::infinity();
          const bool seen = (spec.mask != MaskKind::kCausal || key.position <= position) &&
                            (spec.window_left < 0 || key.position >= position - spec.window_left);
          if (seen) {
            double dot = 0.0;
            const auto base = static_cast<std::size_t>(offset(key.token, head / group));
            for (std::size_t d = 0; d < dims; ++d) {
              dot += wide_q[row * dims + d] * wide_k[base + d];
            }
            s = dot * 0.75 / std::sqrt(static_cast<double>(dim));
            if (spec.logits_soft_cap > 0.0) {
              s = spec.logits_soft_cap * std::tanh(s / spec.logits_soft_cap);
            }
            if (spec.alibi) {
              s += static_cast<double>(slopes.host[static_cast<std::size_t>(head)]) *
                   (key.position - position);
            }
          }
          weight.push_back(s);
          best = std::max(best, s);
        }
        double sum = 0.0;
        for (double& w : weight) {
          w = std::isinf(w) ? 0.0 : std::exp(w - best);
          sum += w;
        }
        const double expected_lse = sum == 0.0 ? best : best + std::log(sum);
        double factor = sum == 0.0 ? 0.0 : 1.5 / sum;
        if (spec.sink && !c.state && sum > 0.0) {
          factor /= 1.0 + std::exp(static_cast<double>(sink.host[static_cast<std::size_t>(head)]) -
                                   expected_lse);
        }
        std::vector<double> o(dims);
        for (std::size_t j = 0; j < weight.size(); ++j) {
          if (weight[j] == 0.0) continue;
          const auto base = static_cast<std::size_t>(offset(keys[at][j].token, head / group));
          for (std::size_t d = 0; d < dims; ++d) o[d] += weight[j] * wide_v[base + d];
        }
        double row_error = 0.0;
        double row_norm = 0.0;
        for (std::size_t d = 0; d < dims; ++d) {
          const double got = c.state ? static_cast<double>(o32.host[row * dims + d])
                                     : widen(o16.host[row * dims + d]);
          const double want = o[d] * factor;
          row_error += (got - want) * (got - want);
          row_norm += want * want;
        }
        error += row_error;
        norm += row_norm;
        if (!(row_error <= 4e-4 * row_norm)) {
          if (++wrong_rows == 1) {
            std::printf("row %d of request %d, head %d: |o - ref| / |ref| = %g, lse %g for %g\n", i,
                        r, head, std::sqrt(row_error / row_norm),
                        static_cast<double>(lse.host[row]), expected_lse);
          }
        }
        const double got_lse = lse.host[row];
        if (std::isinf(expected_lse)) {
          if (got_lse != expected_lse) worst_lse = 1e9;
        } else if (!(std::abs(got_lse - expected_lse) <= worst_lse)) {
          worst_lse = std::abs(got_lse - expected_lse);
        }
      }
    }
  }
  EXPECT_EQ(wrong_rows, 0);
  EXPECT_LT(worst_lse, 1e-4);
  EXPECT_TRUE(error <= 25e-6 * norm) << std::sqrt(error / norm);
}

AttentionSpec base_spec(int qo_heads, int kv_heads) {
  AttentionSpec spec;
  spec.num_qo_heads = qo_heads;
  spec.num_kv_heads = kv_heads;
  spec.head_dim_qk = spec.head_dim_vo = 128;
  return spec;
}

TEST_F(GpuHopper, RandomBatches) {
  const test::Seed seed(20261129);
  SCOPED_TRACE(seed.repro());
  std::mt19937_64 random(seed.value());
  const auto pick = [&](auto... values) {
    const std::array list{values...};
    return list[random() % list.size()];
  };
  for (int round = 0; round < 30; ++round) {
    Case c;
    const int group = pick(1, 2, 4, 8, 16, 64);
    const int kv_heads = group >= 16 ? 1 : pick(1, 2);
    c.spec = base_spec(group * kv_heads, kv_heads);
    c.spec.head_dim_qk = c.spec.head_dim_vo = pick(64, 128, 256);
    c.spec.q_dtype = c.spec.kv_dtype = c.spec.o_dtype =
        pick(DType::kBF16, DType::kBF16, DType::kF16);
    c.spec.mask = pick(MaskKind::kNone, MaskKind::kCausal, MaskKind::kCausal);
    if (random() % 4 == 0) c.spec.window_left = pick(0, 5, 70, 200);
    if (random() % 4 == 0) c.spec.logits_soft_cap = pick(2.0, 30.0);
    c.spec.alibi = random() % 3 == 0;
    c.spec.sink = random() % 4 == 0;
    c.state = random() % 5 == 0;
    if (random() % 4 == 0) {
      c.spec.kv_kind = KvKind::kRagged;
      c.spec.page_size = 1;
    } else {
      c.spec.page_size = random() % 2 == 0 ? pick(16, 16, 32, 48, 128) : pick(1, 1, 2, 5, 8, 19);
      c.spec.layout = pick(KvLayout::kNhd, KvLayout::kHnd);
    }
    const int flavour = static_cast<int>(random() % 4);
    if (flavour == 1) c.policy.kind = PolicyKind::kUnsplit;
    if (flavour == 2) {
      c.policy.kind = PolicyKind::kFixedChunk;
      c.policy.kv_chunk = c.spec.page_size * std::max(1, 16 / c.spec.page_size) * pick(1, 2, 8);
      if (c.spec.kv_kind == KvKind::kRagged) c.policy.kv_chunk = pick(7, 64, 300);
    }
    // Few workers have many slices each, more than the kernels keep in shared memory.
    c.policy.num_workers = pick(0, 0, 1, 3);
    if (c.spec.kv_kind == KvKind::kPaged && random() % 5 == 0) c.selected = true;
    if (c.spec.kv_kind == KvKind::kPaged && !c.selected && random() % 4 == 0) {
      c.shared_prefix = true;
      c.prefix = c.spec.page_size * pick(1, 5, 20);
    }
    const int requests = 1 + static_cast<int>(random() % 5);
    for (int r = 0; r < requests; ++r) {
      const int kv = pick(0, 1, 15, 16, 17, 100, 333, 700);
      const int longest = group >= 16 ? 20 : 150;
      int qo = random() % 2 == 0 ? 1 : static_cast<int>(random() % static_cast<unsigned>(longest));
      qo = std::max(qo, 1);
      // A request's rows are its last keys.
      c.qo_len.push_back(qo);
      c.kv_len.push_back(c.spec.mask == MaskKind::kCausal && random() % 4 != 0 ? std::max(kv, qo)
                                                                               : kv);
    }
    check(c, random);
    if (HasFailure()) break;
  }
}

TEST_F(GpuHopper, SplitPrefillAndDecodeTogether) {
  std::mt19937_64 random(7);
  for (const int dim : {64, 128, 256}) {
    const int scale = dim == 128 ? 1 : 2;  // one dim at length, for the emulator's sake
    Case c;
    c.spec = base_spec(8, 2);
    c.spec.head_dim_qk = c.spec.head_dim_vo = dim;
    c.qo_len = {300 / scale, 1, 1, 33, 1};
    c.kv_len = {2000 / scale, 3000 / scale, 17, 33, 1024};
    check(c, random);
  }
}

TEST_F(GpuHopper, MergesInALaunchOfTheirOwn) {
  // 160 fused rows behind 10 chunks of a prefix: more than last arrivers merge, see executor.cpp.
  std::mt19937_64 random(11);
  Case c;
  c.spec = base_spec(8, 1);
  c.policy.kind = PolicyKind::kFixedChunk;
  c.policy.kv_chunk = 32;
  c.shared_prefix = true;
  c.prefix = 320;
  c.qo_len.assign(20, 1);
  for (int i = 0; i < 20; ++i) c.kv_len.push_back(1 + 5 * i);
  check(c, random);
  c.spec.sink = true;
  check(c, random);
  c.state = true;
  check(c, random);
}

TEST_F(GpuHopper, Declines) {
  const Engine hopper = engine();
  const auto declined = [&](const AttentionSpec& spec) { return !hopper.refusals(spec).empty(); };
  EXPECT_FALSE(declined(base_spec(32, 8)));
  AttentionSpec spec = base_spec(32, 8);
  spec.head_dim_vo = 64;
  EXPECT_TRUE(declined(spec));
  spec.head_dim_qk = spec.head_dim_vo = 96;
  EXPECT_TRUE(declined(spec));
  spec.head_dim_qk = spec.head_dim_vo = 256;
  EXPECT_FALSE(declined(spec));
  spec.kv_dtype = DType::kF16;
  EXPECT_TRUE(declined(spec));
  spec.q_dtype = spec.o_dtype = DType::kF16;
  EXPECT_FALSE(declined(spec));
  spec = base_spec(24, 8);
  EXPECT_TRUE(declined(spec));
  spec = base_spec(32, 8);
  spec.page_size = 5;
  EXPECT_FALSE(declined(spec));
  spec = base_spec(32, 8);
  spec.alibi = true;
  EXPECT_FALSE(declined(spec));
  spec.sm_scale = 1e-20;
  EXPECT_TRUE(declined(spec));
  spec = base_spec(32, 8);
  spec.mask = MaskKind::kCustom;
  EXPECT_TRUE(declined(spec));
  Attention::Options options;
  options.policy.kind = PolicyKind::kBatchInvariant;
  Capacity capacity;
  capacity.max_requests = capacity.max_query_rows = 4;
  capacity.max_kv_tokens = 64;
  EXPECT_THROW(Attention(hopper, {base_spec(32, 8)}, capacity, options), Error);
}

}  // namespace
}  // namespace plait::cuda
