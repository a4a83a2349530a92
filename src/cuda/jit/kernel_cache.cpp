// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/kernel_cache.h"

#include <utility>

#include "plait/error.h"

namespace plait::cuda {

KernelCache::KernelCache(const Nvrtc* nvrtc, CudaVersion newest, SourceSet sources,
                         std::string cache_directory)
    : nvrtc_(nvrtc),
      newest_(newest),
      sources_(std::move(sources)),
      disk_(std::move(cache_directory)) {}

KernelCache& KernelCache::process() {
  // Never destroyed: objects with static storage may still launch kernels at exit.
  static KernelCache* cache = [] {
    const Driver* driver = Driver::find();
    return new KernelCache(Nvrtc::find(), driver != nullptr ? driver->version() : CudaVersion{},
                           SourceSet::from_environment(), DiskCache::default_directory());
  }();
  return *cache;
}

std::shared_ptr<const CompiledKernel> KernelCache::compiled(const KernelKey& key, Arch arch,
                                                            std::string_view variant) {
  const std::pair<std::string, std::uint64_t> id{to_string(arch) + " " + to_string(key),
                                                 key.user_variant};
  std::promise<Code> promise;
  std::shared_future<Code> future;
  bool mine = false;
  {
    const std::lock_guard lock(compile_mutex_);
    const auto found = compiled_.find(id);
    if (found != compiled_.end()) {
      future = found->second;
    } else {
      mine = true;
      future = promise.get_future().share();
      compiled_.emplace(id, future);
    }
  }
  if (mine) {
    try {
      promise.set_value(obtain(make_compile_unit(key, arch, variant, sources_)));
    } catch (...) {
      promise.set_exception(std::current_exception());
      // A failure is not kept: the next caller may have another compiler log to see.
      const std::lock_guard lock(compile_mutex_);
      compiled_.erase(id);
    }
  }
  return future.get();
}

KernelCache::Code KernelCache::obtain(const CompileUnit& unit) {
  if (nvrtc_ != nullptr) {
    return std::make_shared<const CompiledKernel>(disk_.get_or_build(
        disk_key(unit, nvrtc_->build()), [&] { return compile(*nvrtc_, unit); }));
  }
  DiskKey key = disk_key(unit, {});
  for (const CompilerBuild& compiler : disk_.compilers_of(key)) {
    if (compiler.version > newest_) continue;
    key.compiler = compiler;
    if (std::optional<CompiledKernel> kernel = disk_.load(key)) {
      return std::make_shared<const CompiledKernel>(*std::move(kernel));
    }
  }
  std::string reason = "libnvrtc is not available";
  Nvrtc::find(&reason);
  throw Error(ErrorCode::kBackend, unit.symbol,
              "no cached machine code, and no compiler (" + reason + ")",
              "NVRTC, or a cache directory filled by plait aot");
}

std::shared_ptr<const LoadedKernel> KernelCache::loaded(
    const std::shared_ptr<DeviceContext>& context, const KernelKey& key, std::string_view variant) {
  const LoadedId id{key, context->facts().ordinal};
  if (std::shared_ptr<const LoadedKernel> kernel = find(id.device, key)) return kernel;
  Code code = compiled(key, arch_of(context->facts()), variant);
  auto fresh = std::make_shared<const LoadedKernel>(context, std::move(code));
  const std::lock_guard lock(loaded_mutex_);
  std::weak_ptr<const LoadedKernel>& slot = loaded_[id];
  if (std::shared_ptr<const LoadedKernel> kernel = slot.lock()) return kernel;
  slot = fresh;
  return fresh;
}

std::shared_ptr<const LoadedKernel> KernelCache::find(int device,
                                                      const KernelKey& key) const noexcept {
  const std::shared_lock lock(loaded_mutex_);
  const auto found = loaded_.find(LoadedId{key, device});
  return found == loaded_.end() ? nullptr : found->second.lock();
}

Arch KernelCache::arch_of(const DeviceFacts& facts) const {
  if (nvrtc_ != nullptr) return arch_for_device(facts.compute_capability, nvrtc_->architectures());
  return arch_for_device(facts.compute_capability, {facts.compute_capability});
}

}  // namespace plait::cuda
