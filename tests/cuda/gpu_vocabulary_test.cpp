// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The device vocabulary on a device: element conversions for every code and one matrix product
// through shared memory, against the exact conversions of core/convert.h, and soft caps against
// double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "core/convert.h"
#include "cuda/gpu_support.h"
#include "cuda/jit/kernel_cache.h"
#include "support/temporary_directory.h"

namespace plait::cuda {
namespace {

constexpr const char* kConversions = R"(
#include "cuda/kernels/common/launch_info.h"
#include "cuda/kernels/device/element.h"
PLAIT_LAUNCH_INFO(256, 0, 1, 1);
using namespace plait::device;
// wide: f16, bf16 [65536 each], e4m3, e5m2 [256 each]; narrow: the codes of `values` in the same order.
extern "C" __global__ void PLAIT_KERNEL_NAME(float* wide, const float* values, u32* narrow, int count) {
  const int step = static_cast<int>(gridDim.x * blockDim.x);
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  for (int i = thread; i < 65536; i += step) {
    wide[i] = Element<DTypeCode::kF16>::widen(static_cast<u16>(i));
    wide[65536 + i] = Element<DTypeCode::kBF16>::widen(static_cast<u16>(i));
    if (i < 256) {
      wide[131072 + i] = Element<DTypeCode::kF8E4M3>::widen(static_cast<u8>(i));
      wide[131328 + i] = Element<DTypeCode::kF8E5M2>::widen(static_cast<u8>(i));
    }
  }
  for (int i = thread; i < count; i += step) {
    narrow[i] = Element<DTypeCode::kF16>::narrow(values[i]);
    narrow[count + i] = Element<DTypeCode::kBF16>::narrow(values[i]);
    narrow[2 * count + i] = Element<DTypeCode::kF8E4M3>::narrow(values[i]);
    narrow[3 * count + i] = Element<DTypeCode::kF8E5M2>::narrow(values[i]);
  }
}
)";

constexpr const char* kProduct = R"(
#include "cuda/kernels/common/launch_info.h"
#include "cuda/kernels/device/ptx_sm80.h"
PLAIT_LAUNCH_INFO(32, 0, 1, 1);
using namespace plait::device;
// c[16][8] = a[16][16] * b[8][16]^T, all row-major; a and b come in by asynchronous copies.
extern "C" __global__ void PLAIT_KERNEL_NAME(const u16* a, const u16* b, float* c) {
  __shared__ __align__(16) u16 tile[24 * 24];  // pitch 24: rows of 48 bytes
  const int lane = static_cast<int>(threadIdx.x);
  const u32 base = shared_address(tile);
  for (int i = lane; i < 48; i += 32) {
    const u16* source = i < 32 ? a + i * 8 : b + (i - 32) * 8;
    copy_async<16>(base + static_cast<u32>(i / 2 * 48 + i % 2 * 16), source, true);
  }
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
  FragmentA fa;
  load_matrices(fa.word, base + static_cast<u32>(lane % 16 * 48 + lane / 16 * 16));
  u32 word[4];
  load_matrices(word, base + static_cast<u32>((16 + lane % 8) * 48 + lane / 8 % 2 * 16));
  const FragmentB fb{{word[0], word[1]}};
  FragmentC fc{};
  multiply_add<DTypeCode::kF16>(fc, fa, fb);
  for (int e = 0; e < 4; ++e) c[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = fc.x[e];
}
)";

constexpr const char* kSoftCaps = R"(
#include "cuda/kernels/common/launch_info.h"
#include "cuda/kernels/device/soft_cap.h"
PLAIT_LAUNCH_INFO(128, 0, 1, 1);
using namespace plait::device;
template <int kTerms>
__device__ void capped(float s, float* exponent_of, float* limit, float scale, float cap) {
  CappedExponent<kTerms> exponent;
  exponent.start(scale, cap);
  *limit = exponent.limit();
  *exponent_of = exponent(s, 0.0F);
}
// exponents: of three terms, then of five; limits: of both.
extern "C" __global__ void PLAIT_KERNEL_NAME(const float* products, float* exponents, float* tanhs,
                                             float* limits, float scale, float cap) {
  const int count = static_cast<int>(gridDim.x * blockDim.x);
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  capped<3>(products[i], exponents + i, limits, scale, cap);
  capped<5>(products[i], exponents + count + i, limits + 1, scale, cap);
  float x = products[i];
  scaled_tanh_of<1>(kTanhScale * scale * fast_reciprocal(cap), [&](i32) -> float& { return x; });
  tanhs[i] = x;
}
)";

