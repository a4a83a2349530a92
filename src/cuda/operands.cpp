// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/operands.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

#include "core/rope_frequency.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

// Alignments are powers of two: they are tested by masks, since divisions would be half of what a
// run costs before its launch.

[[noreturn]] void refuse_stride(const char* field, int axis, std::int64_t stride, int element_size,
                                std::int64_t alignment) {
  throw Error(ErrorCode::kInvalidArgument,
              std::string(field) + ".strides[" + std::to_string(axis) + "]",
              std::to_string(stride) + " elements of " + std::to_string(element_size) + " bytes",
              "a multiple of " + std::to_string(alignment) + " bytes");
}

/// Checks the operands of one run.
class OperandChecker {
 public:
  OperandChecker(const DeviceContext& context, std::int64_t most_alignment, KnownAddresses& known)
      : context_(context), most_alignment_(most_alignment), known_(known) {}

  /// An operand whose rows of `dim` elements are read with wide accesses; all axes but the last are
  /// checked.
  void rows(const char* field, const Tensor& tensor, int dim) {
    const int element_size = size_of(tensor.dtype);
    const std::int64_t alignment = std::max<std::int64_t>(
        std::min(row_alignment(static_cast<std::int64_t>(dim) * element_size), most_alignment_),
        element_size);
    address(field, tensor.data, alignment);
    for (int axis = 0; axis + 1 < tensor.rank; ++axis) {
      const auto index = static_cast<std::size_t>(axis);
      // Strides of rows must keep the alignment of the first one.
      if (tensor.shape[index] > 1 &&
          (tensor.strides[index] * element_size & (alignment - 1)) != 0) {
        refuse_stride(field, axis, tensor.strides[index], element_size, alignment);
      }
    }
  }

  /// The address of an operand that may be absent.
  template <typename T>
  const T* optional(const char* field, const Tensor& tensor) {
    address(field, tensor.data, alignof(T));
    return static_cast<const T*>(tensor.data);
  }

 private:
  void address(const char* field, const void* pointer, std::int64_t alignment) {
    if (pointer == nullptr) return;  // absent or empty; shapes were checked above this layer
    const auto value = reinterpret_cast<std::uintptr_t>(pointer);
    const bool aligned = (value & static_cast<std::uintptr_t>(alignment - 1)) == 0;
    if (aligned && known_.contains(pointer)) return;
    check_device_address(context_, field, pointer, alignment);
    known_.add(pointer);
  }

  const DeviceContext& context_;
  std::int64_t most_alignment_;
  KnownAddresses& known_;
};

struct KvStrides {
  std::int64_t page, slot, head;
};

KvStrides kv_strides(const AttentionSpec& spec, const Tensor& pool) {
  if (spec.kv_kind == KvKind::kRagged) return {0, pool.strides[0], pool.strides[1]};
  if (spec.layout == KvLayout::kNhd) return {pool.strides[0], pool.strides[1], pool.strides[2]};
  return {pool.strides[0], pool.strides[2], pool.strides[1]};
}

// Kernels divide by the cap, or its reciprocal times the scale: both remain normal numbers of f32.
// Capped logits of the smallest are 0 beside any other, and the largest changes none below 2^88.
float soft_cap_operand(double cap) noexcept {
  return cap > 0.0 ? static_cast<float>(std::clamp(cap, 0x1p-60, 0x1p100)) : 0.0F;
}

}  // namespace

void check_device_address(const DeviceContext& context, const char* field, const void* address,
                          std::int64_t alignment) {
  if (address == nullptr) return;
  const Driver& driver = context.driver();
  const auto pointer = reinterpret_cast<CuDevicePtr>(address);
  CuMemoryType type{};
  int ordinal = -1;
  CuPointerAttribute attributes[] = {CuPointerAttribute::kMemoryType,
                                     CuPointerAttribute::kDeviceOrdinal};
  void* values[] = {&type, &ordinal};
  // Memory that CUDA does not know gets zeros here, not an error.
  driver.check(driver.pointer_get_attributes(2, attributes, values, pointer),
               "cuPointerGetAttributes");
  if (type != CuMemoryType::kDevice && type != CuMemoryType::kUnified) {
    throw Error(ErrorCode::kInvalidArgument, field, "an address in host memory",
                "memory of cuda:" + std::to_string(context.facts().ordinal));
  }
  if (ordinal != context.facts().ordinal) {
    throw Error(ErrorCode::kInvalidArgument, field, "memory of cuda:" + std::to_string(ordinal),
                "memory of cuda:" + std::to_string(context.facts().ordinal));
  }
  if (pointer % static_cast<CuDevicePtr>(alignment) != 0) {
    throw Error(ErrorCode::kInvalidArgument, field,
                "an address " + std::to_string(pointer % static_cast<CuDevicePtr>(alignment)) +
                    " bytes past a multiple of " + std::to_string(alignment),
                "an address that is a multiple of " + std::to_string(alignment));
  }
}

