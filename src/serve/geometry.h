// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The attention shape of a model: heads, head dim, and which layers see everything and which only
// a window. Layers of equal visibility form one layer group of a plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plait/spec.h"

namespace plait::serve {

/// How parse_geometry takes one that has no name.
inline constexpr const char* kExplicitGeometry =
    "layers=N,q=N,kv=N,dim=N[,window=N[,window-layers=N]][,cap=X][,theta=X]";

struct LayerGroup {
  std::int32_t layers = 0;
  std::int32_t window_left = -1;  // as AttentionSpec::window_left
};

struct Geometry {
  std::string name;
  std::int32_t num_qo_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::optional<double> sm_scale;  // none: 1/sqrt(head_dim)
  double logits_soft_cap = 0.0;
  RopeSpec rope;
  std::vector<LayerGroup> groups;
  /// What an explicit shape gives that not every replay reads.
  std::optional<double> given_cap;
  std::optional<double> given_theta;

  std::int32_t num_layers() const noexcept;
  /// Whether a layer sees all keys: a window leaves shared prefixes behind.
  bool sees_prefixes() const noexcept;
  /// Bytes of K and V of one token over all layers.
  std::int64_t kv_bytes_per_token(DType dtype) const noexcept;
};

/// A known model ("llama-3.1-8b") or an explicit shape
/// "layers=32,q=32,kv=8,dim=128[,window=4096[,window-layers=16]][,cap=50][,theta=10000]".
/// `window` counts the keys that a row sees, itself included, as model configurations do.
/// Throws Error{kInvalidArgument} with the known names or the key that is wrong.
Geometry parse_geometry(std::string_view text);

/// Names of the known models, in the order of the table.
std::vector<std::string> known_geometries();

/// The specs of the layer groups, in order. `fused_rope` puts the geometry's rope into the spec;
/// otherwise q and k arrive rotated.
std::vector<AttentionSpec> attention_specs(const Geometry& geometry, std::int32_t page_size,
                                           DType kv_dtype, bool fused_rope);

}  // namespace plait::serve
