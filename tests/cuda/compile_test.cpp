// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Compilation with the real NVRTC; every test skips, saying so, where there is none.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "cuda/jit/compiler.h"
#include "cuda/jit/generate.h"
#include "cuda/jit/kernel_cache.h"
#include "plait/error.h"
#include "support/temporary_directory.h"

namespace plait::cuda {
namespace {

class Compile : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (Nvrtc::find(&reason) == nullptr) GTEST_SKIP() << reason;
  }

  /// A set of one kernel, "common self_test", beside the embedded headers.
  static SourceSet with_self_test(const std::string& body) {
    auto files = SourceSet::embedded().files();
    files["cuda/kernels/common/self_test.cu"] =
        "#include \"cuda/kernels/common/launch_info.h\"\n"
        "PLAIT_LAUNCH_INFO(64, 1024, 2, 1);\n" +
        body;
    return SourceSet(std::move(files));
  }

  static KernelKey self_test_key() { return parse_kernel_key("common self_test"); }
  static constexpr Arch kArch{90, 'a'};
};

constexpr const char* kSmallKernel =
    "extern \"C\" __global__ void __launch_bounds__(64) PLAIT_KERNEL_NAME(float* x) {\n"
    "  x[threadIdx.x] += 1.0F;\n}\n";

TEST_F(Compile, EveryEmbeddedHeaderCompilesAloneWithoutAnyIncludePath) {
  const SourceSet sources = SourceSet::embedded();
  int headers = 0;
  for (const auto& [name, text] : sources.files()) {
    // Family headers read KernelConfig and are compiled through their entry sources.
    const bool shared = name.starts_with("core/device/") ||
                        name.starts_with("cuda/kernels/common/") ||
                        name.starts_with("cuda/kernels/device/");
    if (!shared || !name.ends_with(".h")) continue;
    // sm_90a headers declare themselves by their name.
    CompileUnit unit;
    unit.symbol = "plait_header";
    unit.source = "#include \"" + name +
                  "\"\n#include \"cuda/kernels/common/launch_info.h\"\n"
                  "PLAIT_LAUNCH_INFO(32, 0, 1, 1);\n"
                  "extern \"C\" __global__ void plait_header() {}\n";
    unit.flags = compile_flags(kArch);
    for (const std::string& used : sources.closure(unit.source)) {
      unit.headers.emplace_back(used, *sources.find(used));
    }
    EXPECT_NO_THROW(compile(Nvrtc::get(), unit)) << name;
    ++headers;
  }
  EXPECT_GE(headers, 6);
}

TEST_F(Compile, NothingOutsideTheSetCanBeIncluded) {
  for (const char* name :
       {"<cuda_fp16.h>", "<cuda_bf16.h>", "<cstdint>", "<stdint.h>", "<cuda.h>", "\"stdint.h\""}) {
    const SourceSet sources = with_self_test(std::string("#include ") + name + "\n" + kSmallKernel);
    try {
      compile(Nvrtc::get(), make_compile_unit(self_test_key(), kArch, {}, sources));
      ADD_FAILURE() << name << " was found although there is no include path";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCompile);
      EXPECT_NE(error.value().find("could not open source file"), std::string::npos)
          << error.what();
    }
  }
}

TEST_F(Compile, VariantMayIncludeDeviceHeadersOnly) {
  const SourceSet sources = with_self_test(kSmallKernel);
  const auto unit_of = [&](const std::string& variant) {
    KernelKey key = self_test_key();
    key.user_variant = variant_hash(variant);
    return make_compile_unit(key, kArch, variant, sources);
  };
  EXPECT_NO_THROW(unit_of("#include \"core/device/variant.h\"\n"));
  for (const char* bad : {"#include \"/etc/hostname\"\n", "# include <math.h>\n",
                          "#define X \"/etc/hostname\"\n#include X\n"}) {
    EXPECT_THROW(unit_of(bad), Error) << bad;
  }
}

TEST_F(Compile, ReadProbeCompilesForEveryArchitecture) {
  const SourceSet sources = SourceSet::embedded();
  for (const Arch arch : parse_arch_list("sm_80,sm_90a,sm_100a,sm_120a", "arch")) {
    const CompiledKernel kernel = compile(
        Nvrtc::get(), make_compile_unit(parse_kernel_key("common read_probe"), arch, {}, sources));
    EXPECT_GT(kernel.resources.registers, 8) << to_string(arch);
    EXPECT_EQ(kernel.resources.spill_store_bytes, 0) << to_string(arch);
    EXPECT_EQ(kernel.launch.threads, 512) << to_string(arch);
    EXPECT_TRUE(kernel.warnings.empty()) << kernel.warnings.front();
  }
}

