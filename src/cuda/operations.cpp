// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The free operations on a GPU. Kernels are compiled when an operation is first called with a
// combination of dtypes, which a capture forbids.
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/rope_frequency.h"
#include "cuda/cuda_backend.h"
#include "cuda/graph_lifetime.h"
#include "cuda/jit/kernel_cache.h"
#include "cuda/kernels/common/op_params.h"
#include "cuda/operands.h"
#include "cuda/rope_table.h"
#include "cuda/setup_scope.h"
#include "cuda/stream_checks.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

KernelKey operation_key(KernelOp op, DType q, DType kv, DType o) {
  KernelKey key;
  key.family = KernelFamily::kCommon;
  key.op = op;
  key.q_dtype = q;
  key.kv_dtype = kv;
  key.o_dtype = o;
  return key;
}

/// Addresses of an operand, checked to be on the device and aligned to its elements.
template <typename T = void>
T* address_of(const DeviceContext& context, const char* field, const Tensor& tensor) {
  check_device_address(context, field, tensor.data, size_of(tensor.dtype));
  return static_cast<T*>(tensor.data);
}

/// Strides of a paged cache, [pages, page_size, heads, dim] or [pages, heads, page_size, dim].
struct CacheStrides {
  std::int64_t page, slot, head;
  std::int64_t page_size;
};
CacheStrides cache_strides(const Tensor& cache, KvLayout layout) {
  if (layout == KvLayout::kNhd) {
    return {cache.strides[0], cache.strides[1], cache.strides[2], cache.shape[1]};
  }
  return {cache.strides[0], cache.strides[2], cache.strides[1], cache.shape[2]};
}

class CudaOperations final : public Operations {
 public:
  explicit CudaOperations(std::shared_ptr<DeviceContext> context)
      : context_(std::move(context)), loaded_(std::make_shared<Loaded>()) {
    release_parked();
  }
  ~CudaOperations() override {
    loaded_.reset();
    release_parked();
  }
  CudaOperations(const CudaOperations&) = delete;
  CudaOperations& operator=(const CudaOperations&) = delete;

  void merge_state(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b, const Tensor& lse_b,
                   const Tensor& o, const Tensor& lse, const Tensor& mask, Stream stream) override {
    device::MergeStateParams p{};
    p.o_a = address_of(*context_, "o_a", o_a);
    p.lse_a = address_of<const float>(*context_, "lse_a", lse_a);
    p.o_b = address_of(*context_, "o_b", o_b);
    p.lse_b = address_of<const float>(*context_, "lse_b", lse_b);
    p.o = address_of(*context_, "o", o);
    p.lse = address_of<float>(*context_, "lse", lse);
    p.mask = mask.defined() ? address_of<const device::u8>(*context_, "mask", mask) : nullptr;
    p.rows = o.shape[0];
    p.heads = static_cast<device::i32>(o.shape[1]);
    p.dim = static_cast<device::i32>(o.shape[2]);
    p.o_a_stride_row = o_a.strides[0];
    p.o_a_stride_head = o_a.strides[1];
    p.lse_a_stride_row = lse_a.strides[0];
    p.lse_a_stride_head = lse_a.strides[1];
    p.o_b_stride_row = o_b.strides[0];
    p.o_b_stride_head = o_b.strides[1];
    p.lse_b_stride_row = lse_b.strides[0];
    p.lse_b_stride_head = lse_b.strides[1];
    p.o_stride_row = o.strides[0];
    p.o_stride_head = o.strides[1];
    p.lse_stride_row = lse.strides[0];
    p.lse_stride_head = lse.strides[1];
    p.mask_stride = mask.defined() ? mask.strides[0] : 0;
    start(operation_key(KernelOp::kMergeState, o_a.dtype, o_b.dtype, o.dtype), &p, p.rows * p.heads,
          stream);
  }

  void merge_states(const Tensor& o_states, const Tensor& lse_states, const Tensor& o,
                    const Tensor& lse, Stream stream) override {
    device::MergeStatesParams p{};
    p.o_states = address_of(*context_, "o_states", o_states);
    p.lse_states = address_of<const float>(*context_, "lse_states", lse_states);
    p.o = address_of(*context_, "o", o);
    p.lse = address_of<float>(*context_, "lse", lse);
    p.rows = o.shape[0];
    p.states = static_cast<device::i32>(o_states.shape[1]);
    p.heads = static_cast<device::i32>(o.shape[1]);
    p.dim = static_cast<device::i32>(o.shape[2]);
    p.in_stride_row = o_states.strides[0];
    p.in_stride_state = o_states.strides[1];
    p.in_stride_head = o_states.strides[2];
    p.lse_in_stride_row = lse_states.strides[0];
    p.lse_in_stride_state = lse_states.strides[1];
    p.lse_in_stride_head = lse_states.strides[2];
    p.o_stride_row = o.strides[0];
    p.o_stride_head = o.strides[1];
    p.lse_stride_row = lse.strides[0];
    p.lse_stride_head = lse.strides[1];
    start(operation_key(KernelOp::kMergeStates, o_states.dtype, o_states.dtype, o.dtype), &p,
          p.rows * p.heads, stream);
  }

