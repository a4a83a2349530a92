// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// That the emulator of tests/emulator/ reports what a kernel may not do, by kernel, block and
// thread, and that the same kernel without the fault runs.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>

#include "cuda/device.h"
#include "cuda/jit/kernel_cache.h"
#include "cuda/jit/loaded_kernel.h"
#include "plait/error.h"
#include "support/temporary_directory.h"

namespace plait::cuda {
namespace {

// Before anything opens a driver.
const int kEnvironmentSet =
    ::setenv("PLAIT_LIBCUDA", PLAIT_EMULATOR, 1) + ::setenv("PLAIT_NVRTC", PLAIT_EMULATOR, 1);

constexpr unsigned kThreads = 64;

class Emulator : public testing::Test {
 protected:
  /// Runs two blocks of 64 threads and 1 KiB of shared memory, `words`; `out` has a word for each
  /// thread. Returns what the launch was refused for.
  std::string run(const std::string& body) {
    const test::TemporaryDirectory directory;
    auto files = SourceSet::embedded().files();
    files["cuda/kernels/common/self_test.cu"] =
        "#include \"cuda/kernels/common/launch_info.h\"\n"
        "#include \"cuda/kernels/device/wgmma.h\"\n"
        "PLAIT_LAUNCH_INFO(64, 1024, 1, 1);\n"
        "extern \"C\" __global__ void PLAIT_KERNEL_NAME(const unsigned* in, unsigned* out) {\n"
        "  using namespace plait::device;\n"
        "  extern __shared__ __align__(16) unsigned words[];\n"
        "  const u32 thread = threadIdx.x;\n"
        "  unsigned result = 0;\n" +
        body + "  out[blockIdx.x * 64 + thread] = result;\n}\n";
    KernelCache cache(&Nvrtc::get(), Driver::get().version(), SourceSet(std::move(files)),
                      directory.path("cache"));
    const auto context = DeviceContext::get(0);
    const auto kernel = cache.loaded(context, parse_kernel_key("common self_test"));
    const DeviceBuffer in(context, kThreads * 4, "in");
    const DeviceBuffer out(context, 2 * kThreads * 4, "out");
    const ContextScope scope(*context);
    CuDevicePtr addresses[] = {in.address(), out.address()};
    void* arguments[] = {&addresses[0], &addresses[1]};
    try {
      launch(*kernel, {2, 1, 1}, arguments, nullptr);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  void expect_fault(const std::string& body, const std::string& words) {
    const std::string message = run(body);
    EXPECT_NE(message.find(words), std::string::npos) << body << message;
    EXPECT_NE(message.find("plait_common_self_test"), std::string::npos) << message;
    EXPECT_NE(message.find("block "), std::string::npos) << message;
    EXPECT_NE(message.find("PLAIT_EMULATOR_SEED="), std::string::npos) << message;
  }
};

TEST_F(Emulator, RunsWhatIsRight) {
  EXPECT_EQ(run("words[thread] = in[thread]; __syncthreads();"
                "result = __shfl_xor_sync(~0U, words[63 - thread], 1);\n"),
            "");
  EXPECT_EQ(run("copy_async<16>(shared_address(words) + thread * 16, in + thread / 4 * 4, true);"
                "copy_async_commit(); copy_async_wait<0>(); result = words[thread * 4];\n"),
            "");
  EXPECT_EQ(run("if (thread >= 32) { named_barrier_arrive(3, 64); }"
                "else { named_barrier_sync(3, 64); }\n"),
            "");
}

TEST_F(Emulator, ReportsAccessesOutsideOfMemory) {
  expect_fault("result = words[256 + thread];\n", "memory");
  expect_fault("words[thread * 5] = 1;\n", "memory");
  expect_fault("result = in[thread + 1];\n", "reads 4 bytes");
  expect_fault("out[thread - 65] = 1;\n", "no memory of the device");
  expect_fault(
      "result = *reinterpret_cast<const unsigned*>("
      "reinterpret_cast<const char*>(in) + 2);\n",
      "no multiple");
}

TEST_F(Emulator, ReportsLanesThatDoNotMeet) {
  expect_fault("if (thread % 32 < 16) result = __shfl_sync(~0U, thread, 0);\n", "__shfl_sync");
  expect_fault("if (thread % 2 == 0) { __syncwarp(); } else { result = __any_sync(~0U, true); }\n",
               "other lanes of its warp");
}

TEST_F(Emulator, ReportsBarriersThatNobodyCompletes) {
  expect_fault("if (thread < 32) named_barrier_sync(1, 64);\n", "threads 0-31 wait for barrier 1");
  expect_fault("named_barrier_sync(1, thread < 32 ? 32 : 64);\n", "barrier 1");
  expect_fault(
      "if (thread == 0) mbarrier_init(shared_address(words), 2);\n"
      "__syncthreads();\n"
      "if (thread == 0) mbarrier_arrive(shared_address(words));\n"
      "mbarrier_wait(shared_address(words), 0);\n",
      "wait for an mbarrier");
  expect_fault("mbarrier_wait(shared_address(words), 0);\n", "not initialised");
}

TEST_F(Emulator, ReportsCopiesThatNobodyWaitedFor) {
  const std::string copy =
      "copy_async<16>(shared_address(words) + thread * 16, in + thread / 4 * 4, true);"
      "copy_async_commit();";
  expect_fault(copy + "result = words[thread * 4];\n", "nobody waited for");
  expect_fault(copy + "\n", "never waited for");
  expect_fault(copy + "copy_async_wait<1>(); result = words[thread * 4]; copy_async_wait<0>();\n",
               "nobody waited for");
  // Another thread's copy: a barrier is no wait.
  expect_fault("if (thread == 0) {" + copy + "}" +
                   "__syncthreads(); result = words[0]; __syncthreads(); copy_async_wait<0>();\n",
               "nobody waited for");
}

TEST_F(Emulator, ReportsWhatItsSourceCannotMean) {
  try {
    run("asm volatile(\"membar.gl;\");\n");
    FAIL() << "an instruction that the emulator does not know was compiled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCompile);
    EXPECT_NE(std::string(error.what()).find("membar_gl"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace plait::cuda
