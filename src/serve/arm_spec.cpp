// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/arm_spec.h"

#include <algorithm>

#include "serve/compose.h"

namespace plait::serve {
namespace {

ArmSpec change_one(const ArmSpec& baseline, Feature feature) {
  ArmSpec arm = baseline;
  arm.name = std::string(to_string(feature));
  arm.feature = feature;
  switch (feature) {
    case Feature::kPlanning:
      arm.policy.kind = PolicyKind::kUnsplit;
      arm.policy.balance = false;
      arm.change = "no splitting, items dealt round robin";
      break;
    case Feature::kBalancing:
      arm.policy.balance = false;
      arm.change = "items dealt round robin instead of longest first";
      break;
    case Feature::kChunking:
      arm.policy.kind = PolicyKind::kUnsplit;
      arm.change = "one KV chunk per tile";
      break;
    case Feature::kComposition:
      arm.compose = false;
      arm.change = "shared prefixes read once per request";
      break;
    case Feature::kIndexed:
      arm.contiguous = true;
      arm.compose = false;
      arm.change = "contiguous K and V instead of pages";
      break;
    case Feature::kTilePerItem:
      arm.policy.tile_per_item = false;
      arm.change = "one tile class for all, by the batch average";
      break;
    case Feature::kWriteThrough:
      arm.policy.allow_write_through = false;
      arm.change = "single contributions also pass through partial states";
      break;
    case Feature::kRope:
      arm.fused_rope = !baseline.fused_rope;
      arm.change = arm.fused_rope ? "rotation fused into attention, keys cached unrotated"
                                  : "rotation as an operation of its own, keys cached rotated";
      break;
  }
  return arm;
}

}  // namespace

std::vector<ArmSpec> make_arms(const ReplayOptions& options) {
  std::vector<ArmSpec> arms(1);
  ArmSpec& first = arms[0];
  first.name = "baseline";
  first.change = "everything on";
  first.compose = composes(options);
  first.fused_rope = options.rope == RopeMode::kFused;
  first.policy.num_workers = options.num_workers;
  const ArmSpec baseline = first;
  std::vector<Feature> features = options.ablate;
  const auto has = [&](Feature f) {
    return std::find(features.begin(), features.end(), f) != features.end();
  };
  if (has(Feature::kIndexed) && baseline.compose && !has(Feature::kComposition)) {
    features.push_back(Feature::kComposition);
  }
  for (const Feature feature : features) arms.push_back(change_one(baseline, feature));
  for (ArmSpec& arm : arms) {
    if (arm.feature != Feature::kIndexed || !baseline.compose) continue;
    const auto it = std::find_if(arms.begin(), arms.end(), [](const ArmSpec& other) {
      return other.feature == Feature::kComposition;
    });
    arm.reference = static_cast<std::int32_t>(it - arms.begin());
  }
  return arms;
}

bool measures_workers(const ReplayOptions& options) {
  return !options.plan_only && (options.measure_workers || options.device.kind == DeviceKind::kCpu);
}

Capacity make_capacity(const ReplayOptions& options, std::int64_t longest, bool compose) {
  const SchedulerOptions& s = options.scheduler;
  Capacity capacity;
  capacity.max_requests = std::min<std::int64_t>(s.max_running, s.token_budget);
  capacity.max_query_rows = s.token_budget;
  capacity.max_kv_tokens = longest;
  capacity.allow_batch_invariant = false;
  if (compose) {
    capacity.max_views = Composer::kMaxSharedLevels + 1;
  }
  return capacity;
}

}  // namespace plait::serve
