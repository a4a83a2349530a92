// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace plait::tool {

/// What went wrong, on one printable line.
std::string failure_text(const std::exception& failure);

}  // namespace plait::tool
