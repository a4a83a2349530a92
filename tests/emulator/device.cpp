// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The device that the emulator poses as, its modules and launches.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "emulator/launch.h"
#include "emulator/tensor_map.h"
#include "emulator/toolchain.h"
#include "support/fake_device.h"

namespace plait::cuda::fake {

using emulator::Module;

namespace {

std::string& last_error() {
  static std::string text;
  return text;
}

int number_in(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

int architecture() { return number_in("PLAIT_EMULATED_ARCH", 90); }

std::size_t object_size(const void* image) {
  const auto* bytes = static_cast<const char*>(image);
  Elf64_Ehdr header;
  std::memcpy(&header, bytes, sizeof(header));
  std::size_t size = header.e_shoff + std::size_t{header.e_shnum} * header.e_shentsize;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, bytes + header.e_shoff + i * sizeof(section), sizeof(section));
    if (section.sh_type != SHT_NOBITS) {
      size = std::max<std::size_t>(size, section.sh_offset + section.sh_size);
    }
  }
  return size;
}

/// Where a library's segments lie.
void find_extent(Module* module) {
  link_map* map = nullptr;
  ::dlinfo(module->library, RTLD_DI_LINKMAP, &map);
  struct Search {
    Module* module;
    std::uintptr_t base;
  } search{module, map->l_addr};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        const auto& wanted = *static_cast<Search*>(data);
        if (info->dlpi_addr != wanted.base) return 0;
        wanted.module->begin = info->dlpi_addr;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD) continue;
          wanted.module->end =
              std::max(wanted.module->end, info->dlpi_addr + segment.p_vaddr + segment.p_memsz);
        }
        return 1;
      },
      &search);
}

/// Kernels find the emulator's functions where every library finds symbols.
void publish_own_symbols() {
  static const bool once = [] {
    Dl_info info{};
    ::dladdr(reinterpret_cast<void*>(&publish_own_symbols), &info);
    return ::dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) != nullptr;
  }();
  (void)once;
}

}  // namespace

int driver_version() { return number_in("PLAIT_EMULATED_DRIVER", 13000); }

const char* device_name() { return "Emulated GPU"; }

int device_attribute(CuDeviceAttribute attribute) {
  const bool hopper = architecture() == 90;
  switch (attribute) {
    case CuDeviceAttribute::kComputeCapabilityMajor: return architecture() / 10;
    case CuDeviceAttribute::kComputeCapabilityMinor: return architecture() % 10;
    case CuDeviceAttribute::kMultiprocessorCount: return 24;  // as many as problems ask for
    case CuDeviceAttribute::kMaxSharedMemoryPerMultiprocessor: return (hopper ? 228 : 164) * 1024;
    case CuDeviceAttribute::kMaxSharedMemoryPerBlockOptin: return (hopper ? 227 : 163) * 1024;
    case CuDeviceAttribute::kMaxSharedMemoryPerBlock: return 48 * 1024;
    case CuDeviceAttribute::kReservedSharedMemoryPerBlock: return 1024;
    case CuDeviceAttribute::kMaxRegistersPerMultiprocessor: return 65536;
    case CuDeviceAttribute::kMaxThreadsPerMultiprocessor: return 2048;
    case CuDeviceAttribute::kL2CacheSize: return 50 << 20;
    case CuDeviceAttribute::kClockRateKhz: return 1980000;
    case CuDeviceAttribute::kMemoryClockRateKhz: return 2600000;
    case CuDeviceAttribute::kMemoryBusWidthBits: return 5120;
  }
  return 0;
}

const char* error_text() { return last_error().c_str(); }

void* load_module(const void* image) {
  publish_own_symbols();
  const std::string object(static_cast<const char*>(image), object_size(image));
  auto module = std::make_unique<Module>();
  module->library = emulator::open_object(object, &last_error());
  if (module->library == nullptr) return nullptr;
  module->parameters = reinterpret_cast<const unsigned* (*)()>(
      ::dlsym(module->library, "plait_emulated_parameters"))();
  module->thread =
      reinterpret_cast<void (*)(void* const*)>(::dlsym(module->library, "plait_emulated_thread"));
  find_extent(module.get());
  return module.release();
}

