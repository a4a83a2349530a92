// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Every operand of a run is checked before anything is launched; each refusal names its field.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/plan_facts.h"

namespace plait::detail {
namespace {

/// A valid decode-like call: 3 rows, 4/2 heads, dim 8, page 4, 5 pages listed of a pool of 6.
class RunChecks : public testing::Test {
 public:
  RunChecks() {
    spec.num_qo_heads = 4;
    spec.num_kv_heads = 2;
    spec.head_dim_qk = 8;
    spec.head_dim_vo = 8;
    spec.q_dtype = spec.kv_dtype = spec.o_dtype = DType::kF32;
    spec.page_size = 4;
    facts.total_q = 3;
    facts.total_kv_len = 17;
    facts.num_views = 1;
    facts.num_pages[0] = 5;
    floats.resize(6 * 4 * 2 * 8);
    ints.resize(64);
    bytes.resize(64);
    args.q = Tensor::contiguous(floats.data(), DType::kF32, {3, 4, 8});
    args.k = Tensor::contiguous(floats.data(), DType::kF32, {6, 4, 2, 8});
    args.v = args.k;
    ids = Tensor::contiguous(ints.data(), DType::kI32, {5});
    args.page_ids = {&ids, 1};
    results.resize(3 * 4 * 8);
    args.o = Tensor::contiguous(results.data(), DType::kF32, {3, 4, 8});
  }

  /// The field that a refusal of the current arguments names; empty if they are accepted.
  std::string refused() {
    try {
      validate_run(spec, facts, args, Device{});
    } catch (const Error& error) {
      EXPECT_FALSE(error.value().empty());
      EXPECT_FALSE(error.expected().empty());
      return error.field();
    }
    return "";
  }

