// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The emulator as libnvrtc: device source is translated and compiled by the system's compiler. Its
// "cubin" is an object file, which carries plait_launch_info where a cubin would; cuModuleLoadData
// links it.
#include "cuda/nvrtc.h"

#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/embedded_file.h"
#include "emulator/toolchain.h"

#define PLAIT_EMULATED extern "C" __attribute__((visibility("default")))

namespace plait::embedded {
extern const File emulator[];
extern const std::size_t emulator_count;
}  // namespace plait::embedded

namespace {

using plait::cuda::NvrtcProgram;
using plait::cuda::NvrtcResult;

constexpr NvrtcResult kCompilationFailed = 6;
constexpr int kArchitectures[] = {80, 90};

struct Program {
  std::string source;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string log;
  std::string object;
};

Program* program_of(NvrtcProgram handle) { return reinterpret_cast<Program*>(handle); }

/// The kernel's entry as the emulator finds it in any module.
constexpr const char* kEntry = "\n#include \"plait_emulator/entry.h\"\n";

void compile(Program* program) {
  const plait::emulator::TemporaryDirectory folder;
  for (const auto& [name, text] : program->headers) {
    plait::emulator::write_file(folder.path() / name, text);
  }
  for (std::size_t i = 0; i < plait::embedded::emulator_count; ++i) {
    const plait::embedded::File& file = plait::embedded::emulator[i];
    plait::emulator::write_file(folder.path() / "plait_emulator" / file.path,
                                std::string(file.text));
  }
  plait::emulator::write_file(folder.path() / "kernel.cpp", program->source + kEntry);
  program->object = plait::emulator::compile_kernel(folder.path());
}

template <typename T>
NvrtcResult copy_out(const T& from, char* to) {
  std::memcpy(to, from.data(), from.size());
  return 0;
}

}  // namespace

PLAIT_EMULATED NvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
PLAIT_EMULATED const char* nvrtcGetErrorString(NvrtcResult result) {
  return result == kCompilationFailed ? "the emulator's compiler failed" : "unknown";
}
PLAIT_EMULATED NvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(std::size(kArchitectures));
  return 0;
}
PLAIT_EMULATED NvrtcResult nvrtcGetSupportedArchs(int* architectures) {
  std::memcpy(architectures, kArchitectures, sizeof(kArchitectures));
  return 0;
}
PLAIT_EMULATED NvrtcResult nvrtcCreateProgram(NvrtcProgram* out, const char* source, const char*,
                                              int count, const char* const* texts,
                                              const char* const* names) {
  auto* program = new Program;
  program->source = source;
  for (int i = 0; i < count; ++i) program->headers.emplace_back(names[i], texts[i]);
  *out = reinterpret_cast<NvrtcProgram>(program);
  return 0;
}
PLAIT_EMULATED NvrtcResult nvrtcDestroyProgram(NvrtcProgram* program) {
  delete program_of(*program);
  *program = nullptr;
  return 0;
}
PLAIT_EMULATED NvrtcResult nvrtcCompileProgram(NvrtcProgram handle, int, const char* const*) {
  Program* program = program_of(handle);
  try {
    compile(program);
    return 0;
  } catch (const std::exception& error) {
    program->log = error.what();
    return kCompilationFailed;
  }
}
PLAIT_EMULATED NvrtcResult nvrtcGetCUBINSize(NvrtcProgram program, std::size_t* size) {
  *size = program_of(program)->object.size();
  return 0;
}
PLAIT_EMULATED NvrtcResult nvrtcGetCUBIN(NvrtcProgram program, char* out) {
  return copy_out(program_of(program)->object, out);
}
PLAIT_EMULATED NvrtcResult nvrtcGetProgramLogSize(NvrtcProgram program, std::size_t* size) {
  *size = program_of(program)->log.size();
  return 0;
}
PLAIT_EMULATED NvrtcResult nvrtcGetProgramLog(NvrtcProgram program, char* out) {
  return copy_out(program_of(program)->log, out);
}
