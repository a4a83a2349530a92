// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// plait aot: compiles kernels ahead of time into a cache directory, on a machine without a GPU too;
// with --check, the test that CI runs on every kernel of the default set.
#if PLAIT_WITH_CUDA
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "core/file.h"
#include "core/temporary_directory.h"
#include "cuda/default_set.h"
#include "cuda/jit/compiler.h"
#include "cuda/jit/disk_cache.h"
#include "cuda/jit/kernel_cache.h"
#include "cuda/jit/kernel_set.h"
#include "plait/error.h"
#include "plait/options.h"
#include "plait/standard_streams.h"
#include "plait/verb.h"

namespace plait::tool {
namespace {

using cuda::Arch;
using cuda::BudgetTable;
using cuda::CompiledKernel;
using cuda::CompileUnit;
using cuda::DiskCache;
using cuda::KernelKey;
using cuda::Nvrtc;
using cuda::SourceSet;

constexpr double kSlowestCompile = 3.0;  // seconds of one core
constexpr double kMedianCompile = 1.5;
constexpr double kSlowestWarmLoad = 0.005;                   // seconds
constexpr std::int64_t kLargestSet = std::int64_t{1} << 24;  // bytes of a file of kernel keys

struct Options {
  std::string arch;
  std::string set = "default";
  std::string out;
  std::string write_budgets;
  int jobs = 0;
  bool check = false;
  bool list = false;
};

struct Job {
  KernelKey key;
  Arch arch;
  CompileUnit unit;
  // Results.
  CompiledKernel kernel;
  std::string error;
  bool from_cache = false;
  double cpu_seconds = 0;
};

/// Processor time of this thread: what a compilation costs on a machine that does other things too.
double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::vector<KernelKey> requested_keys(const Options& options, const SourceSet& sources) {
  if (options.set == "default") return cuda::default_kernel_set(sources);
  std::vector<KernelKey> keys =
      cuda::parse_kernel_set(read_file(options.set, "--set", kLargestSet), options.set);
  if (keys.empty()) refuse("--set", options.set, "a file with at least one kernel key");
  return keys;
}

std::vector<Arch> requested_archs(const Options& options, const Nvrtc& nvrtc) {
  if (!options.arch.empty()) {
    std::vector<Arch> archs = cuda::parse_arch_list(options.arch, "--arch");
    const std::vector<int>& known = nvrtc.architectures();
    for (const Arch arch : archs) {
      if (std::find(known.begin(), known.end(), arch.sm) != known.end()) continue;
      std::string expected = "one that this NVRTC compiles for:";
      for (const int sm : known) {
        if (sm >= 80) expected += " sm_" + std::to_string(sm);
      }
      refuse("--arch", to_string(arch), expected);
    }
    return archs;
  }
  if (options.check || !options.write_budgets.empty()) {
    return cuda::parse_arch_list("sm_80,sm_90a,sm_100a,sm_120a", "--arch");
  }
  std::vector<Arch> archs;
  if (const cuda::Driver* driver = cuda::Driver::find()) {
    for (int device = 0; device < driver->device_count(); ++device) {
      const int capability = cuda::query_device(*driver, device).compute_capability;
      const Arch arch = cuda::arch_for_device(capability, nvrtc.architectures());
      if (std::find(archs.begin(), archs.end(), arch) == archs.end()) archs.push_back(arch);
    }
  }
  if (archs.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--arch", "nothing, and no device to ask",
                "a list such as sm_80,sm_90a");
  }
  return archs;
}

/// Compiles all jobs on `threads` threads, one line of progress each.
void compile_all(std::vector<Job>& jobs, DiskCache& cache, const Nvrtc& nvrtc, int threads) {
  std::atomic<std::size_t> next{0};
  std::size_t done = 0;
  std::mutex print_mutex;
  std::exception_ptr closed;  // why nothing can be printed any more
  const auto work = [&] {
    for (std::size_t index = next.fetch_add(1); index < jobs.size(); index = next.fetch_add(1)) {
      Job& job = jobs[index];
      try {
        job.from_cache = true;
        job.kernel = cache.get_or_build(disk_key(job.unit, nvrtc.build()), [&] {
          job.from_cache = false;
          const double start = thread_seconds();
          CompiledKernel kernel = compile(nvrtc, job.unit);
          job.cpu_seconds = thread_seconds() - start;
          return kernel;
        });
      } catch (const std::exception& error) {
        job.error = error.what();
      }
      const std::lock_guard lock(print_mutex);
      ++done;
      std::printf("[%zu/%zu] %-7s %s", done, jobs.size(), to_string(job.arch).c_str(),
                  to_string(job.key).c_str());
      if (!job.error.empty()) {
        std::printf(": FAILED\n%s\n", job.error.c_str());
      } else {
        const auto& used = job.kernel.resources;
        std::printf(": %d registers, %d + %d bytes shared, %d spilled, ", used.registers,
                    used.static_shared_bytes, job.kernel.launch.dynamic_shared_bytes,
                    used.spill_store_bytes);
        if (job.from_cache) {
          std::printf("cached\n");
        } else {
          std::printf("%.2f s\n", job.cpu_seconds);
        }
      }
      try {
        flush_output();
      } catch (...) {
        closed = std::current_exception();
        next = jobs.size();
      }
    }
  };
  std::vector<std::thread> pool;
  try {
    for (int thread = 1; thread < threads; ++thread) pool.emplace_back(work);
  } catch (const std::system_error&) {
    // Those that could be had do the work.
  }
  work();
  for (std::thread& thread : pool) thread.join();
  if (closed) std::rethrow_exception(closed);
}

/// Seconds to read and verify the slowest entry, by a cache object that has nothing in memory. Each
/// entry counts with the fastest of a few loads: other processes interrupt some.
double slowest_warm_load(const std::vector<Job>& jobs, const std::string& directory,
                         const Nvrtc& nvrtc) {
  constexpr int kLoads = 5;
  DiskCache cache(directory);
  double slowest = 0;
  for (const Job& job : jobs) {
    double fastest = -1;
    for (int load = 0; load < kLoads; ++load) {
      const auto start = std::chrono::steady_clock::now();
      const auto kernel = cache.load(disk_key(job.unit, nvrtc.build()));
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      if (kernel && (fastest < 0 || elapsed.count() < fastest)) fastest = elapsed.count();
    }
    slowest = std::max(slowest, fastest);
  }
  return slowest;
}

/// Prints what breaks a rule; returns how many things do.
int report_check(const std::vector<Job>& jobs, const SourceSet& sources, const Nvrtc& nvrtc) {
  const BudgetTable budgets(sources);
  int broken = 0;
  const auto complain = [&](const Job& job, const std::string& what) {
    std::printf("over budget: %s %s: %s\n", to_string(job.arch).c_str(), to_string(job.key).c_str(),
                what.c_str());
    ++broken;
  };
  std::vector<double> seconds;
  for (const Job& job : jobs) {
    if (!job.error.empty()) continue;
    for (const std::string& what :
         budgets.violations(job.key, job.arch, job.kernel, nvrtc.version())) {
      complain(job, what);
    }
    if (job.from_cache) continue;
    seconds.push_back(job.cpu_seconds);
  }
  if (!seconds.empty()) {
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2];
    // Times depend on the machine and on who else uses it: they are shown beside their goals and
    // fail nothing.
    std::printf("compile time on one core: median %.2f s (goal %.2f), slowest %.2f s (goal %.2f)\n",
                median, kMedianCompile, seconds.back(), kSlowestCompile);
  }
  return broken;
}

