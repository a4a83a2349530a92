// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/failure.h"

#include <new>
#include <stdexcept>
#include <system_error>

#include "core/text.h"

namespace plait::tool {

std::string failure_text(const std::exception& failure) {
  // A container asked for more than any memory holds says length_error.
  if (dynamic_cast<const std::bad_alloc*>(&failure) != nullptr ||
      dynamic_cast<const std::length_error*>(&failure) != nullptr) {
    return "memory: got less than this needs, expected work that fits this machine";
  }
  if (dynamic_cast<const std::system_error*>(&failure) != nullptr) {
    return "system: got " + printable(failure.what()) + ", expected threads and files to be had";
  }
  return printable(failure.what());
}

}  // namespace plait::tool
