// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/bench/bounds.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#if PLAIT_HAVE_OPENBLAS
#include <cblas.h>
#endif

#include "cpu/kernel_table.h"
#include "plait/error.h"

namespace plait::bench {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kFlushBytes = std::size_t{96}
                                    << 20;  // beyond the last level of most machines

// Results go here, so that no read can be left out.
std::atomic<std::uint32_t> sink{0};

}  // namespace

Memory::Memory(std::size_t bytes) : bytes_((bytes + kHugePage - 1) / kHugePage * kHugePage) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorCode::kOutOfMemory, "memory", "none", std::to_string(bytes_) + " bytes");
  }
  data_ = static_cast<char*>(memory);
  madvise(data_, bytes_, MADV_HUGEPAGE);
  std::memset(data_, 0, bytes_);
}

Memory::~Memory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

void plain_read(cpu::ThreadPool& pool, const Memory& a, const Memory& b) {
  struct Job {
    const Memory* memories[2];
    std::size_t threads;
  } job{{&a, &b}, static_cast<std::size_t>(pool.size())};
  pool.run(
      [](void* context, int thread) {
        const Job& j = *static_cast<const Job*>(context);
        const auto t = static_cast<std::size_t>(thread);
        for (const Memory* memory : j.memories) {
          const std::size_t begin = memory->size() / 64 * t / j.threads * 64;
          const std::size_t end = memory->size() / 64 * (t + 1) / j.threads * 64;
          sink.fetch_xor(cpu::kernels().read(memory->data() + begin, end - begin),
                         std::memory_order_relaxed);
        }
      },
      &job);
}

CacheFlush::CacheFlush() : memory_(std::make_shared<Memory>(kFlushBytes)) {}

void CacheFlush::operator()() const {
  sink.fetch_xor(cpu::kernels().read(memory_->data(), memory_->size()), std::memory_order_relaxed);
}

#if PLAIT_HAVE_OPENBLAS
namespace {

/// Before main, and before anybody knows whether a product will be asked for, OpenBLAS starts a
/// thread per core, each of which wants memory and waits for it for ever. One is enough until
/// Sgemm asks for more. Constructors with a number run before those without.
__attribute__((constructor(101))) void start_openblas_with_one_thread() {
  ::setenv("OPENBLAS_NUM_THREADS", "1", 0);
}

}  // namespace
#endif

#if PLAIT_HAVE_OPENBLAS
bool Sgemm::available() noexcept { return true; }
std::string Sgemm::core() { return openblas_get_corename(); }

Sgemm::Sgemm(int threads) {
  const std::size_t bytes = std::size_t{kSize} * kSize * sizeof(float);
  a_ = std::make_shared<Memory>(bytes);
  b_ = std::make_shared<Memory>(bytes);
  c_ = std::make_shared<Memory>(bytes);
  openblas_set_num_threads(threads);
}

void Sgemm::operator()() const {
  const auto floats = [](const std::shared_ptr<Memory>& m) {
    return reinterpret_cast<float*>(m->data());
  };
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, kSize, kSize, kSize, 1.0F, floats(a_), kSize,
              floats(b_), kSize, 0.0F, floats(c_), kSize);
}
#else
bool Sgemm::available() noexcept { return false; }
std::string Sgemm::core() { return {}; }
Sgemm::Sgemm(int) {}
void Sgemm::operator()() const {}
#endif

}  // namespace plait::bench
