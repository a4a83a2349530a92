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
/// opened or read, is a directory, or holds more than `limit` bytes, 2^28 if it is no regular file.
std::string read_file(const std::string& path, std::string_view field, std::int64_t limit);

/// Throws Error{kIo} naming `field` if write_file_atomic would refuse `path` as things stand, so
/// that long work does not end with a result that cannot be written. Leaves nothing behind.
void require_writable(const std::string& path, std::string_view field);

/// Writes the pieces one after another to a temporary file beside `path` and renames it over
/// `path`, whose mode it keeps: readers see the old content or all of the new. A device or a pipe
/// is written to instead; a link stays one. Throws Error{kIo} naming `field` and leaves no
/// temporary file behind.
void write_file_atomic(const std::string& path, std::span<const std::string_view> pieces,
                       std::string_view field);

}  // namespace plait
