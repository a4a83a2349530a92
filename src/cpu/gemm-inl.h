// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The register-blocked matrix product behind both halves of attention: logits are K times q_t,
// outputs are the weights times V. Each element of c sums its products in order of k with fused
// multiply-adds, whatever the blocking: its bits depend on its own row and column alone.
#if defined(PLAIT_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PLAIT_CPU_GEMM_INL_H_
#undef PLAIT_CPU_GEMM_INL_H_
#else
#define PLAIT_CPU_GEMM_INL_H_
#endif

#include <cstddef>

#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace plait::cpu::HWY_NAMESPACE {

// Accumulators must fit the register file beside NV vectors of b and one broadcast.
#if HWY_MAX_BYTES == 64 || HWY_ARCH_ARM_A64
inline constexpr int kMicroRows = 6;
inline constexpr int kMicroVectors = 4;
#else
inline constexpr int kMicroRows = 6;
inline constexpr int kMicroVectors = 2;
#endif

template <int MR, int NV>
HWY_NOINLINE void micro_kernel(int k, const float* HWY_RESTRICT a, std::ptrdiff_t am,
                               std::ptrdiff_t ak, const float* HWY_RESTRICT b, std::ptrdiff_t ldb,
                               float* HWY_RESTRICT c, std::ptrdiff_t ldc, const float* row_scale) {
  const DF df;
  VF acc[MR][NV];
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) {
      acc[m][n] = row_scale == nullptr
                      ? hn::Zero(df)
                      : hn::Mul(hn::LoadU(df, c + m * ldc + n * kLanes), hn::Set(df, row_scale[m]));
    }
  }
  for (int i = 0; i < k; ++i) {
    VF bv[NV];
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) bv[n] = hn::LoadU(df, b + n * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
      const VF av = hn::Set(df, a[m * am]);
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) acc[m][n] = hn::MulAdd(av, bv[n], acc[m][n]);
    }
    a += ak;
    b += ldb;
  }
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) hn::StoreU(acc[m][n], df, c + m * ldc + n * kLanes);
  }
}

template <int NV>
void gemm_columns(int m, int k, const float* a, std::ptrdiff_t am, std::ptrdiff_t ak,
                  const float* b, std::ptrdiff_t ldb, float* c, std::ptrdiff_t ldc,
                  const float* row_scale) {
  const auto scale_at = [&](int i) { return row_scale == nullptr ? nullptr : row_scale + i; };
  int i = 0;
  for (; i + kMicroRows <= m; i += kMicroRows) {
    micro_kernel<kMicroRows, NV>(k, a + i * am, am, ak, b, ldb, c + i * ldc, ldc, scale_at(i));
  }
  for (; i + 2 <= m; i += 2) {
    micro_kernel<2, NV>(k, a + i * am, am, ak, b, ldb, c + i * ldc, ldc, scale_at(i));
  }
  if (i < m) micro_kernel<1, NV>(k, a + i * am, am, ak, b, ldb, c + i * ldc, ldc, scale_at(i));
}

inline void gemm(int m, int n, int k, const float* a, std::ptrdiff_t am, std::ptrdiff_t ak,
                 const float* b, std::ptrdiff_t ldb, float* c, std::ptrdiff_t ldc,
                 const float* row_scale) {
  int column = 0;
  for (; column + kMicroVectors * kLanes <= n; column += kMicroVectors * kLanes) {
    gemm_columns<kMicroVectors>(m, k, a, am, ak, b + column, ldb, c + column, ldc, row_scale);
  }
  if constexpr (kMicroVectors > 2) {
    for (; column + 2 * kLanes <= n; column += 2 * kLanes) {
      gemm_columns<2>(m, k, a, am, ak, b + column, ldb, c + column, ldc, row_scale);
    }
  }
  for (; column < n; column += kLanes) {
    gemm_columns<1>(m, k, a, am, ak, b + column, ldb, c + column, ldc, row_scale);
  }
}

}  // namespace plait::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
