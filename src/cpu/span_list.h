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

/// Lists what a stream step, and the rows ahead of it, read for the block of keys at `begin`: K
/// before V, each in the order of memory. At most `most` spans; returns how many.
inline int list_spans(const StreamStep& t, std::ptrdiff_t element_size, int begin, Span* spans,
                      int most) {
  int count = 0;
  const auto add = [&](const char* from, std::ptrdiff_t bytes) {
    if (count > 0 && spans[count - 1].end == from) {
      spans[count - 1].end += bytes;
    } else if (count < most) {
      spans[count++] = {from, from + bytes};
    }
  };
  const auto add_rows = [&](const void* const* rows, int num_rows, std::ptrdiff_t bytes,
                            std::ptrdiff_t head_stride) {
    for (int key = 0; key < num_rows;) {
      const char* row = static_cast<const char*>(rows[key]);
      const char* end = row;
      do end += bytes;
      while (++key < num_rows && rows[key] == end);
      const std::ptrdiff_t run = end - row;
      if (head_stride == run) {
        add(row, t.num_heads * run);
      } else {
        for (int head = 0; head < t.num_heads; ++head) add(row + head * head_stride, run);
      }
    }
  };
  const int keys = std::min(kStreamBlock, t.num_keys + t.num_ahead - begin);
  add_rows(t.k_rows + begin, keys, t.dim_qk * element_size, t.k_head_stride);
  add_rows(t.v_rows + begin, keys, t.dim_vo * element_size, t.v_head_stride);
  return count;
}

}  // namespace plait::cpu
