// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/step_runner.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/convert.h"
#include "engine/attention_impl.h"
#include "plait/ops.h"

namespace plait::serve {
namespace {

DType activation_dtype(DType kv_dtype) { return size_of(kv_dtype) == 1 ? DType::kBF16 : kv_dtype; }

/// The keys that an arm reads are rotated, unless it rotates them itself or nobody does.
bool reads_rotated(const ArmSpec& arm, RopeMode mode) {
  return mode != RopeMode::kNone && !arm.fused_rope;
}

/// `count` elements of `data` from `begin` on, as floats.
void widen(DType dtype, const std::byte* data, std::int64_t begin, std::int64_t count, float* out) {
  if (dtype == DType::kBF16) {  // the usual one, and a shift
    const std::byte* from = data + 2 * begin;
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, from + 2 * i, 2);
      out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(load_element(dtype, data, begin + i));
  }
}

bool any_arm(std::span<const std::unique_ptr<Arm>> arms, RopeMode mode, bool rotated) {
  return std::any_of(arms.begin(), arms.end(), [&](const std::unique_ptr<Arm>& arm) {
    return reads_rotated(arm->spec, mode) == rotated;
  });
}

}  // namespace

StepRunner::StepRunner(const Trace& trace, const Geometry& geometry, const ReplayOptions& options,
                       const Engine& engine, Memory& memory,
                       std::span<const std::unique_ptr<Arm>> arms, std::int32_t pool_pages)
    : trace_(trace),
      geometry_(geometry),
      options_(options),
      engine_(engine),
      memory_(memory),
      activation_(activation_dtype(options.kv_dtype)),
      store_(memory, geometry, options.kv_dtype, pool_pages, options.scheduler.page_size,
             any_arm(arms, options.rope, true), any_arm(arms, options.rope, false)),
      data_(activation_, std::int64_t{geometry.num_qo_heads} * geometry.head_dim, options.seed),
      pool_bytes_(geometry.kv_bytes_per_token(options.kv_dtype) * pool_pages *
                  options.scheduler.page_size),
      needs_rotated_(any_arm(arms, options.rope, true)),
      difference_(arms.size(), 0.0) {
  const auto& impl = arms[0]->attention->impl();
  // What runs at a time, whatever number of workers the plans were made for.
  parallel_workers_ =
      impl.backend().target(impl.groups()[0], Policy{}, engine.options()).num_workers;
  const std::int64_t row_bytes =
      std::int64_t{options.scheduler.token_budget} * geometry.head_dim * size_of(activation_);
  const std::int64_t q_bytes = row_bytes * geometry.num_qo_heads;
  const std::int64_t kv_bytes = row_bytes * geometry.num_kv_heads;
  q_ = Mirror(memory, q_bytes, "queries");
  k_ = Mirror(memory, kv_bytes, "keys");
  v_ = Mirror(memory, kv_bytes, "values");
  if (needs_rotated_) {
    q_rotated_ = Mirror(memory, q_bytes, "queries");
    k_rotated_ = Mirror(memory, kv_bytes, "keys");
  }
  for (std::size_t i = 0; i < arms.size(); ++i) outputs_.emplace_back(memory, q_bytes, "outputs");
}

Tensor StepRunner::rows(std::byte* data, std::int32_t heads) const {
  return Tensor::contiguous(data, activation_, {num_rows_, heads, geometry_.head_dim},
                            memory_.device());
}

void StepRunner::describe_tokens(std::span<const StepEntry> entries, const StepForms& forms) {
  tokens_.clear();
  batch_indices_.clear();
  positions_.clear();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const StepEntry& entry = entries[i];
    const TraceRequest& request = trace_.requests[static_cast<std::size_t>(entry.request)];
    for (std::int32_t p = entry.context; p < entry.context + entry.rows; ++p) {
      tokens_.push_back(TokenData::token_id(request, entry.request, p));
      batch_indices_.push_back(static_cast<std::int32_t>(i));
      positions_.push_back(p);
    }
  }
  num_rows_ = std::ssize(tokens_);
  step_.batch_indices = lists_[0].place(memory_, batch_indices_);
  step_.positions = lists_[1].place(memory_, positions_);
  step_.page_indptr = lists_[2].place(memory_, forms.flat->page_indptr(0));
  step_.flat_ids = {lists_[3].place(memory_, forms.flat->page_ids(0))};
  step_.composed_ids.clear();
  if (forms.composed == nullptr) return;
  for (int view = 0; view < forms.composed->num_views(); ++view) {
    step_.composed_ids.push_back(
        lists_[static_cast<std::size_t>(4 + view)].place(memory_, forms.composed->page_ids(view)));
  }
}

