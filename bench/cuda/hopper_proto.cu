// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Standalone harness of the hopper kernels: checks them against a naive kernel on random problems
// and times them beside the plain read of the same bytes. It needs nvcc, links no library of Plait
// and builds its own plans in the engine's layout, so that a kernel can be developed alone.
//
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -cudart static -Isrc \
//     bench/cuda/hopper_proto.cu -o hopper_proto
//   hopper_proto check [seed] | decode | prefill | sanitize
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
    out[i] = static_cast<unsigned short>(pd::pack_bf16(x, 0.0F) & 0xFFFF);
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

// ---- plans ----------------------------------------------------------------------------------

struct Item {
  int request, head, fused_begin, rows, kv_begin, kv_end, worker;
  long long cost;
};

struct BuiltPlan {
  std::vector<int> words;
  int state_rows = 0, counters = 0, items = 0;
};

struct Layout {
  std::vector<int> q_begin, page_begin, page_ids, used_tokens;
  int total_q = 0, num_pages = 0, total_kv = 0;
};

Layout make_layout(const Problem& p, std::mt19937& rng) {
  Layout l;
  int pages = 0;
  for (std::size_t b = 0; b < p.qo_len.size(); ++b) {
    l.q_begin.push_back(l.total_q);
    l.total_q += p.qo_len[b];
    l.page_begin.push_back(p.page_size == 0 ? l.total_kv : pages);
    l.total_kv += p.kv_len[b];
    if (p.page_size > 0) pages += (p.kv_len[b] + p.page_size - 1) / p.page_size;
  }
  if (p.page_size > 0) {
    l.num_pages = pages + 3;
    std::vector<int> ids(static_cast<std::size_t>(l.num_pages));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), rng);
    l.page_ids.assign(ids.begin(), ids.begin() + pages);
    l.used_tokens.assign(static_cast<std::size_t>(l.num_pages), 0);
    int at = 0;
    for (std::size_t b = 0; b < p.qo_len.size(); ++b) {
      for (int left = p.kv_len[b]; left > 0; left -= p.page_size) {
        l.used_tokens[static_cast<std::size_t>(l.page_ids[static_cast<std::size_t>(at++)])] =
            std::min(left, p.page_size);
      }
    }
  }
  return l;
}

