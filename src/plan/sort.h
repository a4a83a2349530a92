// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Stable sorts of few ids by small keys, without a comparison. Keys are computed once.
#pragma once

#include <cstdint>
#include <span>

namespace plait::planning {

/// Ids 0 .. n - 1 into `out`, ascending by key(id), which is a byte and at least `least`. Returns
/// the least key. `keys`: room for n.
template <class Key>
std::uint8_t sort_by_byte(std::span<std::int32_t> out, std::uint8_t* keys, std::uint8_t least,
                          Key key) {
  std::int32_t places[256] = {};
  const auto count = static_cast<std::int32_t>(out.size());
  for (std::int32_t id = 0; id < count; ++id) {
    const std::uint8_t k = key(id);
    keys[id] = k;
    ++places[k];
  }
  std::int32_t first = least;
  while (first < 255 && places[first] == 0) ++first;
  std::int32_t place = 0;
  for (std::int32_t k = first; place < count; ++k) {
    const std::int32_t size = places[k];
    places[k] = place;
    place += size;
  }
  for (std::int32_t id = 0; id < count; ++id) {
    out[static_cast<std::size_t>(places[keys[id]]++)] = id;
  }
  return static_cast<std::uint8_t>(first);
}

/// `ids` into `out`, ascending by key(id), which has ten bits: the lower five, then the upper.
/// `keys` and `half`: room for as many.
template <class Key>
void sort_by_ten_bits(std::span<const std::int32_t> ids, std::int32_t* out, std::uint16_t* keys,
                      std::int32_t* half, Key key) {
  std::int32_t low[32] = {};
  std::int32_t high[32] = {};
  const auto count = static_cast<std::int32_t>(ids.size());
  for (std::int32_t i = 0; i < count; ++i) {
    const std::uint16_t k = key(ids[static_cast<std::size_t>(i)]);
    keys[i] = k;
    ++low[k & 31];
    ++high[k >> 5];
  }
  std::int32_t low_place = 0;
  std::int32_t high_place = 0;
  for (int d = 0; d < 32; ++d) {
    const std::int32_t low_size = low[d];
    const std::int32_t high_size = high[d];
    low[d] = low_place;
    high[d] = high_place;
    low_place += low_size;
    high_place += high_size;
  }
  for (std::int32_t i = 0; i < count; ++i) half[low[keys[i] & 31]++] = i;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t from = half[i];
    out[high[keys[from] >> 5]++] = ids[static_cast<std::size_t>(from)];
  }
}

}  // namespace plait::planning
