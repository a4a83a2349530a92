// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// PTX instructions by name, `.` and `::` as `_`, operands in PTX order: what translate.h makes of
// an `asm` statement. An instruction that is not here does not compile.
#pragma once

#include "plait_emulator/runtime.h"

namespace plait_emulator {

/// Operands in braces: references where they are outputs, else values.
template <class T, int kCount>
struct References {
  T* at[kCount];
};
template <class T, int kCount>
struct Values {
  T at[kCount];
};
template <class T, class... Rest>
References<T, 1 + sizeof...(Rest)> group(T& first, Rest&... rest) {
  return {{&first, &rest...}};
}
template <class T, class... Rest>
Values<T, 1 + sizeof...(Rest)> group(T&& first, Rest&&... rest) {
  return {{first, rest...}};
}

/// Operands by constraint.
template <class T>
u32 operand_r(T value) {
  return static_cast<u32>(value);
}
inline float operand_f(float value) { return value; }
inline u16 operand_h(u16 value) { return value; }
template <class T>
u64 operand_l(T value) {
  return static_cast<u64>(value);
}
template <class T>
u64 operand_l(T* value) {
  return reinterpret_cast<u64>(value);
}
template <class T>
T operand_n(T value) {
  return value;
}

namespace ptx {

// ---- special registers, moves, predicates ----
inline u32 tid_x() { return thread_index().x; }
inline u64 globaltimer() { return nanoseconds(); }
inline void mov_u32(u32& d, u32 a) { d = a; }
inline void mov_u64(u64& d, u64 a) { d = a; }
inline void setp_ne_b32(bool& p, u32 a, u32 b) { p = a != b; }
inline void selp_u32(u32& d, u32 a, u32 b, bool p) { d = p ? a : b; }

// ---- conversions ----
inline u16 half_bits(float x) { return __builtin_bit_cast(u16, static_cast<_Float16>(x)); }
inline u32 bfloat_bits(float x) {
  const u32 bits = __builtin_bit_cast(u32, x);
  if (x != x) return 0x7FFF;
  return (bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16;
}
inline void cvt_f32_f16(float& d, u16 a) {
  d = static_cast<float>(__builtin_bit_cast(_Float16, a));
}
inline void cvt_rn_f16_f32(u16& d, float a) { d = half_bits(a); }
inline void cvt_rn_f16x2_f32(u32& d, float high, float low) {
  d = static_cast<u32>(half_bits(high)) << 16 | half_bits(low);
}
inline void cvt_rn_bf16x2_f32(u32& d, float high, float low) {
  d = bfloat_bits(high) << 16 | bfloat_bits(low);
}

// ---- special functions: more exact than the hardware's ----
inline float flushed(float x) { return __builtin_fabsf(x) < 1.17549435e-38F ? 0.0F * x : x; }
inline void ex2_approx_ftz_f32(float& d, float a) { d = flushed(__builtin_exp2f(flushed(a))); }
inline void lg2_approx_f32(float& d, float a) { d = __builtin_log2f(a); }
inline void rcp_approx_ftz_f32(float& d, float a) { d = flushed(1.0F / flushed(a)); }
inline void cos_approx_f32(float& d, float a) { d = __builtin_cosf(a); }
inline void sin_approx_f32(float& d, float a) { d = __builtin_sinf(a); }

// ---- asynchronous copies of a thread ----
inline void cp_async_cg_shared_global_L2_128B(u32 to, u64 from, u32 bytes, u32 valid) {
  copy_async(to, from, bytes, valid);
}
inline void cp_async_cg_shared_global_L2_128B(u32 to, u64 from, u32 bytes) {
  copy_async(to, from, bytes, bytes);
}
inline void cp_async_ca_shared_global(u32 to, u64 from, u32 bytes, u32 valid) {
  copy_async(to, from, bytes, valid);
}
inline void cp_async_ca_shared_global(u32 to, u64 from, u32 bytes) {
  copy_async(to, from, bytes, bytes);
}
inline void cp_async_commit_group() { copy_commit(); }
inline void cp_async_wait_group(u32 pending) { copy_wait(pending); }
inline void cp_async_mbarrier_arrive_noinc_shared_cta_b64(u32 barrier) {
  mbarrier_arrive_after_copies(barrier);
}
inline void mul_wide_u32(u64& d, u32 a, u32 b) { d = u64{a} * b; }

// ---- matrices of a warp ----
inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(References<u32, 4> d, u32 address) {
  load_matrices(false, d.at, address);
}
inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(References<u32, 4> d, u32 address) {
  load_matrices(true, d.at, address);
}
inline void stmatrix_sync_aligned_m8n8_x4_shared_b16(u32 address, Values<u32, 4> words) {
  store_matrices(address, words.at);
}
template <bool kBf16>
inline void multiply_in_place(References<float, 4> d, const Values<u32, 4>& a,
                              const Values<u32, 2>& b, const References<float, 4>& c) {
  const float before[4] = {*c.at[0], *c.at[1], *c.at[2], *c.at[3]};
  multiply(kBf16, d.at, a.at, b.at, before);
}
inline void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(References<float, 4> d,
                                                              Values<u32, 4> a, Values<u32, 2> b,
                                                              References<float, 4> c) {
  multiply_in_place<false>(d, a, b, c);
}
inline void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(References<float, 4> d,
                                                                Values<u32, 4> a, Values<u32, 2> b,
                                                                References<float, 4> c) {
  multiply_in_place<true>(d, a, b, c);
}

// ---- shared memory ----
inline void st_shared_v4_b32(u32 address, Values<u32, 4> words) {
  __builtin_memcpy(shared_write(address, 16), words.at, 16);
}
inline void st_shared_b32(u32 address, u32 word) {
  __builtin_memcpy(shared_write(address, 4), &word, 4);
}
inline void ld_volatile_shared_v4_f32(References<float, 4> d, u32 address) {
  const float* from = static_cast<const float*>(shared_read(address, 16));
  for (int i = 0; i < 4; ++i) *d.at[i] = from[i];
}
inline void ld_shared_v4_b32(References<u32, 4> d, u32 address) {
  const u32* from = static_cast<const u32*>(shared_read(address, 16));
  for (int i = 0; i < 4; ++i) *d.at[i] = from[i];
}

// ---- barriers; fences order nothing here, since every access takes effect at once ----
inline void bar_sync(u32 id, u32 threads) { barrier_sync(id, threads); }
inline void bar_arrive(u32 id, u32 threads) { barrier_arrive(id, threads); }
inline void mbarrier_init_shared_cta_b64(u32 barrier, u32 arrivals) {
  mbarrier_init(barrier, arrivals);
}
inline void mbarrier_arrive_shared_cta_b64(u32 barrier) { mbarrier_arrive(barrier, 0); }
inline void mbarrier_arrive_expect_tx_shared_cta_b64(u32 barrier, u32 bytes) {
  mbarrier_arrive(barrier, bytes);
}
inline void mbarrier_try_wait_parity_shared_cta_b64(bool& done, u32 barrier, u32 parity) {
  done = mbarrier_try_wait(barrier, parity);
}
inline void mbarrier_test_wait_parity_shared_cta_b64(bool& done, u32 barrier, u32 parity) {
  done = mbarrier_test_wait(barrier, parity);
}
inline void fence_mbarrier_init_release_cluster() {}
inline void fence_proxy_async_shared_cta() {}

inline void atom_acq_rel_gpu_global_add_u32(u32& before, u64 at, u32 value) {
  before = atomic_add(reinterpret_cast<u32*>(at), value);
}

// ---- hints, and the order of grids: one runs after the other here ----
inline void prefetch_global_L2(u64) {}
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}

// ---- the copy engine ----
inline void prefetch_tensormap(u64) {}
inline void cp_async_bulk_tensor_5d_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(
    u32 to, u64 map, Values<u32, 5> at, u32 barrier, u64) {
  tensor_copy(to, map, at.at, barrier);
}

// ---- warpgroups ----
inline void setmaxnreg_dec_sync_aligned_u32(u32) { warp_step("setmaxnreg.dec"); }
inline void setmaxnreg_inc_sync_aligned_u32(u32) { warp_step("setmaxnreg.inc"); }
inline void wgmma_fence_sync_aligned() { warp_step("wgmma.fence"); }
inline void wgmma_commit_group_sync_aligned() { warpgroup_commit(); }
inline void wgmma_wait_group_sync_aligned(u32 pending) { warpgroup_wait(pending); }
/// Scales of 1, A and B in shared memory both untransposed, or A in registers and B transposed, are
/// all that is emulated.
#define PLAIT_WGMMA(columns, type, bf16)                                                           \
  inline void wgmma_mma_async_sync_aligned_m64n##columns##k16_f32_##type##_##type(                 \
      References<float, columns / 2> d, u64 a, u64 b, bool accumulate, int, int, int, int) {       \
    warpgroup_multiply(bf16, d.at, columns, &a, nullptr, b, accumulate, false);                    \
  }                                                                                                \
  inline void wgmma_mma_async_sync_aligned_m64n##columns##k16_f32_##type##_##type(                 \
      References<float, columns / 2> d, Values<u32, 4> a, u64 b, bool accumulate, int, int, int) { \
    warpgroup_multiply(bf16, d.at, columns, nullptr, a.at, b, accumulate, true);                   \
  }
PLAIT_WGMMA(64, f16, false)
PLAIT_WGMMA(64, bf16, true)
PLAIT_WGMMA(128, f16, false)
PLAIT_WGMMA(128, bf16, true)
PLAIT_WGMMA(256, f16, false)
PLAIT_WGMMA(256, bf16, true)
#undef PLAIT_WGMMA

}  // namespace ptx
}  // namespace plait_emulator
