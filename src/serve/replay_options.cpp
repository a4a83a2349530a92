// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/replay_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/text.h"
#include "plait/error.h"
#include "serve/geometry.h"

namespace plait::serve {
namespace {

constexpr std::array<std::string_view, 8> kFeatureNames = {
    "planning", "balancing", "chunking", "composition", "indexed", "tile", "write-through", "rope"};

/// Contiguous loads and rotation change how a kernel runs, not what is planned.
bool needs_execution(Feature feature) {
  return feature == Feature::kIndexed || feature == Feature::kRope;
}

[[noreturn]] void refuse(std::string field, std::string value, std::string expected) {
  throw Error(ErrorCode::kInvalidArgument, std::move(field), std::move(value), std::move(expected));
}

constexpr const char* kFullLayers = "a geometry with a layer without window, which reads prefixes";

/// What would have to be so for an arm without `feature` to differ; empty if it is.
std::string needed_for(Feature feature, const ReplayOptions& options) {
  if (options.plan_only && needs_execution(feature)) {
    return "a feature of the plan beside --plan-only (this one shows only in execution)";
  }
  if (feature == Feature::kComposition) {
    if (!options.compose) return "composition to be on (leave out --no-compose)";
    if (!options.scheduler.prefix_cache) {
      return "the prefix cache, without which no request shares a page (leave out "
             "--no-prefix-cache)";
    }
    if (!parse_geometry(options.geometry).sees_prefixes()) return kFullLayers;
  }
  if (feature == Feature::kRope && options.rope == RopeMode::kNone) {
    return "--rope separate or fused";
  }
  return "";
}

/// A key of an explicit geometry that nothing reads is refused, as options are. Masks, windows and
/// shapes are planned with; caps and rotation only show in execution.
void refuse_unread_keys(const Geometry& geometry, const ReplayOptions& options) {
  if (geometry.given_cap && options.plan_only) {
    refuse("geometry.cap", fmt::format("{}", *geometry.given_cap),
           "no cap beside --plan-only: it changes no plan");
  }
  if (geometry.given_theta && (options.plan_only || options.rope == RopeMode::kNone)) {
    refuse("geometry.theta", fmt::format("{}", *geometry.given_theta),
           options.plan_only ? "no theta beside --plan-only: rotation changes no plan"
                             : "no theta beside --rope none, which rotates nothing");
  }
}

}  // namespace

std::string_view to_string(Feature feature) noexcept {
  return kFeatureNames[static_cast<std::size_t>(feature)];
}

std::vector<Feature> parse_features(std::string_view text, const ReplayOptions& options) {
  std::vector<Feature> features;
  std::string expected = "all, or a list of";
  for (const std::string_view name : kFeatureNames) expected.append(" ").append(name);
  std::string_view rest = text;
  while (true) {
    const std::string_view item = rest.substr(0, rest.find(','));
    if (item == "all" && item.size() == text.size()) {
      for (std::size_t i = 0; i < kFeatureNames.size(); ++i) {
        const auto feature = static_cast<Feature>(i);
        if (needed_for(feature, options).empty()) features.push_back(feature);
      }
      return features;
    }
    const auto* it = std::find(kFeatureNames.begin(), kFeatureNames.end(), item);
    if (it == kFeatureNames.end()) refuse("ablate", quote_text(item), expected);
    const auto feature = static_cast<Feature>(it - kFeatureNames.begin());
    if (std::find(features.begin(), features.end(), feature) != features.end()) {
      refuse("ablate", quote_text(text), "each feature once");
    }
    features.push_back(feature);
    if (item.size() == rest.size()) return features;
    rest.remove_prefix(item.size() + 1);
  }
}

std::int64_t default_pool_tokens(const ReplayOptions& options, std::int64_t kv_bytes_per_token) {
  constexpr std::int64_t kTokens = std::int64_t{1} << 20;
  const std::int64_t bytes = std::int64_t{options.device.kind == DeviceKind::kCuda ? 64 : 4} << 30;
  if (options.plan_only) return kTokens;
  return std::min(kTokens, bytes / kv_bytes_per_token);
}

bool composes(const ReplayOptions& options) {
  return needed_for(Feature::kComposition, options).empty();
}

void validate(const ReplayOptions& options) {
  if (!(options.time_scale > 0.0) || !(options.time_scale <= 1e6)) {
    refuse("time-scale", fmt::format("{}", options.time_scale), "a number in (0, 1e6]");
  }
  if (!(options.rate >= 0.0) || !(options.rate <= 1e6)) {
    refuse("rate", fmt::format("{}", options.rate), "requests per second in (0, 1e6]");
  }
  if (options.limit < 0) refuse("limit", std::to_string(options.limit), "0 (all) or more requests");
  if (options.pool_tokens < 0) {
    refuse("pool-tokens", std::to_string(options.pool_tokens), "a positive number");
  }
  if (options.long_tokens < 1) {
    refuse("long-tokens", std::to_string(options.long_tokens), "a positive number");
  }
  if (options.num_threads < 0 || options.num_threads > 1024) {
    refuse("threads", std::to_string(options.num_threads), "0 (the default) to 1024");
  }
  if (options.num_workers < 0 || options.num_workers > 4096) {
    refuse("workers", std::to_string(options.num_workers), "0 (the default) to 4096");
  }
  if (options.measure_workers && options.device.kind == DeviceKind::kCpu) {
    refuse("measure", "given", "--device cuda: on a CPU workers are always measured");
  }
  if (options.plan_only && options.other_time) {
    refuse("other-us", to_string(*options.other_time),
           "nothing beside --plan-only: there is no attention time to add to");
  }
  for (const Feature feature : options.ablate) {
    const std::string needed = needed_for(feature, options);
    if (!needed.empty()) refuse("ablate", std::string(to_string(feature)), needed);
  }
  const Geometry geometry = parse_geometry(options.geometry);
  refuse_unread_keys(geometry, options);
  if (!options.compose && !geometry.sees_prefixes()) {
    refuse("no-compose", "given", kFullLayers);
  }
}

}  // namespace plait::serve
