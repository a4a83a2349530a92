// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The file format of one cached kernel: a fixed header, then symbol, warnings and cubin. The header
// says its sizes and carries a checksum over everything, so that a truncated, damaged or renamed
// file is recognised and built again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/jit/compiled_kernel.h"
#include "cuda/jit/compiler.h"

namespace plait::cuda {

/// Identity of a compilation on disk: a 128-bit XXH3 over everything that can change the code, and
/// the compiler that made it, which is kept apart so that a machine without NVRTC can use what
/// another one made.
struct DiskKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  CompilerBuild compiler;
  friend bool operator==(const DiskKey&, const DiskKey&) = default;
};

/// Hash of source, variant, flags, every header by name and text, and the entry format.
DiskKey disk_key(const CompileUnit& unit, CompilerBuild compiler);

/// "0123456789abcdef0123456789abcdef", without the compiler.
std::string hash_text(const DiskKey& key);

/// "<hash_text>-13.0-0123456789abcdef.plk"
std::string entry_name(const DiskKey& key);

/// The compiler of a file with such a name, if the hash is that of `key`.
std::optional<CompilerBuild> compiler_of(std::string_view entry_name, const DiskKey& key);

std::vector<char> encode_entry(const DiskKey& key, const CompiledKernel& kernel);

/// Nothing if `bytes` are not exactly an intact entry of `key`.
std::optional<CompiledKernel> decode_entry(const DiskKey& key, std::span<const char> bytes);

}  // namespace plait::cuda
