// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/bsr.h"

#include <gtest/gtest.h>

#include "plait/error.h"

namespace plait {
namespace {

using Ints = std::vector<std::int32_t>;

BsrPattern small_pattern() {
  BsrPattern p;
  p.block_rows = {2, 3};
  p.block_cols = {4, 6, 2};
  p.indptr = {0, 2, 3};
  p.indices = {0, 2, 1};
  return p;
}

TEST(Bsr, PagesAreTheCommonDivisorOfColumnBlocks) {
  LoweredBsr low = lower_bsr(small_pattern(), MaskKind::kNone);
  EXPECT_EQ(low.page_size, 2);
  EXPECT_EQ(low.num_pages, 6);
  EXPECT_EQ(low.page_ids, (Ints{0, 1, 5, 2, 3, 4}));
  const OwnedView& view = low.batch.views[0];
  EXPECT_EQ(view.positions, (Ints{0, 2, 10, 4, 6, 8}));
  EXPECT_EQ(view.row_indptr, (Ints{0, 2, 5}));
  EXPECT_EQ(view.page_indptr, (Ints{0, 3, 6}));
  EXPECT_EQ(view.last_page_len, (Ints{2, 2}));
  EXPECT_EQ(low.batch.kv_len, (Ints{12}));
  EXPECT_TRUE(low.custom_mask.empty());
}

TEST(Bsr, PagesDivideTheChunkToo) {
  BsrPattern p = small_pattern();
  p.block_cols = {4, 8, 4};
  EXPECT_EQ(lower_bsr(p, MaskKind::kNone).page_size, 4);
  EXPECT_EQ(lower_bsr(p, MaskKind::kNone, {}, 6).page_size, 2);
}

TEST(Bsr, BlockMaskComposesWithCausality) {
  BsrPattern p = small_pattern();
  p.block_mask.assign(2 * 4 + 2 * 2 + 3 * 6, 1);
  p.block_mask[0] = 0;  // row 0, key 0
  const LoweredBsr low = lower_bsr(p, MaskKind::kCausal);
  EXPECT_EQ(low.mask, MaskKind::kCustom);
  const auto bit = [&](int i, int j) {
    const int at = i * 12 + j;
    return (low.custom_mask[static_cast<std::size_t>(at / 8)] >> (at % 8)) & 1;
  };
  EXPECT_EQ(bit(0, 0), 0);
  EXPECT_EQ(bit(0, 1), 1);
  EXPECT_EQ(bit(0, 10), 0);  // position of row 0 is 7
  EXPECT_EQ(bit(1, 0), 1);
  EXPECT_EQ(bit(2, 0), 0);  // not listed
  EXPECT_EQ(bit(2, 9), 1);  // position of row 2 is 9
  EXPECT_EQ(bit(4, 9), 1);
}

TEST(Bsr, UniformBlocksKeepARemainder) {
  EXPECT_EQ(BsrPattern::uniform(10, 4), (Ints{4, 4, 2}));
  EXPECT_EQ(BsrPattern::uniform(8, 4), (Ints{4, 4}));
  EXPECT_TRUE(BsrPattern::uniform(0, 4).empty());
}

TEST(Bsr, RefusalsNameFieldAndValue) {
  const auto refused = [](BsrPattern p) -> std::string {
    try {
      lower_bsr(p, MaskKind::kNone);
    } catch (const Error& e) {
      return e.field() + "=" + e.value();
    }
    return "accepted";
  };
  BsrPattern p = small_pattern();
  p.indices = {2, 0, 1};
  EXPECT_EQ(refused(p), "kv.indices[1]=0");
  p = small_pattern();
  p.indices[2] = 3;
  EXPECT_EQ(refused(p), "kv.indices[2]=3");
  p = small_pattern();
  p.block_cols[1] = 0;
  EXPECT_EQ(refused(p), "kv.block_cols[1]=0");
  p = small_pattern();
  p.block_mask.assign(3, 1);
  EXPECT_EQ(refused(p), "kv.block_mask (cells)=3");
  p = small_pattern();
  p.indptr = {0, 3, 2};
  EXPECT_EQ(refused(p), "kv.indptr[2]=2");
}

}  // namespace
}  // namespace plait
