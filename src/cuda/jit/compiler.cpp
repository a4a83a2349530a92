// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/compiler.h"

#include <algorithm>

#include "core/device/variant.h"
#include "core/variant_text.h"
#include "cuda/jit/generate.h"
#include "cuda/jit/resources.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

constexpr CudaVersion kHasNoCacheFlag{13, 0};

/// Destroys the program whatever happens.
class Program {
 public:
  Program(const Nvrtc& nvrtc, const CompileUnit& unit) : nvrtc_(nvrtc) {
    std::vector<const char*> texts;
    std::vector<const char*> names;
    for (const auto& [name, text] : unit.headers) {
      names.push_back(name.c_str());
      texts.push_back(text.c_str());
    }
    const std::string variant_name(kUserVariantName);
    if (!unit.variant.empty()) {
      names.push_back(variant_name.c_str());
      texts.push_back(unit.variant.c_str());
    }
    nvrtc_.check(nvrtc_.create_program(&program_, unit.source.c_str(), "plait_kernel.cu",
                                       static_cast<int>(names.size()), texts.data(), names.data()),
                 "nvrtcCreateProgram");
  }
  ~Program() { nvrtc_.destroy_program(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  NvrtcResult compile(const std::vector<std::string>& flags) {
    std::vector<const char*> options;
    options.reserve(flags.size() + 1);
    for (const std::string& flag : flags) options.push_back(flag.c_str());
    // Where there is a driver, NVRTC keeps machine code in the driver's own cache, and says nothing
    // about resources and warnings when it finds it there. Not a flag of the unit: the code is the
    // same.
    if (nvrtc_.version() >= kHasNoCacheFlag) options.push_back("--no-cache");
    return nvrtc_.compile_program(program_, static_cast<int>(options.size()), options.data());
  }

  std::string log() const {
    std::size_t size = 0;
    nvrtc_.check(nvrtc_.get_log_size(program_, &size), "nvrtcGetProgramLogSize");
    std::string text(size, '\0');
    if (size > 0) nvrtc_.check(nvrtc_.get_log(program_, text.data()), "nvrtcGetProgramLog");
    while (!text.empty() && (text.back() == '\0' || text.back() == '\n')) text.pop_back();
    return text;
  }

  std::vector<char> cubin() const {
    std::size_t size = 0;
    nvrtc_.check(nvrtc_.get_cubin_size(program_, &size), "nvrtcGetCUBINSize");
    std::vector<char> bytes(size);
    nvrtc_.check(nvrtc_.get_cubin(program_, bytes.data()), "nvrtcGetCUBIN");
    return bytes;
  }

 private:
  const Nvrtc& nvrtc_;
  NvrtcProgram program_ = nullptr;
};

void check_architecture(const Nvrtc& nvrtc, const CompileUnit& unit) {
  constexpr std::string_view kFlag = "--gpu-architecture=";
  for (const std::string& flag : unit.flags) {
    if (!flag.starts_with(kFlag)) continue;
    const Arch arch = parse_arch(flag.substr(kFlag.size()), "arch");
    const std::vector<int>& known = nvrtc.architectures();
    if (std::find(known.begin(), known.end(), arch.sm) == known.end()) {
      std::string list;
      for (int sm : known) list += (list.empty() ? "sm_" : ", sm_") + std::to_string(sm);
      throw Error(ErrorCode::kUnsupported, "arch", to_string(arch),
                  "one that NVRTC " + to_string(nvrtc.version()) + " knows: " + list);
    }
  }
}

}  // namespace

std::vector<std::string> compile_flags(Arch arch) {
  return {
      "--gpu-architecture=" + to_string(arch),
      "--std=c++20",
      // Without it the compiler would look for includes beside the source's name.
      "--no-source-include",
      // Unannotated constexpr functions of shared headers and helpers of a user variant are meant
      // for the device.
      "--device-as-default-execution-space",
      "--ptxas-options=-v",
  };
}

CompileUnit make_compile_unit(const KernelKey& key, Arch arch, std::string_view variant,
                              const SourceSet& sources) {
  if ((variant.empty() ? 0 : variant_hash(variant)) != key.user_variant) {
    throw Error(ErrorCode::kInternal, "kernel key.variant", "a text with another hash",
                "the text that the key was made for");
  }
  const std::string entry = entry_path(key);
  if (sources.find(entry) == nullptr) {
    throw Error(ErrorCode::kUnsupported, "kernel", to_string(key), "an entry source " + entry);
  }
  if (const std::string foreign = sources.foreign_include(variant); !foreign.empty()) {
    throw Error(ErrorCode::kCompile, "variant.source", "#include " + foreign,
                "includes of Plait's own device headers only");
  }
  CompileUnit unit;
  unit.symbol = symbol_of(key);
  unit.source = generate_source(key, arch);
  unit.variant = variant;
  unit.flags = compile_flags(arch);
  // The variant may include shared headers too.
  const std::string everything = unit.source + "\n" + unit.variant;
  for (const std::string& name : sources.closure(everything)) {
    unit.headers.emplace_back(name, *sources.find(name));
  }
  return unit;
}

CompiledKernel compile(const Nvrtc& nvrtc, const CompileUnit& unit) {
  check_architecture(nvrtc, unit);
  Program program(nvrtc, unit);
  const NvrtcResult result = program.compile(unit.flags);
  const std::string log = program.log();
  if (result != 0) {
    const auto says = [&](const char* text) { return log.find(text) != std::string::npos; };
    if (says(PLAIT_VARIANT_DECLARES_SUM)) refuse_reduction(Reduction::kSum);
    if (says(PLAIT_VARIANT_DECLARES_SOFTMAX)) refuse_reduction(Reduction::kSoftmax);
    if (!unit.variant.empty()) {
      // Without a variant the kernel compiles.
      throw Error(ErrorCode::kCompile, "variant.source",
                  "a source that NVRTC " + to_string(nvrtc.version()) + " refuses",
                  "one that compiles; the log:\n" + log);
    }
    throw Error(ErrorCode::kCompile, unit.symbol,
                std::string(nvrtc.get_error_string(result)) + "\n" + log,
                "a source that NVRTC " + to_string(nvrtc.version()) + " compiles");
  }
  CompiledKernel kernel;
  kernel.symbol = unit.symbol;
  kernel.cubin = program.cubin();
  // A silent ptxas (an older NVRTC that hits the driver's cache) leaves the resources unknown;
  // running the kernel does not need them.
  if (log.find("ptxas info") != std::string::npos) {
    kernel.resources = parse_resources(log, unit.symbol);
  }
  kernel.launch = read_launch_info(kernel.cubin, unit.symbol);
  kernel.warnings = parse_warnings(log);
  return kernel;
}

}  // namespace plait::cuda
