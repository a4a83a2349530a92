// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace plait::cuda {

/// A real GPU architecture to compile for: `sm` is 10 * major + minor of the compute capability;
/// suffix 'a' unlocks the instructions of exactly that architecture (wgmma, setmaxnreg), 'f' those
/// of its family, 0 neither.
struct Arch {
  std::uint16_t sm = 0;
  char suffix = 0;
  friend constexpr auto operator<=>(const Arch&, const Arch&) = default;
};

/// "sm_90a".
std::string to_string(Arch arch);
/// Inverse of to_string; throws Error{kInvalidArgument} naming `field`.
Arch parse_arch(std::string_view text, std::string_view field);
/// A comma-separated list, without repetitions, in the order given.
std::vector<Arch> parse_arch_list(std::string_view text, std::string_view field);

/// Shared memory of a multiprocessor; a block gets one KiB less. Where an architecture is not
/// known, what every one has.
int shared_kib_per_sm(Arch arch) noexcept;

/// The architecture that kernels for a device of this compute capability are compiled for: with
/// suffix 'a' from 9.0 on, and where the compiler does not know the device yet, the nearest older
/// one of the same major version without suffix, whose machine code the device still runs. Throws
/// Error{kUnsupported} below 8.0, and where the compiler knows none of the major version.
Arch arch_for_device(int compute_capability, const std::vector<int>& compiler_architectures);

}  // namespace plait::cuda
