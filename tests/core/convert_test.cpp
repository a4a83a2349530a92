// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "plait/error.h"

namespace plait {
namespace {

constexpr DType kNarrow[] = {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::uint32_t sign_bit(DType dtype) { return size_of(dtype) == 2 ? 0x8000u : 0x80u; }

TEST(Convert, KnownValues) {
  EXPECT_EQ(f32_to_f16(1.0F), 0x3C00);
  EXPECT_EQ(f32_to_f16(65504.0F), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65519.0F), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0F), 0x7C00);  // the tie rounds to even, which is infinity
  EXPECT_EQ(f32_to_f16(0x1p-24F), 0x0001);
  EXPECT_EQ(f32_to_f16(0x1p-25F), 0x0000);  // tie to even
  EXPECT_EQ(f32_to_f16(0x1.000002p-25F), 0x0001);
  EXPECT_EQ(f32_to_bf16(1.0F), 0x3F80);
  EXPECT_EQ(f32_to_bf16(3.14159265F), 0x4049);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(f32_to_f8_e4m3(448.0F), 0x7E);
  EXPECT_EQ(f32_to_f8_e4m3(464.0F), 0x7E);
  EXPECT_EQ(f32_to_f8_e4m3(465.0F), 0x7F);
  EXPECT_EQ(f32_to_f8_e4m3(0x1p-9F), 0x01);
  EXPECT_EQ(f32_to_f8_e5m2(57344.0F), 0x7B);
  EXPECT_EQ(f32_to_f8_e5m2(61440.0F), 0x7C);
  EXPECT_EQ(f8_e4m3_to_f32(0x7E), 448.0F);
  EXPECT_EQ(f8_e5m2_to_f32(0x01), 0x1p-16F);
  EXPECT_EQ(max_finite(DType::kF16), 65504.0);
  EXPECT_EQ(max_finite(DType::kBF16), 0x1.FEp127);
}

TEST(Convert, SaturationKeepsNan) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(f32_to_f8_e4m3(1e9F, Overflow::kSaturate), 0x7E);
  EXPECT_EQ(f32_to_f8_e4m3(-449.0F, Overflow::kSaturate), 0xFE);
  EXPECT_EQ(f32_to_f8_e4m3(kInf, Overflow::kSaturate), 0x7E);
  EXPECT_EQ(f32_to_f8_e4m3(nan, Overflow::kSaturate), 0x7F);
  EXPECT_EQ(f32_to_f8_e5m2(-kInf, Overflow::kSaturate), 0xFB);
  EXPECT_EQ(f32_to_f8_e5m2(nan, Overflow::kSaturate) & 0x7F, 0x7E);
  EXPECT_EQ(f32_to_f16(1e6F, Overflow::kSaturate), 0x7BFF);
  EXPECT_EQ(encode(DType::kF32, 1e300, Overflow::kSaturate), 0x7F7FFFFFu);
  EXPECT_EQ(encode(DType::kF32, 1e300), 0x7F800000u);
}

// Every code decodes to a value that encodes to the same code.
TEST(Convert, ExhaustiveRoundTrip) {
  for (DType dtype : kNarrow) {
    for (std::uint32_t code = 0; code < 2 * sign_bit(dtype); ++code) {
      const double value = decode(dtype, code);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(decode(dtype, encode(dtype, value)))) << to_string(dtype) << code;
        continue;
      }
      ASSERT_EQ(encode(dtype, value), code) << to_string(dtype) << " code " << code;
    }
  }
}

