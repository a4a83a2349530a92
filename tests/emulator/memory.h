// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Which memory a thread of a kernel may access.
#pragma once

#include <cstddef>

namespace plait::emulator {

enum class Access { kRead, kWrite };

/// Reports an access that is misplaced, or to what an asynchronous copy still writes.
void check_access(const void* address, std::size_t bytes, Access access);
/// Whether the access stays within the stack of the thread that makes it.
bool on_own_stack(const void* address, std::size_t bytes);

}  // namespace plait::emulator