  void finalize_state(const Tensor& o_state, const Tensor& lse_state, const Tensor& sink,
                      const Tensor& o, Stream stream) override {
    device::FinalizeStateParams p{};
    p.o_state = address_of(*context_, "o_state", o_state);
    p.lse_state = address_of<const float>(*context_, "lse_state", lse_state);
    p.sink = sink.defined() ? address_of<const float>(*context_, "sink", sink) : nullptr;
    p.o = address_of(*context_, "o", o);
    p.rows = o.shape[0];
    p.heads = static_cast<device::i32>(o.shape[1]);
    p.dim = static_cast<device::i32>(o.shape[2]);
    p.in_stride_row = o_state.strides[0];
    p.in_stride_head = o_state.strides[1];
    p.lse_stride_row = lse_state.strides[0];
    p.lse_stride_head = lse_state.strides[1];
    p.sink_stride = sink.defined() ? sink.strides[0] : 0;
    p.o_stride_row = o.strides[0];
    p.o_stride_head = o.strides[1];
    start(operation_key(KernelOp::kFinalizeState, o_state.dtype, o_state.dtype, o.dtype), &p,
          p.rows * p.heads, stream);
  }

  void append_paged_kv(const Tensor& k, const Tensor& v, const Tensor& batch_indices,
                       const Tensor& positions, const Tensor& page_indptr, const Tensor& page_ids,
                       const Tensor& k_cache, const Tensor& v_cache, KvLayout layout, float k_scale,
                       float v_scale, Stream stream) override {
    device::AppendPagedKvParams p{};
    p.k = address_of(*context_, "k", k);
    p.v = address_of(*context_, "v", v);
    p.batch_indices = address_of<const device::i32>(*context_, "batch_indices", batch_indices);
    p.positions = address_of<const device::i32>(*context_, "positions", positions);
    p.page_indptr = address_of<const device::i32>(*context_, "page_indptr", page_indptr);
    p.page_ids = address_of<const device::i32>(*context_, "page_ids", page_ids);
    p.k_cache = address_of(*context_, "k_cache", k_cache);
    p.v_cache = address_of(*context_, "v_cache", v_cache);
    p.tokens = k.shape[0];
    p.requests = static_cast<device::i32>(page_indptr.shape[0] - 1);
    p.kv_heads = static_cast<device::i32>(k.shape[1]);
    p.k_dim = static_cast<device::i32>(k.shape[2]);
    p.v_dim = static_cast<device::i32>(v.shape[2]);
    const CacheStrides ks = cache_strides(k_cache, layout);
    const CacheStrides vs = cache_strides(v_cache, layout);
    p.page_size = static_cast<device::i32>(ks.page_size);
    p.num_pages = std::min(k_cache.shape[0], v_cache.shape[0]);
    p.num_listed = page_ids.shape[0];
    p.k_scale = k_scale;
    p.v_scale = v_scale;
    p.k_stride_token = k.strides[0];
    p.k_stride_head = k.strides[1];
    p.v_stride_token = v.strides[0];
    p.v_stride_head = v.strides[1];
    p.k_cache_stride_page = ks.page;
    p.k_cache_stride_slot = ks.slot;
    p.k_cache_stride_head = ks.head;
    p.v_cache_stride_page = vs.page;
    p.v_cache_stride_slot = vs.slot;
    p.v_cache_stride_head = vs.head;
    start(operation_key(KernelOp::kAppendPagedKv, k.dtype, k_cache.dtype, k_cache.dtype), &p,
          p.tokens * p.kv_heads, stream);
  }

  void apply_rope(const Tensor& x, const Tensor& positions, const RopeSpec& rope, const Tensor& out,
                  Stream stream) override {
    device::ApplyRopeParams p{};
    p.x = address_of(*context_, "x", x);
    p.out = address_of(*context_, "out", out);
    p.positions = address_of<const device::i32>(*context_, "positions", positions);
    p.tokens = x.shape[0];
    p.heads = static_cast<device::i32>(x.shape[1]);
    p.dim = static_cast<device::i32>(x.shape[2]);
    p.rotary_dim = effective_rotary_dim(rope, p.dim);
    p.x_stride_token = x.strides[0];
    p.x_stride_head = x.strides[1];
    p.out_stride_token = out.strides[0];
    p.out_stride_head = out.strides[1];
    p.rope_turns = turns_of(rope, p.dim, static_cast<CuStream>(stream.handle));
    KernelKey key = operation_key(KernelOp::kApplyRope, x.dtype, x.dtype, out.dtype);
    key.variant = rope.kind == RopeKind::kInterleaved ? kVariantRopeInterleaved : kVariantRopeHalf;
    start(key, &p, p.tokens * p.heads, stream);
  }

