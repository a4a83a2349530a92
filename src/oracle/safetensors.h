// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The safetensors container: an 8-byte little-endian header length, a JSON header, raw data.
// Every figure of the header is checked against the file before it is used.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oracle/host_tensor.h"

namespace plait::oracle {

struct SafetensorsEntry {
  std::string dtype;  // as the file names it: "F32", "BF16", "I64" ...
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // byte range in the data section
  std::int64_t end = 0;
};

class Safetensors {
 public:
  Safetensors() = default;

  /// Reads and checks a file. Throws Error{kIo} naming `field` (for example "tensors") and, where
  /// one is at fault, the tensor: header length, JSON, dtype, shape, offsets, overlaps and holes.
  static Safetensors read(const std::string& path, std::string_view field);

  /// The same over bytes in memory.
  static Safetensors parse(std::string bytes, std::string_view field);

  const std::map<std::string, SafetensorsEntry>& entries() const noexcept { return entries_; }

  /// The raw bytes of one entry.
  std::string_view data(const SafetensorsEntry& entry) const noexcept;

 private:
  std::string bytes_;
  std::int64_t data_begin_ = 0;
  std::map<std::string, SafetensorsEntry> entries_;
};

/// Bytes per element of a safetensors dtype name, or nothing for an unknown name.
std::optional<std::int64_t> safetensors_size(std::string_view dtype) noexcept;

/// The safetensors name of `dtype`.
std::string_view safetensors_name(DType dtype) noexcept;

/// Writes row-major tensors, in the given order, atomically. Throws Error{kIo} naming `field`.
struct NamedTensor {
  std::string name;
  const HostTensor* tensor;
};
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       std::string_view field);

}  // namespace plait::oracle
