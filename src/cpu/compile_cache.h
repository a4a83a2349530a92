// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace plait::cpu {

/// A C++ source that becomes a shared library for this machine.
struct CompileUnit {
  std::string source;
  /// Headers that the source may include, as path and text.
  std::vector<std::pair<std::string_view, std::string_view>> headers;
};

/// The compiler used: PLAIT_CXX, else the first of c++, g++, clang++ on PATH. Throws
/// Error{kBackend} if there is none.
std::string find_compiler();

/// Compiles `unit`, or finds what an earlier process compiled, and opens it with dlopen. The
/// entry's name is a hash of everything that can change the code: sources, flags, compiler version
/// and processor. Entries appear by atomic rename and carry a checksum; a damaged one is built
/// again. A directory that cannot be used, or is full, costs a compilation, never correctness.
/// Throws Error{kCompile} with the compiler's log, Error{kIo} where nothing can be written,
/// Error{kBackend} without a compiler.
void* load_compiled(const CompileUnit& unit);

}  // namespace plait::cpu
