// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What the tool does with a GPU, and says of one that it cannot use, with the emulator in its
// place.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "support/temporary_directory.h"
#include "support/tool.h"

namespace plait {
namespace {

namespace fs = std::filesystem;
using test::Ran;

const std::string kLibCuda = "PLAIT_LIBCUDA=" PLAIT_EMULATOR;
const std::string kNvrtc = "PLAIT_NVRTC=" PLAIT_EMULATOR;
const std::string kNoNvrtc = "PLAIT_NVRTC=/no/such/libnvrtc.so";

class ToolOnAGpu : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_.path(name); }
  std::string problem() const {
    return (test::source_dir() / "examples/problems/paged_decode.json").string();
  }

  /// With the emulated driver, and a kernel cache that is empty at first.
  Ran run(const std::vector<std::string>& words, std::vector<std::string> more = {kNvrtc}) const {
    more.push_back(kLibCuda);
    more.push_back("PLAIT_CACHE_DIR=" + path("cache"));
    return test::Tool(words, more).finish();
  }

  void expect_refused(const Ran& ran, const std::string& words) const {
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_EQ(test::lines_of(ran.err), 1) << ran.err;
    EXPECT_NE(ran.err.find(words), std::string::npos) << ran.err;
  }

  std::string kernel_set(const std::string& keys) const {
    std::ofstream(path("set")) << keys;
    return path("set");
  }

  /// The one kernel in a cache directory.
  fs::path only_entry(const std::string& directory) const {
    fs::path found;
    for (const auto& entry : fs::directory_iterator(directory)) {
      if (entry.path().extension() != ".plk") continue;
      EXPECT_TRUE(found.empty()) << found << " and " << entry.path();
      found = entry.path();
    }
    return found;
  }

  test::TemporaryDirectory directory_;
};

bool has_line(const std::string& text, const std::string& pattern) {
  return std::regex_search(text, std::regex("(^|\n)" + pattern));
}

