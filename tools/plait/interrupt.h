// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace plait::tool {

/// From now on SIGINT, SIGTERM and SIGHUP end the process in order: temporary files go, one line
/// that starts with `name` says so, and the exit code is 128 + the signal, 130 for Ctrl-C. A second
/// signal ends it at once.
void end_on_signals(const std::string& name);

}  // namespace plait::tool
