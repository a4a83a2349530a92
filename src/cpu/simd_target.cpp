// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>
#include <vector>

#include "core/environment.h"
#include "cpu/kernel_table.h"
#include "plait/error.h"

namespace plait::cpu {
namespace {

bool machine_supports(std::string_view name) {
#if defined(__x86_64__)
  if (name == "avx512_bf16") {
    return machine_supports("avx512") && __builtin_cpu_supports("avx512bf16");
  }
  if (name == "avx512") {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
  }
  // Every CPU with AVX2 and FMA has F16C and BMI, which the kernels also use.
  if (name == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (name == "sse4") return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
  return false;
#else
  return name == "neon";
#endif
}

std::vector<const KernelTable*> supported_tables() {
  std::vector<const KernelTable*> tables;
  for (const KernelTable* const* table = kKernelTables; *table != nullptr; ++table) {
    if (machine_supports((*table)->name)) tables.push_back(*table);
  }
  return tables;
}

const KernelTable& choose() {
  const auto tables = supported_tables();
  if (tables.empty()) {
    throw Error(ErrorCode::kUnsupported, "cpu", "a processor without SSE4.2",
                "an x86-64-v2 processor or newer");
  }
  const std::string wanted = environment("PLAIT_SIMD");
  if (wanted.empty()) return *tables.front();
  if (const KernelTable* table = kernels_named(wanted.c_str())) return *table;
  std::string names;
  for (const KernelTable* table : tables) {
    if (!names.empty()) names += ", ";
    names += table->name;
  }
  throw Error(ErrorCode::kInvalidArgument, "PLAIT_SIMD", wanted,
              "an instruction set of this machine: " + names);
}

}  // namespace

const KernelTable* kernels_named(const char* name) {
  for (const KernelTable* table : supported_tables()) {
    if (std::string_view(name) == table->name) return table;
  }
  return nullptr;
}

const KernelTable& kernels() {
  static const KernelTable& table = choose();
  return table;
}

}  // namespace plait::cpu