TEST_F(ToolOnAGpu, InfoSaysWhatIsOffAndWhy) {
  Ran ran = run({"info"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  for (const char* line :
       {"libcuda +/.*, CUDA 13.0\n", "libnvrtc +/.*, version 13.0\n", "kernel cache +/.*cache\n",
        "cuda:0 +Emulated GPU, compute capability 9.0, ", "cuda:1 +Emulated GPU",
        "  kernels +sm_90a\n", "  hopper +on\n", "  mma +on\n"}) {
    EXPECT_TRUE(has_line(ran.out, line)) << line << ran.out;
  }

  ran = run({"info"}, {kNvrtc, "PLAIT_EMULATED_ARCH=75"});
  for (const char* line : {"  kernels +none: .*8.0 or newer", "  hopper +off: .*needs 9.0 exactly",
                           "  mma +off: .*needs 8.0"}) {
    EXPECT_TRUE(has_line(ran.out, line)) << line << ran.out;
  }
  ran = run({"info"}, {kNvrtc, "PLAIT_EMULATED_ARCH=100"});  // which that compiler does not know
  for (const char* line : {"  kernels +none: .*a newer NVRTC", "  mma +off: no kernels\n"}) {
    EXPECT_TRUE(has_line(ran.out, line)) << line << ran.out;
  }
  ran = run({"info"}, {kNoNvrtc});
  for (const char* line : {"libnvrtc +off: .*/no/such/libnvrtc.so",
                           "  kernels +those of the kernel cache alone", "  mma +on\n"}) {
    EXPECT_TRUE(has_line(ran.out, line)) << line << ran.out;
  }
  ran = test::Tool({"info"}, {kNvrtc, "PLAIT_LIBCUDA=/no/such/libcuda.so"}).finish();
  EXPECT_EQ(ran.code, 0) << ran.err;
  for (const char* line : {"libcuda +off: .*/no/such/libcuda.so", "cuda +off: no libcuda\n",
                           "  hopper +off: no libcuda\n", "  mma +off: no libcuda\n"}) {
    EXPECT_TRUE(has_line(ran.out, line)) << line << ran.out;
  }
}

TEST_F(ToolOnAGpu, AotFillsACacheAndBuildsDamagedEntriesAgain) {
  const std::string keys = kernel_set("# one key\ncommon read_probe q=bf16 k=bf16 o=bf16\n");
  const std::vector<std::string> aot = {"aot", "--arch", "sm_80",    "--set",
                                        keys,  "--out",  path("aot")};
  const auto expect_counts = [&](const char* counts) {
    const Ran ran = run(aot);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_TRUE(has_line(ran.out, "\\[1/1\\] sm_80 +common read_probe")) << ran.out;
    EXPECT_NE(ran.out.find(counts), std::string::npos) << ran.out;
  };
  expect_counts("1 kernels: 1 compiled, 0 from");
  expect_counts("1 kernels: 0 compiled, 1 from");
  const fs::path entry = only_entry(path("aot"));
  EXPECT_EQ(fs::status(entry).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(fs::status(path("aot")).permissions(), fs::perms::owner_all);
  fs::resize_file(entry, fs::file_size(entry) - 1);
  expect_counts("1 kernels: 1 compiled, 0 from");
  expect_counts("1 kernels: 0 compiled, 1 from");
}

TEST_F(ToolOnAGpu, AotSaysWhatItCannotDo) {
  const std::string hopper =
      "hopper decode dqk=128 dvo=128 qt=16 kt=128 page=16 group=4 stages=3 warps=8 q=bf16 k=bf16 "
      "o=bf16 kv=paged mask=causal\n";
  const auto aot = [&](const std::string& arch, const std::string& keys) {
    return run({"aot", "--arch", arch, "--set", kernel_set(keys), "--out", path("aot")});
  };
  const std::string probe = "common read_probe q=bf16 k=bf16 o=bf16\n";
  expect_refused(aot("sm_75", probe), "--arch: got \"sm_75\", expected an architecture from sm_80");
  expect_refused(aot("sm_100a", probe), "--arch: got \"sm_100a\", expected one that this NVRTC");
  expect_refused(aot("sm_80", hopper), "--arch: got \"sm_80\", expected an architecture that a");
  expect_refused(aot("sm_80", probe + probe), "set:2: got common read_probe");
  const Ran some = aot("sm_80", probe + hopper);
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_TRUE(has_line(some.out, "sm_80: without 1 of the 2 keys")) << some.out;

  const std::string set = kernel_set(probe);
  fs::create_directory(path("open"));
  fs::permissions(path("open"), fs::perms::all);
  expect_refused(run({"aot", "--arch", "sm_80", "--set", set, "--out", path("open")}),
                 "can be written by others");
  expect_refused(run({"aot", "--arch", "sm_80", "--set", set, "--out", set}), "not a directory");
  expect_refused(run({"aot", "--arch", "sm_80", "--set", set}, {kNoNvrtc}), "libnvrtc: got none");
}

TEST_F(ToolOnAGpu, EvalNeedsNoCompilerOnceTheCacheIsFilled) {
  const std::vector<std::string> eval = {"eval", problem(), "--device",
                                         "cuda", "--out",   path("out")};
  expect_refused(run(eval, {kNoNvrtc}), "no cached machine code, and no compiler");
  EXPECT_FALSE(fs::exists(path("out")));
  Ran ran = run(eval);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find(R"("family":"mma","device":"cuda:0")"), std::string::npos) << ran.out;
  const std::string compiled = test::content_of(path("out"));
  fs::remove(path("out"));
  ran = run(eval, {kNoNvrtc});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(test::content_of(path("out")), compiled);

  std::vector<std::string> other = eval;
  other[3] = "cuda:1";
  ran = run(other);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find(R"("device":"cuda:1")"), std::string::npos) << ran.out;
  EXPECT_EQ(test::content_of(path("out")), compiled) << "another device, other bits";
  other[3] = "cuda:2";
  expect_refused(run(other), "device.index: got 2, expected 0..1");
}

TEST_F(ToolOnAGpu, ACompilerNewerThanTheDriverIsNotUsedNorWhatItMade) {
  const std::string older = "PLAIT_EMULATED_DRIVER=12040";
  const std::vector<std::string> eval = {"eval", problem(), "--device",
                                         "cuda", "--out",   path("out")};
  Ran ran = run({"info"}, {kNvrtc, older});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_TRUE(has_line(ran.out,
                       "libnvrtc +off: .*NVRTC 13.0 is newer than the driver, which "
                       "supports CUDA 12.4"))
      << ran.out;
  ASSERT_EQ(run(eval).code, 0) << "fills the cache";
  fs::remove(path("out"));
  expect_refused(run(eval, {kNvrtc, older}), "NVRTC 13.0 is newer than the driver");
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(ToolOnAGpu, WithoutADriverTheFileThatDidNotOpenIsNamed) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"eval", problem(), "--device", "cuda", "--out", path("out")},
        {"check", "--device", "cuda", "--count", "1"},
        {"replay", "--device", "cuda", "--limit", "1"},
        {"bench", "--device", "cuda", "decode"},
        {"explain", problem(), "--device", "cuda", "--measured", "--why"}}) {
    expect_refused(test::Tool(words, {kNvrtc, "PLAIT_LIBCUDA=/no/such/libcuda.so"}).finish(),
                   "/no/such/libcuda.so");
  }
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(ToolOnAGpu, WhatAFamilyOrDeviceDoesNotServeIsNamed) {
  std::vector<std::string> eval = {"eval", problem(), "--device", "cuda", "--family", "hopper"};
  expect_refused(run(eval), "hopper: ");
  expect_refused(run(eval, {kNvrtc, "PLAIT_EMULATED_ARCH=75"}), "compute capability 7.5");
  eval.back() = "cpu";
  expect_refused(run(eval), "family: got cpu, expected auto, mma or hopper on a CUDA device");
}

