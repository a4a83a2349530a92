// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "check/field/cases.h"

#include <algorithm>
#include <vector>

namespace plait::check::field {

std::span<const FieldCase> field_cases() {
  static const std::vector<FieldCase> all = [] {
    std::vector<FieldCase> cases;
    for (const auto part : {empty_and_mask_cases(), memory_cases(), variant_cases(), plan_cases(),
                            refusal_cases(), operation_cases()}) {
      cases.insert(cases.end(), part.begin(), part.end());
    }
    std::stable_sort(cases.begin(), cases.end(),
                     [](const FieldCase& a, const FieldCase& b) { return a.number < b.number; });
    return cases;
  }();
  return all;
}

}  // namespace plait::check::field
