// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Whole-file reads and atomic writes, with errors that name the path.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace plait {

/// Content of `path` ("-" is not special). Throws Error{kIo} naming `field` when it cannot be
/// opened or read, is a directory, or holds more than `limit` bytes.
std::string read_file(const std::string& path, std::string_view field, std::int64_t limit);

/// Writes the pieces one after another to a temporary file beside `path` and renames it over
/// `path`: readers see the old content or all of the new. Throws Error{kIo} naming `field` and
/// leaves no temporary file behind.
void write_file_atomic(const std::string& path, std::span<const std::string_view> pieces,
                       std::string_view field);

}  // namespace plait
