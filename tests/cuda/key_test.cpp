// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "cuda/jit/arch.h"
#include "cuda/jit/generate.h"
#include "cuda/jit/kernel_key.h"
#include "cuda/jit/kernel_set.h"
#include "cuda/jit/resources.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

std::string field_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.field();
  }
  return "nothing thrown";
}

TEST(KernelKey, TextFormNamesWhatDiffersAndParsesBack) {
  const std::string text =
      "mma attention dqk=128 dvo=128 qt=64 kt=32 page=16 group=4 hooks=softcap,sink stages=3 "
      "warps=4 "
      "q=bf16 k=f8_e5m2 o=f32 kv=paged mask=causal,window";
  EXPECT_EQ(to_string(parse_kernel_key(text)), text);
}

TEST(KernelKey, RandomKeysRoundTripAndHaveTheirOwnHashAndSource) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::set<std::uint64_t> hashes;
  std::set<std::string> texts;
  for (int round = 0; round < 2000; ++round) {
    KernelKey key;
    key.family = static_cast<KernelFamily>(random() % 3);
    key.op = static_cast<KernelOp>(random() % 11);
    key.user_variant = random() % 2 == 0 ? 0 : random();
    key.head_dim_qk = static_cast<std::uint16_t>(random() % 577);
    key.q_tile = static_cast<std::uint16_t>(random() % 129);
    key.page_size = static_cast<std::uint16_t>(random() % 65536);
    key.variant = static_cast<std::uint16_t>(random() % 128);
    key.mode = static_cast<std::uint16_t>(random() % 8);
    key.mask = static_cast<std::uint8_t>(random() % 8);
    key.q_dtype = static_cast<DType>(random() % 5);
    key.kv_dtype = static_cast<DType>(random() % 5);
    key.kv_access = static_cast<KvAccess>(random() % 2);
    key.reduction = static_cast<KernelReduction>(random() % 2);
    const std::string text = to_string(key);
    EXPECT_EQ(parse_kernel_key(text), key) << text;
    if (texts.insert(text).second) {
      EXPECT_TRUE(hashes.insert(hash_of(key)).second) << text;
    }
  }
}

TEST(KernelKey, WrongTextIsRefusedByField) {
  EXPECT_EQ(field_of([] { parse_kernel_key("mma"); }), "kernel key.text");
  EXPECT_EQ(field_of([] { parse_kernel_key("turing attention"); }), "kernel key.family");
  EXPECT_EQ(field_of([] { parse_kernel_key("mma attend"); }), "kernel key.op");
  EXPECT_EQ(field_of([] { parse_kernel_key("mma attention qt=x"); }), "kernel key.qt");
  EXPECT_EQ(field_of([] { parse_kernel_key("mma attention qt=65536"); }), "kernel key.qt");
  EXPECT_EQ(field_of([] { parse_kernel_key("mma attention qt=64 qt=64"); }), "kernel key.qt");
  EXPECT_EQ(field_of([] { parse_kernel_key("mma attention q=bf17"); }), "kernel key.q");
  EXPECT_EQ(field_of([] { parse_kernel_key("mma attention mask=causal,causal"); }),
            "kernel key.mask");
  EXPECT_EQ(field_of([] { parse_kernel_key("mma attention colour=red"); }), "kernel key.text");
}

TEST(KernelKey, HashingTakesFarLessThanALookUpMay) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's times say nothing";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  GTEST_SKIP() << "a sanitizer's times say nothing";
#endif
#endif
  KernelKey key;
  std::uint64_t sum = 0;
  constexpr int kHashes = 1000;
  // The fastest of many short rounds: other processes cannot interrupt them all.
  double fastest = 1e9;
  for (int round = 0; round < 200; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int hash = 0; hash < kHashes; ++hash) {
      key.q_tile = static_cast<std::uint16_t>(hash);
      sum += hash_of(key);
    }
    const std::chrono::duration<double, std::nano> elapsed =
        std::chrono::steady_clock::now() - start;
    fastest = std::min(fastest, elapsed.count() / kHashes);
  }
  EXPECT_NE(sum, 0u);
  // A look-up may take 200 ns; the rest of it is a hash table's.
  EXPECT_LT(fastest, 100.0);
}

TEST(KernelKey, SymbolsAreIdentifiers) {
  const std::string symbol = symbol_of(parse_kernel_key("mma attention mask=causal,window qt=64"));
  for (char c : symbol)
    EXPECT_TRUE(std::isalnum(static_cast<unsigned char>(c)) || c == '_') << symbol;
  EXPECT_TRUE(symbol.starts_with("plait_mma_attention_"));
}

TEST(Arch, ParsesAndRefuses) {
  EXPECT_EQ(to_string(parse_arch("sm_90a", "arch")), "sm_90a");
  EXPECT_EQ(to_string(parse_arch("sm_120", "arch")), "sm_120");
  EXPECT_EQ(to_string(parse_arch("sm_100f", "arch")), "sm_100f");
  const std::vector<Arch> list = {{80, 0}, {90, 'a'}};
  EXPECT_EQ(parse_arch_list("sm_80,sm_90a,sm_80", "arch"), list);
  for (const char* bad : {"", "90a", "sm_", "sm_75", "sm_90x", "sm_9a0", "sm_80,", "sm_80a",
                          "sm_86a", "sm_89f", "sm_90f"}) {
    EXPECT_EQ(field_of([&] { parse_arch_list(bad, "--arch"); }), "--arch") << bad;
  }
}

