// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// In which order a stream step reads K and V.
#pragma once

#include <algorithm>
#include <cstddef>

#include "cpu/kernel_table.h"

namespace plait::cpu {

/// Bytes that lie together.
struct Span {
  const char* begin;
  const char* end;
};

/// Lists what a stream step reads, and the rows ahead: block by block, K before V, each in the
/// order of memory. At most `most` spans; returns how many.
inline int list_spans(const StreamStep& t, std::ptrdiff_t element_size, Span* spans, int most) {
  int count = 0;
  const auto add = [&](const char* begin, std::ptrdiff_t bytes) {
    if (count > 0 && spans[count - 1].end == begin) {
      spans[count - 1].end += bytes;
    } else if (count < most) {
      spans[count++] = {begin, begin + bytes};
    }
  };
  const auto add_rows = [&](const void* const* rows, int keys, std::ptrdiff_t bytes,
                            std::ptrdiff_t head_stride) {
    for (int key = 0; key < keys;) {
      const char* row = static_cast<const char*>(rows[key]);
      const char* end = row;
      do end += bytes;
      while (++key < keys && rows[key] == end);
      const std::ptrdiff_t run = end - row;
      if (head_stride == run) {
        add(row, t.num_heads * run);
      } else {
        for (int head = 0; head < t.num_heads; ++head) add(row + head * head_stride, run);
      }
    }
  };
  const int listed = t.num_keys + t.num_ahead;
  for (int begin = 0; begin < listed; begin += kStreamBlock) {
    const int keys = std::min(kStreamBlock, listed - begin);
    add_rows(t.k_rows + begin, keys, t.dim_qk * element_size, t.k_head_stride);
    add_rows(t.v_rows + begin, keys, t.dim_vo * element_size, t.v_head_stride);
  }
  return count;
}

}  // namespace plait::cpu
