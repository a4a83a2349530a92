// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cuda/jit/compiler.h"
#include "cuda/jit/generate.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

#define PLAIT_NEEDS_NVRTC()                                    \
  do {                                                         \
    std::string reason;                                        \
    if (Nvrtc::find(&reason) == nullptr) GTEST_SKIP() << reason; \
  } while (false)

KernelKey probe_key() {
  return parse_kernel_key("common read_probe");
}

TEST(Compile, ReadProbeCompilesForEveryArchitecture) {
  PLAIT_NEEDS_NVRTC();
  const SourceSet sources = SourceSet::embedded();
  for (const Arch arch : parse_arch_list("sm_80,sm_90a,sm_100a,sm_120a", "arch")) {
    const CompiledKernel kernel =
        compile(Nvrtc::get(), make_compile_unit(probe_key(), arch, {}, sources));
    EXPECT_GT(kernel.resources.registers, 8) << to_string(arch);
    EXPECT_EQ(kernel.resources.spill_store_bytes, 0) << to_string(arch);
    EXPECT_EQ(kernel.launch.threads, 512) << to_string(arch);
    EXPECT_TRUE(kernel.warnings.empty()) << kernel.warnings.front();
  }
}

}  // namespace
}  // namespace plait::cuda
