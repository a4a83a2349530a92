// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "check/operand_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "check/device_memory.h"
#include "plait/error.h"

namespace plait::check {
namespace {

using oracle::Buffer;
using oracle::HostTensor;

class HostMemory final : public OperandMemory {
 public:
  Tensor place(const HostTensor& tensor) override {
    kept_.push_back(tensor.storage);
    return tensor.view();
  }

  Tensor output(DType dtype, std::span<const std::int64_t> shape) override {
    HostTensor tensor = HostTensor::zeros(dtype, {shape.begin(), shape.end()}, "output");
    std::memset(tensor.storage->data(), 0xFF, static_cast<std::size_t>(tensor.storage->bytes()));
    Tensor view = place(tensor);
    outputs_.emplace(view.data, std::move(tensor));
    return view;
  }

  Tensor noise(DType dtype, std::span<const std::int64_t> shape) override {
    const HostTensor tensor = HostTensor::zeros(dtype, {shape.begin(), shape.end()}, "noise");
    const std::int64_t bytes = tensor.storage->bytes();
    const HostTensor period = noise_period(dtype, tensor.size());
    for (std::int64_t at = 0; at < bytes; at += period.storage->bytes()) {
      std::memcpy(static_cast<char*>(tensor.storage->data()) + at, period.storage->data(),
                  static_cast<std::size_t>(std::min(period.storage->bytes(), bytes - at)));
    }
    return place(tensor);
  }

  HostTensor fetch(const Tensor& tensor) override { return outputs_.at(tensor.data); }

  Stream stream() const override { return {}; }
  void synchronize() override {}

  void replay(const std::function<void(Stream)>&, const std::function<void(Stream)>&) override {
    throw Error(ErrorCode::kUnsupported, "graph", "cpu", "a device that captures graphs");
  }

  Allocator poisoning_allocator() const override {
    return {[](std::int64_t bytes, Device) -> void* {
              constexpr std::size_t kAlignment = 256;
              const std::size_t size =
                  (static_cast<std::size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
              void* memory = std::aligned_alloc(kAlignment, size > 0 ? size : kAlignment);
              if (memory != nullptr) std::memset(memory, 0xFF, size);
              return memory;
            },
            [](void* memory, Device) { std::free(memory); }};
  }

 private:
  std::vector<std::shared_ptr<Buffer>> kept_;
  std::map<const void*, HostTensor> outputs_;
};

template <class Target, class Source>
HostTensor vector_of(DType dtype, std::span<const Source> values) {
  HostTensor tensor =
      HostTensor::zeros(dtype, {static_cast<std::int64_t>(values.size())}, "operand");
  auto* data = static_cast<Target*>(tensor.storage->data());
  for (std::size_t n = 0; n < values.size(); ++n) data[n] = static_cast<Target>(values[n]);
  return tensor;
}

}  // namespace

Tensor OperandMemory::place_i32(std::span<const std::int64_t> values) {
  return place(vector_of<std::int32_t>(DType::kI32, values));
}
Tensor OperandMemory::place_f32(std::span<const double> values) {
  return place(vector_of<float>(DType::kF32, values));
}
Tensor OperandMemory::place_u8(std::span<const std::uint8_t> values) {
  return place(vector_of<std::uint8_t>(DType::kU8, values));
}

HostTensor OperandMemory::noise_period(DType dtype, std::int64_t count) {
  constexpr std::int64_t kPeriod = 1'000'003;  // a prime: no row repeats the one before
  HostTensor tensor = HostTensor::zeros(dtype, {std::min(count, kPeriod)}, "noise");
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  tensor.fill([&](const auto&) { return normal(random); });
  return tensor;
}

std::unique_ptr<OperandMemory> make_operand_memory(Device device) {
  if (device.kind == DeviceKind::kCpu) return std::make_unique<HostMemory>();
  return make_device_memory(device);
}

}  // namespace plait::check
