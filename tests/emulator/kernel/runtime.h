// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a kernel compiled for the emulator asks of it. Included by both sides.
#pragma once

#pragma GCC visibility push(default)
namespace plait_emulator {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct Dim {
  unsigned x, y, z;
};
// Constant for a thread, so that the compiler may keep what they answer.
[[gnu::const]] Dim thread_index();
[[gnu::const]] Dim block_index();
[[gnu::const]] Dim block_dim();
[[gnu::const]] Dim grid_dim();
u64 nanoseconds();

// ---- memory: addresses of the shared window are the 32-bit ones of PTX ----
void* dynamic_shared();
u32 shared_window(const void* pointer);
/// Host address of shared memory that this thread may access; reports what it may not.
void* shared_read(u32 address, u32 bytes);
void* shared_write(u32 address, u32 bytes);
u32 atomic_add(u32* address, u32 value);
u32 atomic_or(u32* address, u32 value);

// ---- warp collectives: every lane calls them ----
void warp_step(const char* operation);  // nothing but the meeting
u32 shuffle(u32 mask, u32 value, u32 source_lane);
bool any(u32 mask, bool value);
void sync_warp(u32 mask);
void load_matrices(bool transposed, u32* const (&words)[4], u32 address);
void store_matrices(u32 address, const u32 (&words)[4]);
/// d = a * b + c of m16n8k16.
void multiply(bool bf16, float* const (&d)[4], const u32 (&a)[4], const u32 (&b)[2],
              const float (&c)[4]);

// ---- barriers ----
void sync_block();
void barrier_sync(u32 id, u32 threads);
void barrier_arrive(u32 id, u32 threads);
void mbarrier_init(u32 barrier, u32 arrivals);
void mbarrier_arrive(u32 barrier, u32 expected_bytes);
bool mbarrier_try_wait(u32 barrier, u32 parity);
bool mbarrier_test_wait(u32 barrier, u32 parity);

// ---- asynchronous copies and products ----
/// Copies `valid` bytes and fills up to `bytes` with zeros, by the next matching wait.
void copy_async(u32 shared, u64 global, u32 bytes, u32 valid);
void copy_commit();
void copy_wait(u32 pending);
/// Arrives when what the thread has started has landed.
void mbarrier_arrive_after_copies(u32 barrier);
void tensor_copy(u32 shared, u64 map, const u32 (&coordinates)[5], u32 barrier);
/// One step of 16 along k of a 64 x columns product of a warpgroup, of bf16 or else f16; `a` is a
/// descriptor, or null if the four `a_words` hold A.
void warpgroup_multiply(bool bf16, float* const* d, u32 columns, const u64* a, const u32* a_words,
                        u64 b, bool accumulate, bool transposed_b);
void warpgroup_commit();
void warpgroup_wait(u32 pending);

}  // namespace plait_emulator
#pragma GCC visibility pop
