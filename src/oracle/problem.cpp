// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "oracle/problem.h"

#include <algorithm>

namespace plait::oracle {
namespace {

std::size_t z(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

std::int64_t listed_tokens(const Problem& problem, const Level& level, std::int64_t block,
                           std::int64_t list) {
  const std::int64_t row = problem.per_kv_head ? block * problem.num_kv_heads + list : block;
  const std::int64_t pages = level.indptr[z(row + 1)] - level.indptr[z(row)];
  if (pages == 0) return 0;
  return (pages - 1) * problem.page_size + level.last_page_len[z(row)];
}

std::int64_t block_of_request(const Problem& problem, const Level& level, std::int64_t request) {
  if (&level == &problem.levels.back())
    return request;  // row blocks of the last level are requests
  const std::int64_t first = problem.qo_indptr[z(request)];
  const auto blocks = static_cast<std::int64_t>(level.qo_indptr.size()) - 1;
  if (problem.qo_len(request) == 0 && blocks == problem.num_requests() &&
      level.qo_indptr[z(request)] == first && level.qo_indptr[z(request + 1)] == first) {
    return request;
  }
  const auto ends = level.qo_indptr.begin() + 1;
  return std::min(std::upper_bound(ends, level.qo_indptr.end(), first) - ends, blocks - 1);
}

std::int64_t kv_len(const Problem& problem, std::int64_t request) {
  switch (problem.source) {
    case Source::kRagged: return problem.kv_indptr[z(request + 1)] - problem.kv_indptr[z(request)];
    case Source::kBsr: return problem.k.shape[0];
    case Source::kSelected: {
      // With per-KV-head lists every head agrees (checked by the parser); look at the first.
      const Level& level = problem.levels.front();
      const std::int64_t row = problem.per_kv_head ? request * problem.num_kv_heads : request;
      const std::int64_t end = level.indptr[z(row + 1)];
      if (end == level.indptr[z(row)]) return 0;
      return level.positions[z(end - 1)] + level.last_page_len[z(row)];
    }
    case Source::kPaged:
    case Source::kCascade: break;
  }
  std::int64_t total = 0;
  for (const Level& level : problem.levels) {
    const std::int64_t block = block_of_request(problem, level, request);
    if (block >= 0) total += listed_tokens(problem, level, block);
  }
  return total;
}

std::int64_t mask_columns(const Problem& problem, std::int64_t request) {
  if (problem.source != Source::kCascade) return kv_len(problem, request);
  return listed_tokens(problem, problem.levels.back(), request);
}

}  // namespace plait::oracle
