// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/configurations.h"

#include <gtest/gtest.h>

#include <vector>

namespace plait {
namespace {

AttentionSpec small_spec() {
  AttentionSpec spec;
  spec.num_qo_heads = 2;
  spec.num_kv_heads = 1;
  spec.head_dim_qk = spec.head_dim_vo = 16;
  spec.q_dtype = spec.kv_dtype = spec.o_dtype = DType::kF32;
  spec.page_size = 4;
  return spec;
}

Capacity capacity_of(std::int64_t requests, std::int64_t rows, std::int64_t kv) {
  Capacity capacity;
  capacity.max_requests = requests;
  capacity.max_query_rows = rows;
  capacity.max_kv_tokens = kv;
  return capacity;
}

/// `requests` requests of `rows` query rows and `pages` full pages each.
struct EvenBatch {
  std::vector<std::int32_t> qo_indptr{0};
  std::vector<std::int32_t> page_indptr{0};
  std::vector<std::int32_t> last_page_len;
  View view;
  Batch batch;

  EvenBatch(int requests, int rows, int pages) {
    for (int request = 0; request < requests; ++request) {
      qo_indptr.push_back(qo_indptr.back() + rows);
      page_indptr.push_back(page_indptr.back() + pages);
      last_page_len.push_back(4);
    }
    view.row_indptr = qo_indptr;
    view.page_indptr = page_indptr;
    view.last_page_len = last_page_len;
    batch.qo_indptr = qo_indptr;
    batch.views = {&view, 1};
  }
  EvenBatch(const EvenBatch&) = delete;
  EvenBatch& operator=(const EvenBatch&) = delete;
};

TEST(ConfigurationSet, RefusesSpecsThatAreWrongInThemselves) {
  const Engine engine;
  AttentionSpec spec = small_spec();
  spec.page_size = 0;
  EXPECT_THROW(ConfigurationSet(engine, {spec}, {}), Error);
  EXPECT_THROW(ConfigurationSet(engine, {}, {}), Error);
}

TEST(ConfigurationSet, SelectsTheSmallestThatFits) {
  const Engine engine;
  ConfigurationSet set(engine, {small_spec()}, {});
  const std::int32_t large = set.add(capacity_of(16, 256, 256));
  const std::int32_t decode = set.add(capacity_of(8, 8, 64));
  ASSERT_LT(set.workspace_bytes(decode), set.workspace_bytes(large));

  const EvenBatch step(8, 1, 16);
  EXPECT_EQ(set.select(step.batch).index, decode);
  EXPECT_NO_THROW(set.at(decode).plan(step.batch));
  const EvenBatch prefill(2, 64, 16);
  EXPECT_EQ(set.select(prefill.batch).index, large);
  EXPECT_NO_THROW(set.at(large).plan(prefill.batch));
}

TEST(ConfigurationSet, WhatIsNotSelectedWouldNotFit) {
  const Engine engine;
  ConfigurationSet set(engine, {small_spec()}, {});
  const std::int32_t only = set.add(capacity_of(4, 16, 32));
  for (int requests = 1; requests <= 6; ++requests) {
    for (int rows : {1, 3, 5}) {
      for (int pages : {1, 8, 9}) {
        const EvenBatch batch(requests, rows, pages);
        bool planned = true;
        try {
          set.at(only).plan(batch.batch);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kOverCapacity);
          planned = false;
        }
        EXPECT_EQ(set.select(batch.batch).index == only, planned)
            << requests << " requests, " << rows << " rows, " << pages << " pages";
      }
    }
  }
}

TEST(ConfigurationSet, SaysWhatToGrowAndGrows) {
  const Engine engine;
  ConfigurationSet set(engine, {small_spec()}, {});
  const EvenBatch batch(9, 1, 20);
  EXPECT_EQ(set.select(batch.batch).lacking, "no configuration was added");
  const std::int32_t index = set.add(capacity_of(8, 64, 64));
  const Selection selection = set.select(batch.batch);
  EXPECT_EQ(selection.index, -1);
  EXPECT_NE(selection.lacking.find("max_requests: need 9, have 8"), std::string::npos)
      << selection.lacking;
  EXPECT_NE(selection.lacking.find("max_kv_tokens: need 80, have 64"), std::string::npos)
      << selection.lacking;

  EXPECT_THROW(set.grow(index, capacity_of(7, 64, 64)), Error);
  EXPECT_THROW(set.grow(index + 1, capacity_of(16, 64, 128)), Error);
  EXPECT_EQ(set.capacity(index).max_requests, 8) << "a refused growth changes nothing";
  const GrowReport report = set.grow(index, capacity_of(16, 64, 128));
  EXPECT_TRUE(report.invalidated_graphs.empty()) << "no graphs on the CPU";
  EXPECT_EQ(set.select(batch.batch).index, index);
  EXPECT_NO_THROW(set.at(index).plan(batch.batch));
}

}  // namespace
}  // namespace plait
