// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The device vocabulary of sm_90a: mbarriers, bulk tensor copies, warpgroup matrix products and
// register hand-over. One function per instruction, destination first, no policy. Shared-memory
// addresses are 32-bit shared-window addresses (`shared_address`).
#pragma once

#include "core/device/portable.h"

namespace plait::device {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

#define PLAIT_DEVICE __device__ __forceinline__

PLAIT_DEVICE u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// ---- mbarrier -------------------------------------------------------------------------------

PLAIT_DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Makes initialised barriers visible to the bulk-copy engine.
PLAIT_DEVICE void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

PLAIT_DEVICE void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives and announces that `bytes` of bulk copies will complete on this phase.
PLAIT_DEVICE void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

PLAIT_DEVICE bool mbarrier_try_wait(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

/// Waits until the phase of the given parity has completed.
PLAIT_DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

// ---- named barriers -------------------------------------------------------------------------

PLAIT_DEVICE void named_barrier_sync(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
PLAIT_DEVICE void named_barrier_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Orders this thread's ordinary shared-memory accesses before later accesses of the copy engine
/// and the tensor cores.
PLAIT_DEVICE void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- bulk tensor copies ---------------------------------------------------------------------

PLAIT_DEVICE void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// L2 policies as `createpolicy.fractional` with fraction 1 encodes them: for data that one worker
/// reads once, and for data that several read.
inline constexpr u64 kL2EvictFirst = 0x12F0000000000000ULL;
inline constexpr u64 kL2EvictLast = 0x14F0000000000000ULL;

/// Copies one box of the rank-5 tensor of a CUtensorMap to shared memory; completes on `barrier`.
PLAIT_DEVICE void tma_load_5d(u32 dst, const void* map, u32 barrier, i32 c0, i32 c1, i32 c2, i32 c3,
                              i32 c4, u64 l2_policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(dst),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(l2_policy)
      : "memory");
}

// ---- registers ------------------------------------------------------------------------------

template <u32 kCount>
PLAIT_DEVICE void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <u32 kCount>
PLAIT_DEVICE void acquire_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// ---- matrices -------------------------------------------------------------------------------

/// Two floats as packed bf16, `low` in the lower half.
PLAIT_DEVICE u32 pack_bf16(float low, float high) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// 2^x, flushing denormal results; 2^-inf = 0.
PLAIT_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

PLAIT_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

PLAIT_DEVICE void ldmatrix_x4(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
PLAIT_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
PLAIT_DEVICE void stmatrix_x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

/// d[16 x 8] += a[16 x 16] b[16 x 8], one warp.
PLAIT_DEVICE void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- shared memory, 128-byte rows -----------------------------------------------------------

/// Byte offset of 16-byte chunk `chunk` (0..7) of 128-byte row `row` under the copy engine's
/// 128-byte swizzle, in a buffer aligned to 1024 bytes.
PLAIT_DEVICE u32 swizzle128(u32 row, u32 chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

PLAIT_DEVICE void store_shared_zero16(u32 address) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}
PLAIT_DEVICE uint4 load_shared16(u32 address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

#endif  // __CUDACC__

}  // namespace plait::device
