// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/compile_cache.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "core/cache_directory.h"
#include "core/environment.h"
#include "core/key_lock.h"
#include "core/temporary_directory.h"
#include "plait/error.h"

namespace plait::cpu {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kPatience{60};

constexpr std::array kFlags = {
#if defined(__aarch64__)
    "-mcpu=native",
#else
    "-march=native",
#endif
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math"};

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// All that was written to a file, from its beginning.
std::string read_all(int file) {
  std::string text;
  std::array<char, 4096> part;
  ssize_t count = 0;
  while ((count = ::pread(file, part.data(), part.size(), static_cast<off_t>(text.size()))) > 0) {
    text.append(part.data(), static_cast<std::size_t>(count));
  }
  return text;
}

/// Runs a program without a shell; returns its exit status, or -1 if it did not start. What it
/// prints goes to `printed`, through memory: there may be no room on a disk to say so.
int run_program(const std::vector<std::string>& arguments, std::string* printed) {
  const int log = ::memfd_create("plait", MFD_CLOEXEC);
  if (log < 0) return -1;
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, log, 1);
  posix_spawn_file_actions_adddup2(&actions, log, 2);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  bool ran = error == 0;
  while (ran && waitpid(pid, &status, 0) < 0) ran = errno == EINTR;
  *printed = read_all(log);
  ::close(log);
  if (!ran) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// -march=native means something else on every processor.
std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  std::string text;
  while (std::getline(info, line) && !line.empty()) {
    for (const char* field : {"vendor_id", "model", "flags", "Features", "CPU part"}) {
      if (line.rfind(field, 0) == 0) text += line + "\n";
    }
  }
  return text;
}

std::string hex(const XXH128_hash_t& hash) {
  char text[40];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

[[noreturn]] void fail_to_write(const fs::path& path) {
  throw Error(ErrorCode::kIo, "cache directory", path.string(), "a file that can be written");
}

void write_text(const fs::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  // A full disk must not look like a source that does not compile.
  if (!file) fail_to_write(path);
}

fs::path compile(const CompileUnit& unit, const std::string& compiler, const fs::path& directory) {
  std::vector<std::string> arguments{compiler};
  for (const char* flag : kFlags) arguments.emplace_back(flag);
  fs::path output = directory / "variant.so";
  for (const auto& [name, text] : unit.headers) {
    const fs::path path = directory / name;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    write_text(path, text);
  }
  write_text(directory / "variant.cpp", unit.source);
  arguments.push_back("-I" + directory.string());
  arguments.emplace_back("-o");
  arguments.push_back(output.string());
  arguments.push_back((directory / "variant.cpp").string());
  std::string log;
  if (run_program(arguments, &log) != 0) {
    throw Error(ErrorCode::kCompile, "variant.source", "a source that " + compiler + " refuses",
                "one that compiles; the log:\n" + log);
  }
  return output;
}

/// A library in a folder that goes away with the object.
struct Built {
  std::optional<TemporaryDirectory> folder;
  fs::path library;
};

fs::path in_temporaries(const char* prefix) {
  std::error_code error;
  return fs::temp_directory_path(error) / prefix;
}

/// Compiles in a folder of the cache, so that a rename stores the result. Or elsewhere if there is
/// none, or that fails for whatever reason: to a compiler a full disk is one of many.
void build(const CompileUnit& unit, const std::string& compiler, const fs::path& cache,
           Built* built) {
  if (!cache.empty()) {
    try {
      built->folder.emplace(cache / "build.tmp.");
      built->library = compile(unit, compiler, built->folder->path());
      return;
    } catch (const Error&) {
    }
  }
  built->folder.emplace(in_temporaries("plait.build.tmp."));
  built->library = compile(unit, compiler, built->folder->path());
}

/// dlopen, of a copy if need be: a cache may lie where nothing may be executed (a home directory
/// that is mounted so). Null, and the first reason, if neither opens.
void* open_library(const fs::path& path, std::string* why) {
  if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  *why = dlerror();
  std::error_code error;
  const TemporaryDirectory elsewhere(in_temporaries("plait.tmp."));
  const fs::path copy = elsewhere.path() / path.filename();
  fs::copy_file(path, copy, error);
  return dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
}

/// An entry is the library followed by the hash of its bytes, which the loader ignores.
constexpr std::size_t kTrailer = 32;
/// Libraries of variants have some 100 KiB; what has more than this was not written here.
constexpr std::uintmax_t kLargestEntry = std::uintmax_t{64} << 20;

bool is_intact(const fs::path& path) {
  std::error_code error;
  // A pipe would wait for somebody to write.
  if (!fs::is_regular_file(path, error) || fs::file_size(path, error) > kLargestEntry) return false;
  const std::string bytes = read_text(path);
  if (bytes.size() < kTrailer) return false;
  const std::size_t body = bytes.size() - kTrailer;
  return bytes.compare(body, kTrailer, hex(XXH3_128bits(bytes.data(), body))) == 0;
}

/// False if the trailer could not be written; what is there then is not intact.
bool seal(const fs::path& path) {
  const std::string bytes = read_text(path);
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file << hex(XXH3_128bits(bytes.data(), bytes.size()));
  file.close();
  return static_cast<bool>(file);
}

std::string identity(const CompileUnit& unit, const std::string& compiler,
                     const std::string& version) {
  std::string text = compiler + '\0' + version + '\0' + processor() + '\0';
  for (const char* flag : kFlags) (text += flag) += '\0';
  for (const auto& [name, body] : unit.headers) {
    (text += name) += '\0';
    (text += body) += '\0';
  }
  text += unit.source;
  return "variant-" + hex(XXH3_128bits(text.data(), text.size()));
}

}  // namespace

std::string find_compiler() {
  std::string chosen = environment("PLAIT_CXX");
  if (!chosen.empty()) return chosen;
  const std::string search = environment("PATH");
  for (const char* name : {"c++", "g++", "clang++"}) {
    std::istringstream directories(search);
    std::string directory;
    while (std::getline(directories, directory, ':')) {
      std::string path = (directory.empty() ? "." : directory) + "/" + name;
      std::error_code error;
      if (access(path.c_str(), X_OK) == 0 && fs::is_regular_file(path, error)) return path;
    }
  }
  throw Error(ErrorCode::kBackend, "compiler", "none on PATH",
              "c++, g++ or clang++ on PATH, or PLAIT_CXX, to compile a variant for the CPU");
}

void* load_compiled(const CompileUnit& unit) {
  const std::string compiler = find_compiler();
  const std::string cache = default_cache_directory();
  const bool readable = !cache.empty() && inspect_cache_directory(cache).empty();
  const bool writable = readable && access(cache.c_str(), W_OK) == 0;
  if (writable) remove_stale_temporaries(cache);
  const fs::path directory = readable ? cache : std::string();
  std::string version;
  if (run_program({compiler, "--version"}, &version) != 0) {
    throw Error(ErrorCode::kBackend, "compiler", compiler, "a C++ compiler that answers --version");
  }
  const std::string name = identity(unit, compiler, version);
  const fs::path entry = directory / (name + ".so");
  std::string why;
  const auto from_disk = [&]() -> void* {
    return readable && is_intact(entry) ? open_library(entry, &why) : nullptr;
  };
  if (void* library = from_disk()) return library;
  // Processes compile a key once. One that is killed frees it at once; one that is stopped must not
  // block the others, so patience ends.
  std::optional<KeyLock> lock;
  if (writable) {
    lock.emplace((directory / (name + ".lock")).string(), kPatience);
    if (void* library = from_disk()) return library;
  }
  Built built;
  build(unit, compiler, writable ? directory : fs::path(), &built);
  // A file of another disk cannot be renamed to the entry: then there is none.
  bool stored = writable && seal(built.library);
  if (stored) {
    std::error_code error;
    fs::rename(built.library, entry, error);
    stored = !error;
  }
  void* library = open_library(stored ? entry : built.library, &why);
  if (library == nullptr) {
    throw Error(ErrorCode::kBackend, "compiler", compiler + ", whose library does not open: " + why,
                "a C++ compiler for this machine");
  }
  return library;
}

}  // namespace plait::cpu
