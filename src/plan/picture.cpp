// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/picture.h"

#include <algorithm>

#include "plan/plan_words.h"

namespace plait {
namespace {

constexpr double kUnit = 1.0 / 16.0;  // cost-model units are 1/16 ns

std::int64_t tokens_of(const device::Run& run, const device::Piece* pieces) {
  std::int64_t tokens = 0;
  for (std::int32_t p = run.piece_begin; p < run.piece_begin + run.num_pieces; ++p) {
    tokens += pieces[p].kv_end - pieces[p].kv_begin;
  }
  return tokens;
}

}  // namespace

std::int64_t planned_kv_tokens(const Plan& plan, std::size_t group) {
  const auto& g = group_header(plan, group);
  const auto* runs = array_at<device::Run>(plan, g.run_offset);
  const auto* pieces = array_at<device::Piece>(plan, g.piece_offset);
  std::int64_t tokens = 0;
  for (std::int32_t r = 0; r < g.num_runs; ++r) {
    tokens += runs[r].head_count * tokens_of(runs[r], pieces);
  }
  return tokens;
}

PlanPicture picture_of(const Plan& plan, std::size_t group, const AttentionSpec& spec,
                       const PlanTarget& target) {
  using namespace device;  // NOLINT: this reads the layout
  const auto& g = group_header(plan, group);
  const auto* runs = array_at<Run>(plan, g.run_offset);
  const auto* pieces = array_at<Piece>(plan, g.piece_offset);
  const auto* merges = array_at<Merge>(plan, g.merge_offset);
  const auto* q_indptr = array_at<std::int32_t>(plan, g.q_indptr_offset);
  const std::int32_t group_size = spec.group_size();
  const auto request_of = [&](std::int32_t fused_row) {
    const std::int32_t row = fused_row / group_size;
    return static_cast<std::int32_t>(
        std::upper_bound(q_indptr, q_indptr + g.num_requests + 1, row) - q_indptr - 1);
  };
  PlanPicture picture;
  std::vector<double> ends;
  double total = 0;
  double states = 0;
  for (std::int32_t c = 0; c < g.num_classes; ++c) {
    const ClassHeader& k = g.classes[c];
    if (k.num_slices == 0) continue;
    const std::int32_t first = target.shared_workers ? 0 : picture.num_workers;
    picture.classes.push_back({c, k.q_tile, first, k.num_workers});
    picture.num_workers = std::max(picture.num_workers, first + k.num_workers);
    ends.resize(static_cast<std::size_t>(picture.num_workers), 0.0);
    const TileClass* tile = &target.canonical;
    if (g.segment_tokens == 0) tile = &target.classes[static_cast<std::size_t>(c)];
    const auto* indptr = array_at<std::int32_t>(plan, k.worker_offset);
    const auto* slices = array_at<Slice>(plan, k.slice_offset);
    for (std::int32_t w = 0; w < k.num_workers; ++w) {
      double& end = ends[static_cast<std::size_t>(first + w)];
      for (std::int32_t s = indptr[w]; s < indptr[w + 1]; ++s) {
        const Run& run = runs[slices[s].run];
        const std::int64_t tokens = tokens_of(run, pieces);
        for (std::int32_t i = 0; i < slices[s].count; ++i) {
          PictureItem item;
          item.worker = first + w;
          item.request = request_of(run.fused_row_begin);
          item.head = run.head_begin + slices[s].first + i;
          item.rows = run.num_fused_rows;
          item.tokens = tokens;
          item.first_merge = run.state_begin < 0 ? -1 : run.merge_begin;
          item.num_merges = run.num_merges;
          item.begin_ns = end;
          item.end_ns = end + run.cost * kUnit;
          end = item.end_ns;
          total += run.cost * kUnit;
          if (run.state_begin >= 0) {
            states += static_cast<double>(tile->cost.per_state_row) * run.num_fused_rows * kUnit;
          }
          picture.items.push_back(item);
        }
      }
    }
  }
  for (std::int32_t m = 0; m < g.num_merges; ++m) {
    picture.merges.push_back({merges[m].num_fused_rows, merges[m].head_count, merges[m].num_refs,
                              request_of(merges[m].fused_row_begin)});
  }
  for (double end : ends) picture.longest_ns = std::max(picture.longest_ns, end);
  // Workers without any item count in the mean: they are idle.
  const std::int32_t workers = std::max(plan.groups[group].totals.num_workers, 1);
  picture.mean_ns = total / workers;
  picture.state_ns = states / workers;
  return picture;
}

}  // namespace plait