std::string budget_path(const std::string& directory, const std::string& family) {
  return directory + "/cuda/kernels/" + family + "/budget.txt";
}

/// Rewrites the budget table of every family in `jobs`.
void write_budgets(const std::vector<Job>& jobs, const std::string& directory, const Nvrtc& nvrtc) {
  std::map<std::string, std::string> tables;
  for (const Job& job : jobs) {
    if (!job.error.empty()) continue;
    std::string& table = tables[std::string(to_string(job.key.family))];
    if (table.empty()) table = BudgetTable::heading(nvrtc.version());
    table += BudgetTable::line(job.key, job.arch, job.kernel) + "\n";
  }
  for (const auto& [family, text] : tables) {
    const std::string path = budget_path(directory, family);
    const std::string_view pieces[] = {text};
    write_file_atomic(path, pieces, "--write-budgets");
    std::printf("wrote %s\n", path.c_str());
  }
}

/// What is compiled of `keys` for an architecture. Keys that a file names are taken as they are.
std::vector<KernelKey> keys_for(const Options& options, std::vector<KernelKey> keys, Arch arch,
                                const SourceSet& sources) {
  if (options.set == "default") return cuda::default_kernel_set(sources, arch);
  std::erase_if(keys, [&](const KernelKey& key) { return !family_serves(key.family, arch); });
  return keys;
}

std::vector<Job> make_jobs(const Options& options, const std::vector<KernelKey>& keys,
                           const std::vector<Arch>& archs, const SourceSet& sources) {
  std::vector<Job> jobs;
  for (const Arch arch : archs) {
    const std::vector<KernelKey> served = keys_for(options, keys, arch, sources);
    for (const KernelKey& key : served) {
      jobs.push_back({key, arch, make_compile_unit(key, arch, {}, sources), {}, {}, false, 0});
    }
    if (served.size() < keys.size()) {
      std::printf("%s: without %zu of the %zu keys, which it has no kernels for\n",
                  to_string(arch).c_str(), keys.size() - served.size(), keys.size());
    }
  }
  return jobs;
}