TEST(Arch, ForDeviceTakesTheNearestThatRuns) {
  const std::vector<int> known = {75, 80, 86, 90, 100, 103, 120};
  EXPECT_EQ(to_string(arch_for_device(80, known)), "sm_80");
  EXPECT_EQ(to_string(arch_for_device(89, known)), "sm_86");
  EXPECT_EQ(to_string(arch_for_device(90, known)), "sm_90a");
  EXPECT_EQ(to_string(arch_for_device(103, known)), "sm_103a");
  EXPECT_EQ(to_string(arch_for_device(121, known)), "sm_120");
  EXPECT_EQ(field_of([&] { arch_for_device(75, known); }), "compute capability");
  EXPECT_EQ(field_of([&] { arch_for_device(110, known); }), "compute capability");
}

TEST(SourceSet, ClosureFollowsQuotedIncludesOnce) {
  const SourceSet set({{"a.h", "#include \"b.h\"\n  #  include \"c.h\"\n"},
                       {"b.h", "#include \"a.h\"\n#include <system.h>\n"},
                       {"c.h", "// #include \"d.h\"\n"},
                       {"d.h", ""}});
  const std::vector<std::string> expected = {"a.h", "b.h", "c.h"};
  EXPECT_EQ(set.closure("#include \"a.h\"\n#include \"missing.h\"\n"), expected);
}

TEST(KernelSet, DefaultSetIsSmallAndNamesEntriesThatExist) {
  const SourceSet sources = SourceSet::embedded();
  const std::vector<KernelKey> keys = default_kernel_set(sources);
  EXPECT_GE(keys.size(), 1u);
  EXPECT_LE(keys.size(), kMaxDefaultSet);
  for (const KernelKey& key : keys) {
    EXPECT_NE(sources.find(entry_path(key)), nullptr) << to_string(key);
  }
}

TEST(KernelSet, ErrorsNameFileAndLine) {
  EXPECT_EQ(field_of([] { parse_kernel_set("# fine\nmma attention qt=?\n", "set.txt"); }),
            "set.txt:2: kernel key.qt");
  EXPECT_EQ(
      field_of([] { parse_kernel_set("common read_probe\n\ncommon read_probe\n", "set.txt"); }),
      "set.txt:3");
}

TEST(KernelSet, BudgetsCatchWhatGrew) {
  const KernelKey key = parse_kernel_key("common read_probe");
  CompiledKernel kernel;
  kernel.resources.registers = 40;
  kernel.launch.dynamic_shared_bytes = 1024;
  const CudaVersion compiler{13, 0};
  const SourceSet set(
      {{"cuda/kernels/common/budget.txt",
        BudgetTable::heading(compiler) + BudgetTable::line(key, Arch{80, 0}, kernel) + "\n"}});
  const BudgetTable table(set);
  const auto count = [&](const CompiledKernel& changed, CudaVersion version) {
    return table.violations(key, Arch{80, 0}, changed, version).size();
  };
  EXPECT_EQ(count(kernel, compiler), 0u);
  CompiledKernel changed = kernel;
  changed.resources.registers = 41;
  EXPECT_EQ(count(changed, compiler), 1u);
  EXPECT_EQ(count(changed, CudaVersion{13, 1}), 0u) << "another compiler allocates differently";
  changed = kernel;
  changed.resources.spill_load_bytes = 4;
  changed.launch.dynamic_shared_bytes = 2048;
  changed.warnings = {"ptxas info : (C7508) ignored"};
  EXPECT_EQ(count(changed, CudaVersion{13, 1}), 3u);
  EXPECT_EQ(table.violations(key, Arch{90, 'a'}, kernel, compiler).size(), 1u) << "no line";
  const std::map<std::string, std::string, std::less<>> bad = {
      {"x/budget.txt", "sm_80 | common read_probe | registers=many\n"}};
  EXPECT_EQ(field_of([&] { BudgetTable{SourceSet(bad)}; }), "x/budget.txt:1");
}

TEST(Resources, LogWithoutFiguresIsAnError) {
  EXPECT_EQ(field_of([] { parse_resources("nothing here", "plait_k"); }), "ptxas log");
  EXPECT_EQ(field_of([] { read_launch_info({'x'}, "plait_k"); }), "plait_k");
}

TEST(Resources, LaunchInfoSurvivesAnyDamage) {
  // Random bytes behind an ELF magic must be refused, never read out of bounds.
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    std::vector<char> bytes(64 + random() % 512);
    for (char& byte : bytes) byte = static_cast<char>(random());
    std::memcpy(bytes.data(),
                "\x7f"
                "ELF\x02",
                5);
    if (round % 2 == 0) bytes[58] = 64, bytes[59] = 0;  // a plausible section header size
    EXPECT_EQ(field_of([&] { read_launch_info(bytes, "plait_k"); }), "plait_k");
  }
}

}  // namespace
}  // namespace plait::cuda
