// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What is written shares no memory with what else a call uses, unless the call says so.
#include "engine/shared_memory.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "plait/error.h"
#include "plait/ops.h"
#include "support/seed.h"

namespace plait::detail {
namespace {

using Extents = std::vector<std::int64_t>;

Tensor strided(void* data, DType dtype, const Extents& shape, const Extents& strides) {
  Tensor t;
  t.data = data;
  t.dtype = dtype;
  t.rank = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape.begin());
  std::copy(strides.begin(), strides.end(), t.strides.begin());
  return t;
}

/// The field that a refusal names, empty without one.
std::string refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_FALSE(error.value().empty());
    EXPECT_FALSE(error.expected().empty());
    return error.field();
  }
  return "";
}

bool accepted(const Tensor& written, const Tensor& other) {
  return refused([&] { WrittenOperand("o", written).apart_from("q", other); }).empty();
}

TEST(SharedMemory, NamesBothOperands) {
  std::vector<float> memory(64);
  const Tensor o = Tensor::contiguous(memory.data(), DType::kF32, {4, 8});
  const Tensor ids = Tensor::contiguous(memory.data() + 31, DType::kI32, {8});
  try {
    WrittenOperand("o", o).apart_from("page_ids", ids, 2);
    FAIL() << "the last element of o is the first page id";
  } catch (const Error& error) {
    EXPECT_EQ(error.field(), "o");
    EXPECT_NE(error.value().find("4 bytes"), std::string::npos) << error.value();
    EXPECT_NE(error.value().find("page_ids[2]"), std::string::npos) << error.value();
  }
}

TEST(SharedMemory, ViewsOfOneInterleavedBufferAreApart) {
  std::vector<std::uint16_t> memory(4096);
  const auto view = [&](std::int64_t begin, const Extents& shape, const Extents& strides) {
    return strided(memory.data() + begin, DType::kBF16, shape, strides);
  };
  // q, k, v side by side in each row: [tokens, (4 + 2 + 2) heads, 16].
  const Tensor q = view(0, {8, 4, 16}, {128, 16, 1});
  const Tensor k = view(64, {8, 2, 16}, {128, 16, 1});
  EXPECT_TRUE(accepted(q, k));
  EXPECT_TRUE(accepted(k, q));
  EXPECT_FALSE(accepted(q, view(63, {8, 2, 16}, {128, 16, 1})));
  EXPECT_FALSE(accepted(q, view(64, {8, 4, 17}, {128, 16, 1})));
  // Keys and values of a page one after another, of a token, or of a head.
  EXPECT_TRUE(accepted(view(0, {4, 4, 2, 16}, {256, 32, 16, 1}),
                       view(128, {4, 4, 2, 16}, {256, 32, 16, 1})));
  EXPECT_TRUE(accepted(view(0, {4, 4, 2, 16}, {256, 64, 16, 1}),
                       view(32, {4, 4, 2, 16}, {256, 64, 16, 1})));
  EXPECT_TRUE(accepted(view(0, {4, 4, 2, 16}, {256, 64, 32, 1}),
                       view(16, {4, 4, 2, 16}, {256, 64, 32, 1})));
  // The same with room behind each page, whose stride then is no multiple of a token's.
  const Tensor keys = view(0, {4, 4, 2, 16}, {260, 64, 16, 1});
  EXPECT_TRUE(accepted(keys, view(32, {4, 4, 2, 16}, {260, 64, 16, 1})));
  EXPECT_TRUE(accepted(keys, view(32, {9, 4, 2, 16}, {260, 64, 16, 1})));
  EXPECT_FALSE(accepted(keys, view(31, {4, 4, 2, 16}, {260, 64, 16, 1})));
  EXPECT_FALSE(accepted(keys, view(32, {4, 4, 2, 16}, {252, 64, 16, 1})));
  EXPECT_FALSE(accepted(keys, view(32 + 260, {4, 5, 2, 16}, {260, 64, 16, 1})));
  // Rows in the opposite direction.
  EXPECT_TRUE(accepted(q, view(7 * 128 + 64, {8, 2, 16}, {-128, 16, 1})));
  // One after another, and nothing at all.
  EXPECT_TRUE(accepted(view(0, {2, 16}, {16, 1}), view(32, {2, 16}, {16, 1})));
  EXPECT_TRUE(accepted(q, view(8, {0, 4, 16}, {128, 16, 1})));
  EXPECT_TRUE(accepted(view(8, {0, 4, 16}, {128, 16, 1}), q));
  EXPECT_TRUE(accepted(q, Tensor{}));
}

