// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/generate.h"

#include <xxhash.h>

#include "cuda/kernels/common/dtypes.h"

namespace plait::cuda {
namespace {

using device::DTypeCode;
static_assert(static_cast<int>(DTypeCode::kF32) == static_cast<int>(DType::kF32) &&
                  static_cast<int>(DTypeCode::kF16) == static_cast<int>(DType::kF16) &&
                  static_cast<int>(DTypeCode::kBF16) == static_cast<int>(DType::kBF16) &&
                  static_cast<int>(DTypeCode::kF8E4M3) == static_cast<int>(DType::kF8E4M3) &&
                  static_cast<int>(DTypeCode::kF8E5M2) == static_cast<int>(DType::kF8E5M2),
              "device code must agree with plait::DType");

void add_constant(const char* type, const std::string& name, const std::string& value,
                  std::string* text) {
  *text += std::string("  static constexpr ") + type + " k" + name + " = " + value + ";\n";
}

void add_field(const char* name, std::uint16_t value, std::string* text) {
  add_constant("i32", name, std::to_string(value), text);
}
void add_field(const char* name, std::uint8_t value, std::string* text) {
  add_constant("i32", name, std::to_string(value), text);
}
void add_field(const char* name, std::uint64_t value, std::string* text) {
  add_constant("u64", name, std::to_string(value) + "ull", text);
}
void add_field(const char* name, DType value, std::string* text) {
  add_constant("DTypeCode", name, "DTypeCode(" + std::to_string(static_cast<int>(value)) + ")",
               text);
}
void add_field(const char*, KvAccess value, std::string* text) {
  add_constant("bool", "Paged", value == KvAccess::kPaged ? "true" : "false", text);
}
void add_field(const char*, KernelReduction value, std::string* text) {
  add_constant("bool", "SumReduction", value == KernelReduction::kSum ? "true" : "false", text);
}

struct FlagConstant {
  const char* name;
  bool value;
};

void add_flags(const KernelKey& key, std::string* text) {
  const FlagConstant flags[] = {
      {"Causal", (key.mask & kMaskCausal) != 0},
      {"Window", (key.mask & kMaskWindow) != 0},
      {"CustomMask", (key.mask & kMaskCustom) != 0},
      {"SoftCap", (key.variant & kVariantSoftCap) != 0},
      {"Alibi", (key.variant & kVariantAlibi) != 0},
      {"Sink", (key.variant & kVariantSink) != 0},
      {"RopeHalf", (key.variant & kVariantRopeHalf) != 0},
      {"RopeInterleaved", (key.variant & kVariantRopeInterleaved) != 0},
      {"User", (key.variant & kVariantUser) != 0},
      {"KvScale", (key.variant & kVariantKvScale) != 0},
      {"State", (key.mode & kModeState) != 0},
      {"Measured", (key.mode & kModeMeasured) != 0},
      {"Canonical", (key.mode & kModeCanonical) != 0},
  };
  for (const FlagConstant& flag : flags) {
    add_constant("bool", flag.name, flag.value ? "true" : "false", text);
  }
}

}  // namespace

std::string generate_source(const KernelKey& key, Arch arch) {
  std::string text = "// " + to_string(key) + "\n";
  text += "#define PLAIT_ARCH " + std::to_string(arch.sm) + "\n";
  text += std::string("#define PLAIT_ARCH_SPECIFIC ") + (arch.suffix == 'a' ? "1" : "0") + "\n";
  text += "#define PLAIT_KERNEL_NAME " + symbol_of(key) + "\n";
  text += "#include \"cuda/kernels/common/dtypes.h\"\n";
  text += "namespace plait::device {\nstruct KernelConfig {\n";
#define PLAIT_EMIT(member, type, initial, name, config) add_field(config, key.member, &text);
  PLAIT_KERNEL_KEY_FIELDS(PLAIT_EMIT)
#undef PLAIT_EMIT
  add_flags(key, &text);
  text += "};\n}  // namespace plait::device\n";
  if (key.user_variant != 0) {
    text += "#include \"" + std::string(kUserVariantName) + "\"\n";
  }
  text += "#include \"" + entry_path(key) + "\"\n";
  return text;
}

std::uint64_t variant_hash(std::string_view text) noexcept {
  const std::uint64_t hash = XXH3_64bits(text.data(), text.size());
  return hash == 0 ? 1 : hash;
}

}  // namespace plait::cuda
