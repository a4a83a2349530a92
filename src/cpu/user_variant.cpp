// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/user_variant.h"

#include <dlfcn.h>

#include <cctype>

#include "core/device/variant.h"
#include "core/embedded_file.h"
#include "cpu/compile_cache.h"
#include "plait/error.h"

namespace plait::embedded {
extern const File variant_headers[];
extern const std::size_t variant_headers_count;
}  // namespace plait::embedded

namespace plait::cpu {
namespace {

constexpr const char* kTableSymbol = "plait_variant_table";

/// Names go into source text.
void check_identifier(const char* field, const std::string& name) {
  bool good = !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0;
  for (char c : name) good = good && (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_');
  if (!good) throw Error(ErrorCode::kInvalidArgument, field, "'" + name + "'", "a C++ identifier");
}

/// The user's text between what it may use and what makes it callable.
std::string generate(const VariantSpec& variant) {
  std::string fields;
  std::string values;
  for (std::size_t i = 0; i < variant.params.size(); ++i) {
    const VariantParam& param = variant.params[i];
    const std::string data = "raw.arrays[" + std::to_string(i) + "].data";
    fields +=
        param.is_array ? "  const float* " + param.name + ";\n" : "  float " + param.name + ";\n";
    values += param.is_array ? data + ", " : data + "[0], ";
  }
  return "#include <math.h>\n"
         "#include \"core/device/variant.h\"\n"
         "#include \"cpu/variant_abi.h\"\n"
         "namespace plait_user {\n"
         "using namespace plait::device;\n"
         "struct Params {\n" +
         fields +
         "};\n"
         "#line 1 \"variant.source\"\n" +
         variant.source +
         "\n#line 1 \"user_variant.h\"\n"
         "using Variant = " +
         variant.name +
         ";\n"
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
  check_identifier("variant.name", spec.variant.name);
  for (const VariantParam& param : spec.variant.params) {
    check_identifier("variant.params", param.name);
  }
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
  if (sum != (spec.reduction == Reduction::kSum)) {
    throw Error(ErrorCode::kInvalidArgument, "reduction", sum ? "softmax" : "sum",
                std::string("the reduction of variant ") + spec.variant.name + ", " +
                    (sum ? "sum" : "softmax"));
  }
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