std::int64_t row_alignment(std::int64_t row_bytes) noexcept {
  constexpr std::int64_t kMost = 16;
  const std::int64_t bits = row_bytes | kMost;
  return bits & -bits;  // the lowest one
}

void fill_spec(const AttentionSpec& spec, device::AttentionParams* params) {
  params->num_qo_heads = spec.num_qo_heads;
  params->num_kv_heads = spec.num_kv_heads;
  params->group_size = spec.group_size();
  params->head_dim_qk = spec.head_dim_qk;
  params->head_dim_vo = spec.head_dim_vo;
  params->page_size = spec.kv_kind == KvKind::kRagged ? 1 : spec.page_size;
  const auto size = static_cast<unsigned>(params->page_size);
  params->page_shift = std::has_single_bit(size) ? std::countr_zero(size) : -1;
  params->window_left = spec.window_left;
  params->causal = spec.mask == MaskKind::kCausal ? 1 : 0;
  params->sm_scale = static_cast<float>(effective_sm_scale(spec));
  params->soft_cap = soft_cap_operand(spec.logits_soft_cap);
  params->sigmoid_bias = static_cast<float>(spec.sigmoid_bias);
  params->rotary_dim = effective_rotary_dim(spec.rope, spec.head_dim_qk);
}

void fill_operands(const DeviceContext& context, const AttentionSpec& spec, const RunArgs& args,
                   std::int64_t alignment, KnownAddresses& known, device::AttentionParams* params) {
  OperandChecker check(context, alignment, known);
  check.rows("q", args.q, spec.head_dim_qk);
  check.rows("k", args.k, spec.head_dim_qk);
  check.rows("v", args.v, spec.head_dim_vo);
  check.rows("o", args.o, spec.head_dim_vo);
  params->q = args.q.data;
  params->q_stride_row = args.q.strides[0];
  params->q_stride_head = args.q.strides[1];
  params->o = args.o.data;
  params->o_stride_row = args.o.strides[0];
  params->o_stride_head = args.o.strides[1];
  const KvStrides k = kv_strides(spec, args.k);
  params->k = args.k.data;
  params->k_stride_page = k.page;
  params->k_stride_slot = k.slot;
  params->k_stride_head = k.head;
  const KvStrides v = kv_strides(spec, args.v);
  params->v = args.v.data;
  params->v_stride_page = v.page;
  params->v_stride_slot = v.slot;
  params->v_stride_head = v.head;
  params->pool_extent = args.k.shape[0];

  for (int view = 0; view < device::kMaxParamViews; ++view) {
    const auto index = static_cast<std::size_t>(view);
    params->page_ids[view] = index < args.page_ids.size()
                                 ? check.optional<std::int32_t>("page_ids", args.page_ids[index])
                                 : nullptr;
    params->num_page_ids[view] = index < args.page_ids.size()
                                     ? static_cast<std::int32_t>(std::min<std::int64_t>(
                                           args.page_ids[index].size(), INT32_MAX))
                                     : 0;
    params->positions[view] = index < args.positions.size()
                                  ? check.optional<std::int32_t>("positions", args.positions[index])
                                  : nullptr;
  }

  params->lse = const_cast<float*>(check.optional<float>("lse", args.lse));
  params->lse_stride_row = args.lse.strides[0];
  params->lse_stride_head = args.lse.strides[1];
  params->k_scale = args.k_scale;
  params->v_scale = args.v_scale;
  params->k_scales = check.optional<float>("k_scales", args.k_scales);
  params->v_scales = check.optional<float>("v_scales", args.v_scales);
  params->custom_mask = check.optional<std::uint8_t>("custom_mask", args.custom_mask);
  params->alibi_slopes = check.optional<float>("alibi_slopes", args.alibi_slopes);
  params->sink = args.state ? nullptr : check.optional<float>("sink", args.sink);
  params->q_rope_positions =
      check.optional<std::int32_t>("q_rope_positions", args.q_rope_positions);
  params->k_rope_positions =
      check.optional<std::int32_t>("k_rope_positions", args.k_rope_positions);
  params->write_state = args.state ? 1 : 0;
}

void round_page_ids(device::AttentionParams* params) noexcept {
  for (device::i32& count : params->num_page_ids) {
    count = static_cast<device::i32>(std::bit_floor(static_cast<std::uint32_t>(count)));
  }
}

}  // namespace plait::cuda
