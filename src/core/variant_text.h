// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What every backend does with a user's variant before its own compiler sees it.
#pragma once

#include <string>

#include "plait/spec.h"

namespace plait {

/// The opening of namespace plait_user: `Params` from the variant's parameters in their order, the
/// user's text, and `Variant` for its name. Compiler messages name the user's lines as
/// "variant.source". The backend adds what makes it callable and closes the namespace.
std::string variant_text(const VariantSpec& variant);

/// Throws Error{kInvalidArgument}: the variant declares `declared`, the spec the other reduction.
[[noreturn]] void refuse_reduction(Reduction declared);

}  // namespace plait