BuiltPlan build_plan(const Problem& p, const Layout& l, bool decode, int workers) {
  const int group = p.num_qo_heads / p.num_kv_heads;
  const int q_tile = decode ? hop::kDecodeRows : hop::kPrefillRows;
  std::vector<Item> items;
  for (std::size_t b = 0; b < p.qo_len.size(); ++b) {
    for (int head = 0; head < p.num_kv_heads; ++head) {
      for (int row = 0; row < p.qo_len[b] * group; row += q_tile) {
        const int rows = std::min(q_tile, p.qo_len[b] * group - row);
        const int last_pos = (row + rows - 1) / group + p.kv_len[b] - p.qo_len[b];
        const int first_pos = row / group + p.kv_len[b] - p.qo_len[b];
        int end = p.causal ? std::min(p.kv_len[b], last_pos + 1) : p.kv_len[b];
        end = std::max(end, 0);
        const int begin = p.window >= 0 ? std::max(0, first_pos - p.window) : 0;
        items.push_back({static_cast<int>(b), head, l.q_begin[b] * group + row, rows,
                         std::min(begin, end), end, 0, 0});
      }
    }
  }
  const int unsplit = static_cast<int>(items.size());
  std::vector<std::vector<int>> parts(items.size());  // original -> items
  std::vector<Item> out;
  std::vector<std::vector<int>> per_worker(static_cast<std::size_t>(workers));
  const int item_cost = 96;  // tokens
  if (decode) {
    // Workers take consecutive stretches of the items' tokens, all of one length: the shortest for
    // which the workers suffice.
    const auto assign = [&](long long quota, bool keep) {
      int worker = 0;
      long long left = quota;
      for (int i = 0; i < unsplit; ++i) {
        const Item& it = items[static_cast<std::size_t>(i)];
        int begin = it.kv_begin;
        do {
          const int rest = it.kv_end - begin;
          long long take = std::max<long long>(left - item_cost, 0) / 16 * 16;
          if (take < std::min(rest, p.min_chunk)) {  // not worth starting
            ++worker;
            left = quota;
            if (worker >= workers && !keep) return false;
            continue;
          }
          if (rest - take < p.min_chunk) take = rest;
          Item piece = it;
          piece.kv_begin = begin;
          piece.kv_end = begin + static_cast<int>(std::min<long long>(take, rest));
          if (piece.kv_end < it.kv_end) piece.kv_end = piece.kv_end / 16 * 16;
          begin = piece.kv_end;
          left -= piece.kv_end - piece.kv_begin + item_cost;
          if (!keep) continue;
          parts[static_cast<std::size_t>(i)].push_back(static_cast<int>(out.size()));
          per_worker[static_cast<std::size_t>(worker)].push_back(static_cast<int>(out.size()));
          out.push_back(piece);
        } while (begin < it.kv_end);
      }
      return true;
    };
    long long low = p.min_chunk + item_cost, high = 1LL << 40;
    while (low < high) {
      const long long middle = (low + high) / 2;
      if (assign(middle, false)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    assign(low, true);
  } else {
    for (int i = 0; i < unsplit; ++i) {
      const Item it = items[static_cast<std::size_t>(i)];
      int begin = it.kv_begin;
      do {
        Item piece = it;
        piece.kv_begin = begin;
        if (p.split_prefill > 0) piece.kv_end = std::min(it.kv_end, begin + p.split_prefill);
        begin = piece.kv_end;
        piece.cost = (piece.kv_end - piece.kv_begin + 127) / 128 * 128 + 192;
        parts[static_cast<std::size_t>(i)].push_back(static_cast<int>(out.size()));
        out.push_back(piece);
      } while (begin < it.kv_end);
    }
    std::vector<int> order(out.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return out[static_cast<std::size_t>(a)].cost > out[static_cast<std::size_t>(b)].cost;
    });
    using Load = std::pair<long long, int>;
    std::priority_queue<Load, std::vector<Load>, std::greater<>> heap;
    for (int w = 0; w < workers; ++w) heap.push({0, w});
    for (int i : order) {
      Load top = heap.top();
      heap.pop();
      per_worker[static_cast<std::size_t>(top.second)].push_back(i);
      top.first += out[static_cast<std::size_t>(i)].cost;
      heap.push(top);
    }
  }

  // the blob
  BuiltPlan plan;
  plan.items = static_cast<int>(out.size());
  std::vector<pd::RowBlock> blocks;
  for (std::size_t b = 0; b < p.qo_len.size(); ++b) {
    pd::RowBlock block{};
    block.row_begin = l.q_begin[b];
    block.num_rows = p.qo_len[b];
    block.page_begin = l.page_begin[b];
    block.num_slots = p.kv_len[b];
    block.pos0 = p.kv_len[b] - p.qo_len[b];
    block.request = static_cast<int>(b);
    block.flags = p.page_size == 0 ? pd::kBlockRagged : 0;
    block.kv_len = p.kv_len[b];
    blocks.push_back(block);
  }
  std::vector<pd::Piece> pieces(out.size());
  std::vector<pd::Run> runs(out.size());
  std::vector<pd::Merge> merges;
  std::vector<pd::StateRef> refs;
  for (int i = 0; i < unsplit; ++i) {
    const auto& list = parts[static_cast<std::size_t>(i)];
    const bool split = list.size() > 1;
    for (int id : list) {
      const Item& it = out[static_cast<std::size_t>(id)];
      const auto b = static_cast<std::size_t>(it.request);
      const int first_pos = it.fused_begin / group - l.q_begin[b] + p.kv_len[b] - p.qo_len[b];
      const int last_pos =
          (it.fused_begin + it.rows - 1) / group - l.q_begin[b] + p.kv_len[b] - p.qo_len[b];
      int full_end = p.causal ? std::min(it.kv_end, first_pos + 1) : it.kv_end;
      int full_begin = p.window >= 0 ? std::max(it.kv_begin, last_pos - p.window) : it.kv_begin;
      if (full_end < full_begin) full_end = full_begin = it.kv_begin;
      pieces[static_cast<std::size_t>(id)] = {it.request, it.kv_begin, it.kv_end, full_begin,
                                              full_end};
      pd::Run run{};
      run.fused_row_begin = it.fused_begin;
      run.num_fused_rows = it.rows;
      run.head_begin = it.head;
      run.head_count = 1;
      run.piece_begin = id;
      run.num_pieces = 1;
      run.state_begin = split ? plan.state_rows : -1;
      run.merge_begin = static_cast<int>(merges.size());
      run.num_merges = split ? 1 : 0;
      if (split) {
        refs.push_back({plan.state_rows, 0});
        plan.state_rows += it.rows;
      }
      runs[static_cast<std::size_t>(id)] = run;
    }
    if (split) {
      const Item& it = out[static_cast<std::size_t>(list[0])];
      pd::Merge merge{};
      merge.fused_row_begin = it.fused_begin;
      merge.num_fused_rows = it.rows;
      merge.head_begin = it.head;
      merge.head_count = 1;
      merge.ref_begin = static_cast<int>(refs.size() - list.size());
      merge.num_refs = static_cast<int>(list.size());
      merge.counter_begin = plan.counters++;
      merges.push_back(merge);
    }
  }
  std::vector<int> indptr{0};
  std::vector<pd::Slice> slices;
  for (int w = 0; w < workers; ++w) {
    for (int i : per_worker[static_cast<std::size_t>(w)]) slices.push_back({i, 0, 1});
    indptr.push_back(static_cast<int>(slices.size()));
  }
  auto& words = plan.words;
  words.resize((sizeof(pd::PlanHeader) + sizeof(pd::GroupHeader)) / 4);
  auto append = [&](const auto& vector) {
    while (words.size() % 4 != 0) words.push_back(0);
    const int at = static_cast<int>(words.size());
    const std::size_t bytes = vector.size() * sizeof(vector[0]);
    words.resize(words.size() + bytes / 4);
    std::memcpy(words.data() + at, vector.data(), bytes);
    return at;
  };
  pd::PlanHeader header{};
  header.magic = pd::kPlanMagic;
  header.version = pd::kPlanVersion;
  header.num_groups = 1;
  header.group_offset[0] = sizeof(pd::PlanHeader) / 4;
  pd::GroupHeader group_header{};
  group_header.num_requests = static_cast<int>(p.qo_len.size());
  group_header.total_q = l.total_q;
  group_header.num_classes = 1;
  group_header.block_offset = append(blocks);
  group_header.piece_offset = append(pieces);
  group_header.run_offset = append(runs);
  group_header.merge_offset = append(merges);
  group_header.ref_offset = append(refs);
  group_header.row_pos_offset = -1;
  pd::ClassHeader& c = group_header.classes[0];
  c.q_tile = q_tile;
  c.kv_tile = decode ? 16 : 128;
  c.num_workers = workers;
  c.worker_offset = append(indptr);
  c.slice_offset = append(slices);
  c.num_slices = static_cast<int>(slices.size());
  header.total_words = static_cast<int>(words.size());
  std::memcpy(words.data(), &header, sizeof header);
  std::memcpy(words.data() + header.group_offset[0], &group_header, sizeof group_header);
  return plan;
}

// ---- tensor maps ----------------------------------------------------------------------------

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
EncodeTiled encode_tiled() {
  static EncodeTiled function = [] {
    void* pointer = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &pointer, 12000,
                                           cudaEnableDefault, &result));
    return reinterpret_cast<EncodeTiled>(pointer);
  }();
  return function;
}
CUtensorMapL2promotion g_promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
hop::TensorMap make_map(const void* base, std::vector<cuuint64_t> dims,
                        std::vector<cuuint64_t> stride_elements, std::vector<cuuint32_t> box,
                        bool nan_fill) {
  for (auto& s : stride_elements) s *= 2;
  const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, const_cast<void*>(base),
                     dims.data(), stride_elements.data(), box.data(), ones,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, g_promotion,
                     nan_fill ? CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
                              : CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::fprintf(stderr, "cuTensorMapEncodeTiled: %d\n", static_cast<int>(result));
    std::exit(1);
  }
  hop::TensorMap out;
  static_assert(sizeof out == sizeof map);
  std::memcpy(&out, &map, sizeof out);
  return out;
}