TEST_F(Compile, ResourcesAndLaunchInfoAreThoseOfTheKernel) {
  const SourceSet sources = with_self_test(
      "extern \"C\" __global__ void __launch_bounds__(64) PLAIT_KERNEL_NAME(float* x) {\n"
      "  __shared__ float s[96];\n"
      "  s[threadIdx.x] = x[threadIdx.x];\n  __syncthreads();\n"
      "  x[threadIdx.x] = s[63 - threadIdx.x];\n}\n");
  const CompiledKernel kernel =
      compile(Nvrtc::get(), make_compile_unit(self_test_key(), kArch, {}, sources));
  EXPECT_EQ(kernel.resources.static_shared_bytes, 96 * 4);
  EXPECT_EQ(kernel.resources.barriers, 1);
  EXPECT_EQ(kernel.resources.stack_bytes, 0);
  EXPECT_EQ(kernel.launch, (KernelLaunch{64, 1024, 2, 1}));
}

TEST_F(Compile, SpillsAreReported) {
  const SourceSet sources = with_self_test(
      "extern \"C\" __global__ void __launch_bounds__(1024, 2) PLAIT_KERNEL_NAME(float* x) {\n"
      "  float a[64];\n"
      "#pragma unroll\n  for (int i = 0; i < 64; ++i) a[i] = x[i * 1024 + threadIdx.x];\n"
      "  __syncthreads();\n"
      "#pragma unroll\n  for (int i = 0; i < 64; ++i) x[i * 1024 + threadIdx.x] = a[i] * a[63 - "
      "i];\n"
      "}\n");
  const CompiledKernel kernel =
      compile(Nvrtc::get(), make_compile_unit(self_test_key(), kArch, {}, sources));
  EXPECT_LE(kernel.resources.registers, 32);
  EXPECT_GT(kernel.resources.spill_store_bytes, 0);
  EXPECT_GT(kernel.resources.spill_load_bytes, 0);
  EXPECT_GT(kernel.resources.stack_bytes, 0);
}

TEST_F(Compile, IgnoredSetmaxnregIsAWarning) {
  // No launch bounds: ptxas cannot know the register count at entry and ignores the instruction.
  const SourceSet sources = with_self_test(
      "extern \"C\" __global__ void PLAIT_KERNEL_NAME(float* x) {\n"
      "  asm volatile(\"setmaxnreg.inc.sync.aligned.u32 240;\");\n  x[0] = 1.0F;\n}\n");
  const CompiledKernel kernel =
      compile(Nvrtc::get(), make_compile_unit(self_test_key(), kArch, {}, sources));
  ASSERT_EQ(kernel.warnings.size(), 1u);
  EXPECT_NE(kernel.warnings[0].find("setmaxnreg"), std::string::npos) << kernel.warnings[0];
}

TEST_F(Compile, ErrorCarriesTheLogWithFileAndLine) {
  const SourceSet sources = with_self_test(
      "extern \"C\" __global__ void PLAIT_KERNEL_NAME() {\n"
      "  undeclared_name = 1;\n}\n");
  try {
    compile(Nvrtc::get(), make_compile_unit(self_test_key(), kArch, {}, sources));
    FAIL() << "must not compile";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCompile);
    const std::string message = error.what();
    EXPECT_NE(message.find("undeclared_name"), std::string::npos) << message;
    EXPECT_NE(message.find("cuda/kernels/common/self_test.cu(4)"), std::string::npos) << message;
  }
}

TEST_F(Compile, UserVariantIsCompiledAndNamedInErrors) {
  const SourceSet sources = with_self_test(
      "extern \"C\" __global__ void PLAIT_KERNEL_NAME(float* x) { x[0] = twice(x[0]); }\n");
  const std::string good = "__device__ inline float twice(float x) { return 2.0F * x; }\n";
  KernelKey key = self_test_key();
  key.user_variant = variant_hash(good);
  EXPECT_NO_THROW(compile(Nvrtc::get(), make_compile_unit(key, kArch, good, sources)));
  EXPECT_THROW(make_compile_unit(key, kArch, good + " ", sources), Error);

  const std::string bad = "// a comment\nfloat twice(flaot x);\n";
  key.user_variant = variant_hash(bad);
  try {
    compile(Nvrtc::get(), make_compile_unit(key, kArch, bad, sources));
    FAIL() << "must not compile";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("user_variant.h(2)"), std::string::npos)
        << error.what();
  }
}

TEST_F(Compile, MissingLaunchInfoIsRefused) {
  auto files = SourceSet::embedded().files();
  files["cuda/kernels/common/self_test.cu"] = kSmallKernel;
  const SourceSet sources(std::move(files));
  EXPECT_THROW(compile(Nvrtc::get(), make_compile_unit(self_test_key(), kArch, {}, sources)),
               Error);
}

TEST_F(Compile, UnknownArchitectureAndMissingEntryAreUnsupported) {
  const SourceSet sources = with_self_test(kSmallKernel);
  try {
    compile(Nvrtc::get(), make_compile_unit(self_test_key(), Arch{81, 0}, {}, sources));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(error.value(), "sm_81");
  }
  EXPECT_THROW(make_compile_unit(parse_kernel_key("mma read_probe"), kArch, {}, sources), Error);
}

