// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#if PLAIT_WITH_CUDA
#include "plait/bench/cuda_matrix_product.h"

#include <cstdint>
#include <vector>

#include "core/environment.h"
#include "cuda/shared_library.h"
#include "plait/error.h"

namespace plait::bench {
namespace {

// Enumerators of cublas_api.h and library_types.h.
constexpr int kNoTranspose = 0;
constexpr int kBF16 = 14;              // CUDA_R_16BF
constexpr int kComputeF32 = 68;        // CUBLAS_COMPUTE_32F
constexpr int kDefaultAlgorithm = -1;  // CUBLAS_GEMM_DEFAULT

void check(int status, const char* call) {
  if (status == 0) return;
  throw Error(ErrorCode::kBackend, call, "cuBLAS status " + std::to_string(status), "0");
}

}  // namespace

MatrixProduct::MatrixProduct(CudaTimer& timer) : timer_(timer) {
  const std::string file = environment("PLAIT_CUBLAS");
  std::vector<std::string> candidates{"libcublas.so.13", "libcublas.so.12"};
  if (!file.empty()) candidates = {file};
  std::vector<cuda::LibraryAttempt> attempts;
  cuda::SharedLibrary library;
  for (const std::string& candidate : candidates) {
    library = cuda::SharedLibrary::open(candidate, &attempts);
    if (library) break;
  }
  if (!library) {
    reason_ = to_string(attempts);
    return;
  }
  const auto create = reinterpret_cast<int (*)(Handle*)>(library.find("cublasCreate_v2"));
  const auto set_stream =
      reinterpret_cast<int (*)(Handle, cuda::CuStream)>(library.find("cublasSetStream_v2"));
  destroy_ = reinterpret_cast<decltype(destroy_)>(library.find("cublasDestroy_v2"));
  gemm_ = reinterpret_cast<decltype(gemm_)>(library.find("cublasGemmEx"));
  if (create == nullptr || set_stream == nullptr || destroy_ == nullptr || gemm_ == nullptr) {
    reason_ = "a library without cublasGemmEx";
    return;
  }
  constexpr std::int64_t kElements = std::int64_t{kSize} * kSize;
  a_ = KnownBuffer(timer, kElements, 1, "matrix A");
  b_ = KnownBuffer(timer, kElements, 2, "matrix B");
  c_ = cuda::DeviceBuffer(timer.context(), kElements * 2, "matrix C");
  const cuda::ContextScope scope(*timer.context());
  check(create(&handle_), "cublasCreate");
  check(set_stream(handle_, timer.stream()), "cublasSetStream");
}

MatrixProduct::~MatrixProduct() {
  if (handle_ == nullptr) return;
  const cuda::ContextScope scope(*timer_.context());
  destroy_(handle_);
}

void MatrixProduct::operator()() const {
  const float one = 1.0F;
  const float zero = 0.0F;
  const auto data = [](const auto& buffer) { return reinterpret_cast<void*>(buffer.address()); };
  const cuda::ContextScope scope(*timer_.context());
  check(
      gemm_(handle_, kNoTranspose, kNoTranspose, kSize, kSize, kSize, &one, data(a_), kBF16, kSize,
            data(b_), kBF16, kSize, &zero, data(c_), kBF16, kSize, kComputeF32, kDefaultAlgorithm),
      "cublasGemmEx");
}

}  // namespace plait::bench
#endif  // PLAIT_WITH_CUDA
