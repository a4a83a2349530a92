// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cuda/jit/compiler.h"
#include "cuda/jit/disk_cache.h"
#include "cuda/jit/loaded_kernel.h"

namespace plait::cuda {

/// From a key to machine code, in three steps: what this process has already, what the disk has,
/// what the compiler makes. Thread safe; each key is compiled once however many threads ask for it.
class KernelCache {
 public:
  /// `nvrtc` may be null: then only what the disk has can be served. `newest` bounds the compiler
  /// versions that are acceptable in that case (the driver's version).
  KernelCache(const Nvrtc* nvrtc, CudaVersion newest, SourceSet sources,
              std::string cache_directory);

  /// The cache of the process, made from the environment on first use (PLAIT_KERNEL_DIR,
  /// PLAIT_CACHE_DIR, PLAIT_NVRTC).
  static KernelCache& process();

  /// Machine code for `arch`; needs no GPU. Milliseconds from disk, about a second from source.
  /// Throws what `compile` and `make_compile_unit` throw, and Error{kBackend} with the reason if it
  /// would have to compile without a compiler.
  std::shared_ptr<const CompiledKernel> compiled(const KernelKey& key, Arch arch,
                                                 std::string_view variant = {});

  /// The kernel on a device, loaded if it is not yet. Not for use inside a capture.
  std::shared_ptr<const LoadedKernel> loaded(const std::shared_ptr<DeviceContext>& context,
                                             const KernelKey& key, std::string_view variant = {});

  /// A kernel that `loaded` has returned before and somebody still holds; null otherwise. Well
  /// below 200 ns.
  std::shared_ptr<const LoadedKernel> find(int device, const KernelKey& key) const noexcept;

  /// The architecture that kernels are compiled for on a device.
  Arch arch_of(const DeviceFacts& facts) const;

  const DiskCache& disk() const noexcept { return disk_; }
  const SourceSet& sources() const noexcept { return sources_; }
  const Nvrtc* nvrtc() const noexcept { return nvrtc_; }

 private:
  struct LoadedId {
    KernelKey key;
    int device = 0;
    friend bool operator==(const LoadedId&, const LoadedId&) = default;
  };
  struct LoadedIdHash {
    std::size_t operator()(const LoadedId& id) const noexcept {
      return static_cast<std::size_t>(hash_of(id.key)) + static_cast<std::size_t>(id.device);
    }
  };
  using Code = std::shared_ptr<const CompiledKernel>;

  Code obtain(const CompileUnit& unit);

  const Nvrtc* nvrtc_;
  CudaVersion newest_;
  SourceSet sources_;
  DiskCache disk_;

  std::mutex compile_mutex_;
  std::map<std::pair<std::string, std::uint64_t>, std::shared_future<Code>> compiled_;
  mutable std::shared_mutex loaded_mutex_;
  std::unordered_map<LoadedId, std::weak_ptr<const LoadedKernel>, LoadedIdHash> loaded_;
};

}  // namespace plait::cuda
