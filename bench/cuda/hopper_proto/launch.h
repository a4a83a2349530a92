// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Tensor maps, kernel instances, and a problem on the device ready to run.
#pragma once

#include "plan.h"
#include "reference.h"

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
