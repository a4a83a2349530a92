// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "oracle/safetensors.h"

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
      std::int64_t bytes = *element;
      for (const std::int64_t extent : entry.shape) bytes *= extent;
      const std::string_view contents = file.data(entry);
      if (contents.size() != static_cast<std::size_t>(bytes)) std::abort();
      // Under the address sanitizer a range outside the file would be a report.
      unsigned sum = 0;
      for (const char c : contents) sum += static_cast<unsigned char>(c);
      if (sum > 255U * size) std::abort();
    }
  } catch (const plait::Error&) {
  }
  return 0;
}
