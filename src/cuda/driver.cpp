// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.h"

#include <filesystem>
#include <optional>
#include <system_error>

#include "core/environment.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

std::vector<std::string> driver_candidates() {
#if defined(__aarch64__)
  const std::string multiarch = "/usr/lib/aarch64-linux-gnu";
#else
  const std::string multiarch = "/usr/lib/x86_64-linux-gnu";
#endif
  std::vector<std::string> candidates = {"libcuda.so.1"};
  for (const std::string& directory :
       {multiarch, std::string("/usr/local/nvidia/lib64"), std::string("/usr/lib64"),
        std::string("/usr/lib/wsl/lib")}) {
    // Absent files are left out, so that a refusal lists what was there.
    const std::string file = directory + "/libcuda.so.1";
    std::error_code ignored;
    if (std::filesystem::exists(file, ignored)) candidates.push_back(file);
  }
  return candidates;
}

struct Outcome {
  std::unique_ptr<Driver> driver;
  std::optional<Error> error;
};

const Outcome& process_driver() {
  static const Outcome outcome = [] {
    Outcome result;
    try {
      result.driver = Driver::open(environment("PLAIT_LIBCUDA"));
    } catch (const Error& error) {
      result.error = error;
    }
    return result;
  }();
  return outcome;
}

}  // namespace

std::string to_string(CudaVersion version) {
  return std::to_string(version.major) + "." + std::to_string(version.minor);
}

const Driver& Driver::get() {
  const Outcome& outcome = process_driver();
  if (outcome.error) throw Error(*outcome.error);
  return *outcome.driver;
}

const Driver* Driver::find(std::string* reason) {
  const Outcome& outcome = process_driver();
  if (outcome.error && reason != nullptr) *reason = outcome.error->what();
  return outcome.driver.get();
}

std::unique_ptr<Driver> Driver::open(const std::string& path) {
  auto driver = std::make_unique<Driver>();
  std::vector<LibraryAttempt> attempts;
  const auto candidates = path.empty() ? driver_candidates() : std::vector<std::string>{path};
  for (const std::string& candidate : candidates) {
    driver->library_ = SharedLibrary::open(candidate, &attempts);
    if (driver->library_) break;
  }
  if (!driver->library_) {
    throw Error(ErrorCode::kBackend, "libcuda",
                "no library that opens (" + to_string(attempts) + ")",
                "the NVIDIA driver's libcuda.so.1, or its path in PLAIT_LIBCUDA");
  }
  driver->path_ = driver->library_.resolved_path("cuInit");

#define PLAIT_LOAD(name, symbol, ...) \
  driver->name = reinterpret_cast<std::add_pointer_t<__VA_ARGS__>>(driver->library_.find(symbol));
#define PLAIT_REQUIRE(name, symbol, ...)                                            \
  PLAIT_LOAD(name, symbol, __VA_ARGS__)                                             \
  if (driver->name == nullptr) {                                                    \
    throw Error(ErrorCode::kBackend, "libcuda", driver->path_ + " without " symbol, \
                "a driver of CUDA 12.0 or newer");                                  \
  }
  PLAIT_CUDA_DRIVER_FUNCTIONS(PLAIT_REQUIRE)
  PLAIT_CUDA_LATER_DRIVER_FUNCTIONS(PLAIT_LOAD)
#undef PLAIT_REQUIRE
#undef PLAIT_LOAD

  driver->check(driver->init(0), "cuInit");
  int version = 0;
  driver->check(driver->driver_get_version(&version), "cuDriverGetVersion");
  driver->version_ = {version / 1000, version % 1000 / 10};
  driver->check(driver->device_get_count(&driver->device_count_), "cuDeviceGetCount");
  if (driver->device_count_ == 0) {
    throw Error(ErrorCode::kBackend, "cuda devices", "0", "at least one visible device");
  }
  return driver;
}

std::string Driver::describe(CuResult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  std::string description = "unknown error";
  if (get_error_name(result, &name) == kCuSuccess && name != nullptr) description = name;
  description += " (" + std::to_string(result) + ")";
  if (get_error_string(result, &text) == kCuSuccess && text != nullptr) {
    description += std::string(": ") + text;
  }
  return description;
}

void Driver::fail(CuResult result, const char* call) const {
  const ErrorCode code =
      result == kCuErrorOutOfMemory ? ErrorCode::kOutOfMemory : ErrorCode::kBackend;
  throw Error(code, call, describe(result), "CUDA_SUCCESS");
}

}  // namespace plait::cuda