TEST(SharedMemory, ElementsOfAWrittenTensorHaveAPlaceEach) {
  std::vector<float> memory(4096);
  const auto field = [&](const Extents& shape, const Extents& strides) {
    return refused(
        [&] { WrittenOperand("o", strided(memory.data() + 2048, DType::kF32, shape, strides)); });
  };
  EXPECT_EQ(field({4, 8}, {8, 1}), "");
  EXPECT_EQ(field({4, 8}, {1, 4}), "");
  EXPECT_EQ(field({4, 8}, {-8, 1}), "");
  EXPECT_EQ(field({1, 8}, {0, 1}), "");
  EXPECT_EQ(field({0, 8}, {0, 1}), "");
  EXPECT_EQ(field({4, 8}, {0, 1}), "o.strides");
  EXPECT_EQ(field({4, 8}, {7, 1}), "o.strides");
  EXPECT_EQ(field({3, 2, 8}, {8, 16, 1}), "o.strides");
}

// A product that wraps would make a tensor of exabytes look like one of a few bytes, apart from
// everything.
TEST(SharedMemory, WhatLiesOutsideOfTheAddressSpaceIsRefused) {
  std::vector<float> memory(64);
  constexpr std::int64_t kMost = INT64_MAX;
  const auto view = [&](const Extents& shape, const Extents& strides) {
    return strided(memory.data() + 32, DType::kF32, shape, strides);
  };
  const Tensor o = view({2, 2}, {2, 1});
  for (const Tensor& t : {
           view({2, 2}, {kMost, 1}),
           view({2, 2}, {-kMost, 1}),
           view({2, 2}, {INT64_MIN, 1}),
           view({2, 2}, {kMost / 2 + 1, 1}),          // 2^64 bytes: back at the start
           view({5, 2}, {std::int64_t{1} << 60, 1}),  // the same in 4 steps
           view({kMost, 2}, {kMost, 1}),              // (2^63 - 1)^2
           view({2, 2, 2, 2}, {kMost / 4, kMost / 4, kMost / 4, kMost / 4}),  // only their sum
           view({kMost, 1}, {8, 1}),
       }) {
    SCOPED_TRACE(testing::PrintToString(t.strides));
    EXPECT_EQ(refused([&] { WrittenOperand("q", t); }), "q.strides");
    EXPECT_EQ(refused([&] { WrittenOperand("o", o).apart_from("q", t); }), "q.strides");
    EXPECT_EQ(refused([&] { WrittenOperand("o", o).apart_from("ids", t, 3); }), "ids[3].strides");
  }
  // The last bytes that there are, and strides that no element uses.
  const std::uint64_t room = std::uint64_t{0} - reinterpret_cast<std::uintptr_t>(o.data);
  const auto steps = static_cast<std::int64_t>(room / 4);
  EXPECT_EQ(refused([&] { WrittenOperand("q", view({2}, {steps - 2})); }), "");
  EXPECT_EQ(refused([&] { WrittenOperand("q", view({2}, {steps})); }), "q.strides");
  EXPECT_EQ(refused([&] { WrittenOperand("q", view({1, 2}, {kMost, 1})); }), "");
  // A step of more than half of all addresses is compared as any other.
  const Tensor far = view({2, 4}, {(std::int64_t{1} << 61) + 16, 1});
  EXPECT_TRUE(accepted(far, strided(memory.data() + 40, DType::kF32, {4, 4}, {4, 1})));
  EXPECT_FALSE(accepted(far, strided(memory.data() + 28, DType::kF32, {4, 4}, {4, 1})));
}

