// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// User variants, checked: each is written so that a built-in option does the same, which the oracle
// knows.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "check/run_problem.h"

namespace plait::check {

struct VariantCase {
  std::string_view name;    // the hook under test
  std::string_view source;  // one struct "Variant"
  /// Turns a generated problem into the built-in form and the variant's.
  void (*apply)(nlohmann::json& built_in, nlohmann::json& variant);
};

std::span<const VariantCase> variant_cases();

struct VariantReport {
  bool declined = false;
  std::string failure;      // empty: right, or declined with this
  std::string declined_by;  // reason
  nlohmann::json document;  // the variant's problem
  double worst = 0;
};

/// Random problem `index` of `seed` with this variant against the oracle's built-in equivalent.
VariantReport check_variant(const VariantCase& which, std::uint64_t seed, std::uint64_t index,
                            const RunOptions& options);

}  // namespace plait::check