void StepRunner::make_inputs() {
  const std::int64_t q_count = std::int64_t{geometry_.num_qo_heads} * geometry_.head_dim;
  const std::int64_t kv_count = std::int64_t{geometry_.num_kv_heads} * geometry_.head_dim;
  const std::int64_t q_bytes = q_count * size_of(activation_);
  const std::int64_t kv_bytes = kv_count * size_of(activation_);
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    const auto row = static_cast<std::int64_t>(t);
    data_.fill(tokens_[t], TokenData::Kind::kQuery, q_count, q_.host() + row * q_bytes);
    data_.fill(tokens_[t], TokenData::Kind::kKey, kv_count, k_.host() + row * kv_bytes);
    data_.fill(tokens_[t], TokenData::Kind::kValue, kv_count, v_.host() + row * kv_bytes);
  }
  q_.push(num_rows_ * q_bytes);
  k_.push(num_rows_ * kv_bytes);
  v_.push(num_rows_ * kv_bytes);
}

double StepRunner::rotate() {
  if (!needs_rotated_) return 0.0;
  memory_.start_timer();
  apply_rope(engine_, rows(q_.device(), geometry_.num_qo_heads), step_.positions, geometry_.rope,
             rows(q_rotated_.device(), geometry_.num_qo_heads));
  apply_rope(engine_, rows(k_.device(), geometry_.num_kv_heads), step_.positions, geometry_.rope,
             rows(k_rotated_.device(), geometry_.num_kv_heads));
  return memory_.stop_timer_us();
}

double StepRunner::append(std::int32_t layer) {
  double microseconds = 0.0;
  const Tensor v_new = rows(v_.device(), geometry_.num_kv_heads);
  for (const bool rotated : {true, false}) {
    if (!store_.has_k(rotated)) continue;
    const Tensor k_new = rows(rotated ? k_rotated_.device() : k_.device(), geometry_.num_kv_heads);
    memory_.start_timer();
    append_paged_kv(engine_, k_new, v_new, step_.batch_indices, step_.positions, step_.page_indptr,
                    step_.flat_ids[0], store_.k(layer, rotated), store_.v(layer), KvLayout::kNhd);
    microseconds = std::max(microseconds, memory_.stop_timer_us());
  }
  return microseconds;
}

/// Copies the pages of every request into one stretch, token by token in logical order.
void StepRunner::gather(std::span<const StepEntry> entries, const BatchForm& flat,
                        std::int32_t layer, bool rotated) {
  const std::int64_t page_size = options_.scheduler.page_size;
  const std::int64_t token_bytes =
      std::int64_t{geometry_.num_kv_heads} * geometry_.head_dim * size_of(options_.kv_dtype);
  gathered_tokens_ = 0;
  for (const StepEntry& entry : entries) gathered_tokens_ += entry.context + entry.rows;
  if (gathered_k_.bytes() < gathered_tokens_ * token_bytes) {
    const std::int64_t bytes = gathered_tokens_ * token_bytes * 5 / 4;
    gathered_k_ = Mirror(memory_, bytes, "contiguous keys");
    gathered_v_ = Mirror(memory_, bytes, "contiguous values");
  }
  const auto* k_pages = static_cast<const std::byte*>(store_.k(layer, rotated).data);
  const auto* v_pages = static_cast<const std::byte*>(store_.v(layer).data);
  const auto ids = flat.page_ids(0);
  std::int64_t token = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    std::int64_t left = entries[i].context + entries[i].rows;
    for (auto page = static_cast<std::size_t>(flat.page_indptr(0)[i]); left > 0;) {
      // Neighbours in the pool are one copy.
      std::size_t run = 1;
      while (static_cast<std::int64_t>(run) * page_size < left &&
             ids[page + run] == ids[page] + static_cast<std::int32_t>(run)) {
        ++run;
      }
      const std::int64_t count = std::min(left, static_cast<std::int64_t>(run) * page_size);
      const std::int64_t from = ids[page] * page_size * token_bytes;
      memory_.copy_within(gathered_k_.device() + token * token_bytes, k_pages + from,
                          count * token_bytes);
      memory_.copy_within(gathered_v_.device() + token * token_bytes, v_pages + from,
                          count * token_bytes);
      token += count;
      left -= count;
      page += run;
    }
  }
}