  AttentionSpec spec;
  PlanFacts facts;
  RunArgs args;
  Tensor ids;
  Tensor none;
  std::vector<float> floats;
  std::vector<float> slopes = {0.5F, 300.0F, -std::numeric_limits<float>::infinity(), 0.0F};
  std::vector<float> results;
  std::vector<std::int32_t> ints;
  std::vector<std::uint8_t> bytes;
};

TEST_F(RunChecks, AcceptsAValidCall) { EXPECT_EQ(refused(), ""); }

TEST_F(RunChecks, NamesEachWrongOperand) {
  struct Case {
    const char* field;
    std::function<void(RunChecks&)> spoil;
  };
  const Case cases[] = {
      {"q", [](RunChecks& t) { t.args.q = {}; }},
      {"q", [](RunChecks& t) { t.args.q.data = nullptr; }},
      {"q",
       [](RunChecks& t) {
         t.args.q.device = {DeviceKind::kCuda, 1};
       }},
      {"q", [](RunChecks& t) { t.args.q.data = static_cast<char*>(t.args.q.data) + 2; }},
      {"page_ids[0]", [](RunChecks& t) { t.ids.data = static_cast<char*>(t.ids.data) + 1; }},
      {"q.dtype", [](RunChecks& t) { t.args.q.dtype = DType::kF16; }},
      {"q.shape", [](RunChecks& t) { t.args.q.shape[0] = 2; }},
      {"q.shape", [](RunChecks& t) { t.args.q.rank = 2; }},
      // More axes than a Tensor has room for: what lies behind it is not read.
      {"q.shape", [](RunChecks& t) { t.args.q.rank = INT32_MAX; }},
      {"q.shape", [](RunChecks& t) { t.args.q.rank = -1; }},
      {"q.shape",
       [](RunChecks& t) {
         t.args.q = Tensor::contiguous(t.floats.data(), DType::kF32, {1, 1, 1, 1, 1, 1, 3, 4, 8});
       }},
      {"q",
       [](RunChecks& t) {
         t.args.q.device = {DeviceKind{9}, 0};
       }},
      // As many elements as 0 in 64 bits.
      {"k",
       [](RunChecks& t) {
         t.args.k.shape[0] = std::int64_t{1} << 62;
         t.args.k.data = nullptr;
       }},
      {"q.strides", [](RunChecks& t) { t.args.q.strides[2] = 2; }},
      {"k.dtype", [](RunChecks& t) { t.args.k.dtype = DType::kF8E4M3; }},
      {"k.shape", [](RunChecks& t) { t.spec.layout = KvLayout::kHnd; }},
      {"v.shape", [](RunChecks& t) { t.args.v.shape[0] = 5; }},
      {"page_ids", [](RunChecks& t) { t.args.page_ids = {}; }},
      {"page_ids[0].dtype", [](RunChecks& t) { t.ids.dtype = DType::kI64; }},
      {"page_ids[0].shape", [](RunChecks& t) { t.ids.shape[0] = 4; }},
      {"page_ids[0].strides", [](RunChecks& t) { t.ids.strides[0] = 2; }},
      // Of no pages, but more axes than a tensor has.
      {"page_ids[0].shape",
       [](RunChecks& t) {
         t.facts.num_pages[0] = 0;
         t.ids.rank = 1000;
       }},
      {"positions",
       [](RunChecks& t) {
         t.args.positions = {&t.ids, 1};
       }},
      {"positions[0].dtype",
       [](RunChecks& t) {
         t.facts.num_pages[0] = 0;
         t.facts.has_positions[0] = true;
         t.args.page_ids = {&t.none, 1};
         t.ids.dtype = DType::kF32;
         t.args.positions = {&t.ids, 1};
       }},
      {"positions", [](RunChecks& t) { t.facts.has_positions[0] = true; }},
      {"custom_mask",
       [](RunChecks& t) {
         t.args.custom_mask = Tensor::contiguous(t.bytes.data(), DType::kU8, {4});
       }},
      {"custom_mask.shape",
       [](RunChecks& t) {
         t.spec.mask = MaskKind::kCustom;
         t.facts.mask_bytes = 5;
         t.args.custom_mask = Tensor::contiguous(t.bytes.data(), DType::kU8, {4});
       }},
      {"alibi_slopes", [](RunChecks& t) { t.spec.alibi = true; }},
      {"alibi_slopes",
       [](RunChecks& t) {
         t.args.alibi_slopes = Tensor::contiguous(t.floats.data(), DType::kF32, {4});
       }},
      {"alibi_slopes[2]",
       [](RunChecks& t) {
         t.spec.alibi = true;
         t.args.alibi_slopes = Tensor::contiguous(t.slopes.data(), DType::kF32, {4});
       }},
      {"sink",
       [](RunChecks& t) { t.args.sink = Tensor::contiguous(t.floats.data(), DType::kF32, {4}); }},
      {"sink.shape",
       [](RunChecks& t) {
         t.spec.sink = true;
         t.args.sink = Tensor::contiguous(t.floats.data(), DType::kF32, {2});
       }},
      {"q_rope_positions", [](RunChecks& t) { t.spec.rope.explicit_q_positions = true; }},
      {"k_rope_positions.shape",
       [](RunChecks& t) {
         t.spec.rope.explicit_k_positions = true;
         t.args.k_rope_positions = Tensor::contiguous(t.ints.data(), DType::kI32, {16});
       }},
      {"k_scale", [](RunChecks& t) { t.args.k_scale = std::numeric_limits<float>::quiet_NaN(); }},
      {"v_scale",
       [](RunChecks& t) {
         t.spec.v_scale_per_head = true;
         t.args.v_scale = 2.0F;
         t.args.v_scales = Tensor::contiguous(t.floats.data(), DType::kF32, {2});
       }},
      {"k_scales", [](RunChecks& t) { t.spec.k_scale_per_head = true; }},
      {"o", [](RunChecks& t) { t.args.o = {}; }},
      // Rows in the places of heads.
      {"o.strides", [](RunChecks& t) { t.args.o.strides[0] = t.args.o.strides[1]; }},
      {"o.strides",
       [](RunChecks& t) { t.args.o.strides[0] = 1 - t.args.o.shape[1] * t.args.o.shape[2]; }},
      {"lse.strides",
       [](RunChecks& t) {
         t.args.lse = Tensor::contiguous(t.floats.data(), DType::kF32, {3, 4});
         t.args.lse.strides[0] = 1;
       }},
      {"o.shape",
       [](RunChecks& t) {
         t.spec.head_dim_vo = 16;
         t.args.v.shape[3] = 16;
       }},
      {"o.dtype", [](RunChecks& t) { t.spec.o_dtype = DType::kBF16; }},
      {"lse", [](RunChecks& t) { t.args.state = true; }},
      {"lse.shape",
       [](RunChecks& t) {
         t.args.lse = Tensor::contiguous(t.floats.data(), DType::kF32, {3, 2});
       }},
      {"lse",
       [](RunChecks& t) {
         t.spec.reduction = Reduction::kSum;
         t.args.lse = Tensor::contiguous(t.floats.data(), DType::kF32, {3, 4});
       }},
  };
  const AttentionSpec spec0 = spec;
  const PlanFacts facts0 = facts;
  const RunArgs args0 = args;
  const Tensor ids0 = ids;
  int index = 0;
  for (const Case& c : cases) {
    spec = spec0;
    facts = facts0;
    args = args0;
    ids = ids0;
    c.spoil(*this);
    EXPECT_EQ(refused(), c.field) << "case " << index;
    ++index;
  }
}

TEST_F(RunChecks, WhatIsWrittenIsApartFromWhatElseIsUsed) {
  spec.sink = true;
  std::vector<float> more(256);
  args.sink = Tensor::contiguous(more.data(), DType::kF32, {4});
  const auto lse_at = [](void* data) { return Tensor::contiguous(data, DType::kF32, {3, 4}); };
  args.lse = lse_at(more.data() + 8);
  EXPECT_EQ(refused(), "");
  const Tensor o0 = args.o;
  for (void* shared : {static_cast<void*>(floats.data()), static_cast<void*>(more.data())}) {
    args.o.data = shared;
    EXPECT_EQ(refused(), "o");
  }
  args.o.data = more.data() + 19;
  EXPECT_EQ(refused(), "lse");
  args.o = o0;
  // q and o side by side in one buffer.
  Tensor both = Tensor::contiguous(more.data() + 32, DType::kF32, {3, 8, 8});
  both.shape[1] = 4;
  args.q = both;
  args.o = both;
  args.o.data = more.data() + 64;
  EXPECT_EQ(refused(), "");
  args.o.data = more.data() + 63;
  EXPECT_EQ(refused(), "o");
  args.o = o0;
  for (void* shared : {static_cast<void*>(floats.data()), static_cast<void*>(more.data()),
                       static_cast<void*>(results.data()), static_cast<void*>(more.data() + 32)}) {
    args.lse = lse_at(shared);
    EXPECT_EQ(refused(), "lse");
  }
  args.lse = Tensor::contiguous(more.data() + 8, DType::kF32, {3, 4});
  ids.data = more.data() + 8;
  EXPECT_EQ(refused(), "lse");
}

TEST(PageIds, OutOfThePoolIsRefusedWithViewAndEntry) {
  const std::vector<std::int32_t> good = {0, 5};
  EXPECT_NO_THROW(check_page_ids(0, good, 6));
  for (const std::int32_t bad : {-1, 6}) {
    const std::vector<std::int32_t> ids = {0, bad};
    try {
      check_page_ids(2, ids, 6);
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.field(), "page_ids[2][1]");
      EXPECT_EQ(error.value(), std::to_string(bad));
    }
  }
}

/// Two requests of one row: a shared prefix view of both, and a suffix view of each.
PlanFacts cascade_facts() {
  PlanFacts facts;
  facts.total_q = 2;
  facts.lists.push_back({{0, 2}, {0, 2}, 1, {}});
  facts.lists.push_back({{0, 1, 2}, {0, 1, 2}, 1, {}});
  return facts;
}

TEST(Duplicates, AcrossRequestsAreFineWithinAQueryAreNot) {
  const PlanFacts facts = cascade_facts();
  const std::vector<std::int32_t> prefix = {0, 1};
  const auto check = [&](const std::vector<std::int32_t>& suffix) {
    const std::span<const std::int32_t> ids[] = {prefix, suffix};
    check_duplicates(facts, ids);
  };
  EXPECT_NO_THROW(check({2, 2}));      // two requests share page 2
  EXPECT_THROW(check({2, 1}), Error);  // request 1 sees page 1 in both views
  EXPECT_THROW(check({0, 2}), Error);
}

TEST(Duplicates, EachHeadListIsItsOwn) {
  PlanFacts facts;
  facts.total_q = 1;
  facts.lists.push_back({{0, 1}, {0, 2, 4}, 2, {}});
  const std::vector<std::int32_t> fine = {3, 4, 3, 4};
  const std::vector<std::int32_t> twice = {3, 4, 5, 5};
  const std::span<const std::int32_t> fine_ids[] = {fine};
  const std::span<const std::int32_t> twice_ids[] = {twice};
  EXPECT_NO_THROW(check_duplicates(facts, fine_ids));
  EXPECT_THROW(check_duplicates(facts, twice_ids), Error);
}

}  // namespace
}  // namespace plait::detail