/// Bytes of every element.
std::multiset<const char*> bytes_of(const Tensor& t) {
  std::multiset<const char*> bytes;
  const auto visit = [&](const auto& self, std::int32_t axis, const char* at) -> void {
    if (axis == t.rank) {
      for (int byte = 0; byte < size_of(t.dtype); ++byte) bytes.insert(at + byte);
      return;
    }
    const auto a = static_cast<std::size_t>(axis);
    for (std::int64_t i = 0; i < t.shape[a]; ++i) {
      self(self, axis + 1, at + i * t.strides[a] * size_of(t.dtype));
    }
  };
  visit(visit, 0, static_cast<const char*>(t.data));
  return bytes;
}

TEST(SharedMemory, NeverAcceptsASharedByte) {
  const test::Seed seed(71);
  std::mt19937_64 random(seed.value());
  std::vector<std::uint16_t> memory(4096);
  const auto draw = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  int shared = 0;
  int apart = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto tensor = [&] {
      Extents shape;
      Extents strides;
      for (int axis = draw(1, 3); axis > 0; --axis) {
        shape.push_back(draw(1, 4));
        strides.push_back(draw(-12, 24));
      }
      return strided(memory.data() + 2048 + draw(-12, 12),
                     draw(0, 1) == 0 ? DType::kBF16 : DType::kU8, shape, strides);
    };
    const Tensor a = tensor();
    Tensor b = tensor();
    if (draw(0, 1) == 0) b.strides = a.strides;  // two views of one buffer
    const std::multiset<const char*> places = bytes_of(a);
    const bool own = std::set<const char*>(places.begin(), places.end()).size() == places.size();
    const bool written = refused([&] { WrittenOperand("o", a); }).empty();
    ASSERT_TRUE(own || !written) << "round " << round << ", " << seed.repro();
    if (!written) continue;
    bool meets = false;
    for (const char* byte : bytes_of(b)) meets = meets || places.count(byte) > 0;
    const bool ok = accepted(a, b);
    ASSERT_FALSE(meets && ok) << "round " << round << ", " << seed.repro();
    ++(meets ? shared : apart);
  }
  EXPECT_GT(shared, 1000) << seed.repro();
  EXPECT_GT(apart, 1000) << seed.repro();
}

/// States of 3 rows and 2 heads of 8 elements, in memory of their own.
class OperationsInPlace : public testing::Test {
 public:
  Tensor rows(std::int64_t at) {
    return Tensor::contiguous(memory.data() + at, DType::kF32, {3, 2, 8});
  }
  Tensor lse(std::int64_t at) {
    return Tensor::contiguous(memory.data() + at, DType::kF32, {3, 2});
  }
  Tensor ints(std::int64_t at, std::int64_t count) {
    return Tensor::contiguous(memory.data() + at, DType::kI32, {count});
  }

  Engine engine;
  std::vector<float> memory = std::vector<float>(1024);
};

TEST_F(OperationsInPlace, MergesIntoTheFirstStateOnly) {
  const auto merge = [&](const Tensor& o, const Tensor& out_lse) {
    return refused([&] { merge_state(engine, rows(0), lse(64), rows(128), lse(192), o, out_lse); });
  };
  EXPECT_EQ(merge(rows(256), lse(320)), "");
  EXPECT_EQ(merge(rows(0), lse(64)), "");
  EXPECT_EQ(merge(rows(0), lse(320)), "");
  EXPECT_EQ(merge(rows(128), lse(320)), "o");
  EXPECT_EQ(merge(rows(8), lse(320)), "o");
  EXPECT_EQ(merge(rows(256), lse(192)), "lse");
  EXPECT_EQ(merge(rows(256), lse(66)), "lse");
  EXPECT_EQ(merge(rows(256), lse(0)), "lse");
  EXPECT_EQ(merge(rows(256), lse(300)), "lse");
  EXPECT_EQ(merge(rows(60), lse(320)), "o");
}

TEST_F(OperationsInPlace, ManyStatesAreMergedElsewhere) {
  const Tensor states = Tensor::contiguous(memory.data(), DType::kF32, {3, 2, 2, 8});
  const Tensor lses = Tensor::contiguous(memory.data() + 128, DType::kF32, {3, 2, 2});
  const auto merge = [&](const Tensor& o, const Tensor& out_lse) {
    return refused([&] { merge_states(engine, states, lses, o, out_lse); });
  };
  EXPECT_EQ(merge(rows(256), lse(320)), "");
  EXPECT_EQ(merge(rows(0), lse(320)), "o");
  EXPECT_EQ(merge(rows(136), lse(320)), "o");
  EXPECT_EQ(merge(rows(256), lse(128)), "lse");
  EXPECT_EQ(merge(rows(256), lse(8)), "lse");
  EXPECT_EQ(merge(rows(256), lse(256)), "lse");
}

