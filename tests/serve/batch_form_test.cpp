// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/batch_form.h"

#include <gtest/gtest.h>

#include <vector>

#include "plan/reference_target.h"
#include "serve/token_data.h"
#include "serve/workload.h"

namespace plait::serve {
namespace {

/// Tokens that a row block lists.
std::int32_t listed_tokens(const View& view, std::size_t block, std::int32_t page_size) {
  const std::int32_t pages = view.page_indptr[block + 1] - view.page_indptr[block];
  return pages == 0 ? 0 : (pages - 1) * page_size + view.last_page_len[block];
}

void expect_well_formed(const View& view, std::int32_t total_q, std::int32_t page_size) {
  ASSERT_GE(view.row_indptr.size(), 2U);
  ASSERT_EQ(view.page_indptr.size(), view.row_indptr.size());
  ASSERT_EQ(view.last_page_len.size() + 1, view.row_indptr.size());
  EXPECT_EQ(view.row_indptr.front(), 0);
  EXPECT_EQ(view.row_indptr.back(), total_q);
  EXPECT_EQ(view.page_indptr.front(), 0);
  for (std::size_t b = 0; b + 1 < view.row_indptr.size(); ++b) {
    EXPECT_LT(view.row_indptr[b], view.row_indptr[b + 1]);
    const std::int32_t pages = view.page_indptr[b + 1] - view.page_indptr[b];
    EXPECT_GE(pages, 0);
    EXPECT_EQ(view.last_page_len[b] == 0, pages == 0);
    EXPECT_LE(view.last_page_len[b], page_size);
  }
}

TEST(BatchForm, EveryFormListsTheSameKeysInTheSameOrder) {
  Trace trace = generate_workload("shared-prefix", 60, 5);
  set_rate(trace, 40.0, 5);
  SchedulerOptions options;
  options.pool_pages = 8192;
  Scheduler scheduler(trace, options);
  AttentionSpec spec;
  spec.num_qo_heads = 4;
  spec.num_kv_heads = 1;
  spec.head_dim_qk = spec.head_dim_vo = 128;
  Composer composer({.target = reference_target(spec), .group_size = 4});
  BatchForm flat, composed, ragged;
  Step step;
  std::int64_t steps_of_levels[1 + Composer::kMaxSharedLevels] = {};
  while (scheduler.next(step)) {
    std::vector<Candidate> candidates;
    for (const StepEntry& e : step.entries) {
      candidates.push_back({e.rows, e.context + e.rows, scheduler.shared_blocks(e.request)});
    }
    composer.compose(candidates);
    std::vector<StepEntry> entries;
    for (const std::int32_t i : composer.order()) {
      entries.push_back(step.entries[static_cast<std::size_t>(i)]);
    }
    flat.build_flat(scheduler, entries, true);
    ragged.build_ragged(entries);
    ASSERT_EQ(flat.num_views(), 1);
    const View& pages = flat.batch().views[0];
    expect_well_formed(pages, step.num_rows, options.page_size);
    const auto n = entries.size();
    ASSERT_EQ(flat.batch().qo_indptr.size(), n + 1);
    for (std::size_t i = 0; i < n; ++i) {
      const std::int32_t kv_len = entries[i].context + entries[i].rows;
      EXPECT_EQ(flat.batch().qo_indptr[i + 1] - flat.batch().qo_indptr[i], entries[i].rows);
      EXPECT_EQ(listed_tokens(pages, i, options.page_size), kv_len);
      const View& tokens = ragged.batch().views[0];
      EXPECT_EQ(tokens.page_indptr[i + 1] - tokens.page_indptr[i], kv_len);
    }
    ++steps_of_levels[composer.num_levels()];
    if (!composer.groups().empty()) {
      composed.build_composed(scheduler, entries, composer, true);
      ASSERT_EQ(composed.num_views(), composer.num_levels() + 1);
      const auto& views = composed.batch().views;
      for (const View& view : views) expect_well_formed(view, step.num_rows, options.page_size);
      for (std::size_t i = 0; i < n; ++i) {
        const std::int32_t row = composed.batch().qo_indptr[i];
        std::vector<std::int32_t> ids;
        std::int32_t tokens = 0;
        for (std::size_t v = 0; v < views.size(); ++v) {
          std::size_t block = 0;
          while (views[v].row_indptr[block + 1] <= row) ++block;
          for (std::int32_t p = views[v].page_indptr[block]; p < views[v].page_indptr[block + 1];
               ++p) {
            ids.push_back(composed.page_ids(static_cast<int>(v))[static_cast<std::size_t>(p)]);
          }
          tokens += listed_tokens(views[v], block, options.page_size);
        }
        const auto want = flat.page_ids(0).subspan(
            static_cast<std::size_t>(pages.page_indptr[i]),
            static_cast<std::size_t>(pages.page_indptr[i + 1] - pages.page_indptr[i]));
        ASSERT_EQ(ids, std::vector<std::int32_t>(want.begin(), want.end()));
        EXPECT_EQ(tokens, entries[i].context + entries[i].rows);
      }
    }
    scheduler.commit(step);
  }
  EXPECT_GT(steps_of_levels[1], 10);
  EXPECT_GT(steps_of_levels[2], 10);
}

TEST(TokenData, DependsOnTheTokenAndItsPlaceAlone) {
  const Trace trace = generate_workload("parallel:2", 4, 9);
  const auto id = [&](std::int32_t request, std::int32_t position) {
    return TokenData::token_id(trace.requests[static_cast<std::size_t>(request)], request,
                               position);
  };
  const std::int32_t prompt = trace.requests[0].input_tokens;
  EXPECT_EQ(id(0, prompt - 1), id(1, prompt - 1));  // samples of one prompt
  EXPECT_NE(id(0, prompt), id(1, prompt));          // generated tokens are their own
  EXPECT_NE(id(0, 0), id(2, 0));
  EXPECT_NE(id(0, 0), id(0, 512));
  const TokenData a(DType::kF32, 64, 1);
  const TokenData b(DType::kF32, 64, 1);
  std::vector<std::byte> x(256), y(256), z(256);
  a.fill(id(0, 3), TokenData::Kind::kKey, 64, x.data());
  b.fill(id(1, 3), TokenData::Kind::kKey, 64, y.data());
  a.fill(id(0, 3), TokenData::Kind::kValue, 64, z.data());
  EXPECT_EQ(x, y);
  EXPECT_NE(x, z);
}

}  // namespace
}  // namespace plait::serve