// ---- kernels --------------------------------------------------------------------------------

/// Page 0 is ragged; group 0 is read at run time.
template <int kPage, bool kC, bool kWin, int kGroup>
struct Variant {
  static constexpr int kPageSize = kPage;
  static constexpr bool kPaged = kPage > 0;
  static constexpr bool kCausal = kC;
  static constexpr bool kWindow = kWin;
  static constexpr int kGroupSize = kGroup;
  static constexpr bool kSoftCap = false;
  static constexpr bool kMeasured = false;
};
template <class V, int kW, int kS>
struct DecodeVariant : V {
  static constexpr int kWarps = kW;
  static constexpr int kSlots = kS;
};
template <class V>
struct PrefillVariant : V {
  static constexpr int kTileN = 128;
  static constexpr int kBox = V::kPageSize == 0 ? 128 : std::gcd(V::kPageSize, 128);
  static constexpr int kStages = 2;
  static constexpr int kQStages = 2;
};

template <class C>
__global__ void __launch_bounds__(C::kWarps * 32, 1)
    decode_kernel(const __grid_constant__ hop::HopperParams p) {
  hop::decode_entry<C>(p);
}
template <class C>
__global__ void __launch_bounds__(hop::kPrefillThreads, 1)
    prefill_kernel(const __grid_constant__ hop::HopperParams p) {
  hop::prefill_entry<C>(p);
}

