// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// How a wrong count of a batch is named. Names are made for refusals only: planning allocates
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "plait/error.h"

namespace plait::batch {

[[noreturn]] inline void refuse(std::string field, std::int64_t value, std::string expected) {
  throw Error(ErrorCode::kInvalidArgument, std::move(field), std::to_string(value),
              std::move(expected));
}

inline std::string name(std::size_t view, const char* field) {
  return "views[" + std::to_string(view) + "]." + field;
}
inline std::string at(const std::string& field, std::int64_t index) {
  return field + "[" + std::to_string(index) + "]";
}

/// `field` is a callable that makes the name.
template <class Field>
void check_size(Field field, std::size_t size, std::int64_t expected, const char* meaning) {
  const auto count = static_cast<std::int64_t>(size);
  if (count == expected) return;
  refuse(field() + " (length)", count, std::to_string(expected) + " = " + meaning);
}

[[noreturn]] inline void refuse_order(const std::string& field,
                                      std::span<const std::int32_t> indptr) {
  for (std::size_t i = 1; i < indptr.size(); ++i) {
    if (indptr[i] < indptr[i - 1]) {
      refuse(at(field, static_cast<std::int64_t>(i)), indptr[i],
             "at least the value before it, " + std::to_string(indptr[i - 1]));
    }
  }
  refuse(field, 0, "a non-decreasing array");
}

/// An indptr array starts at 0 and never decreases.
template <class Field>
void check_indptr(std::span<const std::int32_t> indptr, Field field) {
  if (indptr[0] != 0) refuse(at(field(), 0), indptr[0], "0");
  std::int32_t bad = 0;
  for (std::size_t i = 1; i < indptr.size(); ++i) bad |= (indptr[i] < indptr[i - 1]) ? 1 : 0;
  if (bad != 0) refuse_order(field(), indptr);
}

}  // namespace plait::batch