void StepRunner::run_arm(Arm& arm, std::size_t index, std::int32_t group, std::int32_t layer,
                         ArmTimes& times) {
  const bool rotated = reads_rotated(arm.spec, options_.rope);
  RunArgs args;
  args.group = group;
  args.q = rows(rotated ? q_rotated_.device() : q_.device(), geometry_.num_qo_heads);
  args.o = rows(outputs_[index].device(), geometry_.num_qo_heads);
  if (arm.spec.contiguous) {
    args.k = Tensor::contiguous(gathered_k_.device(), options_.kv_dtype,
                                {gathered_tokens_, geometry_.num_kv_heads, geometry_.head_dim},
                                memory_.device());
    args.v = args.k;
    args.v.data = gathered_v_.device();
  } else {
    args.page_ids = arm.is_composed(group) ? step_.composed_ids : step_.flat_ids;
    args.k = store_.k(layer, rotated);
    args.v = store_.v(layer);
  }
  // An arm that writes only part of its output must not inherit the rest from the step before.
  memory_.fill(outputs_[index].device(), 0xff, args.o.size() * size_of(activation_));
  memory_.start_timer();
  arm.attention->run(args);
  times.attention_us += memory_.stop_timer_us();
  // Any thread may take any worker's list, so what counts is when the last one was done against
  // what it would be had all been equally busy.
  std::int64_t busy = 0;
  std::int64_t merging = 0;
  std::int64_t first = INT64_MAX;
  std::int64_t last = 0;
  for (const WorkerTime& worker : arm.attention->impl().executor().worker_times(args.stream)) {
    busy += worker.end_ns - worker.begin_ns;
    merging += worker.merge_ns;
    first = std::min(first, worker.begin_ns);
    last = std::max(last, worker.end_ns);
  }
  if (busy > 0) {
    times.busy_us += static_cast<double>(busy) / parallel_workers_ / 1e3;
    times.longest_us += static_cast<double>(last - first) / 1e3;
    times.merge_us += static_cast<double>(merging) / parallel_workers_ / 1e3;
  }
}

void StepRunner::compare_outputs(std::size_t num_arms) {
  const std::int64_t count = num_rows_ * geometry_.num_qo_heads * geometry_.head_dim;
  for (std::size_t arm = 0; arm < num_arms; ++arm) {
    outputs_[arm].pull(count * size_of(activation_));
  }
  // Several sums at a time, in an order that is always the same: one would wait for itself.
  constexpr std::size_t kSums = 16;
  std::array<double, kSums> sums{};
  bool finite = true;
  constexpr std::int64_t kChunk = 4096;
  std::array<float, kChunk> baseline;
  std::array<float, kChunk> other;
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    const std::int64_t n = std::min(kChunk, count - begin);
    widen(activation_, outputs_[0].host(), begin, n, baseline.data());
    std::fill(baseline.begin() + n, baseline.end(), 0.0F);
    for (std::size_t i = 0; i < baseline.size(); i += kSums) {
      for (std::size_t lane = 0; lane < kSums; ++lane) sums[lane] += baseline[i + lane];
    }
    for (std::size_t arm = 1; arm < num_arms; ++arm) {
      widen(activation_, outputs_[arm].host(), begin, n, other.data());
      double largest = 0.0;
      double total = 0.0;
      for (std::int64_t i = 0; i < n; ++i) {
        const auto k = static_cast<std::size_t>(i);
        const double difference = std::abs(other[k] - baseline[k]);
        largest = std::max(largest, difference);
        total += difference;  // keeps a NaN, which a maximum may lose
      }
      finite = finite && std::isfinite(total);
      difference_[arm] = std::max(difference_[arm], largest);
    }
  }
  const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
  if (!finite || !std::isfinite(sum)) {  // a row that was not written, or a broken kernel
    throw Error(ErrorCode::kInternal, "attention output", "a value that is not finite",
                "finite outputs of finite inputs");
  }
  checksum_ += sum;
}

double StepRunner::run(std::span<const StepEntry> entries, const StepForms& forms,
                       std::span<const std::unique_ptr<Arm>> arms, std::span<ArmTimes> times) {
  describe_tokens(entries, forms);
  make_inputs();
  std::fill(times.begin(), times.end(), ArmTimes{});
  double append_us = 0.0;
  std::int32_t layer = 0;
  for (std::int32_t group = 0; group < std::ssize(geometry_.groups); ++group) {
    for (std::int32_t i = 0; i < geometry_.groups[static_cast<std::size_t>(group)].layers;
         ++i, ++layer) {
      const double rope_us = rotate();
      append_us += append(layer);
      // Who runs first finds colder caches: the arms take turns.
      for (std::size_t turn = 0; turn < arms.size(); ++turn) {
        const std::size_t a = (turn + static_cast<std::size_t>(turn_)) % arms.size();
        const bool rotated = reads_rotated(arms[a]->spec, options_.rope);
        if (arms[a]->spec.contiguous) gather(entries, *forms.flat, layer, rotated);
        run_arm(*arms[a], a, group, layer, times[a]);
        if (rotated) times[a].rope_us += rope_us;
      }
      // The layers of a group compute the same from the same rows.
      if (i == 0) compare_outputs(arms.size());
      ++turn_;
    }
  }
  for (const auto& arm : arms) arm->attention->status();
  return append_us;
}

}  // namespace plait::serve
