// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A plan as people look at it: who does what, for how long, and which partial states meet where.
// Read from the blob alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plait/spec.h"
#include "plan/planner.h"

namespace plait {

/// One item on its worker's line; times in nanoseconds from the start, predicted.
struct PictureItem {
  std::int32_t worker = 0;   // row of the picture
  std::int32_t request = 0;  // the first one, if it spans several
  std::int32_t head = 0;     // KV head
  std::int32_t rows = 0;     // fused rows
  std::int64_t tokens = 0;
  std::int32_t first_merge = -1;  // -1: writes the output itself
  std::int32_t num_merges = 0;
  double begin_ns = 0;
  double end_ns = 0;
};

struct PictureMerge {
  std::int32_t fused_rows = 0;
  std::int32_t heads = 0;
  std::int32_t states = 0;
  std::int32_t request = 0;
};

struct PictureClass {
  std::int32_t index = 0;  // tile class of the plan
  std::int32_t q_tile = 0;
  std::int32_t first_worker = 0;  // rows of the picture
  std::int32_t num_workers = 0;
};

struct PlanPicture {
  std::vector<PictureClass> classes;
  std::vector<PictureItem> items;
  std::vector<PictureMerge> merges;
  std::int32_t num_workers = 0;
  double longest_ns = 0;  // predicted
  double mean_ns = 0;
  double state_ns = 0;  // part of mean_ns that partial states cost
};

/// Tokens that the items of a group read, all KV heads together: a key that several items read
/// counts for each.
std::int64_t planned_kv_tokens(const Plan& plan, std::size_t group);

/// Group `group` of a plan. `target` supplies the cost of states; with shared workers a worker of
/// every class is the same row.
PlanPicture picture_of(const Plan& plan, std::size_t group, const AttentionSpec& spec,
                       const PlanTarget& target);

}  // namespace plait
