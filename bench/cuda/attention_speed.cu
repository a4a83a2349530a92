// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Times Attention::run on a GPU through the public interface: one CSV line per case, medians of
// CUDA events around one call after an L2 flush, beside a plain read of the same bytes. Every case
// is first compared with a naive fp32 kernel on sampled rows.
//
//   attention_speed [family] [case substring]
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "plait/plait.h"

namespace {

#define CHECK(call)                                                                        \
  do {                                                                                     \
    const cudaError_t status = (call);                                                     \
    if (status != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status)); \
      std::exit(1);                                                                        \
    }                                                                                      \
  } while (0)

using bf16 = __nv_bfloat16;

__global__ void fill_normal(bf16* data, size_t count, unsigned seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    unsigned long long x = i * 0x9E3779B97F4A7C15ull + seed;
    x ^= x >> 31;
    x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBull;
    x ^= x >> 31;
    const float u = (static_cast<unsigned>(x) + 0.5f) * 2.3283064e-10f;
    const float v = (static_cast<unsigned>(x >> 32) + 0.5f) * 2.3283064e-10f;
    data[i] = __float2bfloat16(sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v));
  }
}

__global__ void plain_read(const uint4* data, size_t count, unsigned* sink) {
  unsigned folded = 0;
  const size_t step = size_t{gridDim.x} * blockDim.x * 8;
  for (size_t base = blockIdx.x * size_t{blockDim.x} * 8 + threadIdx.x; base < count;
       base += step) {
    uint4 w[8] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (base + i * blockDim.x < count) w[i] = __ldcs(data + base + i * blockDim.x);
#pragma unroll
    for (int i = 0; i < 8; ++i) folded ^= w[i].x ^ w[i].y ^ w[i].z ^ w[i].w;
  }
  if (folded == 0x9E3779B9u) *sink = folded;
}

struct Case {
  std::string name;
  int qo_heads, kv_heads, dim;
  std::vector<int> qo, kv;
  int page;  // 0: ragged
  bool causal;
  double soft_cap = 0;
  bool alibi = false;
  int prefix = 0;  // shared by all requests, as a view of its own
};

// One (row, head): exact attention by the book, in fp32. One block.
__global__ void naive(const bf16* q, const bf16* k, const bf16* v, const int* ids, int page,
                      int row, int head, int group, int qo_heads, int kv_heads, int dim, int kv_len,
                      int pos, bool causal, float cap, float slope, float* out) {
  extern __shared__ float scores[];
  const int kv_head = head / group;
  const auto at = [&](int j) {
    const size_t token = page == 0 ? size_t(ids[j]) : size_t(ids[j / page]) * page + j % page;
    return (token * kv_heads + kv_head) * dim;
  };
  const bf16* query = q + (size_t(row) * qo_heads + head) * dim;
  for (int j = threadIdx.x; j < kv_len; j += blockDim.x) {
    float s = 0;
    for (int d = 0; d < dim; ++d) s += __bfloat162float(query[d]) * __bfloat162float(k[at(j) + d]);
    s /= sqrtf(float(dim));
    if (cap > 0) s = cap * tanhf(s / cap);
    s += slope * (j - pos);
    scores[j] = causal && j > pos ? -INFINITY : s;
  }
  __syncthreads();
  float top = -INFINITY, sum = 0;
  for (int j = 0; j < kv_len; ++j) top = fmaxf(top, scores[j]);
  for (int j = 0; j < kv_len; ++j) sum += expf(scores[j] - top);
  for (int d = threadIdx.x; d < dim; d += blockDim.x) {
    float o = 0;
    for (int j = 0; j < kv_len; ++j)
      o += expf(scores[j] - top) / sum * __bfloat162float(v[at(j) + d]);
    out[d] = o;
  }
}

template <class T>
T* upload(const std::vector<T>& host) {
  T* device = nullptr;
  CHECK(cudaMalloc(&device, std::max<size_t>(host.size(), 1) * sizeof(T)));
  CHECK(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return device;
}

struct Timing {
  double median, low, high;
};

template <class Call>
Timing time_call(void* flush, size_t flush_bytes, int repeats, Call call) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = 0; i < 2; ++i) call();
  std::vector<double> us;
  for (int i = 0; i < repeats; ++i) {
    CHECK(cudaMemsetAsync(flush, i, flush_bytes));
    CHECK(cudaEventRecord(begin));
    call();
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    us.push_back(ms * 1e3);
  }
  std::sort(us.begin(), us.end());
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  return {us[us.size() / 2], us[us.size() / 10], us[us.size() * 9 / 10]};
}

