// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/arch.h"

#include <algorithm>
#include <charconv>

#include "core/text.h"
#include "plait/error.h"

namespace plait::cuda {

std::string to_string(Arch arch) {
  std::string text = "sm_" + std::to_string(arch.sm);
  if (arch.suffix != 0) text += arch.suffix;
  return text;
}

Arch parse_arch(std::string_view text, std::string_view field) {
  const auto refuse = [&] {
    return Error(ErrorCode::kInvalidArgument, std::string(field), quote_text(text),
                 "an architecture from sm_80 on, such as sm_80, sm_90a or sm_120a");
  };
  std::string_view rest = text;
  if (!rest.starts_with("sm_")) throw refuse();
  rest.remove_prefix(3);
  Arch arch;
  if (!rest.empty() && (rest.back() == 'a' || rest.back() == 'f')) {
    arch.suffix = rest.back();
    rest.remove_suffix(1);
  }
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), arch.sm);
  if (error != std::errc() || end != rest.data() + rest.size() || arch.sm < 80 || arch.sm > 999) {
    throw refuse();
  }
  // CUDA C++ Programming Guide, feature sets: 'a' exists from 9.0 on, 'f' from 10.0 on.
  if ((arch.suffix == 'a' && arch.sm < 90) || (arch.suffix == 'f' && arch.sm < 100)) {
    throw Error(ErrorCode::kInvalidArgument, std::string(field), quote_text(text),
                "suffix a from sm_90 on only, suffix f from sm_100 on only");
  }
  return arch;
}

std::vector<Arch> parse_arch_list(std::string_view text, std::string_view field) {
  std::vector<Arch> list;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const Arch arch = parse_arch(text.substr(begin, end - begin), field);
    if (std::find(list.begin(), list.end(), arch) == list.end()) list.push_back(arch);
    begin = end + 1;
  }
  return list;
}

// CUDA C++ Programming Guide, technical specifications per compute capability.
int shared_kib_per_sm(Arch arch) noexcept {
  switch (arch.sm) {
    case 80:
    case 87: return 164;
    case 90:
    case 100:
    case 103:
    case 110: return 228;
    default: return 100;
  }
}

Arch arch_for_device(int compute_capability, const std::vector<int>& compiler_architectures) {
  if (compute_capability < 80) {
    throw Error(
        ErrorCode::kUnsupported, "compute capability",
        std::to_string(compute_capability / 10) + "." + std::to_string(compute_capability % 10),
        "8.0 or newer (Turing and older GPUs are not served)");
  }
  int best = 0;
  for (int candidate : compiler_architectures) {
    if (candidate <= compute_capability && candidate / 10 == compute_capability / 10) {
      best = std::max(best, candidate);
    }
  }
  if (best == 0) {
    throw Error(
        ErrorCode::kUnsupported, "compute capability",
        std::to_string(compute_capability / 10) + "." + std::to_string(compute_capability % 10),
        "one that this NVRTC compiles for (a newer NVRTC may)");
  }
  const bool exact = best == compute_capability;
  return {static_cast<std::uint16_t>(best), exact && best >= 90 ? 'a' : '\0'};
}

}  // namespace plait::cuda