TEST_F(ToolOnAGpu, VariantThatDoesNotCompileIsNamedWithItsLine) {
  const std::string text = R"({"version": 1, "num_qo_heads": 1, "num_kv_heads": 1,
      "head_dim_qk": 16, "head_dim_vo": 16, "dtype": {"q": "f32", "kv": "f32", "o": "f32"},
      "q": {"shape": [1, 1, 16], "fill": "ones"}, "qo_indptr": [0, 1],
      "kv": {"kind": "ragged", "indptr": [0, 1], "k": {"shape": [1, 1, 16], "fill": "ones"},
             "v": {"shape": [1, 1, 16], "fill": "ones"}},
      "variant": {"name": "Mine", "source": "struct Mine : VariantBase {\n  flaot x;\n};"}})";
  const Ran ran = run({"eval", text, "--device", "cuda"});
  expect_refused(ran, "variant.source: got a source that NVRTC 13.0 refuses");
  EXPECT_NE(ran.err.find("flaot"), std::string::npos) << ran.err;
}

TEST_F(ToolOnAGpu, ExplainMeasuresInsideTheKernel) {
  const Ran ran = run({"explain", problem(), "--device", "cuda", "--measured", "--why", "--workers",
                       "4", "--svg", path("svg")});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("(measured: the last of three runs)"), std::string::npos) << ran.out;
  const std::string svg = test::content_of(path("svg"));
  EXPECT_NE(svg.find("measured"), std::string::npos);
  std::smatch floor;
  ASSERT_TRUE(std::regex_search(ran.out, floor, std::regex(R"(floor +([0-9.]+) [mu]s)")))
      << ran.out;
  EXPECT_GT(std::stod(floor[1]), 0.0) << "no worker recorded its time";
}

TEST_F(ToolOnAGpu, MemoryThatThereIsNotIsNamed) {
  const Ran ran =
      test::Tool::shell("ulimit -v 600000; PLAIT_CACHE_DIR=" + path("cache") + " " + kLibCuda +
                        " " + kNvrtc + " exec \"$PLAIT\" replay " +
                        "--device cuda --geometry llama-3.1-8b --workload uniform:5:20 --limit 1 " +
                        "--quiet --json " + path("report"))
          .finish();
  expect_refused(ran, "key cache: got 1073741824 bytes on device 0, expected that much free");
  EXPECT_FALSE(fs::exists(path("report")));
}

TEST_F(ToolOnAGpu, AnInterruptEndsAReplayWith130AndNoFile) {
  test::Tool tool({"replay", "--device", "cuda", "--limit", "1000", "--json", path("report")},
                  {kLibCuda, kNvrtc, "PLAIT_CACHE_DIR=" + path("cache")});
  for (int i = 0; i < 6000 && tool.err().find("step") == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(tool.process(), SIGINT);
  const Ran ran = tool.finish();
  EXPECT_EQ(ran.code, 130) << ran.err;
  EXPECT_EQ(ran.out, "");
  EXPECT_NE(ran.err.find("interrupted"), std::string::npos) << ran.err;
  EXPECT_FALSE(fs::exists(path("report")));
}

TEST_F(ToolOnAGpu, ReplayReportsStepsOfTheDevice) {
  const Ran ran =
      run({"replay", "--device", "cuda", "--workload", "uniform:5:20", "--limit", "1", "--quiet"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  for (const char* line : {"engine +cuda, family hopper, 24 workers", "256 steps over ",
                           "  attention +[0-9.]+ ", "  plan +[0-9.]+ ", "  of it copy +[0-9.]+ "}) {
    EXPECT_TRUE(has_line(ran.out, line)) << line << ran.out;
  }
}

}  // namespace
}  // namespace plait
