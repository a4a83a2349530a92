// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace plait::cpu {
namespace {

// Beyond this the table would not stay in cache; further positions are computed.
constexpr std::int64_t kMaxTabulated = std::int64_t{1} << 20;

}  // namespace

std::vector<double> rope_frequencies(const RopeSpec& spec, std::int32_t head_dim) {
  const std::int32_t rotary = spec.rotary_dim == 0 ? head_dim : spec.rotary_dim;
  std::vector<double> frequency(static_cast<std::size_t>(rotary / 2));
  for (std::size_t i = 0; i < frequency.size(); ++i) {
    double f = std::pow(spec.theta, -2.0 * static_cast<double>(i) / rotary);
    if (spec.scaling == RopeScalingKind::kLinear) {
      f /= spec.factor;
    } else if (spec.scaling == RopeScalingKind::kLlama31) {
      // Long wavelengths are stretched by `factor`, short ones kept, those between interpolated.
      const double turns =
          static_cast<double>(spec.original_max_position) * f / (2.0 * std::numbers::pi);
      const double kept = std::clamp(
          (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor), 0.0,
          1.0);
      f = (1.0 - kept) * f / spec.factor + kept * f;
    }
    frequency[i] = f;
  }
  return frequency;
}

RopeTable::RopeTable(const RopeSpec& spec, std::int32_t head_dim, std::int64_t positions)
    : kind_(spec.kind), frequency_(rope_frequencies(spec, head_dim)) {
  half_ = static_cast<int>(frequency_.size());
  const std::int64_t tabulated = std::clamp<std::int64_t>(positions, kFine, kMaxTabulated);
  const std::int64_t rows = (tabulated + kFine - 1) / kFine;
  limit_ = rows * kFine;
  const auto fill = [&](std::vector<float>& table, std::int64_t count, std::int64_t step) {
    table.resize(static_cast<std::size_t>(count * 2 * half_));
    float* out = table.data();
    for (std::int64_t row = 0; row < count; ++row, out += 2 * half_) {
      for (int i = 0; i < half_; ++i) {
        const double angle =
            static_cast<double>(row * step) * frequency_[static_cast<std::size_t>(i)];
        out[i] = static_cast<float>(std::cos(angle));
        out[half_ + i] = static_cast<float>(std::sin(angle));
      }
    }
  };
  fill(fine_, kFine, 1);
  fill(coarse_, rows, kFine);
}

void RopeTable::angles(const KernelTable& kernels, std::int64_t position, float* cos,
                       float* sin) const {
  const std::int64_t row = position >= 0 ? position / kFine : -((kFine - 1 - position) / kFine);
  const float* fine = fine_.data() + (position - row * kFine) * 2 * half_;
  if (row >= 0 && position < limit_) {
    const float* coarse = coarse_.data() + row * 2 * half_;
    kernels.rope_angles(coarse, coarse + half_, fine, fine + half_, half_, cos, sin);
    return;
  }
  // The same sum of angles as inside the table: how far it reaches depends on the capacity, and
  // the bits of a request must not.
  for (int i = 0; i < half_; ++i) {
    const double angle = static_cast<double>(row * kFine) * frequency_[static_cast<std::size_t>(i)];
    cos[i] = static_cast<float>(std::cos(angle));
    sin[i] = static_cast<float>(std::sin(angle));
  }
  kernels.rope_angles(cos, sin, fine, fine + half_, half_, cos, sin);
}

void RopeTable::rotate(const KernelTable& kernels, std::int64_t position, float* row,
                       float* scratch) const {
  float* cos = scratch;
  float* sin = scratch + half_;
  angles(kernels, position, cos, sin);
  rotate_by(kernels, cos, sin, row);
}

void RopeTable::rotate_by(const KernelTable& kernels, const float* cos, const float* sin,
                          float* row) const {
  if (kind_ == RopeKind::kInterleaved) {
    kernels.rope_interleaved(row, cos, sin, half_);
  } else {
    kernels.rope_half(row, cos, sin, half_);
  }
}

}  // namespace plait::cpu
