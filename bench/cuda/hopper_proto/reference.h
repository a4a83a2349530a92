// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Kernels beside the ones under test: inputs, the naive reference, the plain read.
#pragma once

#include "problem.h"

__device__ inline unsigned hash_u32(unsigned long long x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  x ^= x >> 33;
  return static_cast<unsigned>(x);
}
__global__ void fill_normal(unsigned short* out, std::size_t count, unsigned long long seed) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += stride) {
    const float u = (hash_u32(i * 2 + seed * 0x9E3779B97F4A7C15ULL) + 1.0F) * 2.3283064e-10F;
    const float v = hash_u32(i * 2 + 1 + seed * 0x9E3779B97F4A7C15ULL) * 2.3283064e-10F;
    const float x = sqrtf(-2.0F * logf(fminf(u, 1.0F))) * cospif(2.0F * v);
    out[i] = static_cast<unsigned short>(hop::pack_bf16(x, 0.0F) & 0xFFFF);
  }
}
__device__ inline float from_bf16(unsigned short x) {
  return __uint_as_float(static_cast<unsigned>(x) << 16);
}

struct RefArgs {
  const unsigned short *q, *k, *v, *o;
  const float* lse;
  const int* page_ids;    // concatenated
  const int* page_begin;  // per request, tokens if ragged
  const int* q_begin;     // per request
  const int* qo_len;
  const int* kv_len;
  const int2* samples;  // (request * 65536 ... ) request, row * heads + head
  int heads, group, page_size;
  long long kv_token, kv_head, kv_page;
  int causal, window;
  float scale;
  float* scratch;
  int scratch_stride;
  double* errors;  // per sample: sum (o-ref)^2, sum ref^2, |lse - ref|
};
__global__ void reference_kernel(RefArgs a) {
  __shared__ double red[256];
  const int2 sample = a.samples[blockIdx.x];
  const int request = sample.x;
  const int row = sample.y / a.heads;
  const int head = sample.y % a.heads;
  const int q_row = a.q_begin[request] + row;
  const int kv_len = a.kv_len[request];
  const int pos = row + kv_len - a.qo_len[request];
  const int end = a.causal ? min(kv_len, pos + 1) : kv_len;
  const int begin = a.window >= 0 ? max(0, pos - a.window) : 0;
  float* s = a.scratch + static_cast<std::size_t>(blockIdx.x) * a.scratch_stride;
  const unsigned short* q = a.q + (static_cast<std::size_t>(q_row) * a.heads + head) * kDim;
  auto at = [&](int j) -> long long {
    if (a.page_size == 0) {
      return (a.page_begin[request] + static_cast<long long>(j)) * a.kv_token +
             head / a.group * a.kv_head;
    }
    const long long page = a.page_ids[a.page_begin[request] + j / a.page_size];
    return page * a.kv_page + j % a.page_size * a.kv_token + head / a.group * a.kv_head;
  };
  float best = -INFINITY;
  for (int j = begin + static_cast<int>(threadIdx.x); j < end; j += 256) {
    const unsigned short* k = a.k + at(j);
    float dot = 0.0F;
    for (int d = 0; d < kDim; ++d) dot += from_bf16(q[d]) * from_bf16(k[d]);
    s[j] = dot * a.scale;
    best = fmaxf(best, s[j]);
  }
  red[threadIdx.x] = best;
  __syncthreads();
  for (int step = 128; step > 0; step /= 2) {
    if (threadIdx.x < step) red[threadIdx.x] = fmax(red[threadIdx.x], red[threadIdx.x + step]);
    __syncthreads();
  }
  best = static_cast<float>(red[0]);
  __syncthreads();
  double sum = 0.0;
  for (int j = begin + static_cast<int>(threadIdx.x); j < end; j += 256) {
    s[j] = expf(s[j] - best);
    sum += s[j];
  }
  red[threadIdx.x] = sum;
  __syncthreads();
  for (int step = 128; step > 0; step /= 2) {
    if (threadIdx.x < step) red[threadIdx.x] += red[threadIdx.x + step];
    __syncthreads();
  }
  sum = red[0];
  __syncthreads();
  double err = 0.0, norm = 0.0;
  const int d = threadIdx.x & 127;
  const int part = threadIdx.x / 128;
  double o = 0.0;
  for (int j = begin + part; j < end; j += 2) {
    o += static_cast<double>(s[j]) * from_bf16(a.v[at(j) + d]);
  }
  red[threadIdx.x] = o;
  __syncthreads();
  if (part == 0) {
    o = end > begin ? (red[d] + red[d + 128]) / sum : 0.0;
    const double got =
        from_bf16(a.o[(static_cast<std::size_t>(q_row) * a.heads + head) * kDim + d]);
    err = (got - o) * (got - o);
    norm = o * o;
  }
  __syncthreads();
  red[threadIdx.x] = err;
  __syncthreads();
  for (int step = 128; step > 0; step /= 2) {
    if (threadIdx.x < step) red[threadIdx.x] += red[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) a.errors[blockIdx.x * 3] = red[0];
  __syncthreads();
  red[threadIdx.x] = norm;
  __syncthreads();
  for (int step = 128; step > 0; step /= 2) {
    if (threadIdx.x < step) red[threadIdx.x] += red[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    a.errors[blockIdx.x * 3 + 1] = red[0];
    const float lse = a.lse[static_cast<std::size_t>(q_row) * a.heads + head];
    a.errors[blockIdx.x * 3 + 2] = end > begin ? fabs(static_cast<double>(lse) - (best + log(sum)))
                                               : (lse == -INFINITY ? 0.0 : 1e9);
  }
}
__global__ void count_nan(const unsigned short* o, std::size_t count, int* out) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  int bad = 0;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += stride) {
    bad += isnan(from_bf16(o[i]));
  }
  if (bad) atomicAdd(out, bad);
}
__global__ void poison_unused(unsigned short* pool, long long per_page, long long token_stride,
                              long long head_stride, int heads, const int* used_tokens) {
  // used_tokens[page]: tokens of the page that some request reads
  const long long page = blockIdx.x;
  const long long page_size = per_page / heads / kDim;
  for (long long i = threadIdx.x; i < per_page; i += blockDim.x) {
    const long long t = token_stride > head_stride ? i / token_stride : i / kDim % page_size;
    if (t >= used_tokens[page]) pool[page * per_page + i] = 0xFFFF;
  }
}
__global__ void plain_read(const uint4* data, std::size_t count, uint4* sink) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  uint4 acc{0, 0, 0, 0};
  std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
  for (; i + 7 * stride < count; i += 8 * stride) {
    uint4 x[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) x[u] = __ldcs(data + i + u * stride);
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      acc.x ^= x[u].x;
      acc.y ^= x[u].y;
      acc.z ^= x[u].z;
      acc.w ^= x[u].w;
    }
  }
  for (; i < count; i += stride) acc.x ^= __ldcs(data + i).x;
  if (acc.x == 0x12345 && acc.y == 0x777 && acc.z == 1 && acc.w == 2) *sink = acc;
}
