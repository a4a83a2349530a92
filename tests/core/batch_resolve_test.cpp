// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a batch says beyond the shapes of its arrays.
#include "core/batch_resolve.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "core/owned_batch.h"
#include "plait/error.h"

namespace plait {
namespace {

AttentionSpec paged_spec(MaskKind mask) {
  AttentionSpec spec;
  spec.num_qo_heads = spec.num_kv_heads = 2;
  spec.head_dim_qk = spec.head_dim_vo = 8;
  spec.page_size = 4;
  spec.mask = mask;
  return spec;
}

/// The field that a refusal of `batch` names; empty if it is accepted.
std::string refused(const AttentionSpec& spec, OwnedBatch& batch) {
  try {
    validate(spec, batch.get());
  } catch (const Error& error) {
    return error.field();
  }
  return "";
}

TEST(BatchResolve, KeysOfAnOuterViewEndWithinEveryRequestThatSeesThem) {
  // A shared view of both requests with pages at 0 and 8, then 2 and 5 keys of their own at 12.
  OwnedBatch batch;
  batch.qo_indptr = {0, 1, 2};
  batch.views.resize(2);
  OwnedView& shared = batch.views[0];
  shared.row_indptr = {0, 2};
  shared.add_list(8, 4);
  shared.positions = {0, 8};
  OwnedView& own = batch.views[1];
  own.row_indptr = {0, 1, 2};
  own.add_list(2, 4);
  own.add_list(5, 4);
  own.positions = {12, 12, 16};
  batch.kv_len = {14, 17};
  const AttentionSpec spec = paged_spec(MaskKind::kNone);
  EXPECT_EQ(refused(spec, batch), "");
  shared.positions = {0, 12};  // ends at 16, beyond the 14 keys of request 0
  EXPECT_EQ(refused(spec, batch), "views[0].positions[1]");
  batch.kv_len = {16, 17};
  EXPECT_EQ(refused(spec, batch), "");
}

TEST(BatchResolve, PositionsDoNotEndBeforeTheKeysOfAnOuterView) {
  // Eight keys without positions, then a page of the request's own and a view that lists nothing:
  // the last key's position says how long the request is.
  OwnedBatch batch;
  batch.qo_indptr = {0, 1};
  batch.views.resize(3);
  for (OwnedView& view : batch.views) view.row_indptr = {0, 1};
  batch.views[0].add_list(8, 4);
  batch.views[1].add_list(4, 4);
  batch.views[2].add_list(0, 4);
  const AttentionSpec spec = paged_spec(MaskKind::kNone);
  for (const bool empty_last : {true, false}) {
    if (!empty_last) batch.views.pop_back();
    batch.views[1].positions = {8};
    EXPECT_EQ(refused(spec, batch), "");
    batch.views[1].positions = {3};
    EXPECT_EQ(refused(spec, batch), "views[0].page_indptr[1]");
    batch.kv_len = {8};
    EXPECT_EQ(refused(spec, batch), "");
    batch.kv_len = {7};
    EXPECT_EQ(refused(spec, batch), "views[0].page_indptr[1]");
    batch.kv_len = {};
  }
}

TEST(BatchResolve, NoMoreKeysThanTheLengthWherePositionsAreKnownAtRunTimeOnly) {
  OwnedBatch batch;
  batch.qo_indptr = {0, 1, 2, 2};
  batch.views.resize(2);
  for (OwnedView& view : batch.views) view.row_indptr = batch.qo_indptr;
  for (const int tokens : {8, 0, 4}) batch.views[0].add_list(tokens, 4);
  for (const int tokens : {6, 3, 4}) batch.views[1].add_list(tokens, 4);
  batch.views[1].positions_at_run = true;
  const AttentionSpec spec = paged_spec(MaskKind::kCausal);
  batch.kv_len = {20, 3, 0};  // the last one has no rows, whatever it lists
  EXPECT_EQ(refused(spec, batch), "");
  batch.kv_len = {20, 2, 0};
  EXPECT_EQ(refused(spec, batch), "views[1].page_indptr[2]");
  batch.kv_len = {7, 3, 0};
  EXPECT_EQ(refused(spec, batch), "views[0].page_indptr[1]");
  batch.views[0].positions_at_run = true;
  EXPECT_EQ(refused(spec, batch), "views[0].page_indptr[1]");
  batch.kv_len = {8, 3, 0};
  EXPECT_EQ(refused(spec, batch), "");
}

TEST(BatchResolve, KeysWithoutPositionsStartWhereAllHeadsOfTheOuterViewEnd) {
  OwnedBatch batch;
  batch.qo_indptr = {0, 1};
  batch.kv_len = {30};
  batch.views.resize(2);
  for (OwnedView& view : batch.views) view.row_indptr = batch.qo_indptr;
  OwnedView& heads = batch.views[0];
  heads.per_kv_head = true;
  heads.add_list(4, 4);
  heads.add_list(4, 4);
  OwnedView& last = batch.views[1];
  last.add_list(3, 4);
  const AttentionSpec spec = paged_spec(MaskKind::kNone);
  for (const bool per_kv_head : {false, true}) {
    if (per_kv_head) last.add_list(3, 4);
    last.per_kv_head = per_kv_head;
    last.positions = {};
    heads.positions = {8, 8};
    EXPECT_EQ(refused(spec, batch), "");
    heads.positions = {8, 12};
    EXPECT_EQ(refused(spec, batch), "views[1].positions (length)");
    last.positions.assign(per_kv_head ? 2 : 1, 20);
    EXPECT_EQ(refused(spec, batch), "");
  }
  last = OwnedView{};  // what lists nothing starts nowhere
  last.row_indptr = batch.qo_indptr;
  last.add_list(0, 4);
  EXPECT_EQ(refused(spec, batch), "");
}

TEST(BatchResolve, EmptyRowBlocksDoNotMoveTheMaskOfLaterRequests) {
  // Requests of 2 rows each behind a shared view; the last view has an empty block between them.
  OwnedBatch batch;
  batch.qo_indptr = {0, 2, 4};
  batch.views.resize(2);
  batch.views[0].row_indptr = {0, 2, 4};
  batch.views[0].add_list(4, 4);
  batch.views[0].add_list(8, 4);
  OwnedView& last = batch.views[1];
  last.row_indptr = {0, 2, 2, 4};
  last.add_list(3, 4);
  last.add_list(0, 4);
  last.add_list(7, 4);
  const AttentionSpec spec = paged_spec(MaskKind::kCustom);
  const Batch& view = batch.get();
  const BatchCounts counts = count_batch(spec, view);
  std::vector<device::RowBlock> blocks(static_cast<std::size_t>(counts.num_lists));
  std::vector<std::int32_t> kv_len(2);
  resolve_batch(spec, view, counts, blocks.data(), kv_len.data(), nullptr);
  EXPECT_EQ(kv_len, (std::vector<std::int32_t>{7, 15}));
  const device::RowBlock& first = blocks[2];
  const device::RowBlock& second = blocks[4];
  EXPECT_EQ(first.mask_bit0_lo, 0U);
  EXPECT_EQ(first.mask_row_bits, 3);
  EXPECT_EQ(second.mask_bit0_lo, 8U);  // two rows of three bits fill the first byte
  EXPECT_EQ(second.mask_row_bits, 7);
}

/// Requests of 2 rows and 5, 0 and 3 keys in one view.
OwnedBatch three_requests() {
  OwnedBatch batch;
  batch.qo_indptr = {0, 2, 4, 6};
  batch.views.resize(1);
  batch.views[0].row_indptr = batch.qo_indptr;
  for (const std::int64_t keys : {5, 0, 3}) batch.views[0].add_list(keys, 4);
  return batch;
}

/// Before its view, one that all requests share: 8 keys.
void share_a_prefix(OwnedBatch& batch) {
  OwnedView prefix;
  prefix.row_indptr = {0, 6};
  prefix.add_list(8, 4);
  batch.views.insert(batch.views.begin(), prefix);
}

TEST(BatchResolve, FlatBatchesResolveAsThoseWhoseLengthsAreGiven) {
  // A batch that states its lengths is resolved step by step, one that leaves them out in one pass.
  for (const bool paged : {true, false}) {
    AttentionSpec spec = paged_spec(MaskKind::kCausal);
    if (!paged) spec.kv_kind = KvKind::kRagged;
    spec.page_size = paged ? 4 : 1;
    OwnedBatch batch;
    OwnedView view;
    for (const auto& [rows, keys] : {std::pair{1, 9}, {0, 0}, {3, 8}, {2, 1}, {0, 5}, {1, 0}}) {
      batch.qo_indptr.push_back(batch.qo_indptr.back() + rows);
      view.add_list(keys, paged ? 4 : 0);
      batch.kv_len.push_back(keys);
    }
    view.row_indptr = batch.qo_indptr;
    batch.views.push_back(view);
    const auto resolved = [&] {
      const BatchCounts counts = count_batch(spec, batch.get());
      std::vector<device::RowBlock> blocks(static_cast<std::size_t>(counts.num_lists));
      std::vector<std::int32_t> kv_len(static_cast<std::size_t>(counts.num_requests), -1);
      std::vector<std::int32_t> parents(blocks.size(), -2);
      const ResolvedBatch result =
          resolve_batch(spec, batch.get(), counts, blocks.data(), kv_len.data(), parents.data());
      // Everything as words: records are made of nothing else.
      const auto* words = reinterpret_cast<const std::int32_t*>(blocks.data());
      std::vector<std::int32_t> all(words, words + blocks.size() * sizeof(device::RowBlock) / 4);
      all.insert(all.end(), kv_len.begin(), kv_len.end());
      all.insert(all.end(), parents.begin(), parents.end());
      all.insert(all.end(), std::begin(result.view_begin), std::end(result.view_begin));
      all.push_back(static_cast<std::int32_t>(result.longest_kv));
      all.push_back(result.spans_requests ? 1 : 0);
      return all;
    };
    const std::vector<std::int32_t> stated = resolved();
    batch.kv_len.clear();
    EXPECT_EQ(resolved(), stated) << (paged ? "paged" : "ragged");
  }
}

TEST(BatchResolve, NamesEachWrongCount) {
  using Change = std::function<void(AttentionSpec&, OwnedBatch&)>;
  const std::int32_t far = 600'000'000;  // pages of 4 tokens: more than 2^31 of them
  const std::pair<const char*, Change> cases[] = {
      {"", [](auto&, auto&) {}},
      {"", [](auto&, auto& b) { share_a_prefix(b); }},
      {"qo_indptr (length)", [](auto&, auto& b) { b.qo_indptr = {}; }},
      {"qo_indptr[0]", [](auto&, auto& b) { b.qo_indptr[0] = 1; }},
      {"qo_indptr[2]", [](auto&, auto& b) { b.qo_indptr[2] = 1; }},
      {"qo_indptr[3]", [](auto&, auto& b) { b.qo_indptr[3] = -1; }},
      {"qo_indptr[3]",
       [](auto& s, auto& b) {
         s.num_qo_heads = 4;
         b.qo_indptr[3] = INT32_MAX;
       }},
      {"kv_len (length)", [](auto&, auto& b) { b.kv_len = {5, 0}; }},
      {"kv_len[0]",
       [](auto&, auto& b) {
         b.kv_len = {6, 0, 3};
       }},
      {"kv_len[1]",
       [](auto&, auto& b) {
         b.kv_len = {5, -1, 3};
       }},
      {"views (length)", [](auto&, auto& b) { b.views = {}; }},
      {"views (length)", [](auto&, auto& b) { b.views.resize(kMaxViews + 1, b.views[0]); }},
      {"views[0].row_indptr (length)", [](auto&, auto& b) { b.views[0].row_indptr = {}; }},
      {"views[0].row_indptr[0]", [](auto&, auto& b) { b.views[0].row_indptr[0] = 1; }},
      {"views[0].row_indptr[2]", [](auto&, auto& b) { b.views[0].row_indptr[2] = 1; }},
      {"views[0].row_indptr[3]", [](auto&, auto& b) { b.views[0].row_indptr[3] = 7; }},
      // A block of one row and a half of the next request's.
      {"views[0].row_indptr[0]",
       [](auto&, auto& b) {
         b.views[0].row_indptr = {0, 3, 4, 6};
       }},
      {"views[0].row_indptr[0]",
       [](auto&, auto& b) {
         b.views[0].row_indptr = {0, 1, 2, 6};
       }},
      {"views[1].row_indptr[1]",
       [](auto&, auto& b) {
         share_a_prefix(b);
         b.views[0].row_indptr = {0, 2, 6};
         b.views[0].add_list(4, 4);
         b.views[1].row_indptr = {0, 4, 6, 6};
       }},
      {"kv_len (length)",
       [](auto&, auto& b) {
         b.views[0].row_indptr = {0, 1, 2, 6};
         b.views[0].positions = {0, 4, 8};
       }},
      // Both rows of the first request apart: the last page of either has to lie within its keys.
      {"",
       [](auto&, auto& b) {
         b.views[0].row_indptr = {0, 1, 2, 6};
         b.views[0].positions = {0, 4, 8};
         b.qo_indptr = {0, 2, 6};
         b.kv_len = {5, 11};
       }},
      {"kv_len[0]",
       [](auto&, auto& b) {
         b.views[0].row_indptr = {0, 1, 2, 6};
         b.views[0].positions = {0, 4, 8};
         b.qo_indptr = {0, 2, 6};
         b.kv_len = {4, 11};
       }},
      {"kv_len[1]",
       [](auto&, auto& b) {
         b.views[0].row_indptr = {0, 2, 3, 6};
         b.views[0].page_indptr = {0, 1, 2, 3};
         b.views[0].last_page_len = {4, 4, 3};
         b.views[0].positions = {0, 8, 0};
         b.qo_indptr = {0, 2, 6};
         b.kv_len = {4, 11};
       }},
      {"views[0].page_indptr (length)", [](auto&, auto& b) { b.views[0].page_indptr.pop_back(); }},
      {"views[0].page_indptr (length)", [](auto&, auto& b) { b.views[0].per_kv_head = true; }},
      {"views[0].page_indptr[0]", [](auto&, auto& b) { b.views[0].page_indptr[0] = 1; }},
      {"views[0].page_indptr[2]", [](auto&, auto& b) { b.views[0].page_indptr[2] = 1; }},
      {"views[0].page_indptr[3]", [=](auto&, auto& b) { b.views[0].page_indptr[3] = far; }},
      {"views[0].page_indptr[2]",
       [](auto& s, auto& b) {
         b = three_requests();
         b.qo_indptr = {0, 6};
         b.views[0] = {};
         b.views[0].row_indptr = b.qo_indptr;
         b.views[0].per_kv_head = true;
         for (int head = 0; head < s.num_kv_heads; ++head) b.views[0].add_list(5 + head, 4);
       }},
      {"views[0].last_page_len (length)",
       [](auto&, auto& b) { b.views[0].last_page_len.pop_back(); }},
      {"views[0].last_page_len (length)",
       [](auto& s, auto&) {
         s.kv_kind = KvKind::kRagged;
         s.page_size = 1;
       }},
      {"views[0].last_page_len[0]", [](auto&, auto& b) { b.views[0].last_page_len[0] = 0; }},
      {"views[0].last_page_len[0]", [](auto&, auto& b) { b.views[0].last_page_len[0] = 5; }},
      {"views[0].last_page_len[1]", [](auto&, auto& b) { b.views[0].last_page_len[1] = 1; }},
      {"views[0].positions (length)",
       [](auto&, auto& b) {
         b.views[0].positions = {0, 4};
       }},
      {"views[0].positions[0]",
       [](auto&, auto& b) {
         b.views[0].positions = {-1, 4, 0};
       }},
      {"views[0].positions[1]",
       [](auto&, auto& b) {
         b.views[0].positions = {0, 3, 0};
       }},
      {"views[0].positions[2]",
       [](auto&, auto& b) {
         b.views[0].positions = {0, 4, INT32_MAX};
       }},
      {"views[0].positions (length)",
       [](auto&, auto& b) {
         b.views[0].positions = {0, 4, 0};
         b.views[0].positions_at_run = true;
         b.kv_len = {8, 0, 8};
       }},
      {"views[1].positions (length)",
       [](auto&, auto& b) {
         share_a_prefix(b);
         b.views[0].positions_at_run = true;
         b.kv_len = {16, 8, 16};
       }},
      {"kv_len (length)", [](auto&, auto& b) { b.views[0].positions_at_run = true; }},
      {"mask.kind",
       [](auto& s, auto& b) {
         s.mask = MaskKind::kCustom;
         share_a_prefix(b);
         b.views.pop_back();
       }},
      {"rope.k_positions (length)",
       [=](auto& s, auto& b) {
         s.rope.kind = RopeKind::kHalf;
         s.rope.explicit_k_positions = true;
         b.views[0].page_indptr = {0, far / 2, far, far / 2 * 3};
         b.views[0].last_page_len = {4, 4, 4};
       }},
  };
  int index = 0;
  for (const auto& [field, change] : cases) {
    AttentionSpec spec = paged_spec(MaskKind::kNone);
    OwnedBatch batch = three_requests();
    change(spec, batch);
    EXPECT_EQ(refused(spec, batch), field) << "case " << index;
    ++index;
  }
}

// The field for which a spec is refused after `spoil`; empty if it is not.
template <class Spoil>
std::string refused_field(Spoil spoil) {
  AttentionSpec spec = paged_spec(MaskKind::kNone);
  spoil(spec);
  try {
    validate(spec);
  } catch (const Error& error) {
    return error.field();
  }
  return "";
}

TEST(Spec, NumbersThatF32CannotHoldAreRefused) {
  EXPECT_EQ(refused_field([](AttentionSpec& s) { s.logits_soft_cap = 1e-30; }), "");
  EXPECT_EQ(refused_field([](AttentionSpec& s) { s.logits_soft_cap = 1e-300; }), "logits_soft_cap");
  EXPECT_EQ(refused_field([](AttentionSpec& s) { s.logits_soft_cap = 1e300; }), "logits_soft_cap");
  EXPECT_EQ(refused_field([](AttentionSpec& s) { s.sm_scale = 1e300; }), "sm_scale");
}

TEST(Spec, ValuesOutsideOfAnEnumerationAreRefused) {
  EXPECT_EQ(refused_field([](AttentionSpec& s) { s.kv_kind = KvKind{2}; }), "kv.kind");
  EXPECT_EQ(refused_field([](AttentionSpec& s) { s.layout = KvLayout{2}; }), "layout");
  EXPECT_EQ(refused_field([](AttentionSpec& s) { s.mask = MaskKind{3}; }), "mask.kind");
  EXPECT_EQ(refused_field([](AttentionSpec& s) { s.reduction = Reduction{2}; }), "reduction");
  EXPECT_EQ(refused_field([](AttentionSpec& s) { s.rope.kind = RopeKind{3}; }), "rope.kind");
  EXPECT_EQ(refused_field([](AttentionSpec& s) { s.rope.scaling = RopeScalingKind{3}; }),
            "rope.scaling.kind");
}

TEST(Spec, NamesOfAVariantAreIdentifiers) {
  AttentionSpec spec = paged_spec(MaskKind::kNone);
  const auto field = [&](std::string name, std::string param) -> std::string {
    spec.variant = {
        std::move(name), "struct V : VariantBase {};", {{std::move(param), false, {1}}}};
    try {
      validate(spec);
    } catch (const Error& error) {
      return error.field();
    }
    return "";
  };
  EXPECT_EQ(field("V", "x_1"), "");
  EXPECT_EQ(field("V; }", "x"), "variant.name");
  EXPECT_EQ(field("1V", "x"), "variant.name");
  EXPECT_EQ(field("V", "x y"), "variant.params.x y");
  EXPECT_EQ(field("V", ""), "variant.params.");
}

TEST(Spec, OptionsOfAnotherRopeScalingAreRefused) {
  RopeSpec rope;
  rope.kind = RopeKind::kHalf;
  rope.scaling = RopeScalingKind::kLinear;
  rope.factor = 2.0;
  EXPECT_NO_THROW(validate_rope(rope, 64));
  rope.low_freq_factor = 2.0;
  EXPECT_THROW(validate_rope(rope, 64), Error);
}

// Beyond some frequency angles are noise, and infinite ones made every output NaN in silence.
TEST(Spec, RopeThatTurnsTooFastIsRefused) {
  const auto field = [](double theta, RopeScalingKind scaling, double factor) {
    return refused_field([&](AttentionSpec& s) {
      s.rope.kind = RopeKind::kHalf;
      s.rope.theta = theta;
      s.rope.scaling = scaling;
      s.rope.factor = factor;
    });
  };
  EXPECT_EQ(field(0.5, RopeScalingKind::kNone, 1.0), "");
  EXPECT_EQ(field(1e-300, RopeScalingKind::kNone, 1.0), "rope.theta");
  EXPECT_EQ(field(1e-320, RopeScalingKind::kLinear, 8.0), "rope.theta");
  EXPECT_EQ(field(10000.0, RopeScalingKind::kLinear, 1.0 / 32.0), "");
  EXPECT_EQ(field(10000.0, RopeScalingKind::kLinear, 1e-320), "rope.scaling.factor");
  EXPECT_EQ(field(10000.0, RopeScalingKind::kLlama31, 1e-320), "rope.scaling.factor");
  EXPECT_EQ(field(1e-320, RopeScalingKind::kLlama31, 8.0), "rope.theta");
}

// The limit is on what scaling leaves of a turn, to both sides of 64 rad per position.
TEST(Spec, RopeThatScalingSlowsDownIsAccepted) {
  // Two pairs, which turn by 1 and by theta^(-1/2) before scaling.
  RopeSpec rope;
  rope.kind = RopeKind::kInterleaved;
  rope.rotary_dim = 4;
  const auto field = [&](double theta, double factor) -> std::string {
    rope.theta = theta;
    rope.factor = factor;
    try {
      validate_rope(rope, 64);
    } catch (const Error& error) {
      return error.field();
    }
    return "";
  };
  EXPECT_EQ(field(1.0 / 4096, 1.0), "");  // 64 rad
  EXPECT_EQ(field(1.0 / 4097, 1.0), "rope.theta");
  rope.scaling = RopeScalingKind::kLinear;
  EXPECT_EQ(field(1e-6, 16.0), "");  // 1000 rad before, 62.5 after
  EXPECT_EQ(field(1e-6, 15.625), "");
  EXPECT_EQ(field(1e-6, 15.5), "rope.theta");
  EXPECT_EQ(field(1.0, 1.0 / 64), "");
  EXPECT_EQ(field(1.0, 1.0 / 65), "rope.scaling.factor");
  EXPECT_EQ(field(0.25, 1.0 / 32), "");  // 2 rad before, 64 after
  EXPECT_EQ(field(0.25, 1.0 / 33), "rope.scaling.factor");
  // Llama 3.1 slows down what turns seldom within the original context, and nothing else.
  rope.scaling = RopeScalingKind::kLlama31;
  rope.original_max_position = 1;
  rope.low_freq_factor = 200.0;  // turns; 1000 rad are 159
  rope.high_freq_factor = 400.0;
  EXPECT_EQ(field(1e-6, 16.0), "");
  EXPECT_EQ(field(1e-6, 15.5), "rope.theta");
  rope.low_freq_factor = 50.0;
  rope.high_freq_factor = 100.0;
  EXPECT_EQ(field(1e-6, 16.0), "rope.theta");
}

}  // namespace
}  // namespace plait
