// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/kernel_set.h"

#include <algorithm>
#include <charconv>

#include "core/text.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

constexpr std::string_view kCompilerMark = "# NVRTC ";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

/// Calls `visit(line, "name:number")` for every line that is not empty.
template <typename Visit>
void for_each_line(std::string_view text, std::string_view name, Visit visit) {
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trimmed(text.substr(begin, end - begin));
    ++number;
    if (!line.empty()) visit(line, std::string(name) + ":" + std::to_string(number));
    begin = end + 1;
  }
}

KernelKey key_at(std::string_view text, const std::string& where) {
  try {
    return parse_kernel_key(text);
  } catch (const Error& error) {
    throw Error(error.code(), where + ": " + error.field(), error.value(), error.expected());
  }
}

int parse_count(std::string_view text, const std::string& where) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw Error(ErrorCode::kInvalidArgument, where, quote_text(text), "a count");
  }
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

std::vector<std::string> files_named(const SourceSet& sources, std::string_view name) {
  std::vector<std::string> found;
  for (const auto& [path, text] : sources.files()) {
    if (path.ends_with(name)) found.push_back(path);
  }
  return found;
}

}  // namespace

bool family_serves(KernelFamily family, Arch arch) noexcept {
  return family != KernelFamily::kHopper || arch == Arch{90, 'a'};
}

std::vector<KernelKey> parse_kernel_set(std::string_view text, std::string_view name) {
  std::vector<KernelKey> keys;
  for_each_line(text, name, [&](std::string_view line, const std::string& where) {
    if (line.starts_with('#')) return;
    const KernelKey key = key_at(line, where);
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) {
      throw Error(ErrorCode::kInvalidArgument, where, to_string(key), "each key once");
    }
    keys.push_back(key);
  });
  return keys;
}

std::vector<KernelKey> default_kernel_set(const SourceSet& sources) {
  std::vector<KernelKey> keys;
  for (const std::string& path : files_named(sources, "/default_set.txt")) {
    const std::vector<KernelKey> more = parse_kernel_set(*sources.find(path), path);
    keys.insert(keys.end(), more.begin(), more.end());
  }
  return keys;
}

BudgetTable::BudgetTable(const SourceSet& sources) {
  for (const std::string& path : files_named(sources, "/budget.txt")) {
    add(*sources.find(path), path);
  }
}

void BudgetTable::add(std::string_view text, std::string_view name) {
  CudaVersion compiler;
  for_each_line(text, name, [&](std::string_view line, const std::string& where) {
    if (line.starts_with(kCompilerMark)) {
      const std::vector<std::string_view> parts = split(line.substr(kCompilerMark.size()), '.');
      if (parts.size() != 2) {
        throw Error(ErrorCode::kInvalidArgument, where, quote_text(line),
                    "# NVRTC <major>.<minor>");
      }
      compiler = {parse_count(parts[0], where), parse_count(parts[1], where)};
    }
    if (line.starts_with('#')) return;
    const std::vector<std::string_view> columns = split(line, '|');
    if (columns.size() != 3) {
      throw Error(ErrorCode::kInvalidArgument, where, quote_text(line),
                  "<arch> | <kernel key> | <name=count ...>");
    }
    Budget budget;
    budget.compiler = compiler;
    for (std::string_view word : split(columns[2], ' ')) {
      const std::size_t equals = word.find('=');
      const std::string_view field = word.substr(0, equals);
      const int value = equals == std::string_view::npos
                            ? parse_count({}, where)
                            : parse_count(word.substr(equals + 1), where);
      if (field == "registers") {
        budget.resources.registers = value;
      } else if (field == "shared") {
        budget.resources.static_shared_bytes = value;
      } else if (field == "dynamic") {
        budget.dynamic_shared_bytes = value;
      } else if (field == "stack") {
        budget.resources.stack_bytes = value;
      } else {
        throw Error(ErrorCode::kInvalidArgument, where, quote_text(word),
                    "registers, shared, dynamic or stack");
      }
    }
    const Arch arch = parse_arch(columns[0], where);
    budgets_[{to_string(arch), to_string(key_at(columns[1], where))}] = budget;
  });
}

std::vector<std::string> BudgetTable::violations(const KernelKey& key, Arch arch,
                                                 const CompiledKernel& kernel,
                                                 CudaVersion compiler) const {
  std::vector<std::string> found;
  const KernelResources& used = kernel.resources;
  if (!used.known()) found.push_back("ptxas reported no resources");
  if (used.spill_store_bytes > 0 || used.spill_load_bytes > 0) {
    found.push_back("spills " + std::to_string(used.spill_store_bytes) + " bytes (stores) and " +
                    std::to_string(used.spill_load_bytes) + " (loads)");
  }
  for (const std::string& warning : kernel.warnings) found.push_back("compiler says: " + warning);
  const auto entry = budgets_.find({to_string(arch), to_string(key)});
  if (entry == budgets_.end()) {
    found.push_back("no line in the budget table beside its config (plait aot --write-budgets)");
    return found;
  }
  const Budget& budget = entry->second;
  const auto compare = [&](const char* what, int value, int limit) {
    if (value > limit) {
      found.push_back(std::to_string(value) + " " + what + ", budget " + std::to_string(limit));
    }
  };
  if (compiler == budget.compiler) {
    compare("registers", used.registers, budget.resources.registers);
    compare("bytes of stack", used.stack_bytes, budget.resources.stack_bytes);
  }
  compare("bytes of static shared memory", used.static_shared_bytes,
          budget.resources.static_shared_bytes);
  compare("bytes of dynamic shared memory", kernel.launch.dynamic_shared_bytes,
          budget.dynamic_shared_bytes);
  return found;
}

std::string BudgetTable::line(const KernelKey& key, Arch arch, const CompiledKernel& kernel) {
  return to_string(arch) + " | " + to_string(key) +
         " | registers=" + std::to_string(kernel.resources.registers) +
         " shared=" + std::to_string(kernel.resources.static_shared_bytes) +
         " dynamic=" + std::to_string(kernel.launch.dynamic_shared_bytes) +
         " stack=" + std::to_string(kernel.resources.stack_bytes);
}

std::string BudgetTable::heading(CudaVersion compiler) {
  return "# Written by plait aot --write-budgets; checked by plait aot --check. Lower is fine.\n" +
         std::string(kCompilerMark) + to_string(compiler) + "\n";
}

}  // namespace plait::cuda