// Between each pair of neighbours the switch happens at the midpoint, ties going to the even code.
// Encoding is monotone between these points by construction of the test: both sides of every
// threshold are probed, so nothing is left unproven.
TEST(Convert, ExhaustiveRoundingThresholds) {
  for (DType dtype : kNarrow) {
    const std::uint32_t top = encode(dtype, max_finite(dtype));
    for (std::uint32_t sign : {0u, sign_bit(dtype)}) {
      for (std::uint32_t code = 0; code < top; ++code) {
        const double low = decode(dtype, sign | code);
        const double high = decode(dtype, sign | (code + 1));
        const double middle = (low + high) / 2;
        ASSERT_EQ(encode(dtype, middle), sign | (code % 2 == 0 ? code : code + 1))
            << to_string(dtype) << " code " << code;
        ASSERT_EQ(encode(dtype, std::nextafter(middle, low)), sign | code);
        ASSERT_EQ(encode(dtype, std::nextafter(middle, high)), sign | (code + 1));
      }
    }
  }
}

// The scalar f32 entry points agree with the generic ones on a dense sweep of f32 codes.
TEST(Convert, F32EntryPoints) {
  for (std::uint64_t code = 0; code <= 0xFFFFFFFFu; code += 9973) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(code));
    const auto wide = static_cast<double>(value);
    ASSERT_EQ(f32_to_f16(value), encode(DType::kF16, wide));
    ASSERT_EQ(f32_to_bf16(value), encode(DType::kBF16, wide));
    ASSERT_EQ(f32_to_f8_e4m3(value), encode(DType::kF8E4M3, wide));
    ASSERT_EQ(f32_to_f8_e5m2(value), encode(DType::kF8E5M2, wide));
  }
  for (std::uint32_t code = 0; code <= 0xFFFF; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const double half = decode(DType::kF16, code);
    if (!std::isnan(half)) {
      ASSERT_EQ(static_cast<double>(f16_to_f32(bits)), half);
    }
    const double brain = decode(DType::kBF16, code);
    if (!std::isnan(brain)) {
      ASSERT_EQ(static_cast<double>(bf16_to_f32(bits)), brain);
    }
  }
}

// bf16 is the upper half of f32, which gives an independent rounding to compare with.
TEST(Convert, Bf16AgreesWithIntegerRounding) {
  for (std::uint64_t code = 0; code <= 0xFFFFFFFFu; code += 4099) {
    const auto bits = static_cast<std::uint32_t>(code);
    if (std::isnan(std::bit_cast<float>(bits))) continue;
    const std::uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(bits)), rounded) << std::hex << bits;
  }
}

// A double rounds once: through f32 this value would tie and go the wrong way.
TEST(Convert, DoubleRoundsOnce) {
  const double value = 1.0 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(encode(DType::kF16, value), 0x3C01u);
  EXPECT_EQ(f32_to_f16(static_cast<float>(value)), 0x3C00);
  EXPECT_EQ(encode(DType::kF16, 1e-320), 0u);
  EXPECT_EQ(encode(DType::kF16, -kInfinity), 0xFC00u);
}

TEST(Convert, Elements) {
  std::vector<std::uint16_t> half(3, 0);
  store_element(DType::kF16, half.data(), 1, 2.0);
  EXPECT_EQ(half[0], 0);
  EXPECT_EQ(half[1], 0x4000);
  EXPECT_EQ(load_element(DType::kF16, half.data(), 1), 2.0);
  std::vector<std::uint8_t> byte(2, 0);
  store_element(DType::kF8E4M3, byte.data(), 1, 1e9, Overflow::kSaturate);
  EXPECT_EQ(load_element(DType::kF8E4M3, byte.data(), 1), 448.0);
  float single = 0;
  store_element(DType::kF32, &single, 0, 0.1);
  EXPECT_EQ(single, 0.1F);
}

TEST(DTypeNames, RoundTripAndRefusal) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2,
                      DType::kI32, DType::kI64, DType::kU8}) {
    EXPECT_EQ(parse_dtype(to_string(dtype), "dtype"), dtype);
  }
  try {
    parse_dtype("float16", "dtype.kv");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.field(), "dtype.kv");
    EXPECT_EQ(error.value(), "\"float16\"");
  }
}

}  // namespace
}  // namespace plait
