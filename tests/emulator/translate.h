// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Preprocessed device source to C++ that the system's compiler takes. Two things change, on the
// lines where they stand:
//   asm volatile("op.a::b %0, {%1, %2};" : "=r"(x) : "r"(y), "r"(z));
//     -> ptx::op_a_b((x), group(operand_r(y), operand_r(z)));   see kernel/ptx.h
//   extern __shared__ T name[];  ->  T* const name = static_cast<T*>(dynamic_shared());
#pragma once

#include <string>
#include <string_view>

namespace plait::emulator {

/// Throws std::runtime_error with the line of what it does not understand.
std::string translate(std::string_view source);

}  // namespace plait::emulator
