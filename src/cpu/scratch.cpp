// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/scratch.h"

#include <cstddef>

namespace plait::cpu {

std::int64_t Scratch::bytes(int pad_qk, int pad_vo) {
  const std::int64_t floats = std::int64_t{2} * kQueryTile * pad_qk +
                              std::int64_t{kKvTile} * pad_qk + std::int64_t{kKvTile} * pad_vo +
                              std::int64_t{kKvTile} * kQueryTile +
                              std::int64_t{2} * kQueryTile * pad_vo + pad_qk;
  return (floats * 4 + 63) / 64 * 64;
}

Scratch Scratch::carve(char* memory, int pad_qk, int pad_vo) {
  auto* next = reinterpret_cast<float*>(memory);
  const auto take = [&next](int rows, int columns) {
    float* block = next;
    next += std::ptrdiff_t{rows} * columns;
    return block;
  };
  Scratch s;
  s.q = take(kQueryTile, pad_qk);
  s.q_t = take(pad_qk, kQueryTile);
  s.k = take(kKvTile, pad_qk);
  s.v = take(kKvTile, pad_vo);
  s.s = take(kKvTile, kQueryTile);
  s.o = take(kQueryTile, pad_vo);
  s.folded = take(kQueryTile, pad_vo);
  s.angles = take(1, pad_qk);
  return s;
}

}  // namespace plait::cpu
