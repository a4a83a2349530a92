// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/step_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/convert.h"
#include "engine/attention_impl.h"
#include "plait/ops.h"
#include "serve/stopwatch.h"

namespace plait::serve {
namespace {

DType activation_dtype(DType kv_dtype) { return size_of(kv_dtype) == 1 ? DType::kBF16 : kv_dtype; }

/// The keys that an arm reads are rotated, unless it rotates them itself or nobody does.
bool reads_rotated(const ArmSpec& arm, RopeMode mode) {
  return mode != RopeMode::kNone && !arm.fused_rope;
}

bool any_arm(std::span<const std::unique_ptr<Arm>> arms, RopeMode mode, bool rotated) {
  return std::any_of(arms.begin(), arms.end(), [&](const std::unique_ptr<Arm>& arm) {
    return reads_rotated(arm->spec, mode) == rotated;
  });
}

}  // namespace

StepRunner::StepRunner(const Trace& trace, const Geometry& geometry, const ReplayOptions& options,
                       const Engine& engine, std::span<const std::unique_ptr<Arm>> arms,
                       std::int32_t pool_pages)
    : trace_(trace),
      geometry_(geometry),
      options_(options),
      engine_(engine),
      activation_(activation_dtype(options.kv_dtype)),
      store_(geometry, options.kv_dtype, pool_pages, options.scheduler.page_size,
             any_arm(arms, options.rope, true), any_arm(arms, options.rope, false)),
      data_(activation_, std::int64_t{geometry.num_qo_heads} * geometry.head_dim, options.seed),
      pool_bytes_(geometry.kv_bytes_per_token(options.kv_dtype) * pool_pages *
                  options.scheduler.page_size),
      needs_rotated_(any_arm(arms, options.rope, true)),
      needs_unrotated_(any_arm(arms, options.rope, false)),
      difference_(arms.size(), 0.0) {
  const auto& impl = arms[0]->attention.impl();
  // What runs at a time, whatever number of workers the plans were made for.
  parallel_workers_ =
      impl.backend().target(impl.groups()[0], Policy{}, engine.options()).num_workers;
  const std::int64_t row_bytes =
      std::int64_t{options.scheduler.token_budget} * geometry.head_dim * size_of(activation_);
  const std::int64_t q_bytes = row_bytes * geometry.num_qo_heads;
  const std::int64_t kv_bytes = row_bytes * geometry.num_kv_heads;
  q_ = HostBuffer(q_bytes, "queries");
  k_ = HostBuffer(kv_bytes, "keys");
  v_ = HostBuffer(kv_bytes, "values");
  if (needs_rotated_) {
    q_rotated_ = HostBuffer(q_bytes, "queries");
    k_rotated_ = HostBuffer(kv_bytes, "keys");
  }
  for (std::size_t i = 0; i < arms.size(); ++i) outputs_.emplace_back(q_bytes, "outputs");
}

Tensor StepRunner::rows(const HostBuffer& buffer, std::int32_t heads, DType dtype) const {
  return Tensor::contiguous(buffer.data(), dtype, {num_rows_, heads, geometry_.head_dim});
}

Tensor StepRunner::indices(std::span<const std::int32_t> values) const {
  return Tensor::contiguous(values.data(), DType::kI32, {std::ssize(values)});
}

void StepRunner::describe_tokens(std::span<const StepEntry> entries) {
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
}

void StepRunner::make_inputs(std::int32_t layer) {
  const std::int64_t q_count = std::int64_t{geometry_.num_qo_heads} * geometry_.head_dim;
  const std::int64_t kv_count = std::int64_t{geometry_.num_kv_heads} * geometry_.head_dim;
  const std::int64_t q_bytes = q_count * size_of(activation_);
  const std::int64_t kv_bytes = kv_count * size_of(activation_);
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    const auto row = static_cast<std::int64_t>(t);
    data_.fill(tokens_[t], layer, TokenData::Kind::kQuery, q_count, q_.data() + row * q_bytes);
    data_.fill(tokens_[t], layer, TokenData::Kind::kKey, kv_count, k_.data() + row * kv_bytes);
    data_.fill(tokens_[t], layer, TokenData::Kind::kValue, kv_count, v_.data() + row * kv_bytes);
  }
}

double StepRunner::append(std::int32_t layer, const BatchForm& flat) {
  double microseconds = 0.0;
  const Tensor v_new = rows(v_, geometry_.num_kv_heads, activation_);
  for (const bool rotated : {true, false}) {
    if (!store_.has_k(rotated)) continue;
    const Tensor k_new = rows(rotated ? k_rotated_ : k_, geometry_.num_kv_heads, activation_);
    const Stopwatch watch;
    append_paged_kv(engine_, k_new, v_new, indices(batch_indices_), indices(positions_),
                    indices(flat.page_indptr(0)), indices(flat.page_ids(0)),
                    store_.k(layer, rotated), store_.v(layer), KvLayout::kNhd);
    microseconds = std::max(microseconds, watch.microseconds());
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
    gathered_k_ = HostBuffer(bytes, "contiguous keys");
    gathered_v_ = HostBuffer(bytes, "contiguous values");
  }
  const auto* k_pages = static_cast<const std::byte*>(store_.k(layer, rotated).data);
  const auto* v_pages = static_cast<const std::byte*>(store_.v(layer).data);
  std::int64_t token = 0;
  const auto ids = flat.page_ids(0);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    std::int64_t left = entries[i].context + entries[i].rows;
    for (auto page = static_cast<std::size_t>(flat.page_indptr(0)[i]); left > 0; ++page) {
      const std::int64_t count = std::min(left, page_size);
      const std::int64_t from = ids[page] * page_size * token_bytes;
      const auto bytes = static_cast<std::size_t>(count * token_bytes);
      std::memcpy(gathered_k_.data() + token * token_bytes, k_pages + from, bytes);
      std::memcpy(gathered_v_.data() + token * token_bytes, v_pages + from, bytes);
      token += count;
      left -= count;
    }
  }
}