int run_jobs(const Options& options, std::vector<Job>& jobs, const SourceSet& sources,
             const Nvrtc& nvrtc) {
  // --check alone measures and leaves nothing behind.
  std::optional<TemporaryDirectory> scratch;
  std::string directory = options.out.empty() ? DiskCache::default_directory() : options.out;
  if (options.check && options.out.empty()) {
    directory = scratch.emplace(std::filesystem::temp_directory_path() / "plait-aot-").path();
  }
  DiskCache cache(directory);
  if (!cache.writable()) {
    throw Error(ErrorCode::kIo, "--out", cache.reason(), "a directory that can be written");
  }
  if (!options.write_budgets.empty()) {
    std::set<std::string> families;
    for (const Job& job : jobs) families.emplace(to_string(job.key.family));
    for (const std::string& family : families) {
      require_writable(budget_path(options.write_budgets, family), "--write-budgets");
    }
  }
  std::printf("NVRTC %s (%s), %zu kernels\n", to_string(nvrtc.version()).c_str(),
              nvrtc.path().c_str(), jobs.size());
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  compile_all(jobs, cache, nvrtc, options.jobs > 0 ? options.jobs : cores);
  const auto failed =
      std::count_if(jobs.begin(), jobs.end(), [](const Job& job) { return !job.error.empty(); });
  int broken = 0;
  if (options.check) broken = report_check(jobs, sources, nvrtc);
  const double warm = slowest_warm_load(jobs, cache.directory(), nvrtc);
  std::printf("slowest load from disk: %.2f ms (goal %.2f)\n", 1e3 * warm, 1e3 * kSlowestWarmLoad);
  if (!options.write_budgets.empty()) write_budgets(jobs, options.write_budgets, nvrtc);
  const DiskCache::Counters counters = cache.counters();
  std::printf("%zu kernels: %ld compiled, %ld from %s, %ld failed, %d over budget\n", jobs.size(),
              static_cast<long>(counters.built), static_cast<long>(counters.hits),
              cache.directory().c_str(), static_cast<long>(failed), broken);
  if (counters.unstored > 0) std::printf("not stored: %s\n", cache.reason().c_str());
  const bool stored = options.check || counters.unstored == 0;
  return failed == 0 && broken == 0 && stored ? 0 : kExitFailed;
}

int run(const std::vector<std::string>& args) {
  Options options;
  CLI::App app("Compiles kernels ahead of time into a cache directory; needs no GPU.", "plait aot");
  add_text(app, "--arch", options.arch, "LIST",
           "architectures, such as sm_80,sm_90a (default: those of the devices present)");
  add_text(app, "--set", options.set, "FILE", "'default', or a file with one kernel key per line");
  add_text(app, "--out", options.out, "FOLDER",
           "cache directory (default: PLAIT_CACHE_DIR, ~/.cache/plait)");
  add_integer(app, "--jobs", options.jobs, 1, 1024,
              "compilations at a time (default: one per core)");
  CLI::Option* check =
      add_switch(app, "--check", options.check,
                 "compare with the budget tables and the time limits; exit 1 if anything is over");
  add_text(app, "--write-budgets", options.write_budgets, "FOLDER",
           "rewrite the budget tables below this src/ folder")
      ->excludes(check);
  add_switch(app, "--list", options.list, "print the keys and compile nothing");
  if (const auto code = parse_options(app, args)) return *code;
  if (options.list) refuse_beside(app, "--list", {"--set"});

  const SourceSet sources = SourceSet::from_environment();
  const std::vector<KernelKey> keys = requested_keys(options, sources);
  if (options.list) {
    for (const KernelKey& key : keys) std::printf("%s\n", to_string(key).c_str());
    return 0;
  }
  const Nvrtc& nvrtc = Nvrtc::get();
  const std::vector<Arch> archs = requested_archs(options, nvrtc);
  if (std::none_of(archs.begin(), archs.end(), [&](const Arch arch) {
        return std::any_of(keys.begin(), keys.end(), [arch](const KernelKey& key) {
          return cuda::family_serves(key.family, arch);
        });
      })) {
    refuse("--arch", options.arch, "an architecture that a kernel of the set is for");
  }
  std::vector<Job> jobs = make_jobs(options, keys, archs, sources);
  return run_jobs(options, jobs, sources, nvrtc);
}

const VerbRegistration kRegistration{"aot", "compile kernels ahead of time", run};

}  // namespace
}  // namespace plait::tool
#endif  // PLAIT_WITH_CUDA
