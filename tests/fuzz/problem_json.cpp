// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "check/operands.h"
#include "core/batch_resolve.h"
#include "oracle/parse_problem.h"
#include "oracle/safetensors.h"
#include "plait/error.h"

namespace {

/// What problems refer to by name: two flat tensors.
plait::oracle::Safetensors tensors() {
  const std::string header =
      R"({"k": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]},)"
      R"( "q": {"dtype": "BF16", "shape": [3, 2, 8], "data_offsets": [256, 352]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  return plait::oracle::Safetensors::parse(file + header + std::string(352, '?'), "tensors");
}

}  // namespace

/// A problem may ask for tensors as large as the machine; here they stay small.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  return setenv("PLAIT_MEMORY_LIMIT", "32768", 1);
}

/// Any text is either refused with an Error that names a field, or gives a problem of which the
/// engine says the same: it is valid, or refused by name.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const plait::oracle::Safetensors named = tensors();
  try {
    const auto problem =
        plait::oracle::parse_problem({reinterpret_cast<const char*>(data), size}, &named);
    const plait::check::Operands operands(problem);
    validate(operands.spec());
    validate(operands.spec(), operands.batch());
  } catch (const plait::Error& error) {
    if (error.code() == plait::ErrorCode::kInternal || error.field().empty() ||
        error.expected().empty()) {
      std::abort();
    }
  }
  return 0;
}