TEST_F(Compile, ConfigConstantsReachTheKernel) {
  const KernelKey key = parse_kernel_key(
      "common self_test q=f16 k=f8_e4m3 o=f32 dqk=192 dvo=128 qt=64 kv=paged mask=causal,window "
      "hooks=softcap mode=measured sum=1");
  const SourceSet sources = with_self_test(
      "using namespace plait::device;\n"
      "static_assert(KernelConfig::kQDtype == DTypeCode::kF16);\n"
      "static_assert(KernelConfig::kKvDtype == DTypeCode::kF8E4M3);\n"
      "static_assert(KernelConfig::kODtype == DTypeCode::kF32);\n"
      "static_assert(KernelConfig::kHeadDimQk == 192 && KernelConfig::kHeadDimVo == 128);\n"
      "static_assert(KernelConfig::kQTile == 64 && KernelConfig::kPaged);\n"
      "static_assert(KernelConfig::kCausal && KernelConfig::kWindow && "
      "!KernelConfig::kCustomMask);\n"
      "static_assert(KernelConfig::kSoftCap && !KernelConfig::kAlibi && KernelConfig::kMeasured);\n"
      "static_assert(KernelConfig::kSumReduction);\n"
      "static_assert(PLAIT_ARCH == 90 && PLAIT_ARCH_SPECIFIC == 1);\n" +
      std::string(kSmallKernel));
  EXPECT_NO_THROW(compile(Nvrtc::get(), make_compile_unit(key, kArch, {}, sources)));
}

TEST_F(Compile, ThreadsThatAskForOneKernelCompileItOnce) {
  const test::TemporaryDirectory directory;
  KernelCache cache(&Nvrtc::get(), {}, SourceSet::embedded(), directory.path("cache"));
  std::vector<std::shared_ptr<const CompiledKernel>> kernels(8);
  std::vector<std::thread> threads;
  for (auto& kernel : kernels) {
    threads.emplace_back(
        [&] { kernel = cache.compiled(parse_kernel_key("common read_probe"), kArch); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& kernel : kernels) EXPECT_EQ(kernel, kernels[0]);
  EXPECT_EQ(cache.disk().counters().built, 1);
  EXPECT_EQ(cache.disk().counters().misses, 2);  // before and after taking the lock
}

TEST_F(Compile, ChangedHeaderIsCompiledAgainAndAnUnrelatedOneIsNot) {
  const test::TemporaryDirectory directory;
  auto files = SourceSet::embedded().files();
  const KernelKey key = parse_kernel_key("common read_probe");
  const auto built = [&](const std::map<std::string, std::string, std::less<>>& set) {
    KernelCache cache(&Nvrtc::get(), {}, SourceSet(set), directory.path("cache"));
    cache.compiled(key, kArch);
    return cache.disk().counters().built;
  };
  EXPECT_EQ(built(files), 1);
  EXPECT_EQ(built(files), 0);
  files["core/device/plan_layout.h"] += "// not included by the probe\n";
  EXPECT_EQ(built(files), 0);
  files["core/device/portable.h"] += "// included by the probe, through another header\n";
  EXPECT_EQ(built(files), 1);
}

TEST_F(Compile, CacheServesAMachineWithoutCompiler) {
  const test::TemporaryDirectory directory;
  const KernelKey key = parse_kernel_key("common read_probe");
  const CudaVersion version = Nvrtc::get().version();
  KernelCache(&Nvrtc::get(), {}, SourceSet::embedded(), directory.path("cache"))
      .compiled(key, kArch);
  KernelCache without(nullptr, version, SourceSet::embedded(), directory.path("cache"));
  EXPECT_EQ(without.compiled(key, kArch)->launch.threads, 512);
  // Made by a compiler newer than the driver: not for this machine.
  KernelCache older(nullptr, {version.major - 1, 9}, SourceSet::embedded(),
                    directory.path("cache"));
  EXPECT_THROW(older.compiled(key, kArch), Error);
  EXPECT_THROW(without.compiled(key, Arch{80, 0}), Error);
}

TEST_F(Compile, FailureIsNotKept) {
  const test::TemporaryDirectory directory;
  KernelCache cache(&Nvrtc::get(), {}, with_self_test("syntax error"), directory.path("cache"));
  EXPECT_THROW(cache.compiled(self_test_key(), kArch), Error);
  EXPECT_THROW(cache.compiled(self_test_key(), kArch), Error);
}

TEST_F(Compile, KernelDirectoryReplacesTheEmbeddedSources) {
  const test::TemporaryDirectory directory;
  const SourceSet embedded = SourceSet::embedded();
  for (const auto& [name, text] : embedded.files()) {
    const std::filesystem::path path = directory.path(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  EXPECT_EQ(SourceSet::from_directory(directory.path()).files(), embedded.files());
  EXPECT_THROW(SourceSet::from_directory(directory.path("nowhere")), Error);
}

}  // namespace
}  // namespace plait::cuda
