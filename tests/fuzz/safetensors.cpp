// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "oracle/safetensors.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "plait/error.h"

/// Any bytes are either refused with an Error or give entries that lie inside the file and are as
/// long as dtype and shape say.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto file = plait::oracle::Safetensors::parse(
        std::string(reinterpret_cast<const char*>(data), size), "fuzz");
    for (const auto& [name, entry] : file.entries()) {
      const auto element = plait::oracle::safetensors_size(entry.dtype);
      if (!element) std::abort();
      const std::string_view contents = file.data(entry);
      auto bytes = static_cast<std::size_t>(*element);
      // What a tensor without elements claims along its other axes has no bound. Of any other one
      // the product can be no more than the input is long.
      if (std::count(entry.shape.begin(), entry.shape.end(), 0) > 0) bytes = 0;
      for (const std::int64_t extent : entry.shape) {
        if (bytes == 0) break;
        if (static_cast<std::size_t>(extent) > size / bytes) std::abort();
        bytes *= static_cast<std::size_t>(extent);
      }
      if (contents.size() != bytes) std::abort();
      // Under the address sanitizer a range outside the file would be a report.
      unsigned sum = 0;
      for (const char c : contents) sum += static_cast<unsigned char>(c);
      if (sum > 255U * size) std::abort();
    }
  } catch (const plait::Error&) {
  }
  return 0;
}
