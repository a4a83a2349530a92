// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Lists of kernels to compile ahead of time, and what each may use. Both are text files beside the
// kernels they speak of, embedded with them:
//   cuda/kernels/<family>/default_set.txt   one kernel key per line, '#' starts a comment
//   cuda/kernels/<family>/budget.txt        lines of BudgetTable::line
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/jit/arch.h"
#include "cuda/jit/compiled_kernel.h"
#include "cuda/jit/kernel_key.h"
#include "cuda/jit/source_set.h"
#include "cuda/nvrtc.h"

namespace plait::cuda {

/// More keys than this make `plait aot` a wait that nobody asked for.
inline constexpr std::size_t kMaxDefaultSet = 60;

/// Whether kernels of `family` exist for `arch`: hopper is sm_90a alone.
bool family_serves(KernelFamily family, Arch arch) noexcept;

/// Keys of a set's text; `name` is its file, for messages. Throws Error{kInvalidArgument} naming
/// file and line.
std::vector<KernelKey> parse_kernel_set(std::string_view text, std::string_view name);

/// The default sets of all families, in the order of their names.
std::vector<KernelKey> default_kernel_set(const SourceSet& sources);

/// What the budget tables allow.
class BudgetTable {
 public:
  /// All tables of `sources`. Throws Error{kInvalidArgument} naming file and line.
  explicit BudgetTable(const SourceSet& sources);

  /// Everything in which a compiled kernel breaks its budget, one sentence each; empty if it keeps
  /// it. Spills and compiler warnings always do. Registers count only with the compiler the table
  /// was made with: another one allocates differently.
  std::vector<std::string> violations(const KernelKey& key, Arch arch, const CompiledKernel& kernel,
                                      CudaVersion compiler) const;

  /// The table's line for a kernel.
  static std::string line(const KernelKey& key, Arch arch, const CompiledKernel& kernel);
  /// The comment that opens a table.
  static std::string heading(CudaVersion compiler);

 private:
  struct Budget {
    KernelResources resources;
    int dynamic_shared_bytes = 0;
    CudaVersion compiler;
  };
  void add(std::string_view text, std::string_view name);

  std::map<std::pair<std::string, std::string>, Budget> budgets_;  // by arch and key, as text
};

}  // namespace plait::cuda
