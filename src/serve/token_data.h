// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plait/dtype.h"
#include "serve/trace.h"

namespace plait::serve {

/// Stand-in for a model's activations: normally distributed rows that depend on the token alone
/// (every layer gets the same). Two requests with the same prompt block therefore produce the same
/// K and V, which makes reuse of cached pages legitimate, and a run repeatable.
class TokenData {
 public:
  /// Rows of up to `max_row` elements of `dtype` (f32, f16 or bf16).
  TokenData(DType dtype, std::int64_t max_row, std::uint64_t seed);

  enum class Kind : std::uint64_t { kQuery, kKey, kValue };

  /// Identity of the token at `position` of a request: its place in a shared prompt block, or
  /// the request itself for blocks without a key and for generated tokens.
  static std::uint64_t token_id(const TraceRequest& request, std::int32_t request_index,
                                std::int32_t position) noexcept;

  /// Writes `count` elements. A row is a stretch of one table of normals, chosen by the hash of
  /// its arguments: as good as fresh numbers for attention, and a copy instead of a computation.
  void fill(std::uint64_t token, Kind kind, std::int64_t count, std::byte* out) const noexcept;

 private:
  std::size_t element_bytes_;
  std::vector<std::byte> table_;
};

}  // namespace plait::serve
