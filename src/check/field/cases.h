// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Faults that users of attention engines have met, each as a small case with its right answer.
// The numbers are those of the collection they come from. The same cases run on every device.
#pragma once

#include <span>
#include <string_view>

#include "check/field/field_run.h"

namespace plait::check::field {

struct FieldCase {
  int number;
  std::string_view name;
  /// Throws CheckFailed, or Error for a refusal that should not be.
  void (*body)(const FieldRun& run);
};

/// Ordered by number. What is not here needs more than one stream, device or process, and is
/// tested beside the code it is about (tests/cuda): 28, 31, 32, 40, and the graph halves of 26, 27.
std::span<const FieldCase> field_cases();

/// Pieces of the table, one per file.
std::span<const FieldCase> empty_and_mask_cases();
std::span<const FieldCase> memory_cases();
std::span<const FieldCase> variant_cases();
std::span<const FieldCase> plan_cases();
std::span<const FieldCase> refusal_cases();
std::span<const FieldCase> operation_cases();

}  // namespace plait::check::field
