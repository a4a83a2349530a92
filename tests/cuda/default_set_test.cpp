// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The default set against what the families choose; no GPU is needed.
#include "cuda/default_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cuda/family.h"
#include "cuda/jit/kernel_set.h"

namespace plait::cuda {
namespace {

DeviceFacts facts_of(Arch arch) {
  DeviceFacts facts;
  facts.name = to_string(arch);
  facts.compute_capability = arch.sm;
  facts.sm_count = 100;
  facts.shared_bytes_per_sm = shared_kib_per_sm(arch) * 1024;
  facts.shared_bytes_per_block = facts.shared_bytes_per_sm - 1024;
  facts.clock_khz = 1'980'000;
  facts.memory_clock_khz = 3'201'000;
  facts.memory_bus_bits = 6144;
  return facts;
}

/// A spec that a kernel serves.
AttentionSpec spec_of(const KernelKey& key) {
  constexpr int kAnyPageSize = 5;
  AttentionSpec spec;
  spec.num_kv_heads = 2;
  spec.num_qo_heads = 2 * key.group_size;
  spec.head_dim_qk = key.head_dim_qk;
  spec.head_dim_vo = key.head_dim_vo;
  spec.q_dtype = key.q_dtype;
  spec.kv_dtype = key.kv_dtype;
  spec.o_dtype = key.o_dtype;
  if (key.kv_access == KvAccess::kRagged) {
    spec.kv_kind = KvKind::kRagged;
  } else {
    spec.page_size = key.page_size == 0 ? kAnyPageSize : key.page_size;
  }
  spec.mask = (key.mask & kMaskCausal) != 0 ? MaskKind::kCausal : MaskKind::kNone;
  if ((key.mask & kMaskWindow) != 0) spec.window_left = 100;
  if ((key.variant & kVariantSoftCap) != 0) spec.logits_soft_cap = 30.0;
  spec.alibi = (key.variant & kVariantAlibi) != 0;
  return spec;
}

/// The kernels of all tile classes of the spec that `key` serves: what an Attention loads.
std::set<std::string> all_classes(const FamilyHooks& family, const KernelKey& key,
                                  const DeviceFacts& device) {
  const AttentionSpec spec = spec_of(key);
  EXPECT_EQ(family.decline(spec, device), "") << to_string(key);
  const bool canonical = (key.mode & kModeCanonical) != 0;
  Policy policy;
  if (canonical) policy.kind = PolicyKind::kBatchInvariant;
  const PlanTarget target = family.target(spec, policy, device);
  std::set<std::string> keys;
  for (int index = 0; index < (canonical ? 1 : target.num_classes); ++index) {
    KernelRequest request;
    request.spec = &spec;
    request.facts = &device;
    request.canonical = canonical;
    request.tile = canonical ? target.canonical : target.classes[static_cast<std::size_t>(index)];
    keys.insert(to_string(family.key(request)));
  }
  return keys;
}

TEST(DefaultSet, IsWhatDevicesOfEveryArchitectureLoad) {
  // default_set.txt of hopper says why.
  const std::set<std::string> left_out = {
      "hopper decode dqk=128 dvo=128 qt=16 kt=128 page=1 group=4 stages=3 warps=8 q=bf16 k=bf16 "
      "o=bf16 mask=causal",
      "hopper decode dqk=128 dvo=128 qt=16 kt=128 page=16 group=4 hooks=softcap stages=3 warps=8 "
      "q=bf16 k=bf16 o=bf16 kv=paged mask=causal,window",
      "hopper decode dqk=256 dvo=256 qt=16 kt=64 page=1 group=1 stages=3 warps=4 q=bf16 k=bf16 "
      "o=bf16 mask=causal"};
  const SourceSet sources = SourceSet::embedded();
  for (const char* name : {"sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100a", "sm_120a"}) {
    const Arch arch = parse_arch(name, "arch");
    const DeviceFacts device = facts_of(arch);
    std::set<std::string> held;
    std::set<std::string> wanted;
    for (const KernelKey& key : default_kernel_set(sources, arch)) {
      if (key.family == KernelFamily::kCommon) continue;
      EXPECT_TRUE(held.insert(to_string(key)).second) << to_string(key) << " twice on " << name;
      const auto family =
          key.family == KernelFamily::kMma ? make_mma_family() : make_hopper_family();
      const std::set<std::string> classes = all_classes(*family, key, device);
      EXPECT_TRUE(classes.contains(to_string(key)))
          << to_string(key) << " is used for nothing on " << name << ", where the spec has "
          << *classes.begin();
    }
    // Of the files' keys, not of what was mapped: an empty set must not pass.
    for (const KernelKey& key : default_kernel_set(sources)) {
      if (key.family == KernelFamily::kCommon || !family_serves(key.family, arch)) continue;
      const auto family =
          key.family == KernelFamily::kMma ? make_mma_family() : make_hopper_family();
      wanted.merge(all_classes(*family, key, device));
    }
    EXPECT_FALSE(wanted.empty()) << name;
    std::set<std::string> missing;
    std::set_difference(wanted.begin(), wanted.end(), held.begin(), held.end(),
                        std::inserter(missing, missing.end()));
    EXPECT_EQ(missing, arch.sm == 90 ? left_out : std::set<std::string>()) << name;
  }
}

TEST(DefaultSet, FilesHoldTheKeysOfAnH200) {
  const SourceSet sources = SourceSet::embedded();
  EXPECT_EQ(default_kernel_set(sources, Arch{90, 'a'}), default_kernel_set(sources));
}

}  // namespace
}  // namespace plait::cuda
