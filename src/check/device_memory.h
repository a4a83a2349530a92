// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "check/operand_memory.h"

namespace plait::check {

/// Operands in the memory of a CUDA device. Throws Error{kBackend} without one.
std::unique_ptr<OperandMemory> make_device_memory(Device device);

}  // namespace plait::check
