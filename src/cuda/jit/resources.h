// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Reading what a compilation produced, without a GPU: the compiler's log and the cubin's ELF.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cuda/jit/compiled_kernel.h"

namespace plait::cuda {

/// Resources of `symbol` from a log made with --ptxas-options=-v. Throws Error{kInternal} if the
/// log does not tell: a missing figure must not read as zero.
KernelResources parse_resources(std::string_view log, std::string_view symbol);

/// Lines of the log that warn: front-end warnings, and ptxas notes with a code or about
/// performance, such as "(C7508) Potential Performance Loss: 'setmaxnreg' ignored".
std::vector<std::string> parse_warnings(std::string_view log);

/// The kernel's PLAIT_LAUNCH_INFO, from the symbol `plait_launch_info` of the cubin. Throws
/// Error{kCompile} naming `symbol` if the entry source does not state it.
KernelLaunch read_launch_info(const std::vector<char>& cubin, std::string_view symbol);

}  // namespace plait::cuda
