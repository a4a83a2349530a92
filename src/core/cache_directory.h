// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The directory of compiled code that both backends use. What lies there is executed, so it must be
// its user's own; docs/jit.md has the rules.
#pragma once

#include <string>

namespace plait {

/// An absolute path: PLAIT_CACHE_DIR, where it is relative below the directory in which the process
/// was at the first call; else $XDG_CACHE_HOME/plait, else ~/.cache/plait. Empty if none of these
/// variables is set, or only the latter two to relative paths, or PLAIT_CACHE_DIR to one and the
/// directory of the first call was deleted.
std::string default_cache_directory();

/// Creates `directory` (0700) if needed. Empty if it may be used, else one sentence that says why
/// not: it is not this user's, others can write to it, or it cannot be read. Never throws.
std::string inspect_cache_directory(const std::string& directory);

/// Removes what writers that were killed left behind an hour or more ago: files and folders whose
/// name contains ".tmp.".
void remove_stale_temporaries(const std::string& directory);

}  // namespace plait
