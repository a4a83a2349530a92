// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/nvrtc.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "core/environment.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSonames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};

void add_directory(const fs::path& directory, std::vector<std::string>* candidates) {
  for (const char* soname : kSonames) {
    std::error_code ignored;
    const fs::path file = directory / soname;
    // Absent files are left out, so that a refusal lists what was there and not fifty guesses.
    if (fs::exists(file, ignored)) candidates->push_back(file.string());
  }
}

/// Subdirectories of `parent` whose name starts with `prefix`, newest version last in the alphabet
/// first.
std::vector<fs::path> subdirectories(const fs::path& parent, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (fs::directory_iterator entry(parent, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    if (name.rfind(prefix, 0) == 0) found.push_back(entry->path());
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

void add_wheels(const fs::path& prefix, std::vector<std::string>* candidates) {
  for (const fs::path& python : subdirectories(prefix / "lib", "python3")) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      add_directory(python / packages / "nvidia/cu13/lib", candidates);
      add_directory(python / packages / "nvidia/cuda_nvrtc/lib", candidates);
    }
  }
}

/// The installation prefix of the first python3 on PATH. The link itself counts, not its target: a
/// virtual environment is a link to the system's interpreter.
fs::path python_prefix() {
  const std::string path = environment("PATH");
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    std::error_code ignored;
    const fs::path directory = path.substr(begin, end - begin);
    if (!directory.empty() && fs::exists(directory / "python3", ignored)) {
      return directory.parent_path();
    }
    begin = end + 1;
  }
  return {};
}

std::vector<std::string> nvrtc_candidates() {
  std::vector<std::string> candidates(std::begin(kSonames), std::end(kSonames));
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    const std::string root = environment(variable);
    if (!root.empty()) add_directory(fs::path(root) / "lib64", &candidates);
  }
  add_directory("/usr/local/cuda/lib64", &candidates);
  for (const fs::path& toolkit : subdirectories("/usr/local", "cuda-")) {
    add_directory(toolkit / "lib64", &candidates);
  }
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string prefix = environment(variable);
    if (!prefix.empty()) add_wheels(prefix, &candidates);
  }
  const fs::path python = python_prefix();
  if (!python.empty()) add_wheels(python, &candidates);
  const std::string home = environment("HOME");
  if (!home.empty()) add_wheels(fs::path(home) / ".local", &candidates);
  add_wheels("/usr/local", &candidates);
  return candidates;
}

std::vector<std::string> candidates_at(const std::string& location) {
  std::error_code ignored;
  if (!fs::is_directory(location, ignored)) return {location};
  std::vector<std::string> candidates;
  add_directory(location, &candidates);
  if (candidates.empty()) candidates.push_back((fs::path(location) / kSonames[0]).string());
  return candidates;
}

struct Outcome {
  std::unique_ptr<Nvrtc> nvrtc;
  std::optional<Error> error;
};

const Outcome& process_nvrtc() {
  static const Outcome outcome = [] {
    Outcome result;
    try {
      const Driver* driver = Driver::find();
      std::optional<CudaVersion> newest;
      if (driver != nullptr) newest = driver->version();
      result.nvrtc = Nvrtc::open(environment("PLAIT_NVRTC"), newest);
    } catch (const Error& error) {
      result.error = error;
    }
    return result;
  }();
  return outcome;
}

}  // namespace

std::unique_ptr<Nvrtc> Nvrtc::open(const std::string& location, std::optional<CudaVersion> newest) {
  std::vector<LibraryAttempt> attempts;
  for (const std::string& candidate :
       location.empty() ? nvrtc_candidates() : candidates_at(location)) {
    auto nvrtc = std::make_unique<Nvrtc>();
    nvrtc->library_ = SharedLibrary::open(candidate, &attempts);
    if (!nvrtc->library_) continue;
    const char* missing = nullptr;
#define PLAIT_LOAD(name, symbol, ...)                                                            \
  nvrtc->name = reinterpret_cast<std::add_pointer_t<__VA_ARGS__>>(nvrtc->library_.find(symbol)); \
  if (nvrtc->name == nullptr && missing == nullptr) missing = symbol;
    PLAIT_NVRTC_FUNCTIONS(PLAIT_LOAD)
#undef PLAIT_LOAD
    if (missing != nullptr) {
      attempts.push_back({candidate, std::string("has no ") + missing});
      continue;
    }
    nvrtc->path_ = nvrtc->library_.resolved_path("nvrtcVersion");
    nvrtc->build_.build = nvrtc->library_.build_of("nvrtcVersion");
    CudaVersion& version = nvrtc->build_.version;
    nvrtc->check(nvrtc->get_version(&version.major, &version.minor), "nvrtcVersion");
    if (version < CudaVersion{12, 0}) {
      attempts.push_back({nvrtc->path_, "NVRTC " + to_string(version) + " is older than 12.0"});
      continue;
    }
    if (newest && version > *newest) {
      attempts.push_back({nvrtc->path_, "NVRTC " + to_string(version) +
                                            " is newer than the driver, which supports CUDA " +
                                            to_string(*newest)});
      continue;
    }
    int count = 0;
    nvrtc->check(nvrtc->get_arch_count(&count), "nvrtcGetNumSupportedArchs");
    nvrtc->architectures_.resize(static_cast<std::size_t>(count));
    nvrtc->check(nvrtc->get_archs(nvrtc->architectures_.data()), "nvrtcGetSupportedArchs");
    std::sort(nvrtc->architectures_.begin(), nvrtc->architectures_.end());
    return nvrtc;
  }
  throw Error(ErrorCode::kBackend, "libnvrtc",
              "none that can be used (" + to_string(attempts) + ")",
              newest ? "NVRTC 12.0 up to the driver's " + to_string(*newest) +
                           ", found by the search order of docs/jit.md or named by PLAIT_NVRTC"
                     : "NVRTC 12.0 or newer, found by the search order of docs/jit.md or named by "
                       "PLAIT_NVRTC");
}

const Nvrtc& Nvrtc::get() {
  const Outcome& outcome = process_nvrtc();
  if (outcome.error) throw Error(*outcome.error);
  return *outcome.nvrtc;
}

const Nvrtc* Nvrtc::find(std::string* reason) {
  const Outcome& outcome = process_nvrtc();
  if (outcome.error && reason != nullptr) *reason = outcome.error->what();
  return outcome.nvrtc.get();
}

void Nvrtc::check(NvrtcResult result, const char* call) const {
  if (result == 0) return;
  throw Error(ErrorCode::kBackend, call,
              std::string(get_error_string(result)) + " (" + std::to_string(result) + ")",
              "NVRTC_SUCCESS");
}

}  // namespace plait::cuda