struct Kernel {
  std::string name;
  bool decode = false;
  int page = 0, group = 0;
  bool causal = false, window = false;
  const void* function = nullptr;
  int threads = 0;
  std::size_t shared = 0;
};
template <class C>
void add_decode(std::vector<Kernel>& list, const std::string& name) {
  Kernel k{name,
           true,
           C::kPageSize,
           C::kGroupSize,
           C::kCausal,
           C::kWindow,
           reinterpret_cast<const void*>(&decode_kernel<C>),
           C::kWarps * 32,
           sizeof(hop::DecodeShared<C>) + 1024};
  CHECK(cudaFuncSetAttribute(k.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(k.shared)));
  list.push_back(k);
}
template <class C>
void add_prefill(std::vector<Kernel>& list, const std::string& name) {
  Kernel k{name,
           false,
           C::kPageSize,
           C::kGroupSize,
           C::kCausal,
           C::kWindow,
           reinterpret_cast<const void*>(&prefill_kernel<C>),
           hop::kPrefillThreads,
           sizeof(hop::PrefillShared<C>) + 1024};
  CHECK(cudaFuncSetAttribute(k.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(k.shared)));
  list.push_back(k);
}
template <int kPage, int kGroup>
void add_variants(std::vector<Kernel>& list) {
  add_decode<DecodeVariant<Variant<kPage, false, false, kGroup>, 8, 3>>(list, "decode");
  add_prefill<PrefillVariant<Variant<kPage, false, false, kGroup>>>(list, "prefill");
  add_prefill<PrefillVariant<Variant<kPage, true, false, kGroup>>>(list, "prefill");
  if constexpr (kGroup == 0) {
    add_decode<DecodeVariant<Variant<kPage, true, false, kGroup>, 8, 3>>(list, "decode");
    add_decode<DecodeVariant<Variant<kPage, true, true, kGroup>, 8, 3>>(list, "decode");
    add_decode<DecodeVariant<Variant<kPage, false, true, kGroup>, 8, 3>>(list, "decode");
    add_prefill<PrefillVariant<Variant<kPage, true, true, kGroup>>>(list, "prefill");
    add_prefill<PrefillVariant<Variant<kPage, false, true, kGroup>>>(list, "prefill");
  }
}
std::vector<Kernel> all_kernels() {
  std::vector<Kernel> list;
  add_variants<16, 0>(list);
  add_variants<64, 0>(list);
  add_variants<0, 0>(list);
#ifndef PLAIT_PROTO_SMALL
  add_variants<16, 1>(list);
  add_variants<16, 4>(list);
  add_variants<0, 1>(list);
  add_variants<0, 4>(list);
  add_decode<DecodeVariant<Variant<16, false, false, 8>, 8, 3>>(list, "decode");
  add_decode<DecodeVariant<Variant<16, false, false, 4>, 8, 2>>(list, "decode 8x2");
#endif
  return list;
}

/// Everything of a problem on the device.
struct Instance {
  Problem problem;
  Layout layout;
  unsigned short *q, *k, *v, *o;
  float* lse;
  int* page_ids = nullptr;
  long long kv_token, kv_head, kv_page;
  std::size_t kv_elements;
  std::vector<void*> owned;

  Instance(const Problem& p, unsigned seed) : problem(p) {
    std::mt19937 rng(seed);
    layout = make_layout(p, rng);
    const std::size_t q_elements = static_cast<std::size_t>(layout.total_q) * p.num_qo_heads * kDim;
    const std::size_t tokens = p.page_size == 0
                                   ? static_cast<std::size_t>(layout.total_kv)
                                   : static_cast<std::size_t>(layout.num_pages) * p.page_size;
    kv_elements = tokens * p.num_kv_heads * kDim;
    kv_token = p.hnd ? kDim : p.num_kv_heads * kDim;
    kv_head = p.hnd ? static_cast<long long>(p.page_size) * kDim : kDim;
    kv_page = static_cast<long long>(p.page_size) * p.num_kv_heads * kDim;
    q = device_alloc<unsigned short>(q_elements);
    k = device_alloc<unsigned short>(kv_elements);
    v = device_alloc<unsigned short>(kv_elements);
    o = device_alloc<unsigned short>(q_elements);
    lse = device_alloc<float>(static_cast<std::size_t>(layout.total_q) * p.num_qo_heads);
    fill_normal<<<1024, 256>>>(q, q_elements, seed * 3ULL + 1);
    fill_normal<<<1024, 256>>>(k, kv_elements, seed * 3ULL + 2);
    fill_normal<<<1024, 256>>>(v, kv_elements, seed * 3ULL + 3);
    CHECK(cudaGetLastError());
    if (p.page_size > 0) {
      page_ids = device_copy(layout.page_ids);
      if (p.poison) {
        int* used = device_copy(layout.used_tokens);
        for (unsigned short* pool : {k, v}) {
          poison_unused<<<layout.num_pages, 128>>>(pool, kv_page, kv_token, kv_head, p.num_kv_heads,
                                                   used);
          CHECK(cudaGetLastError());
        }
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaFree(used));
      }
    }
    CHECK(cudaDeviceSynchronize());
  }
  ~Instance() {
    for (void* pointer :
         {static_cast<void*>(q), static_cast<void*>(k), static_cast<void*>(v),
          static_cast<void*>(o), static_cast<void*>(lse), static_cast<void*>(page_ids)}) {
      cudaFree(pointer);
    }
  }
};

struct Launch {
  hop::HopperParams all{};
  pd::AttentionParams& params = all.common;
  int workers = 0;
  BuiltPlan plan;
  std::vector<void*> owned;
  const Kernel* kernel = nullptr;

