// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/token_data.h"

#include <cmath>
#include <cstring>
#include <numbers>

#include "core/convert.h"
#include "serve/hash.h"

namespace plait::serve {
namespace {

constexpr std::int64_t kStarts = std::int64_t{1} << 18;  // rows begin at any of these

}  // namespace

TokenData::TokenData(DType dtype, std::int64_t max_row, std::uint64_t seed)
    : element_bytes_(static_cast<std::size_t>(size_of(dtype))) {
  const std::int64_t count = kStarts + max_row;
  table_.resize(static_cast<std::size_t>(count) * element_bytes_);
  Random random(hash_combine(seed, 0x6b76));
  for (std::int64_t i = 0; i < count; i += 2) {
    const double radius = std::sqrt(-2.0 * std::log1p(-random.uniform()));
    const double angle = 2.0 * std::numbers::pi * random.uniform();
    store_element(dtype, table_.data(), i, radius * std::cos(angle));
    if (i + 1 < count) store_element(dtype, table_.data(), i + 1, radius * std::sin(angle));
  }
}

std::uint64_t TokenData::token_id(const TraceRequest& request, std::int32_t request_index,
                                  std::int32_t position) noexcept {
  const auto block = static_cast<std::size_t>(position / kTraceBlockTokens);
  if (position < request.input_tokens && block < request.block_keys.size()) {
    return hash_combine(request.block_keys[block],
                        static_cast<std::uint64_t>(position % kTraceBlockTokens));
  }
  return hash_combine(static_cast<std::uint64_t>(request_index) | (std::uint64_t{1} << 63),
                      static_cast<std::uint64_t>(position));
}

void TokenData::fill(std::uint64_t token, Kind kind, std::int64_t count,
                     std::byte* out) const noexcept {
  const std::uint64_t place = hash_combine(token, static_cast<std::uint64_t>(kind));
  const auto start = static_cast<std::size_t>(place % kStarts);
  std::memcpy(out, table_.data() + start * element_bytes_,
              static_cast<std::size_t>(count) * element_bytes_);
}

}  // namespace plait::serve
