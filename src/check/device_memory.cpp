// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "check/device_memory.h"

#include "plait/error.h"

#ifdef PLAIT_WITH_CUDA

#include <algorithm>
#include <cstring>
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

// A stream that the default stream does not order with others.
class OwnStream {
 public:
  explicit OwnStream(std::shared_ptr<cuda::DeviceContext> context) : context_(std::move(context)) {
    const cuda::ContextScope scope(*context_);
    driver().check(driver().stream_create(&stream_, cuda::kCuStreamNonBlocking),
                   "creating a stream");
  }
  ~OwnStream() {
    const cuda::ContextScope scope(*context_);
    driver().stream_destroy(stream_);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  cuda::CuStream get() const noexcept { return stream_; }
  // The default stream too: callers that name no stream work there. Never the whole device, which
  // a capture of another thread forbids.
  void synchronize(const char* what) const {
    driver().check(driver().stream_synchronize(stream_), what);
    driver().check(driver().stream_synchronize(nullptr), what);
  }

 private:
  const cuda::Driver& driver() const { return context_->driver(); }

  std::shared_ptr<cuda::DeviceContext> context_;
  cuda::CuStream stream_ = nullptr;
};

// A graph captured from a stream.
class Capture {
 public:
  Capture(const cuda::Driver& driver, cuda::CuStream stream) : driver_(driver), stream_(stream) {}
  ~Capture() {
    if (executable_ != nullptr) driver_.graph_exec_destroy(executable_);
    if (graph_ != nullptr) driver_.graph_destroy(graph_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

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
  cuda::CuStream stream_;
  cuda::CuGraph graph_ = nullptr;
  cuda::CuGraphExec executable_ = nullptr;
};

class CudaMemory final : public OperandMemory {
 public:
  explicit CudaMemory(Device device)
      : device_(device), context_(cuda::DeviceContext::get(device.index)), stream_(context_) {}

  Tensor place(const HostTensor& tensor) override {
    Tensor view = tensor.view();
    view.device = device_;
    view.data = nullptr;
    if (tensor.storage == nullptr) return view;
    auto found = copies_.find(tensor.storage);
    if (found == copies_.end()) {
      cuda::DeviceBuffer copy = allocate(tensor.storage->bytes());
      copy_to_device(copy.address(), *tensor.storage);
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

  Tensor noise(DType dtype, std::span<const std::int64_t> shape) override {
    Tensor view = output(dtype, shape);
    const std::int64_t bytes = view.size() * size_of(dtype);
    if (bytes == 0) return view;
    const HostTensor period = noise_period(dtype, view.size());
    const cuda::ContextScope scope(*context_);
    const cuda::Driver& driver = context_->driver();
    const cuda::CuDevicePtr begin = address_of(view.data);
    std::int64_t filled = period.storage->bytes();
    driver.check(driver.memcpy_host_to_device(begin, period.storage->data(),
                                              static_cast<std::size_t>(filled), stream_.get()),
                 "copying noise to the device");
    for (; filled < bytes; filled = std::min(2 * filled, bytes)) {
      driver.check(driver.memcpy_device_to_device(
                       begin + static_cast<cuda::CuDevicePtr>(filled), begin,
                       static_cast<std::size_t>(std::min(filled, bytes - filled)), stream_.get()),
                   "repeating noise");
    }
    stream_.synchronize("filling memory with noise");
    return view;
  }

  HostTensor fetch(const Tensor& tensor) override {
    HostTensor out = HostTensor::zeros(
        tensor.dtype, {tensor.shape.begin(), tensor.shape.begin() + tensor.rank}, "output");
    const cuda::ContextScope scope(*context_);
    const cuda::Driver& driver = context_->driver();
    stream_.synchronize("running the problem");
    if (out.storage->bytes() > 0) {
      driver.check(driver.memcpy_device_to_host(out.storage->data(), address_of(tensor.data),
                                                static_cast<std::size_t>(out.storage->bytes()),
                                                stream_.get()),
                   "copying an output to the host");
      stream_.synchronize("copying an output to the host");
    }
    return out;
  }

  Stream stream() const override { return {stream_.get()}; }

  void synchronize() override {
    const cuda::ContextScope scope(*context_);
    stream_.synchronize("running the problem");
  }

  void replay(const std::function<void(Stream)>& prepare,
              const std::function<void(Stream)>& work) override {
    const cuda::ContextScope scope(*context_);
    Capture capture(context_->driver(), stream_.get());
    prepare(stream());
    capture.record(work);
    prepare(stream());
    capture.launch();
  }

  Allocator poisoning_allocator() const override {
    // The map is shared by both functions and outlives this object if the engine does.
    auto live = std::make_shared<std::map<void*, cuda::DeviceBuffer>>();
    auto context = context_;
    auto filling = std::make_shared<OwnStream>(context_);
    return {[live, context, filling](std::int64_t bytes, Device) -> void* {
              try {
                cuda::DeviceBuffer buffer(context, bytes > 0 ? bytes : 1, "workspace");
                const cuda::ContextScope scope(*context);
                const cuda::Driver& driver = context->driver();
                driver.check(
                    driver.memset_d8(buffer.address(), 0xFF,
                                     static_cast<std::size_t>(buffer.bytes()), filling->get()),
                    "filling a workspace");
                filling->synchronize("filling a workspace");
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
    driver.check(driver.memset_d8(address, 0xFF, static_cast<std::size_t>(bytes), stream_.get()),
                 "filling an output");
    stream_.synchronize("filling an output");
  }

  // Pools of many GB that only virtual memory holds have a few pieces that are not zeros.
  void copy_to_device(cuda::CuDevicePtr address, const Buffer& source) const {
    if (source.bytes() == 0) return;
    const cuda::ContextScope scope(*context_);
    const cuda::Driver& driver = context_->driver();
    driver.check(
        driver.memset_d8(address, 0, static_cast<std::size_t>(source.bytes()), stream_.get()),
        "setting an operand to zero");
    constexpr std::int64_t kPiece = std::int64_t{1} << 22;
    const auto* bytes = static_cast<const char*>(source.data());
    for (std::int64_t at = 0; at < source.bytes(); at += kPiece) {
      const auto count = static_cast<std::size_t>(std::min(kPiece, source.bytes() - at));
      const bool zeros = bytes[at] == 0 && std::memcmp(bytes + at, bytes + at + 1, count - 1) == 0;
      if (zeros) continue;
      driver.check(driver.memcpy_host_to_device(address + static_cast<cuda::CuDevicePtr>(at),
                                                bytes + at, count, stream_.get()),
                   "copying an operand to the device");
    }
    stream_.synchronize("copying an operand to the device");
  }

  Device device_;
  std::shared_ptr<cuda::DeviceContext> context_;
  OwnStream stream_;
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