  Launch(const Instance& in, const Kernel& kernel_in, int workers_in)
      : workers(workers_in), kernel(&kernel_in) {
    const Problem& p = in.problem;
    const int group = p.num_qo_heads / p.num_kv_heads;
    plan = build_plan(p, in.layout, kernel->decode, workers);
    params.plan = device_copy(plan.words);
    params.q = in.q;
    params.o = in.o;
    params.lse = in.lse;
    params.q_stride_row = params.o_stride_row = static_cast<long long>(p.num_qo_heads) * kDim;
    params.q_stride_head = params.o_stride_head = kDim;
    params.lse_stride_row = p.num_qo_heads;
    params.lse_stride_head = 1;
    params.page_ids[0] = in.page_ids;
    params.pool_extent = p.page_size == 0 ? in.layout.total_kv : in.layout.num_pages;
    params.page_size = std::max(p.page_size, 1);
    params.state_o = device_alloc<float>(static_cast<std::size_t>(plan.state_rows) * kDim);
    params.state_lse = device_alloc<float>(static_cast<std::size_t>(plan.state_rows));
    params.counters = device_alloc<unsigned>(static_cast<std::size_t>(plan.counters));
    CHECK(cudaMemset(params.counters, 0, static_cast<std::size_t>(std::max(plan.counters, 1)) * 4));
    CHECK(cudaMemset(params.state_o, 0xFF, static_cast<std::size_t>(plan.state_rows) * kDim * 4));
    params.status = device_alloc<pd::StatusBlock>(1);
    CHECK(cudaMemset(params.status, 0, sizeof(pd::StatusBlock)));
    params.sm_scale = static_cast<float>(1.0 / std::sqrt(128.0));
    params.k_scale = params.v_scale = 1.0F;
    params.group_size = group;
    params.causal = p.causal;
    params.window_left = p.window;
    owned = {const_cast<int*>(params.plan), params.state_o, params.state_lse, params.counters,
             params.status};
    using U = cuuint64_t;
    const U heads = static_cast<U>(p.num_kv_heads);
    const int tile = kernel->decode ? 16 : 128;
    const U token_stride = static_cast<U>(in.kv_token);
    if (p.page_size == 0) {
      const std::vector<U> dims{64, 0x7FFFFFFF, 2, heads, 1};
      const std::vector<U> strides{token_stride, 64, static_cast<U>(in.kv_head), 1ULL << 30};
      const std::vector<cuuint32_t> boxes{64, static_cast<cuuint32_t>(tile), 2, 1, 1};
      all.k_map = make_map(in.k, dims, strides, boxes, true);
      all.v_map = make_map(in.v, dims, strides, boxes, true);
    } else {
      const int box = std::gcd(p.page_size, tile);
      const std::vector<U> dims{64, static_cast<U>(p.page_size), 2, heads,
                                static_cast<U>(in.layout.num_pages)};
      const std::vector<U> strides{token_stride, 64, static_cast<U>(in.kv_head),
                                   static_cast<U>(in.kv_page)};
      std::vector<cuuint32_t> boxes{64, static_cast<cuuint32_t>(box), 2, 1, 1};
      all.v_map = make_map(in.v, dims, strides, boxes, true);
      if (!kernel->decode && box < tile) boxes[2] = 1;
      all.k_map = make_map(in.k, dims, strides, boxes, true);
    }
    const U g = static_cast<U>(group);
    all.q_map = make_map(
        in.q, {64, g, 0x7FFFFFFF, 2, heads},
        {kDim, static_cast<U>(p.num_qo_heads) * kDim, 64, g * kDim},
        {64, static_cast<cuuint32_t>(group), static_cast<cuuint32_t>(64 / group), 2, 1}, false);
  }
  ~Launch() {
    for (void* pointer : owned) cudaFree(pointer);
  }
  void run() {
    void* arguments[] = {&all};
    CHECK(cudaLaunchKernel(kernel->function, dim3(static_cast<unsigned>(workers)),
                           dim3(static_cast<unsigned>(kernel->threads)), arguments, kernel->shared,
                           nullptr));
  }
};

