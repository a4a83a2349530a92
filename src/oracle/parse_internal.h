// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Pieces of parse_problem, one file each.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "oracle/problem.h"
#include "oracle/safetensors.h"
#include "oracle/strict_json.h"

namespace plait::oracle {

/// Resolves TENSOR values. Named tensors are converted once per dtype and then shared, so that K
/// and V of one file tensor alias as they do in a server.
class TensorResolver {
 public:
  explicit TensorResolver(const Safetensors* tensors) : tensors_(tensors) {}

  /// `expected` gives the extents, -1 where any will do. `base`, if not null, is what
  /// {"view_of": ...} may refer to under the name `base_name`.
  HostTensor resolve(const Node& node, DType dtype, const Ints& expected,
                     const HostTensor* base = nullptr, std::string_view base_name = {});

  /// Whether anything was a tensor of the file.
  bool used_file() const noexcept { return !converted_.empty(); }

 private:
  HostTensor named(const Node& node, DType dtype, const Ints& expected);
  std::shared_ptr<Buffer> convert(const std::string& name, const SafetensorsEntry& entry,
                                  DType dtype, const Node& node);

  const Safetensors* tensors_;
  std::map<std::pair<std::string, DType>, std::shared_ptr<Buffer>> converted_;
};

/// Fills k, v, page tables and block structure. Needs the head numbers, dtypes and qo_indptr.
void parse_kv(const Node& node, TensorResolver& tensors, Problem& problem);

void parse_mask(const Node& node, Problem& problem);
void parse_rope(const Node& node, Problem& problem);
void parse_variant(const Node& node, Problem& problem);
void parse_plan(const Node& node, Problem& problem);

/// An index pointer: starts at 0, never decreases, `entries` + 1 long (any length if < 0).
Ints parse_indptr(const Node& node, std::int64_t entries, std::string_view entries_meaning);

inline constexpr std::int64_t kMaxIndex = 2147483647;  // indices are int32 in every backend

}  // namespace plait::oracle