class GpuVocabulary : public GpuTest {
 protected:
  void run(const char* body, unsigned grid, void** arguments) {
    const test::TemporaryDirectory directory;
    auto files = SourceSet::embedded().files();
    files["cuda/kernels/common/self_test.cu"] = body;
    KernelCache cache(&Nvrtc::get(), driver().version(), SourceSet(std::move(files)),
                      directory.path("cache"));
    const auto kernel = cache.loaded(context_, parse_kernel_key("common self_test"));
    const ContextScope scope(*context_);
    launch(*kernel, {grid, 1, 1}, arguments, nullptr);
    driver().check(driver().context_synchronize(), "cuCtxSynchronize");
  }
};

TEST_F(GpuVocabulary, ConversionsAreExactOrRoundToNearestEven) {
  std::vector<float> samples = {0.0F,     -0.0F,    1.0F,      448.0F,     464.0F,
                                465.0F,   57344.0F, 61440.0F,  1e30F,      -1e30F,
                                1e-40F,   INFINITY, -INFINITY, NAN,        65504.0F,
                                65519.0F, 65520.0F, 0x1p-9F,   0x1.8p-10F, 0x1p-17F};
  std::mt19937 random(20261129);
  for (int i = 0; i < 20000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    float value = 0.0F;
    std::memcpy(&value, &bits, sizeof(value));
    samples.push_back(value);
    // Around fp8's range, ties included.
    samples.push_back(static_cast<float>(static_cast<int>(random() % 4096) - 2048) * 0x1p-12F *
                      static_cast<float>(1 << (random() % 20)));
  }
  const auto count = static_cast<int>(samples.size());
  DeviceArray<float> wide(context_, 131584);
  DeviceArray<float> values(context_, samples.size());
  DeviceArray<std::uint32_t> narrow(context_, samples.size() * 4);
  values.host = samples;
  values.upload();
  CuDevicePtr a = wide.address(), b = values.address(), c = narrow.address();
  int n = count;
  void* arguments[] = {&a, &b, &c, &n};
  run(kConversions, 64, arguments);
  wide.download();
  narrow.download();

  const auto same = [](double x, double y) {
    return (std::isnan(x) && std::isnan(y)) || (x == y && std::signbit(x) == std::signbit(y));
  };
  const DType types[] = {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};
  std::size_t at = 0;
  for (const DType type : types) {
    const std::uint32_t codes = size_of(type) == 2 ? 65536 : 256;
    for (std::uint32_t code = 0; code < codes; ++code, ++at) {
      ASSERT_TRUE(same(wide.host[at], decode(type, code)))
          << to_string(type) << " code " << code << " widened to " << wide.host[at];
    }
  }
  for (int t = 0; t < 4; ++t) {
    const bool fp8 = size_of(types[t]) == 1;
    for (int i = 0; i < count; ++i) {
      const double got = decode(types[t], narrow.host[static_cast<std::size_t>(t * count + i)]);
      const double want = decode(types[t], encode(types[t], samples[static_cast<std::size_t>(i)],
                                                  fp8 ? Overflow::kSaturate : Overflow::kIeee));
      ASSERT_TRUE(same(got, want))
          << to_string(types[t]) << " of " << samples[static_cast<std::size_t>(i)] << ": " << got
          << ", expected " << want;
    }
  }
}