void StepRunner::run_arm(Arm& arm, std::size_t index, std::int32_t group, std::int32_t layer,
                         const StepForms& forms, ArmTimes& times) {
  const bool rotated = reads_rotated(arm.spec, options_.rope);
  RunArgs args;
  args.group = group;
  args.q = rows(rotated ? q_rotated_ : q_, geometry_.num_qo_heads, activation_);
  args.o = rows(outputs_[index], geometry_.num_qo_heads, activation_);
  std::vector<Tensor> ids;
  if (arm.spec.contiguous) {
    args.k = Tensor::contiguous(gathered_k_.data(), options_.kv_dtype,
                                {gathered_tokens_, geometry_.num_kv_heads, geometry_.head_dim});
    args.v = args.k;
    args.v.data = gathered_v_.data();
  } else {
    const BatchForm& form = arm.is_composed(group) ? *forms.composed : *forms.flat;
    for (int view = 0; view < form.num_views(); ++view) ids.push_back(indices(form.page_ids(view)));
    args.page_ids = ids;
    args.k = store_.k(layer, rotated);
    args.v = store_.v(layer);
  }
  // An arm that writes only part of its output must not inherit the rest from the step before.
  std::memset(outputs_[index].data(), 0xff,
              static_cast<std::size_t>(num_rows_ * geometry_.num_qo_heads * geometry_.head_dim *
                                       size_of(activation_)));
  const Stopwatch watch;
  arm.attention.run(args);
  times.attention_us += watch.microseconds();
  // Any thread may take any worker's list, so what counts is when the last one was done against
  // what it would be had all been equally busy.
  std::int64_t busy = 0;
  std::int64_t merging = 0;
  std::int64_t first = INT64_MAX;
  std::int64_t last = 0;
  for (const WorkerTime& worker : arm.attention.impl().executor().worker_times()) {
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
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = load_element(activation_, outputs_[0].data(), i);
    sum += value;
    for (std::size_t arm = 1; arm < num_arms; ++arm) {
      const double other = load_element(activation_, outputs_[arm].data(), i);
      difference_[arm] = std::max(difference_[arm], std::abs(other - value));
    }
  }
  // NaN anywhere: a row that was not written, or a broken kernel.
  if (!std::isfinite(sum)) {
    throw Error(ErrorCode::kInternal, "attention output", "a value that is not finite",
                "finite outputs of finite inputs");
  }
  checksum_ += sum;
}

double StepRunner::run(std::span<const StepEntry> entries, const StepForms& forms,
                       std::span<const std::unique_ptr<Arm>> arms, std::span<ArmTimes> times,
                       const std::function<bool()>& interrupted) {
  describe_tokens(entries);
  std::fill(times.begin(), times.end(), ArmTimes{});
  double append_us = 0.0;
  std::int32_t layer = 0;
  for (std::int32_t group = 0; group < std::ssize(geometry_.groups); ++group) {
    for (std::int32_t i = 0; i < geometry_.groups[static_cast<std::size_t>(group)].layers;
         ++i, ++layer) {
      if (interrupted && interrupted()) {
        throw Error(ErrorCode::kInterrupted, "replay", "an interrupt", "to run to the end");
      }
      make_inputs(layer);
      double rope_us = 0.0;
      if (needs_rotated_) {
        const Stopwatch watch;
        apply_rope(engine_, rows(q_, geometry_.num_qo_heads, activation_), indices(positions_),
                   geometry_.rope, rows(q_rotated_, geometry_.num_qo_heads, activation_));
        apply_rope(engine_, rows(k_, geometry_.num_kv_heads, activation_), indices(positions_),
                   geometry_.rope, rows(k_rotated_, geometry_.num_kv_heads, activation_));
        rope_us = watch.microseconds();
      }
      append_us += append(layer, *forms.flat);
      // Who runs first finds colder caches: the arms take turns.
      for (std::size_t turn = 0; turn < arms.size(); ++turn) {
        const std::size_t a = (turn + static_cast<std::size_t>(step_count_)) % arms.size();
        const bool rotated = reads_rotated(arms[a]->spec, options_.rope);
        if (arms[a]->spec.contiguous) gather(entries, *forms.flat, layer, rotated);
        run_arm(*arms[a], a, group, layer, forms, times[a]);
        if (rotated) times[a].rope_us += rope_us;
      }
      compare_outputs(arms.size());
      ++step_count_;
    }
  }
  return append_us;
}

}  // namespace plait::serve