struct Accuracy {
  double relative = 0, worst_row = 0, lse = 0;
  int nan = 0;
  unsigned status = 0;
};
Accuracy check(Instance& in, Launch& launch, int max_samples) {
  const Problem& p = in.problem;
  const std::size_t elements = static_cast<std::size_t>(in.layout.total_q) * p.num_qo_heads * kDim;
  CHECK(cudaMemset(in.o, 0xFF, elements * 2));
  CHECK(cudaMemset(in.lse, 0xFF, elements / kDim * 4));
  launch.run();
  CHECK(cudaDeviceSynchronize());
  Accuracy acc;
  int* bad = device_copy(std::vector<int>{0});
  count_nan<<<256, 256>>>(in.o, elements, bad);
  CHECK(cudaMemcpy(&acc.nan, bad, 4, cudaMemcpyDeviceToHost));
  CHECK(cudaFree(bad));
  std::vector<int2> samples;
  std::mt19937 rng(7);
  long long all = 0;
  for (int qo : p.qo_len) all += static_cast<long long>(qo) * p.num_qo_heads;
  int longest = 1;
  for (std::size_t b = 0; b < p.qo_len.size(); ++b) {
    longest = std::max(longest, p.kv_len[b]);
    const int n = p.qo_len[b] * p.num_qo_heads;
    for (int i = 0; i < n; ++i) {
      if (all <= max_samples ||
          rng() % static_cast<unsigned>(all) < static_cast<unsigned>(max_samples)) {
        samples.push_back({static_cast<int>(b), i});
      }
    }
  }
  if (samples.empty()) return acc;
  RefArgs a{};
  a.q = in.q;
  a.k = in.k;
  a.v = in.v;
  a.o = in.o;
  a.lse = in.lse;
  a.page_ids = in.page_ids;
  int* page_begin = device_copy(in.layout.page_begin);
  int* q_begin = device_copy(in.layout.q_begin);
  int* qo_len = device_copy(p.qo_len);
  int* kv_len = device_copy(p.kv_len);
  int2* sample_list = device_copy(samples);
  a.page_begin = page_begin;
  a.q_begin = q_begin;
  a.qo_len = qo_len;
  a.kv_len = kv_len;
  a.samples = sample_list;
  a.heads = p.num_qo_heads;
  a.group = p.num_qo_heads / p.num_kv_heads;
  a.page_size = p.page_size;
  a.kv_token = in.kv_token;
  a.kv_head = in.kv_head;
  a.kv_page = in.kv_page;
  a.causal = p.causal;
  a.window = p.window;
  a.scale = 1.0F / std::sqrt(128.0F);
  a.scratch_stride = longest;
  a.scratch = device_alloc<float>(samples.size() * static_cast<std::size_t>(longest));
  a.errors = device_alloc<double>(samples.size() * 3);
  reference_kernel<<<static_cast<unsigned>(samples.size()), 256>>>(a);
  CHECK(cudaGetLastError());
  std::vector<double> errors(samples.size() * 3);
  CHECK(cudaMemcpy(errors.data(), a.errors, errors.size() * 8, cudaMemcpyDeviceToHost));
  double num = 0, den = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    num += errors[i * 3];
    den += errors[i * 3 + 1];
    const double row = errors[i * 3 + 1] > 0 ? std::sqrt(errors[i * 3] / errors[i * 3 + 1])
                                             : std::sqrt(errors[i * 3]);
    if (!(row <= acc.worst_row)) acc.worst_row = row;
    if (!(errors[i * 3 + 2] <= acc.lse)) acc.lse = errors[i * 3 + 2];
  }
  acc.relative = std::sqrt(num / std::max(den, 1e-300));
  CHECK(cudaMemcpy(&acc.status, &launch.params.status->bits, 4, cudaMemcpyDeviceToHost));
  for (void* pointer :
       {static_cast<void*>(page_begin), static_cast<void*>(q_begin), static_cast<void*>(qo_len),
        static_cast<void*>(kv_len), static_cast<void*>(sample_list), static_cast<void*>(a.scratch),
        static_cast<void*>(a.errors)}) {
    CHECK(cudaFree(pointer));
  }
  return acc;
}

int g_failures = 0;
bool matches(const Kernel& k, const Problem& p) {
  return k.page == p.page_size && k.causal == p.causal && k.window == (p.window >= 0) &&
         (k.group == 0 || k.group == p.num_qo_heads / p.num_kv_heads);
}
std::string name_of(const Kernel& k) {
  return k.name + (k.group == 0 ? " g?" : " g" + std::to_string(k.group));
}
void report(const Problem& p, const Kernel& k, const Accuracy& a) {
  const bool ok =
      a.nan == 0 && a.relative < 5e-3 && a.worst_row < 2e-2 && a.lse < 1e-3 && a.status == 0;
  if (!ok) ++g_failures;
  std::printf("%-4s %-24s %-34s rel %.2e worst row %.2e lse %.1e nan %d status %u\n",
              ok ? "ok" : "FAIL", name_of(k).c_str(), p.name.c_str(), a.relative, a.worst_row,
              a.lse, a.nan, a.status);
}

std::vector<Problem> check_problems(bool small) {
  std::vector<Problem> list;
  auto add = [&](Problem p) { list.push_back(std::move(p)); };
  for (int page : {16, 0, 64}) {
    for (bool causal : {false, true}) {
      Problem p;
      p.page_size = page;
      p.causal = causal;
      p.poison = page > 0;
      const std::string tag = std::string(page == 0 ? "ragged" : "page " + std::to_string(page)) +
                              (causal ? " causal" : " full");
      p.name = tag + " decode mix";
      p.qo_len = {1, 1, 1, 1, 1, 1, 1};
      p.kv_len = {1, 16, 17, 333, 0, 2049, 97};
      p.min_chunk = 64;
      add(p);
      p.num_qo_heads = 8;
      p.num_kv_heads = 1;
      p.name = tag + " decode g8, verify 2";
      p.qo_len = {2, 1, 2, 2};
      p.kv_len = {200, 5000, 31, 2};
      add(p);
      p.num_qo_heads = 4;
      p.num_kv_heads = 4;
      p.name = tag + " mixed prefill g1";
      p.qo_len = {130, 64, 1, 7, 200};
      p.kv_len = {130, 300, 129, 7, 513};
      add(p);
      p.num_qo_heads = 8;
      p.num_kv_heads = 2;
      p.name = tag + " prefill g4 split";
      p.qo_len = {100, 33, 260};
      p.kv_len = {1000, 33, 777};
      p.split_prefill = 256;
      add(p);
      {
        Problem w;
        w.page_size = page;
        w.causal = causal;
        w.window = 70;
        w.name = tag + " decode window 70";
        w.qo_len = {1, 2, 1, 1};
        w.kv_len = {300, 64, 5, 71};
        w.min_chunk = 32;
        add(w);
      }
      if (!small) {
        p.split_prefill = 0;
        p.name = tag + " window 100";
        p.window = 100;
        p.causal = true;
        add(p);
      }
    }
  }
  Problem p;
  p.hnd = true;
  p.poison = true;
  p.name = "hnd page 16";
  p.qo_len = {1, 1, 70, 1};
  p.kv_len = {500, 1000, 700, 64};
  add(p);
  return list;
}