void run_case(const Case& c, const std::string& family, void* flush, size_t flush_bytes) {
  using namespace plait;
  const int requests = static_cast<int>(c.qo.size());
  const int page = c.page == 0 ? 1 : c.page;
  std::vector<int> qo_indptr{0}, page_indptr{0}, last, prefix_indptr{0}, prefix_rows{0},
      prefix_last;
  for (int b = 0; b < requests; ++b) {
    qo_indptr.push_back(qo_indptr.back() + c.qo[b]);
    const int pages = (c.kv[b] + page - 1) / page;
    page_indptr.push_back(page_indptr.back() + pages);
    last.push_back(pages == 0 ? 0 : c.kv[b] - (pages - 1) * page);
  }
  const int total_q = qo_indptr.back();
  const int prefix_pages = (c.prefix + page - 1) / page;
  const size_t pages = page_indptr.back() + prefix_pages;
  const size_t cache_elements = pages * page * c.kv_heads * c.dim;
  const size_t q_elements = size_t(total_q) * c.qo_heads * c.dim;
  bf16 *q, *k, *v, *o;
  CHECK(cudaMalloc(&q, q_elements * 2));
  CHECK(cudaMalloc(&o, q_elements * 2));
  CHECK(cudaMalloc(&k, cache_elements * 2));
  CHECK(cudaMalloc(&v, cache_elements * 2));
  CHECK(cudaMemset(o, 0xFF, q_elements * 2));
  fill_normal<<<1024, 256>>>(q, q_elements, 1);
  fill_normal<<<1024, 256>>>(k, cache_elements, 2);
  fill_normal<<<1024, 256>>>(v, cache_elements, 3);
  std::vector<int> ids(pages);
  std::iota(ids.begin(), ids.end(), 0);
  std::mt19937 random(7);
  if (c.page != 0) std::shuffle(ids.begin(), ids.end(), random);
  const std::vector<int> own(ids.begin(), ids.begin() + page_indptr.back());
  const std::vector<int> shared(ids.begin() + page_indptr.back(), ids.end());
  int* own_ids = upload(own);
  int* shared_ids = upload(shared);
  std::vector<float> slopes(c.qo_heads);
  for (int h = 0; h < c.qo_heads; ++h) slopes[h] = std::exp2(-8.0f * (h + 1) / c.qo_heads);
  float* device_slopes = upload(slopes);

  AttentionSpec spec;
  spec.num_qo_heads = c.qo_heads;
  spec.num_kv_heads = c.kv_heads;
  spec.head_dim_qk = spec.head_dim_vo = c.dim;
  spec.kv_kind = c.page == 0 ? KvKind::kRagged : KvKind::kPaged;
  spec.page_size = page;
  spec.mask = c.causal ? MaskKind::kCausal : MaskKind::kNone;
  spec.logits_soft_cap = c.soft_cap;
  spec.alibi = c.alibi;
  EngineOptions engine_options;
  engine_options.device = {DeviceKind::kCuda, 0};
  engine_options.family = family;
  Engine engine(engine_options);
  Capacity capacity;
  capacity.max_requests = requests;
  capacity.max_query_rows = total_q;
  capacity.max_kv_tokens = c.prefix + *std::max_element(c.kv.begin(), c.kv.end());
  capacity.max_views = c.prefix > 0 ? 2 : 1;
  capacity.max_row_blocks = requests + 1;
  capacity.allow_batch_invariant = false;
  Attention attention(engine, {spec}, capacity, {});
  std::vector<View> views;
  if (c.prefix > 0) {
    prefix_rows.push_back(total_q);
    prefix_indptr.push_back(prefix_pages);
    prefix_last.push_back(c.prefix - (prefix_pages - 1) * page);
    View view;
    view.row_indptr = prefix_rows;
    view.page_indptr = prefix_indptr;
    view.last_page_len = prefix_last;
    views.push_back(view);
  }
  View view;
  view.row_indptr = qo_indptr;
  view.page_indptr = page_indptr;
  if (c.page != 0) view.last_page_len = last;
  views.push_back(view);
  Batch batch;
  batch.qo_indptr = qo_indptr;
  batch.views = views;
  attention.plan(batch);

  const Device device{DeviceKind::kCuda, 0};
  RunArgs args;
  args.q = Tensor::contiguous(q, DType::kBF16, {total_q, c.qo_heads, c.dim}, device);
  args.o = Tensor::contiguous(o, DType::kBF16, {total_q, c.qo_heads, c.dim}, device);
  if (c.page == 0) {
    args.k = Tensor::contiguous(k, DType::kBF16, {std::int64_t(pages), c.kv_heads, c.dim}, device);
    args.v = Tensor::contiguous(v, DType::kBF16, {std::int64_t(pages), c.kv_heads, c.dim}, device);
  } else {
    args.k =
        Tensor::contiguous(k, DType::kBF16, {std::int64_t(pages), page, c.kv_heads, c.dim}, device);
    args.v =
        Tensor::contiguous(v, DType::kBF16, {std::int64_t(pages), page, c.kv_heads, c.dim}, device);
  }
  std::vector<Tensor> tables;
  if (c.page != 0) {
    if (c.prefix > 0)
      tables.push_back(
          Tensor::contiguous(shared_ids, DType::kI32, {std::int64_t(shared.size())}, device));
    tables.push_back(Tensor::contiguous(own_ids, DType::kI32, {std::int64_t(own.size())}, device));
    args.page_ids = tables;
  }
  if (c.alibi)
    args.alibi_slopes = Tensor::contiguous(device_slopes, DType::kF32, {c.qo_heads}, device);

  attention.run(args);
  CHECK(cudaDeviceSynchronize());
  // Sampled rows against the naive kernel.
  float* expected;
  CHECK(cudaMalloc(&expected, c.dim * 4));
  double worst = 0;
  for (int sample = 0; sample < 24; ++sample) {
    const int b = static_cast<int>(random() % requests);
    if (c.qo[b] == 0) continue;
    const int row = qo_indptr[b] + static_cast<int>(random() % c.qo[b]);
    const int head = static_cast<int>(random() % c.qo_heads);
    const int kv_len = c.prefix + c.kv[b];
    if (kv_len > 50000 || kv_len == 0) continue;
    const int pos = row - qo_indptr[b] + kv_len - c.qo[b];
    std::vector<int> list;
    if (c.prefix > 0) list = shared;
    list.insert(list.end(), own.begin() + page_indptr[b], own.begin() + page_indptr[b + 1]);
    int* device_list = upload(list);
    CHECK(cudaFuncSetAttribute(naive, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
    naive<<<1, 256, kv_len * 4>>>(q, k, v, device_list, c.page, row, head, c.qo_heads / c.kv_heads,
                                  c.qo_heads, c.kv_heads, c.dim, kv_len, pos, c.causal,
                                  float(c.soft_cap), c.alibi ? slopes[head] : 0.0f, expected);
    std::vector<float> want(c.dim);
    std::vector<bf16> got(c.dim);
    CHECK(cudaMemcpy(want.data(), expected, c.dim * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(got.data(), o + (size_t(row) * c.qo_heads + head) * c.dim, c.dim * 2,
                     cudaMemcpyDeviceToHost));
    double error = 0, norm = 0;
    for (int d = 0; d < c.dim; ++d) {
      const double x = __bfloat162float(got[d]);
      error += (x - want[d]) * (x - want[d]);
      norm += double(want[d]) * want[d];
    }
    const double relative = std::sqrt(error / norm);
    worst = relative == relative ? std::max(worst, relative) : INFINITY;
    CHECK(cudaFree(device_list));
  }

  const Timing t = time_call(flush, flush_bytes, 15, [&] { attention.run(args); });
  double flops = 0, bytes = 2.0 * q_elements * 2 + double(c.prefix) * c.kv_heads * c.dim * 4;
  for (int b = 0; b < requests; ++b) {
    const double n = c.qo[b], m = c.prefix + c.kv[b];
    flops += 4.0 * c.dim * c.qo_heads * (c.causal ? n * m - n * (n - 1) / 2 : n * m);
    bytes += double(c.kv[b]) * c.kv_heads * c.dim * 4;
  }
  // Half of the bytes from each pool is as near to the same bytes as one buffer gets.
  const size_t words = std::min<size_t>(cache_elements * 2, static_cast<size_t>(bytes / 2)) / 16;
  const Timing read = time_call(flush, flush_bytes, 9, [&] {
    plain_read<<<264, 512>>>(reinterpret_cast<const uint4*>(k), words,
                             reinterpret_cast<unsigned*>(o));
    plain_read<<<264, 512>>>(reinterpret_cast<const uint4*>(v), words,
                             reinterpret_cast<unsigned*>(o));
  });
  const PlanSummary s = attention.summary(0);
  std::printf(
      "%-34s %-7s %9.1f us  [%8.1f %8.1f]  %6.1f TFLOP/s  %7.1f GB/s  read %8.1f us %5.2f  items "
      "%lld states %lld  error %.1e%s\n",
      c.name.c_str(), attention.family().c_str(), t.median, t.low, t.high, flops / t.median * 1e-6,
      bytes / t.median * 1e-3, read.median, read.median / t.median,
      static_cast<long long>(s.num_items), static_cast<long long>(s.num_partial_states), worst,
      worst < 1e-2 ? "" : "  WRONG");
  std::fflush(stdout);
  attention.status();
  for (void* p : {(void*)q, (void*)k, (void*)v, (void*)o, (void*)own_ids, (void*)shared_ids,
                  (void*)device_slopes, (void*)expected})
    CHECK(cudaFree(p));
}

std::vector<int> repeat(int count, int value) { return std::vector<int>(count, value); }

}  // namespace

int main(int argc, char** argv) {
  const std::string family = argc > 1 ? argv[1] : "auto";
  const std::string filter = argc > 2 ? argv[2] : "";
  std::vector<Case> cases;
  const std::pair<int, int> shapes[] = {{16, 512}, {8, 1024}, {4, 2048},
                                        {2, 4096}, {1, 8192}, {1, 16384}};
  for (const auto& [b, n] : shapes) {
    const std::string shape = std::to_string(b) + "x" + std::to_string(n);
    for (const bool causal : {false, true}) {
      cases.push_back({"prefill32/32 ragged " + shape + (causal ? " causal" : " full"), 32, 32, 128,
                       repeat(b, n), repeat(b, n), 0, causal});
    }
  }
  for (const int page : {0, 16, 1}) {
    for (const bool causal : {false, true}) {
      cases.push_back(
          {"prefill32/8 page" + std::to_string(page) + " 1x8192" + (causal ? " causal" : " full"),
           32,
           8,
           128,
           {8192},
           {8192},
           page,
           causal});
      cases.push_back(
          {"prefill32/8 page" + std::to_string(page) + " 4x2048" + (causal ? " causal" : " full"),
           32, 8, 128, repeat(4, 2048), repeat(4, 2048), page, causal});
    }
  }
  cases.push_back(
      {"prefill32/32 cap30 4x2048", 32, 32, 128, repeat(4, 2048), repeat(4, 2048), 0, true, 30.0});
  cases.push_back({"prefill32/32 alibi 4x2048", 32, 32, 128, repeat(4, 2048), repeat(4, 2048), 0,
                   true, 0, true});
  for (const int dim : {64, 256}) {
    const int heads = dim == 64 ? 32 : 16;
    for (const bool causal : {false, true}) {
      cases.push_back(
          {"prefill dim" + std::to_string(dim) + " 4x2048" + (causal ? " causal" : " full"), heads,
           heads, dim, repeat(4, 2048), repeat(4, 2048), 0, causal});
    }
  }
  const std::pair<int, int> decode[] = {{1, 512},   {16, 512},  {64, 512},  {1, 8192},
                                        {16, 2048}, {64, 2048}, {64, 8192}, {256, 8192}};
  for (const auto& [heads, kv_heads] : {std::pair{32, 8}, std::pair{64, 8}, std::pair{32, 32}}) {
    for (const auto& [b, n] : decode) {
      if (kv_heads == 32 && b == 256) continue;
      cases.push_back({"decode" + std::to_string(heads) + "/" + std::to_string(kv_heads) + " " +
                           std::to_string(b) + "x" + std::to_string(n),
                       heads, kv_heads, 128, repeat(b, 1), repeat(b, n), 16, true});
    }
    std::mt19937 random(11);
    std::lognormal_distribution<double> lengths(std::log(2300.0), 1.2);
    std::vector<int> kv;
    for (int i = 0; i < 64; ++i)
      kv.push_back(static_cast<int>(std::clamp(lengths(random), 128.0, 32768.0)));
    cases.push_back(
        {"decode" + std::to_string(heads) + "/" + std::to_string(kv_heads) + " skewed64", heads,
         kv_heads, 128, repeat(64, 1), kv, 16, true});
  }
  cases.push_back({"cascade32/8 64x(32768+128)", 32, 8, 128, repeat(64, 1), repeat(64, 128), 16,
                   true, 0, false, 32768});
  const size_t flush_bytes = size_t{256} << 20;
  void* flush;
  CHECK(cudaMalloc(&flush, flush_bytes));
  for (const Case& c : cases) {
    if (c.name.find(filter) == std::string::npos) continue;
    try {
      run_case(c, family, flush, flush_bytes);
    } catch (const plait::Error& error) {
      std::printf("%-34s %s: %s, expected %s\n", c.name.c_str(), error.field().c_str(),
                  error.value().c_str(), error.expected().c_str());
      CHECK(cudaDeviceSynchronize());
    }
  }
  return 0;
}
