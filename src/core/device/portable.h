// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What headers shared by host and device need. Headers in this folder are embedded in the library
// and compiled by NVRTC without any include path: they include each other only, never <...>.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define PLAIT_HD __host__ __device__ __forceinline__
#else
#define PLAIT_HD inline
#endif

namespace plait::device {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

static_assert(sizeof(i32) == 4 && sizeof(i64) == 8, "Plait assumes LP64 integer sizes");

template <class T>
PLAIT_HD constexpr T min_of(T a, T b) {
  return b < a ? b : a;
}
template <class T>
PLAIT_HD constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}
PLAIT_HD constexpr i32 ceil_div(i32 a, i32 b) { return (a + b - 1) / b; }

}  // namespace plait::device