TEST_F(OperationsInPlace, StatesAreFinalisedElsewhere) {
  const auto finalize = [&](const Tensor& o) {
    return refused([&] {
      finalize_state(engine, rows(0), lse(64),
                     Tensor::contiguous(memory.data() + 128, DType::kF32, {2}), o);
    });
  };
  EXPECT_EQ(finalize(rows(256)), "");
  EXPECT_EQ(finalize(rows(0)), "o");
  EXPECT_EQ(finalize(rows(66)), "o");
  EXPECT_EQ(finalize(rows(129)), "o");
}

TEST_F(OperationsInPlace, RotatesIntoTheSameTensorOnly) {
  RopeSpec rope;
  rope.kind = RopeKind::kHalf;
  const auto rotate = [&](const Tensor& out) {
    return refused([&] { apply_rope(engine, rows(0), ints(128, 3), rope, out); });
  };
  EXPECT_EQ(rotate(rows(256)), "");
  EXPECT_EQ(rotate(rows(0)), "");
  EXPECT_EQ(rotate(rows(16)), "out");
  EXPECT_EQ(rotate(rows(120)), "out");
  Tensor turned = rows(0);
  std::swap(turned.strides[0], turned.strides[1]);  // [head, row, dim]
  turned.strides[1] = 24;
  turned.strides[0] = 8;
  EXPECT_EQ(rotate(turned), "out");
}

TEST_F(OperationsInPlace, AppendsToCachesApartFromEverythingElse) {
  const auto pool = [&](std::int64_t at, std::int64_t page_stride, std::int64_t dim) {
    return strided(memory.data() + at, DType::kF32, {4, 2, 2, dim}, {page_stride, 16, 8, 1});
  };
  const auto append = [&](const Tensor& k, const Tensor& v, const Tensor& k_cache,
                          const Tensor& v_cache, float v_scale) {
    return refused([&] {
      append_paged_kv(engine, k, v, ints(700, 3), ints(710, 3), ints(720, 2), ints(730, 2), k_cache,
                      v_cache, KvLayout::kNhd, 1.0F, v_scale);
    });
  };
  // Request 0, position 0, the first of its pages, which is page 0.
  static_cast<std::int32_t*>(ints(721, 1).data)[0] = 1;
  EXPECT_EQ(append(rows(0), rows(64), pool(128, 32, 8), pool(256, 32, 8), 1), "");
  EXPECT_EQ(append(rows(0), rows(64), pool(128, 64, 8), pool(160, 64, 8), 1), "");
  EXPECT_EQ(append(rows(0), rows(64), pool(128, 64, 8), pool(152, 64, 8), 1), "v_cache");
  EXPECT_EQ(append(rows(0), rows(64), pool(40, 32, 8), pool(256, 32, 8), 1), "k_cache");
  EXPECT_EQ(append(rows(0), rows(64), pool(256, 32, 8), pool(100, 32, 8), 1), "v_cache");
  EXPECT_EQ(append(rows(0), rows(64), pool(128, 32, 8), pool(600, 32, 8), 1), "v_cache");
  EXPECT_EQ(append(rows(0), rows(64), pool(128, 16, 8), pool(256, 32, 8), 1), "k_cache.strides");
  // A latent cache: values are the first elements of the keys.
  Tensor latent = rows(0);
  latent.shape[2] = 4;
  EXPECT_EQ(append(rows(0), latent, pool(128, 32, 8), pool(128, 32, 4), 1), "");
  EXPECT_EQ(append(rows(0), latent, pool(128, 32, 8), pool(128, 32, 4), 2), "v_cache");
  EXPECT_EQ(append(rows(0), rows(64), pool(128, 32, 8), pool(128, 32, 8), 1), "v_cache");
}

}  // namespace
}  // namespace plait::detail
