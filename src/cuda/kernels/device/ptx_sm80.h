// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// PTX of sm_80 and newer behind typed names: asynchronous copies, matrix loads, matrix products.
// Fragment layouts are those of the PTX ISA, "Matrix fragments for mma.m16n8k16".
#pragma once

#include "core/device/portable.h"
#include "cuda/kernels/common/dtypes.h"

namespace plait::device {

/// 16 x 16 operand of 16-bit elements. Word i of lane l: rows l / 4 (+8 for odd i), columns
/// 2 * (l % 4) and the next (+8 for i >= 2).
struct FragmentA {
  u32 word[4];
};

/// 16 x 8 operand (k x n). Word i of lane l: k = 2 * (l % 4) + 8 * i and the next, n = l / 4.
struct FragmentB {
  u32 word[2];
};

/// 16 x 8 accumulator. x[2 * half + e] of lane l: row l / 4 + 8 * half, column 2 * (l % 4) + e.
struct FragmentC {
  float x[4];
};

/// threadIdx.x, read anew: addresses made from it are not carried through a loop in registers that
/// the accumulators need.
__device__ __forceinline__ i32 fresh_thread_index() {
  u32 index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return static_cast<i32>(index);
}

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

/// a * b. With a sum behind it this becomes one instruction; the compiler's own product does not
/// always.
__device__ __forceinline__ u64 multiply_wide(u32 a, u32 b) {
  u64 product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
}

/// Copies `kBytes` from global to shared memory, or writes zeros where `valid` is false; both
/// addresses are multiples of kBytes. 16 bytes bypass L1: a key is read once per CTA.
template <int kBytes>
__device__ __forceinline__ void copy_async(u32 shared, const void* global, bool valid) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async moves 4, 8 or 16 bytes");
  const int size = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared),
                 "l"(global), "r"(size)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global),
                 "n"(kBytes), "r"(size)
                 : "memory");
  }
}

/// The same for what is known to be valid: a size that may be 0 costs instructions.
template <int kBytes>
__device__ __forceinline__ void copy_async(u32 shared, u64 global) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async moves 4, 8 or 16 bytes");
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(global), "n"(kBytes)
                 : "memory");
  }
}

__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most `kPending` of this thread's groups are still in flight.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(u32 (&word)[4], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(shared));
}

__device__ __forceinline__ void load_matrices_transposed(u32 (&word)[4], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(shared));
}

/// Four floats from shared memory, read anew: what does not change in a loop is not carried through
/// it in registers.
__device__ __forceinline__ void load_again(float (&x)[4], u32 shared) {
  asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(shared));
}

/// c += a * b.
template <DTypeCode kElement>
__device__ __forceinline__ void multiply_add(FragmentC& c, const FragmentA& a, const FragmentB& b) {
  static_assert(kElement == DTypeCode::kF16 || kElement == DTypeCode::kBF16,
                "the tensor cores take f16 or bf16 here");
  if constexpr (kElement == DTypeCode::kF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[0]),
          "r"(b.word[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b.word[0]),
          "r"(b.word[1]));
  }
}

/// Asks the L2 for the line of an address, and waits for nothing.
__device__ __forceinline__ void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

/// Adds to a counter that workers share and returns what it was. What this thread, and threads that
/// it met at a barrier, wrote before is seen by who adds later, and by threads that they meet.
__device__ __forceinline__ u32 atomic_add_acq_rel(u32* counter, u32 value) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(value)
               : "memory");
  return before;
}

/// Nanoseconds of the device-wide timer.
__device__ __forceinline__ u64 global_nanoseconds() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

}  // namespace plait::device
