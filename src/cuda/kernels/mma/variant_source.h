// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "plait/spec.h"

namespace plait::cuda::mma {

/// The text of user_variant.h: the parameters as a struct, the user's source, and the names by
/// which hooks.h calls them. Empty without a user variant. Compiler messages name the user's lines
/// as "variant.source".
std::string variant_source(const VariantSpec& variant);

}  // namespace plait::cuda::mma
