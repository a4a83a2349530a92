// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Launches are noted in the fake's state and nothing is executed.
#include <string>
#include <vector>

#include "cuda_fake/fake_cuda.h"
#include "support/fake_device.h"

namespace plait::cuda::fake {
namespace {

struct Module {
  std::vector<std::string*> functions;
};

}  // namespace

int driver_version() { return 13000; }

const char* device_name() { return "Fake"; }

int device_attribute(CuDeviceAttribute attribute) {
  switch (attribute) {
    case CuDeviceAttribute::kComputeCapabilityMajor: return 9;
    case CuDeviceAttribute::kComputeCapabilityMinor: return 0;
    case CuDeviceAttribute::kMultiprocessorCount: return 4;
    default: return 200 * 1024;
  }
}

const char* error_text() { return "told to fail"; }

void* load_module(const void*) { return new Module(); }

void unload_module(void* handle) {
  auto* module = static_cast<Module*>(handle);
  for (std::string* name : module->functions) delete name;
  delete module;
}

void* find_function(void* module, const char* name) {
  auto* symbol = new std::string(name);
  static_cast<Module*>(module)->functions.push_back(symbol);
  return symbol;
}

Work prepare_launch(const CuLaunchConfig& config, CuFunction function, void** arguments,
                    bool captured) {
  Launch launch;
  launch.symbol = *reinterpret_cast<std::string*>(function);
  launch.grid = config.grid_x;
  launch.threads = config.block_x;
  launch.stream = config.stream;
  launch.captured = captured;
  for (unsigned index = 0; index < config.attribute_count; ++index) {
    if (config.attributes[index].id == CuLaunchAttributeId::kProgrammaticStreamSerialization) {
      launch.overlaps_previous =
          config.attributes[index].value.programmatic_stream_serialization != 0;
    }
  }
  const auto* bytes = static_cast<const unsigned char*>(arguments[0]);
  launch.parameters.assign(bytes, bytes + kKeptParameterBytes);
  plait_fake_cuda_state()->launches.push_back(std::move(launch));
  return [] { return kCuSuccess; };
}

CuResult encode_tensor_map(const TensorMapRequest&, CuTensorMap*) { return kCuErrorInvalidValue; }

}  // namespace plait::cuda::fake
