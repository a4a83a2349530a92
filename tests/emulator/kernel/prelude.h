// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// CUDA C++ for the system's compiler: what a device compiler knows without an include. Included
// before a kernel's source, which is otherwise compiled as it is, except that its `asm` statements
// become calls of ptx.h and shared arrays pointers (tests/emulator/translate.h).
#pragma once

#include "plait_emulator/runtime.h"

#define __CUDACC_RTC__ 1
#define __device__
#define __host__
#define __global__ __attribute__((visibility("default")))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)
#define threadIdx (::plait_emulator::thread_index())
#define blockIdx (::plait_emulator::block_index())
#define blockDim (::plait_emulator::block_dim())
#define gridDim (::plait_emulator::grid_dim())

struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

#define PLAIT_MATH_1(name) \
  inline float name(float x) { return __builtin_##name(x); }
#define PLAIT_MATH_2(name) \
  inline float name(float x, float y) { return __builtin_##name(x, y); }
PLAIT_MATH_1(fabsf)
PLAIT_MATH_1(rintf)
PLAIT_MATH_1(floorf)
PLAIT_MATH_1(ceilf)
PLAIT_MATH_1(sqrtf)
PLAIT_MATH_1(expf)
PLAIT_MATH_1(exp2f)
PLAIT_MATH_1(logf)
PLAIT_MATH_1(log2f)
PLAIT_MATH_1(tanhf)
PLAIT_MATH_1(sinf)
PLAIT_MATH_1(cosf)
PLAIT_MATH_2(fminf)
PLAIT_MATH_2(fmaxf)
PLAIT_MATH_2(powf)
#undef PLAIT_MATH_1
#undef PLAIT_MATH_2
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline int __float2int_rn(float x) { return static_cast<int>(__builtin_rintf(x)); }
// Without contraction, so that each operation rounds on its own.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

template <class T>
inline T __ldg(const T* at) {
  return *at;
}
template <class T>
inline T __ldcg(const T* at) {
  return *at;
}
template <class T>
inline T __ldcs(const T* at) {
  return *at;
}
template <class T>
inline void __stcg(T* at, T value) {
  *at = value;
}
inline unsigned atomicAdd(unsigned* at, unsigned value) {
  return ::plait_emulator::atomic_add(at, value);
}
inline int atomicAdd(int* at, int value) {
  return static_cast<int>(
      ::plait_emulator::atomic_add(reinterpret_cast<unsigned*>(at), static_cast<unsigned>(value)));
}
inline unsigned atomicOr(unsigned* at, unsigned value) {
  return ::plait_emulator::atomic_or(at, value);
}

inline void __threadfence() {}
inline void __syncthreads() { ::plait_emulator::sync_block(); }
inline void __syncwarp(unsigned mask = ~0U) { ::plait_emulator::sync_warp(mask); }
inline bool __any_sync(unsigned mask, bool value) { return ::plait_emulator::any(mask, value); }
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source) {
  static_assert(sizeof(T) == 4);
  return __builtin_bit_cast(T, ::plait_emulator::shuffle(mask, __builtin_bit_cast(unsigned, value),
                                                         static_cast<unsigned>(source) % 32));
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return __shfl_sync(mask, value,
                     static_cast<int>((threadIdx.x % 32) ^ static_cast<unsigned>(lanes)));
}
inline unsigned long __cvta_generic_to_shared(const void* pointer) {
  return ::plait_emulator::shared_window(pointer);
}

namespace plait_emulator {

/// How the emulator calls a kernel whose parameters it does not know.
template <class... P>
struct Parameters {
  static constexpr unsigned sizes[sizeof...(P) + 1] = {sizeof(P)..., 0};
  static void call(void (*kernel)(P...), void* const* arguments) {
    unpack(kernel, arguments, __make_integer_seq_of(arguments));
  }

 private:
  template <unsigned... I>
  struct Indices {};
  template <unsigned N, unsigned... I>
  struct Make : Make<N - 1, N - 1, I...> {};
  template <unsigned... I>
  struct Make<0, I...> {
    using Type = Indices<I...>;
  };
  static typename Make<sizeof...(P)>::Type __make_integer_seq_of(void* const*) { return {}; }
  // Parameters lie in memory of the host; a thread gets copies on its stack.
  template <unsigned... I>
  __attribute__((no_sanitize_thread)) static void unpack(void (*kernel)(P...),
                                                         void* const* arguments, Indices<I...>) {
    kernel(*static_cast<P*>(arguments[I])...);
  }
};
template <class... P>
Parameters<P...> parameters_of(void (*)(P...)) {
  return {};
}

}  // namespace plait_emulator

#include "plait_emulator/ptx.h"
