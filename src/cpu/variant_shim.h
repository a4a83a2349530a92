// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Compiled at run time together with a user's variant: turns the struct's hooks into functions over
// a tile, which the compiler vectorises for this machine.
#pragma once

#include "core/device/variant.h"
#include "cpu/variant_abi.h"

namespace plait::cpu {

template <class Variant, class Params, Params (*Unpack)(const VariantParams&)>
struct VariantShim {
  using i32 = device::i32;

  static device::LogitSite<float> site(const VariantRows& rows, i32 r, i32 key_pos) {
    device::LogitSite<float> at{};
    at.request = rows.request[r];
    at.q_pos = rows.q_pos[r];
    at.qo_len = rows.qo_len[r];
    at.kv_len = rows.kv_len[r];
    at.qo_head = rows.qo_head[r];
    at.kv_head = rows.kv_head;
    at.kv_pos = key_pos;
    at.distance = static_cast<float>(key_pos - rows.q_pos[r]);
    return at;
  }

  static void logits(float* s, long ld, i32 num_keys, const i32* key_pos, const VariantRows& rows,
                     const VariantParams& raw) {
    const Params p = Unpack(raw);
    for (i32 key = 0; key < num_keys; ++key) {
      for (i32 r = 0; r < rows.count; ++r) {
        float& x = s[key * ld + r];
        x = Variant::logits(x, site(rows, r, key_pos[key]), p);
      }
    }
  }

  static void visible(float* s, long ld, i32 num_keys, const i32* key_pos, const VariantRows& rows,
                      const VariantParams& raw) {
    const Params p = Unpack(raw);
    for (i32 key = 0; key < num_keys; ++key) {
      for (i32 r = 0; r < rows.count; ++r) {
        float& x = s[key * ld + r];
        if (!Variant::visible(site(rows, r, key_pos[key]), p)) x = -__builtin_huge_valf();
      }
    }
  }

  static void weight(float* s, long ld, i32 num_keys, const i32* key_pos, const VariantRows& rows,
                     const VariantParams& raw) {
    const Params p = Unpack(raw);
    for (i32 key = 0; key < num_keys; ++key) {
      for (i32 r = 0; r < rows.count; ++r) {
        float& x = s[key * ld + r];
        const float w = Variant::weight(x, site(rows, r, key_pos[key]), p);
        x = x == -__builtin_huge_valf() ? 0.0F : w;
      }
    }
  }

  template <int kHook>
  static void vector(float* x, i32 dim, i32 request, i32 pos, i32 head, const VariantParams& raw) {
    const Params p = Unpack(raw);
    for (i32 d = 0; d < dim; ++d) {
      const device::VectorSite at{request, pos, head, d};
      if constexpr (kHook == 0) x[d] = Variant::query(x[d], at, p);
      if constexpr (kHook == 1) x[d] = Variant::key(x[d], at, p);
      if constexpr (kHook == 2) x[d] = Variant::output(x[d], at, p);
    }
  }

  static constexpr VariantTable table() {
    constexpr bool kSum = Variant::kReduction == device::ReductionKind::kSum;
    VariantTable t{};
    t.abi = kVariantAbi;
    t.reduction = static_cast<i32>(Variant::kReduction);
    if constexpr (Variant::kHasLogits) t.logits = &logits;
    if constexpr (Variant::kHasMask) t.visible = &visible;
    if constexpr (kSum) t.weight = &weight;
    if constexpr (Variant::kHasQuery) t.query = &vector<0>;
    if constexpr (Variant::kHasKey) t.key = &vector<1>;
    if constexpr (Variant::kHasOutput) t.output = &vector<2>;
    return t;
  }
};

}  // namespace plait::cpu
