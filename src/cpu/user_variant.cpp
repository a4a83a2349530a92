// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/user_variant.h"

#include <dlfcn.h>

#include "core/device/variant.h"
#include "core/embedded_file.h"
#include "core/variant_text.h"
#include "cpu/compile_cache.h"
#include "plait/error.h"

namespace plait::embedded {
extern const File variant_headers[];
extern const std::size_t variant_headers_count;
}  // namespace plait::embedded

namespace plait::cpu {
namespace {

constexpr const char* kTableSymbol = "plait_variant_table";

/// The user's text between what it may use and what makes it callable.
std::string generate(const VariantSpec& variant) {
  std::string values;
  for (std::size_t i = 0; i < variant.params.size(); ++i) {
    values += "raw.arrays[" + std::to_string(i) + "].data";
    values += variant.params[i].is_array ? ", " : "[0], ";
  }
  return "#include <math.h>\n"
         "#include \"core/device/variant.h\"\n"
         "#include \"cpu/variant_abi.h\"\n" +
         variant_text(variant) +
         "}  // namespace plait_user\n"
         "#include \"cpu/variant_shim.h\"\n"
         "static plait_user::Params plait_unpack(\n"
         "    [[maybe_unused]] const plait::cpu::VariantParams& raw) {\n"
         "  return plait_user::Params{" +
         values +
         "};\n}\n"
         "extern \"C\" __attribute__((visibility(\"default\")))\n"
         "const plait::cpu::VariantTable " +
         kTableSymbol +
         " =\n"
         "    plait::cpu::VariantShim<plait_user::Variant, plait_user::Params,\n"
         "                            plait_unpack>::table();\n";
}

}  // namespace

std::shared_ptr<const UserVariant> UserVariant::load(const AttentionSpec& spec) {
  std::shared_ptr<UserVariant> variant(new UserVariant);
  variant->spec_ = spec.variant;
  CompileUnit unit;
  unit.source = generate(spec.variant);
  for (std::size_t i = 0; i < embedded::variant_headers_count; ++i) {
    unit.headers.emplace_back(embedded::variant_headers[i].path, embedded::variant_headers[i].text);
  }
  variant->library_ = load_compiled(unit);
  variant->hooks_ = static_cast<const VariantTable*>(dlsym(variant->library_, kTableSymbol));
  if (variant->hooks_ == nullptr || variant->hooks_->abi != kVariantAbi) {
    throw Error(ErrorCode::kInternal, "variant library", "no usable table", kTableSymbol);
  }
  const bool sum =
      variant->hooks_->reduction == static_cast<device::i32>(device::ReductionKind::kSum);
  const Reduction declared = sum ? Reduction::kSum : Reduction::kSoftmax;
  if (declared != spec.reduction) refuse_reduction(declared);
  for (const VariantParam& param : variant->spec_.params) {
    variant->arrays_.push_back(
        {param.values.data(), static_cast<device::i32>(param.values.size())});
  }
  variant->params_.arrays = variant->arrays_.data();
  return variant;
}

UserVariant::~UserVariant() {
  if (library_ != nullptr) dlclose(library_);
}

}  // namespace plait::cpu
