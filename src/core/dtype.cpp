// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/dtype.h"

#include <array>
#include <string>

#include "core/text.h"
#include "plait/error.h"

namespace plait {
namespace {

constexpr std::array kAll{DType::kF32,    DType::kF16, DType::kBF16, DType::kF8E4M3,
                          DType::kF8E5M2, DType::kI32, DType::kI64,  DType::kU8};

}  // namespace

std::string_view to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    case DType::kF8E4M3: return "f8_e4m3";
    case DType::kF8E5M2: return "f8_e5m2";
    case DType::kI32: return "i32";
    case DType::kI64: return "i64";
    case DType::kU8: return "u8";
  }
  return "unknown";
}

DType parse_dtype(std::string_view text, std::string_view field) {
  for (DType dtype : kAll) {
    if (to_string(dtype) == text) return dtype;
  }
  throw Error(ErrorCode::kInvalidArgument, std::string(field), quote_text(text),
              "one of f32, f16, bf16, f8_e4m3, f8_e5m2, i32, i64, u8");
}

}  // namespace plait
