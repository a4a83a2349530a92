// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/span_list.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

namespace plait::cpu {
namespace {

constexpr int kRow = 64;  // bytes of one head of one key

/// Rows of `keys` keys on pages of `page_size`, in pools for K and V, last page first.
struct Pools {
  Pools(int keys, int page_size, int heads, bool heads_inner, int gap = 0)
      : k(static_cast<std::size_t>((keys + page_size) * (heads * kRow + gap))), v(k.size()) {
    const int token = heads_inner ? heads * kRow + gap : kRow;
    const int page = page_size * (heads * kRow + (heads_inner ? gap : 0));
    const int last = (keys + page_size - 1) / page_size - 1;
    for (int i = 0; i < keys; ++i) {
      const int offset = (last - i / page_size) * page + i % page_size * token;
      k_rows.push_back(k.data() + offset);
      v_rows.push_back(v.data() + offset);
    }
    step.num_heads = heads;
    step.k_head_stride = step.v_head_stride = heads_inner ? kRow : page_size * kRow;
    step.dim_qk = step.dim_vo = kRow;
    step.k_rows = k_rows.data();
    step.v_rows = v_rows.data();
    step.num_keys = keys;
  }

  /// Every span of all blocks as "k" or "v", offset and length.
  std::vector<std::string> spans() const {
    std::vector<std::string> all;
    for (int begin = 0; begin < step.num_keys + step.num_ahead; begin += kStreamBlock) {
      Span list[16];
      const int count = list_spans(step, 1, begin, list, 16);
      for (const Span& span : std::span(list, static_cast<std::size_t>(count))) {
        const bool values = span.begin >= v.data() && span.begin < v.data() + v.size();
        const auto offset = span.begin - (values ? v : k).data();
        all.push_back((values ? "v" : "k") + std::to_string(offset) + "+" +
                      std::to_string(span.end - span.begin));
      }
    }
    return all;
  }

  std::vector<char> k, v;
  std::vector<const void*> k_rows, v_rows;
  StreamStep step;
};

using Spans = std::vector<std::string>;

TEST(SpanList, PagesAreReadFromEndToEndInBothLayouts) {
  const Spans expected{"k4096+4096", "k0+4096", "v4096+4096", "v0+4096"};
  EXPECT_EQ(Pools(32, 16, 4, true).spans(), expected);
  EXPECT_EQ(Pools(32, 16, 4, false).spans(), expected);
}

TEST(SpanList, SmallPagesFollowOneAnother) {
  EXPECT_EQ(Pools(16, 8, 2, true).spans(),
            (Spans{"k1024+1024", "k0+1024", "v1024+1024", "v0+1024"}));
  EXPECT_EQ(Pools(16, 8, 2, false).spans(),
            (Spans{"k1024+1024", "k0+1024", "v1024+1024", "v0+1024"}));
}

TEST(SpanList, HeadsOfPartOfAPageLieApart) {
  EXPECT_EQ(Pools(4, 16, 2, true).spans(), (Spans{"k0+512", "v0+512"}));
  EXPECT_EQ(Pools(4, 16, 2, false).spans(), (Spans{"k0+256", "k1024+256", "v0+256", "v1024+256"}));
}

TEST(SpanList, TokensWithAGapAreSpansOfTheirOwn) {
  EXPECT_EQ(Pools(2, 16, 2, true, 32).spans(), (Spans{"k0+128", "k160+128", "v0+128", "v160+128"}));
}

TEST(SpanList, HeadsWithAGapAreSpansOfTheirOwn) {
  Pools pools(2, 16, 4, true);
  pools.step.num_heads = 2;
  pools.step.k_head_stride = 2 * kRow;
  pools.step.num_keys = 1;
  EXPECT_EQ(pools.spans(), (Spans{"k0+64", "k128+64", "v0+128"}));
}

TEST(SpanList, RowsAheadFollow) {
  Pools pools(48, 32, 2, true);
  pools.step.num_keys = 32;
  pools.step.num_ahead = 16;
  EXPECT_EQ(pools.spans(), (Spans{"k4096+4096", "v4096+4096", "k0+2048", "v0+2048"}));
}

}  // namespace
}  // namespace plait::cpu
