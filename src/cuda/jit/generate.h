// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "cuda/jit/arch.h"
#include "cuda/jit/kernel_key.h"

namespace plait::cuda {

/// The name under which a user variant's text is compiled and appears in messages.
inline constexpr std::string_view kUserVariantName = "user_variant.h";

/// The text given to the compiler for `key`: macros PLAIT_ARCH (90), PLAIT_ARCH_SPECIFIC (1 for
/// sm_90a) and PLAIT_KERNEL_NAME, then `plait::device::KernelConfig` with every field of the key as
/// a constant, then the user variant if there is one, then the entry source. Entry sources define
/// `extern "C" __global__ void PLAIT_KERNEL_NAME(...)`.
std::string generate_source(const KernelKey& key, Arch arch);

/// Hash of a user variant for KernelKey::user_variant; never 0.
std::uint64_t variant_hash(std::string_view text) noexcept;

}  // namespace plait::cuda
