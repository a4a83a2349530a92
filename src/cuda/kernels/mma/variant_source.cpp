// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/mma/variant_source.h"

#include <cstddef>

#include "core/variant_text.h"

namespace plait::cuda::mma {

std::string variant_source(const VariantSpec& variant) {
  if (variant.source.empty()) return {};
  std::string text =
      "#pragma once\n"
      "#include \"core/device/variant.h\"\n"
      "#define PLAIT_USER_VARIANT 1\n" +
      variant_text(variant);
  // In declaration order: a scalar's bits, or an array's address.
  text +=
      "__device__ __forceinline__ Params load(const unsigned long long* values) {\n"
      "  (void)values;\n  Params p;\n";
  for (std::size_t i = 0; i < variant.params.size(); ++i) {
    const std::string value = "values[" + std::to_string(i) + "]";
    text += "  p." + variant.params[i].name + " = ";
    text += variant.params[i].is_array
                ? "reinterpret_cast<const float*>(" + value + ")"
                : "__uint_as_float(static_cast<unsigned int>(" + value + "))";
    text += ";\n";
  }
  text += "  return p;\n}\n}  // namespace plait_user\n";
  return text;
}

}  // namespace plait::cuda::mma
