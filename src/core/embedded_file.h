// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Text files compiled into a library by plait_embed (cmake/PlaitEmbed.cmake). The user of a table
// declares it: `namespace plait::embedded { extern const File kernels[]; ... }`.
#pragma once

#include <cstddef>
#include <string_view>

namespace plait::embedded {

struct File {
  std::string_view path;  // relative to the BASE given to plait_embed, '/' separated
  std::string_view text;
};

}  // namespace plait::embedded