 private:
  /// Blocks per multiprocessor at most: the kernels loop, more would only queue.
  static constexpr std::int64_t kBlocksPerSm = 8;

  struct RopeTable {
    RopeSpec rope;
    int head_dim = 0;
    DeviceBuffer values;
  };

  struct Capture;

  /// Everything on the device, which graphs keep as long as they live. Never shrinks.
  struct Loaded {
    std::mutex mutex;
    std::vector<std::pair<KernelKey, std::shared_ptr<const LoadedKernel>>> kernels;
    std::vector<RopeTable> rope_tables;
    std::vector<std::weak_ptr<const Capture>>
        captures;  // that keep this; those of ended graphs too
  };

  /// What the graph of one capture keeps.
  struct Capture {
    std::shared_ptr<Loaded> loaded;
    std::uint64_t id;
  };

  template <typename Params>
  void start(const KernelKey& key, Params* params, std::int64_t vectors, Stream stream) {
    static_assert(sizeof(Params) <= 4096);
    if (vectors == 0) return;
    const ContextScope scope(*context_);
    auto* const handle = static_cast<CuStream>(stream.handle);
    const LoadedKernel& kernel = kernel_of(key, handle);
    keep_alive_if_captured(handle);
    const std::int64_t blocks =
        std::min<std::int64_t>(vectors, kBlocksPerSm * context_->facts().sm_count);
    void* arguments[] = {params};
    launch(kernel, {static_cast<unsigned>(blocks), 1, 1}, arguments, handle);
  }

  const LoadedKernel& kernel_of(const KernelKey& key, CuStream stream) {
    const std::lock_guard lock(loaded_->mutex);
    for (const auto& [known, kernel] : loaded_->kernels) {
      if (known == key) return *kernel;
    }
    refuse_in_capture(stream);
    loaded_->kernels.emplace_back(key, KernelCache::process().loaded(context_, key));
    return *loaded_->kernels.back().second;
  }

  /// The device copy of a rope table; made once per specification and kept.
  const float* turns_of(const RopeSpec& rope, int head_dim, CuStream stream) {
    const std::lock_guard lock(loaded_->mutex);
    for (const RopeTable& table : loaded_->rope_tables) {
      if (table.head_dim == head_dim && table.rope == rope) {
        return reinterpret_cast<const float*>(table.values.address());
      }
    }
    const std::vector<float> turns = rope_turns(rope, head_dim);
    if (turns.empty()) return nullptr;
    const SetupScope scope(*context_);
    refuse_in_capture(stream);
    require_legacy_stream(*context_, "rope table");
    const std::size_t bytes = turns.size() * sizeof(float);
    RopeTable table{rope, head_dim,
                    DeviceBuffer(context_, static_cast<std::int64_t>(bytes), "rope table")};
    const Driver& driver = context_->driver();
    driver.check(driver.memcpy_host_to_device(table.values.address(), turns.data(), bytes, nullptr),
                 "cuMemcpyHtoDAsync");
    driver.check(driver.stream_synchronize(nullptr), "cuStreamSynchronize");
    loaded_->rope_tables.push_back(std::move(table));
    return reinterpret_cast<const float*>(loaded_->rope_tables.back().values.address());
  }

  /// Loading code or a table would allocate and wait, and thereby end the caller's capture.
  void refuse_in_capture(CuStream stream) const {
    refuse_capture(context_->driver(), stream, "stream",
                   "a call with these dtypes and options outside a capture first, which loads what "
                   "it needs");
  }

  void keep_alive_if_captured(CuStream stream) {
    const Driver& driver = context_->driver();
    const CaptureInfo info = capture_info(driver, stream, "stream");
    if (info.status != CuCaptureStatus::kActive) return;
    const std::lock_guard lock(loaded_->mutex);
    // The latest first: captures rarely take turns.
    std::vector<std::weak_ptr<const Capture>>& captures = loaded_->captures;
    for (auto known = captures.rbegin(); known != captures.rend(); ++known) {
      const std::shared_ptr<const Capture> capture = known->lock();
      if (capture != nullptr && capture->id == info.id) return;
    }
    const auto capture = std::make_shared<const Capture>(Capture{loaded_, info.id});
    keep_alive_with_graph(driver, info.graph, capture);
    std::erase_if(captures, [](const auto& known) { return known.expired(); });
    captures.push_back(capture);
  }

  std::shared_ptr<DeviceContext> context_;
  std::shared_ptr<Loaded> loaded_;
};

}  // namespace
}  // namespace plait::cuda

namespace plait {

std::unique_ptr<Operations> make_cuda_operations(const EngineOptions& options) {
  return std::make_unique<cuda::CudaOperations>(cuda::DeviceContext::get(options.device.index));
}

}  // namespace plait
