// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What sm_90a adds to ptx_sm80.h: mbarriers, bulk tensor copies, register hand-over (warpgroup
// products are in wgmma.h). One function per instruction, destination first, no policy.
// Shared-memory addresses are 32-bit shared-window addresses (`shared_address`).
#pragma once

#include "cuda/kernels/device/ptx_sm80.h"

namespace plait::device {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

#define PLAIT_DEVICE __device__ __forceinline__

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

/// Arrives when all cp.async copies that this thread has started have landed.
PLAIT_DEVICE void mbarrier_arrive_after_copies(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Whether the phase of the given parity has completed; does not wait.
PLAIT_DEVICE bool mbarrier_test(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
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
/// reads once, for data of no kind, and for data that several read.
inline constexpr u64 kL2EvictFirst = 0x12F0000000000000ULL;
inline constexpr u64 kL2EvictNormal = 0x1000000000000000ULL;
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

/// Stores four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix
/// l / 8.
PLAIT_DEVICE void store_matrices(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// ---- shared memory, 128-byte rows -----------------------------------------------------------

/// Byte offset of 16-byte chunk `chunk` (0..7) of 128-byte row `row` under the copy engine's
/// 128-byte swizzle, in a buffer aligned to 1024 bytes.
PLAIT_DEVICE u32 swizzle128(u32 row, u32 chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

PLAIT_DEVICE void store_shared_fill16(u32 address, u32 word) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(word) : "memory");
}
PLAIT_DEVICE void store_shared4(u32 address, u32 word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
PLAIT_DEVICE void store_shared16(u32 address, const uint4& value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
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
