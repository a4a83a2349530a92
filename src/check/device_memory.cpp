// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "check/device_memory.h"

#include "plait/error.h"

#ifdef PLAIT_WITH_CUDA

#include <map>
#include <utility>

#include "cuda/device.h"

namespace plait::check {
namespace {

using oracle::Buffer;
using oracle::HostTensor;

void* pointer_of(cuda::CuDevicePtr address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}
cuda::CuDevicePtr address_of(const void* pointer) {
  return static_cast<cuda::CuDevicePtr>(reinterpret_cast<std::uintptr_t>(pointer));
}

// A stream and the graph captured from it.
class Capture {
 public:
  explicit Capture(const cuda::Driver& driver) : driver_(driver) {
    constexpr unsigned kNonBlocking = 1;
    driver_.check(driver_.stream_create(&stream_, kNonBlocking), "creating a stream");
  }
  ~Capture() {
    if (executable_ != nullptr) driver_.graph_exec_destroy(executable_);
    if (graph_ != nullptr) driver_.graph_destroy(graph_);
    driver_.stream_destroy(stream_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  void* stream() const noexcept { return stream_; }

  void record(const std::function<void(Stream)>& work) {
    driver_.check(driver_.stream_begin_capture(stream_, cuda::CuCaptureMode::kThreadLocal),
                  "beginning a capture");
    try {
      work({stream_});
    } catch (...) {
      driver_.stream_end_capture(stream_, &graph_);
      throw;
    }
    driver_.check(driver_.stream_end_capture(stream_, &graph_), "ending a capture");
    driver_.check(driver_.graph_instantiate(&executable_, graph_, 0), "instantiating a graph");
  }

  void launch() {
    driver_.check(driver_.graph_launch(executable_, stream_), "launching a graph");
    driver_.check(driver_.stream_synchronize(stream_), "replaying a graph");
  }

 private:
  const cuda::Driver& driver_;
  cuda::CuStream stream_ = nullptr;
  cuda::CuGraph graph_ = nullptr;
  cuda::CuGraphExec executable_ = nullptr;
};

class CudaMemory final : public OperandMemory {
 public:
  explicit CudaMemory(Device device)
      : device_(device), context_(cuda::DeviceContext::get(device.index)) {}

  Tensor place(const HostTensor& tensor) override {
    Tensor view = tensor.view();
    view.device = device_;
    view.data = nullptr;
    if (tensor.storage == nullptr) return view;
    auto found = copies_.find(tensor.storage);
    if (found == copies_.end()) {
      cuda::DeviceBuffer copy = allocate(tensor.storage->bytes());
      const cuda::ContextScope scope(*context_);
      const cuda::Driver& driver = context_->driver();
      driver.check(
          driver.memcpy_host_to_device(copy.address(), tensor.storage->data(),
                                       static_cast<std::size_t>(tensor.storage->bytes()), nullptr),
          "copying an operand to the device");
      driver.check(driver.context_synchronize(), "copying an operand to the device");
      found = copies_.emplace(tensor.storage, std::move(copy)).first;
    }
    view.data = pointer_of(found->second.address() +
                           static_cast<cuda::CuDevicePtr>(tensor.offset * size_of(tensor.dtype)));
    return view;
  }

  Tensor output(DType dtype, std::span<const std::int64_t> shape) override {
    HostTensor host;
    host.dtype = dtype;
    host.shape.assign(shape.begin(), shape.end());
    host.strides = oracle::contiguous_strides(host.shape);
    Tensor view = host.view();
    view.device = device_;
    const std::int64_t bytes = view.size() * size_of(dtype);
    cuda::DeviceBuffer buffer = allocate(bytes);
    fill(buffer.address(), bytes);
    view.data = pointer_of(buffer.address());
    outputs_.push_back(std::move(buffer));
    return view;
  }

  HostTensor fetch(const Tensor& tensor) override {
    HostTensor out = HostTensor::zeros(
        tensor.dtype, {tensor.shape.begin(), tensor.shape.begin() + tensor.rank}, "output");
    const cuda::ContextScope scope(*context_);
    const cuda::Driver& driver = context_->driver();
    driver.check(driver.context_synchronize(), "running the problem");
    if (out.storage->bytes() > 0) {
      driver.check(
          driver.memcpy_device_to_host(out.storage->data(), address_of(tensor.data),
                                       static_cast<std::size_t>(out.storage->bytes()), nullptr),
          "copying an output to the host");
      driver.check(driver.context_synchronize(), "copying an output to the host");
    }
    return out;
  }

  void synchronize() override {
    const cuda::ContextScope scope(*context_);
    context_->driver().check(context_->driver().context_synchronize(), "running the problem");
  }

  void replay(const std::function<void(Stream)>& prepare,
              const std::function<void(Stream)>& work) override {
    const cuda::ContextScope scope(*context_);
    Capture capture(context_->driver());
    prepare({capture.stream()});
    capture.record(work);
    prepare({capture.stream()});
    capture.launch();
  }

  Allocator poisoning_allocator() const override {
    // The map is shared by both functions and outlives this object if the engine does.
    auto live = std::make_shared<std::map<void*, cuda::DeviceBuffer>>();
    auto context = context_;
    return {[live, context](std::int64_t bytes, Device) -> void* {
              try {
                cuda::DeviceBuffer buffer(context, bytes > 0 ? bytes : 1, "workspace");
                const cuda::ContextScope scope(*context);
                const cuda::Driver& driver = context->driver();
                driver.check(driver.memset_d8(buffer.address(), 0xFF,
                                              static_cast<std::size_t>(buffer.bytes()), nullptr),
                             "filling a workspace");
                driver.check(driver.context_synchronize(), "filling a workspace");
                void* memory = pointer_of(buffer.address());
                live->emplace(memory, std::move(buffer));
                return memory;
              } catch (const Error&) {
                return nullptr;
              }
            },
            [live](void* memory, Device) { live->erase(memory); }};
  }

 private:
  cuda::DeviceBuffer allocate(std::int64_t bytes) const {
    return cuda::DeviceBuffer(context_, bytes > 0 ? bytes : 1, "operand");
  }

  void fill(cuda::CuDevicePtr address, std::int64_t bytes) const {
    if (bytes == 0) return;
    const cuda::ContextScope scope(*context_);
    const cuda::Driver& driver = context_->driver();
    driver.check(driver.memset_d8(address, 0xFF, static_cast<std::size_t>(bytes), nullptr),
                 "filling an output");
    driver.check(driver.context_synchronize(), "filling an output");
  }

  Device device_;
  std::shared_ptr<cuda::DeviceContext> context_;
  std::map<std::shared_ptr<Buffer>, cuda::DeviceBuffer> copies_;
  std::vector<cuda::DeviceBuffer> outputs_;
};

}  // namespace

std::unique_ptr<OperandMemory> make_device_memory(Device device) {
  return std::make_unique<CudaMemory>(device);
}

}  // namespace plait::check

#else

namespace plait::check {

std::unique_ptr<OperandMemory> make_device_memory(Device) {
  throw Error(ErrorCode::kBackend, "device", "cuda", "cpu (this build has no CUDA backend)");
}

}  // namespace plait::check

#endif
