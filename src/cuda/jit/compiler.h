// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cuda/jit/arch.h"
#include "cuda/jit/compiled_kernel.h"
#include "cuda/jit/kernel_key.h"
#include "cuda/jit/source_set.h"
#include "cuda/nvrtc.h"

namespace plait::cuda {

/// Everything that determines the machine code, NVRTC's version aside. Nothing else may influence a
/// compilation: the disk key is a hash of this.
struct CompileUnit {
  std::string symbol;              // the kernel
  std::string source;              // what generate_source returns
  std::string variant;             // text of the user variant, included as user_variant.h
  std::vector<std::string> flags;  // architecture included
  // Name and text of every header that the source may include, by name.
  std::vector<std::pair<std::string, std::string>> headers;
};

/// The unit of a shipped kernel. `variant` is the user variant's text, empty if
/// key.user_variant is 0; a text that does not hash to key.user_variant is Error{kInternal}. A
/// missing entry source is Error{kUnsupported}.
CompileUnit make_compile_unit(const KernelKey& key, Arch arch, std::string_view variant,
                              const SourceSet& sources);

/// The flags every kernel gets, for docs and tests.
std::vector<std::string> compile_flags(Arch arch);

/// Compiles with no include path at all. Throws Error{kCompile} with the compiler's log,
/// Error{kUnsupported} if this NVRTC does not know the architecture. About a second; thread safe.
CompiledKernel compile(const Nvrtc& nvrtc, const CompileUnit& unit);

}  // namespace plait::cuda
