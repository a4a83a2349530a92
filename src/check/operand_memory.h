// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Where the tensors of a problem live while it runs: host memory as it is, or copies on a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "oracle/host_tensor.h"
#include "plait/attention.h"
#include "plait/tensor.h"

namespace plait::check {

class OperandMemory {
 public:
  virtual ~OperandMemory() = default;

  /// `tensor` on the device. Tensors that share a storage share its copy too.
  virtual Tensor place(const oracle::HostTensor& tensor) = 0;

  /// An output: every byte 0xFF, which is NaN in each floating dtype.
  virtual Tensor output(DType dtype, std::span<const std::int64_t> shape) = 0;

  /// Standard normals that repeat after a million elements: for runs that are timed, not checked.
  virtual Tensor noise(DType dtype, std::span<const std::int64_t> shape) = 0;

  /// Contents of an output, row-major, on the host. Waits for the device.
  virtual oracle::HostTensor fetch(const Tensor& tensor) = 0;

  /// Where copies run, and problems should. Several threads may each have a memory: the streams
  /// of two are not ordered.
  virtual Stream stream() const = 0;
  /// Waits for that stream and the default one.
  virtual void synchronize() = 0;

  /// Captures `work` on a stream of its own after `prepare` ran there, runs `prepare` again, and
  /// replays the graph once. Throws Error{kUnsupported} where there are no graphs.
  virtual void replay(const std::function<void(Stream)>& prepare,
                      const std::function<void(Stream)>& work) = 0;

  /// Gives workspaces that are filled with 0xFF: what a plan did not write must not matter.
  virtual Allocator poisoning_allocator() const = 0;

  Tensor place_i32(std::span<const std::int64_t> values);
  Tensor place_f32(std::span<const double> values);
  Tensor place_u8(std::span<const std::uint8_t> values);

 protected:
  /// The first of `count` elements of noise, as many as do not repeat.
  static oracle::HostTensor noise_period(DType dtype, std::int64_t count);
};

/// Throws Error{kBackend} for a device that this build or machine does not have.
std::unique_ptr<OperandMemory> make_operand_memory(Device device);

}  // namespace plait::check
