// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "emulator/toolchain.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

#include "emulator/translate.h"

namespace plait::emulator {
namespace {

namespace fs = std::filesystem;

// -fsanitize=thread makes the compiler call a function before every access of memory that another
// thread could see; the emulator brings these functions (accesses.cpp), not the sanitizer's
// library. Unique symbols would make modules share the constants of their configurations.
constexpr const char* kPreprocess =
    " -std=c++20 -E -I. -include plait_emulator/prelude.h kernel.cpp -o kernel.ii";
constexpr const char* kCompile =
    " -std=c++20 -O1 -march=native -fPIC -c -w -ffp-contract=off -fno-strict-aliasing"
    " -fno-exceptions -fno-rtti -fvisibility=hidden -fno-gnu-unique -fsanitize=thread"
    " --param tsan-instrument-func-entry-exit=0 kernel.ii -o kernel.o";
constexpr const char* kLink = " -shared -Wl,-Bsymbolic kernel.o -o kernel.so -lm";

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void run_compiler(const fs::path& folder, const char* arguments) {
  const std::string command = "cd '" + folder.string() + "' && exec " PLAIT_EMULATOR_COMPILER +
                              std::string(arguments) + " >log 2>&1 </dev/null";
  const int status = std::system(command.c_str());
  if (status == 0) return;
  throw std::runtime_error("status " + std::to_string(WEXITSTATUS(status)) + " of" + arguments +
                           "\n" + read_file(folder / "log"));
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (fs::temp_directory_path() / "plait_emulator.XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make " + pattern);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void write_file(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::string compile_kernel(const fs::path& folder) {
  run_compiler(folder, kPreprocess);
  write_file(folder / "kernel.ii", translate(read_file(folder / "kernel.ii")));
  run_compiler(folder, kCompile);
  return read_file(folder / "kernel.o");
}

void* open_object(const std::string& object, std::string* error) {
  try {
    const TemporaryDirectory folder;
    write_file(folder.path() / "kernel.o", object);
    run_compiler(folder.path(), kLink);
    void* library = ::dlopen((folder.path() / "kernel.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) *error = ::dlerror();
    return library;
  } catch (const std::exception& failure) {
    *error = failure.what();
    return nullptr;
  }
}

}  // namespace plait::emulator
