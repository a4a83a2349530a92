// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/default_set.h"

#include <algorithm>
#include <optional>

#include "cuda/family.h"
#include "cuda/jit/kernel_set.h"

namespace plait::cuda {

std::vector<KernelKey> default_kernel_set(const SourceSet& sources, Arch arch) {
  DeviceFacts facts;
  facts.compute_capability = arch.sm;
  facts.shared_bytes_per_sm = shared_kib_per_sm(arch) * 1024;
  facts.shared_bytes_per_block = facts.shared_bytes_per_sm - 1024;
  const std::vector<const FamilyHooks*>& families = kernel_families();
  std::vector<KernelKey> keys;
  for (const KernelKey& key : default_kernel_set(sources)) {
    if (!family_serves(key.family, arch)) continue;
    const auto family = std::find_if(families.begin(), families.end(), [&](const FamilyHooks* f) {
      return f->name() == to_string(key.family);
    });
    const auto there =
        family == families.end() ? std::optional(key) : (*family)->key_on(key, facts);
    if (there) keys.push_back(*there);
  }
  return keys;
}

}  // namespace plait::cuda