TEST_F(GpuVocabulary, FragmentsHoldWhatTheirCommentsSay) {
  DeviceArray<std::uint16_t> a(context_, 256);
  DeviceArray<std::uint16_t> b(context_, 128);
  DeviceArray<float> c(context_, 128);
  std::mt19937 random(7);
  // Small integers: every product and sum is exact.
  for (auto& x : a.host) x = f32_to_f16(static_cast<float>(static_cast<int>(random() % 17) - 8));
  for (auto& x : b.host) x = f32_to_f16(static_cast<float>(static_cast<int>(random() % 17) - 8));
  a.upload();
  b.upload();
  CuDevicePtr pa = a.address(), pb = b.address(), pc = c.address();
  void* arguments[] = {&pa, &pb, &pc};
  run(kProduct, 1, arguments);
  c.download();
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 0; column < 8; ++column) {
      float want = 0.0F;
      for (std::size_t k = 0; k < 16; ++k) {
        want += f16_to_f32(a.host[row * 16 + k]) * f16_to_f32(b.host[column * 16 + k]);
      }
      EXPECT_EQ(c.host[row * 8 + column], want) << row << ", " << column;
    }
  }
}

// Relative to the value where logits are small beside the cap: a polynomial loses 2.5e-7, the
// reciprocal of the cap and roundings the rest. Beyond, 3e-7 of the cap.
TEST_F(GpuVocabulary, SoftCapsAreAsExactAsF32) {
  constexpr double kLog2E = 1.4426950408889634;
  constexpr std::size_t kCount = 8192;
  const auto infinity = std::numeric_limits<float>::infinity();
  for (const auto& [scale, cap] : {std::pair{0.0883883461F, 30.0F},
                                   {0.0883883461F, 50.0F},
                                   {1.0F, 1.0F},
                                   {0.3F, 5.0F},
                                   {2.0F, 15.0F},
                                   {0.0625F, 1e3F},
                                   {0.125F, 1e4F},
                                   {1e-8F, 30.0F},
                                   {1.0F, 1e30F},
                                   {1.0F, 1e-3F},
                                   {1.0F, 1e-30F}}) {
    SCOPED_TRACE("scale " + std::to_string(scale) + ", cap " + std::to_string(cap));
    DeviceArray<float> products(context_, kCount);
    DeviceArray<float> exponents(context_, 2 * kCount);
    DeviceArray<float> tanhs(context_, kCount);
    DeviceArray<float> limits(context_, 2);
    // From 1e-4 to 100 caps, both signs in turn.
    for (std::size_t i = 0; i < kCount; ++i) {
      const double size = 1e-4 * std::pow(1e6, static_cast<double>(i / 2) / (kCount / 2 - 1.0));
      products.host[i] = static_cast<float>((i % 2 == 0 ? size : -size) * cap / scale);
    }
    products.host[0] = 0.0F;
    products.host[1] = -infinity;  // a hidden key
    products.upload();
    CuDevicePtr a = products.address(), b = exponents.address(), c = tanhs.address();
    CuDevicePtr d = limits.address();
    float scale_argument = scale, cap_argument = cap;
    void* arguments[] = {&a, &b, &c, &d, &scale_argument, &cap_argument};
    run(kSoftCaps, kCount / 128, arguments);
    exponents.download();
    tanhs.download();
    limits.download();
    const double reach[] = {0.225, 0.625};  // in caps
    for (std::size_t terms = 0; terms < 2; ++terms) {
      const float limit = limits.host[terms];
      if (cap >= 1.0F && cap <= 1e3F && scale > 1e-3F) {
        EXPECT_NEAR(limit * scale / cap, reach[terms], 1e-6);
      }
      if (limit < 0.0F) continue;
      EXPECT_EQ(exponents.host[terms * kCount], 0.0F);
      EXPECT_EQ(exponents.host[terms * kCount + 1], -infinity);
    }
    for (std::size_t i = 2; i < kCount; ++i) {
      SCOPED_TRACE("product " + std::to_string(products.host[i]));
      const double argument = static_cast<double>(products.host[i]) * scale / cap;
      const double exact = std::tanh(argument);
      const double bound = std::fabs(argument) < 0.62 ? 6e-7 * std::fabs(exact) : 3e-7;
      ASSERT_NEAR(tanhs.host[i], exact, bound);
      for (std::size_t terms = 0; terms < 2; ++terms) {
        if (std::fabs(products.host[i]) > limits.host[terms]) continue;
        ASSERT_NEAR(exponents.host[terms * kCount + i] / (kLog2E * cap), exact,
                    5e-7 * std::fabs(exact));
      }
    }
  }
}

}  // namespace
}  // namespace plait::cuda
