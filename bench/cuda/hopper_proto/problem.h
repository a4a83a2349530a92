// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A problem of the harness, and memory for it.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "cuda/kernels/hopper/decode.h"
#include "cuda/kernels/hopper/prefill.h"

namespace pd = plait::device;
namespace hop = plait::device::hopper;

#define CHECK(call)                                                     \
  do {                                                                  \
    const cudaError_t status_ = (call);                                 \
    if (status_ != cudaSuccess) {                                       \
      std::fprintf(stderr, "%s:%d %s: %s\n", __FILE__, __LINE__, #call, \
                   cudaGetErrorString(status_));                        \
      std::exit(1);                                                     \
    }                                                                   \
  } while (0)

constexpr int kDim = 128;

struct Problem {
  std::string name;
  std::vector<int> qo_len, kv_len;
  int num_qo_heads = 32, num_kv_heads = 8;
  int page_size = 16;  // 0: ragged
  bool hnd = false;
  bool causal = false;
  int window = -1;
  int min_chunk = 256;    // decode: tokens
  int split_prefill = 0;  // prefill: KV tokens per chunk, 0 unsplit
  bool poison = false;
  bool exact_tail = true;
};

template <class T>
T* device_alloc(std::size_t count) {
  T* pointer = nullptr;
  CHECK(cudaMalloc(&pointer, std::max<std::size_t>(count, 1) * sizeof(T)));
  return pointer;
}
template <class T>
T* device_copy(const std::vector<T>& host) {
  T* pointer = device_alloc<T>(host.size());
  CHECK(cudaMemcpy(pointer, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return pointer;
}