void unload_module(void* handle) {
  auto* module = static_cast<Module*>(handle);
  ::dlclose(module->library);
  delete module;
}

void* find_function(void* handle, const char* name) {
  auto* module = static_cast<Module*>(handle);
  module->name = name;
  return ::dlsym(module->library, name) == nullptr ? nullptr : module;
}

Work prepare_launch(const CuLaunchConfig& config, CuFunction function, void** arguments, bool) {
  const auto* module = reinterpret_cast<const Module*>(function);
  // Values of the parameters, each at a multiple of 64: a tensor map wants that.
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;
  for (const unsigned* size = module->parameters; *size != 0; ++size) {
    offsets.push_back(bytes);
    bytes += (*size + 63) / 64 * 64;
  }
  const std::shared_ptr<std::byte> values(static_cast<std::byte*>(std::aligned_alloc(64, bytes)),
                                          std::free);
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    std::memcpy(values.get() + offsets[i], arguments[i], module->parameters[i]);
  }
  const emulator::LaunchShape shape{{config.grid_x, config.grid_y, config.grid_z},
                                    {config.block_x, config.block_y, config.block_z},
                                    config.shared_bytes};
  return [module, shape, values, offsets]() -> CuResult {
    std::vector<void*> pointers;
    for (const std::size_t offset : offsets) pointers.push_back(values.get() + offset);
    last_error() = emulator::Launch(*module, shape, pointers.data()).run();
    return last_error().empty() ? kCuSuccess : kLaunchFailed;
  };
}

CuResult encode_tensor_map(const TensorMapRequest& request, CuTensorMap* out) {
  const std::uint64_t element =
      request.type == CuTensorMapDataType::kBF16 || request.type == CuTensorMapDataType::kF16 ? 2
                                                                                              : 0;
  const auto refuse = [](const char* why) {
    last_error() = std::string("the emulator's tensor maps: ") + why;
    return kCuErrorInvalidValue;
  };
  if (element == 0 || request.rank != 5 || request.interleave != CuTensorMapInterleave::kNone ||
      request.swizzle != CuTensorMapSwizzle::k128B) {
    return refuse("rank 5, bf16 and the 128-byte swizzle only");
  }
  if (reinterpret_cast<std::uintptr_t>(request.address) % 16 != 0) return refuse("alignment");
  if (request.box[0] * element != 128) return refuse("rows of 128 bytes only");
  emulator::TensorMap map{};
  map.magic = emulator::TensorMap::kMagic;
  map.address = reinterpret_cast<std::uintptr_t>(request.address);
  map.element_bytes = static_cast<std::uint8_t>(element);
  map.nan_outside = request.fill == CuTensorMapOobFill::kNan;
  for (unsigned i = 0; i < 5; ++i) {
    if (request.box[i] == 0 || request.box[i] > 256) return refuse("a box of 1 to 256");
    if (request.steps[i] != 1) return refuse("steps of 1 only");
    if (request.extents[i] == 0 || request.extents[i] > 0xFFFFFFFF) return refuse("extent");
    map.extent[i] = static_cast<std::uint32_t>(request.extents[i]);
    map.box[i] = static_cast<std::uint16_t>(request.box[i]);
  }
  for (unsigned i = 0; i < 4; ++i) {
    if (request.strides[i] % 16 != 0 || request.strides[i] >= std::uint64_t{1} << 40) {
      return refuse("strides: multiples of 16 below 2^40");
    }
    map.stride[i] = request.strides[i];
  }
  std::memcpy(out, &map, sizeof(map));
  return kCuSuccess;
}

}  // namespace plait::cuda::fake
