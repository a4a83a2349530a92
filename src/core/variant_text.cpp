// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/variant_text.h"

#include "plait/error.h"

namespace plait {

std::string variant_text(const VariantSpec& variant) {
  std::string text =
      "namespace plait_user {\n"
      "using namespace plait::device;\n"
      "struct Params {\n";
  for (const VariantParam& param : variant.params) {
    text += std::string(param.is_array ? "  const float* " : "  float ") + param.name + ";\n";
  }
  text += "};\n#line 1 \"variant.source\"\n" + variant.source + "\n#line 1 \"user_variant.h\"\n";
  return text + "using Variant = " + variant.name +
         ";\n"
         "static_assert(VariantCheck<Variant, Params>::kPassed);\n";
}

void refuse_reduction(Reduction declared) {
  const bool sum = declared == Reduction::kSum;
  throw Error(ErrorCode::kInvalidArgument, "reduction", sum ? "softmax" : "sum",
              std::string(sum ? "sum" : "softmax") + ", which the variant declares");
}

}  // namespace plait