struct Timing {
  double median, low, high;
};
template <class F>
Timing time_us(F&& run, int repeats) {
  static unsigned char* flush = device_alloc<unsigned char>(256u << 20);
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = 0; i < 2; ++i) run();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    CHECK(cudaMemsetAsync(flush, i, 256u << 20));
    CHECK(cudaEventRecord(begin));
    run();
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms * 1e3);
  }
  std::sort(times.begin(), times.end());
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  return {times[times.size() / 2], times[times.size() / 10], times[times.size() * 9 / 10]};
}

int sm_count() {
  int count = 0;
  CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
  return count;
}

void bench_decode() {
  const auto kernels = all_kernels();
  std::vector<Problem> problems;
  auto add = [&](int batch, int kv, int hq, int hk) {
    Problem p;
    p.num_qo_heads = hq;
    p.num_kv_heads = hk;
    p.qo_len.assign(static_cast<std::size_t>(batch), 1);
    p.kv_len.assign(static_cast<std::size_t>(batch), kv);
    p.name = std::to_string(batch) + " x " + std::to_string(kv) + " " + std::to_string(hq) + "/" +
             std::to_string(hk);
    problems.push_back(p);
  };
  add(1, 512, 32, 8);
  add(1, 8192, 32, 8);
  add(16, 2048, 32, 8);
  add(64, 512, 32, 8);
  add(64, 2048, 32, 8);
  add(64, 8192, 32, 8);
  add(64, 8192, 64, 8);
  add(64, 2048, 32, 32);
  add(256, 8192, 32, 8);
  add(256, 32768, 32, 8);  // pools of 8.6e9 elements each: beyond 32-bit offsets
  {
    Problem p;
    std::mt19937 rng(11);
    std::lognormal_distribution<double> dist(std::log(2600.0), 1.05);
    p.qo_len.assign(64, 1);
    for (int i = 0; i < 64; ++i) {
      p.kv_len.push_back(std::clamp(static_cast<int>(dist(rng)), 128, 32768));
    }
    p.name = "64 skewed 32/8";
    problems.push_back(p);
    p.num_qo_heads = 64;
    p.name = "64 skewed 64/8";
    problems.push_back(p);
  }
  std::printf("decode: case, kernel, us median (p10..p90), GB/s, plain read us, ratio\n");
  for (const Problem& p : problems) {
    Instance in(p, 5);
    const double tokens = std::accumulate(p.kv_len.begin(), p.kv_len.end(), 0.0);
    const double bytes = tokens * p.num_kv_heads * kDim * 2 * 2;
    uint4* sink = device_alloc<uint4>(1);
    const std::size_t half = static_cast<std::size_t>(bytes / 32);
    const Timing bound = time_us(
        [&] {
          plain_read<<<sm_count() * 4, 512>>>(reinterpret_cast<const uint4*>(in.k), half, sink);
          plain_read<<<sm_count() * 4, 512>>>(reinterpret_cast<const uint4*>(in.v), half, sink);
        },
        15);
    unsigned char* flat = device_alloc<unsigned char>(static_cast<std::size_t>(bytes));
    CHECK(cudaMemset(flat, 1, static_cast<std::size_t>(bytes)));
    Timing one{1e30, 0, 0};
    for (int blocks : {2, 4}) {
      const Timing t = time_us(
          [&] {
            plain_read<<<sm_count() * blocks, 512>>>(reinterpret_cast<const uint4*>(flat), 2 * half,
                                                     sink);
          },
          15);
      if (t.median < one.median) one = t;
    }
    CHECK(cudaFree(flat));
    std::printf("%-18s plain read %8.1f us %6.0f GB/s (two halves %8.1f us)\n", p.name.c_str(),
                one.median, bytes / one.median / 1e3, bound.median);
    for (const Kernel& k : kernels) {
      if (!k.decode || !matches(k, p) || (k.group == 0 && p.num_qo_heads / p.num_kv_heads != 2))
        continue;
      Launch launch(in, k, sm_count());
      const Accuracy a = check(in, launch, 256);
      const bool ok = a.nan == 0 && a.relative < 5e-3 && a.lse < 1e-3;
      if (!ok) ++g_failures;
      const Timing t = time_us([&] { launch.run(); }, 21);
      g_promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
      Launch wide(in, k, sm_count());
      g_promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
      const Timing w = time_us([&] { wide.run(); }, 21);
      std::printf(
          "%-18s %-14s %8.1f us (%.1f..%.1f) %6.0f GB/s %5.1f %% rel %.1e %s items %d; "
          "with 256-byte L2 promotion %.1f us\n",
          p.name.c_str(), name_of(k).c_str(), t.median, t.low, t.high, bytes / t.median / 1e3,
          100 * one.median / t.median, a.relative, ok ? "ok" : "FAIL", launch.plan.items, w.median);
    }
    CHECK(cudaFree(sink));
  }
}

