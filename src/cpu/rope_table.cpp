// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/rope_table.h"

#include <algorithm>
#include <cmath>

#include "core/rope_frequency.h"

namespace plait::cpu {
namespace {

// Beyond this the table would not stay in cache; further positions are computed.
constexpr std::int64_t kMaxTabulated = std::int64_t{1} << 20;

}  // namespace

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