void bench_prefill() {
  const auto kernels = all_kernels();
  std::printf("prefill: case, kernel, us, TFLOP/s\n");
  for (const auto& [batch, len] : std::vector<std::pair<int, int>>{
           {16, 512}, {8, 1024}, {4, 2048}, {2, 4096}, {1, 8192}, {1, 16384}}) {
    for (int hk : {32, 8}) {
      for (int page : {0, 16}) {
        for (bool causal : {false, true}) {
          Problem p;
          p.num_kv_heads = hk;
          p.page_size = page;
          p.causal = causal;
          p.qo_len.assign(static_cast<std::size_t>(batch), len);
          p.kv_len = p.qo_len;
          p.name = std::to_string(batch) + "x" + std::to_string(len) + " 32/" + std::to_string(hk) +
                   (page ? " page16" : " ragged") + (causal ? " causal" : " full");
          Instance in(p, 9);
          const double flops =
              4.0 * batch * static_cast<double>(len) * len * 32 * kDim * (causal ? 0.5 : 1.0);
          for (const Kernel& k : kernels) {
            if (k.decode || !matches(k, p) || k.group == 0) continue;
            Launch launch(in, k, sm_count());
            const Accuracy a = check(in, launch, 200);
            const bool ok = a.nan == 0 && a.relative < 5e-3 && a.lse < 1e-3;
            if (!ok) ++g_failures;
            const Timing t = time_us([&] { launch.run(); }, 9);
            std::printf("%-28s %-24s %8.1f us %6.1f TFLOP/s rel %.1e %s\n", p.name.c_str(),
                        name_of(k).c_str(), t.median, flops / t.median / 1e6, a.relative,
                        ok ? "ok" : "FAIL");
          }
        }
      }
    }
  }
}

void run_checks(bool small, unsigned seed) {
  const auto kernels = all_kernels();
  for (const Problem& p : check_problems(small)) {
    Instance in(p, seed);
    int most = 0;
    for (int q : p.qo_len) most = std::max(most, q);
    for (const Kernel& k : kernels) {
      if (!matches(k, p)) continue;
      if (k.decode && most > 8) continue;
      for (int workers : {sm_count(), 5}) {
        if (small && workers != 5) continue;
        Launch launch(in, k, workers);
        report(p, k, check(in, launch, small ? 40 : 4000));
        if (!small) report(p, k, check(in, launch, 4000));
      }
    }
  }
}

void bad_page() {
  for (const Kernel& k : all_kernels()) {
    if (k.page != 16 || k.causal || k.window || (k.group != 0 && k.group != 4)) continue;
    Problem p;
    p.name = "bad page id";
    p.qo_len = {1, 1, 1};
    p.kv_len = {100, 700, 64};
    Instance in(p, 3);
    const int bad = 1 << 20;
    CHECK(cudaMemcpy(in.page_ids + in.layout.page_begin[1] + 3, &bad, 4, cudaMemcpyHostToDevice));
    Launch launch(in, k, 7);
    CHECK(cudaMemset(in.o, 0, static_cast<std::size_t>(3) * 32 * kDim * 2));
    launch.run();
    CHECK(cudaDeviceSynchronize());
    std::vector<unsigned short> o(static_cast<std::size_t>(3) * 32 * kDim);
    CHECK(cudaMemcpy(o.data(), in.o, o.size() * 2, cudaMemcpyDeviceToHost));
    unsigned status = 0;
    CHECK(cudaMemcpy(&status, &launch.params.status->bits, 4, cudaMemcpyDeviceToHost));
    int nan[3] = {0, 0, 0};
    for (std::size_t i = 0; i < o.size(); ++i) {
      nan[i / (32 * kDim)] += (o[i] & 0x7FFF) > 0x7F80;
    }
    const bool ok = nan[0] == 0 && nan[1] == 32 * kDim && nan[2] == 0 && status == 1;
    if (!ok) ++g_failures;
    std::printf("%-4s %-20s bad page id: NaN %d %d %d status %u\n", ok ? "ok" : "FAIL",
                name_of(k).c_str(), nan[0], nan[1], nan[2], status);
  }
}

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "check";
  const unsigned seed = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (mode == "check") {
    std::printf("seed %u\n", seed);
    run_checks(false, seed);
    bad_page();
  } else if (mode == "sanitize") {
    run_checks(true, seed);
  } else if (mode == "decode") {
    bench_decode();
  } else if (mode == "prefill") {
    bench_prefill();
  }
  std::printf("%s: %d failures\n", mode.c_str(), g_failures);
  return g_failures == 0 ? 0 : 1;
}
