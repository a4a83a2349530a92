// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// JSON for files that strangers write: duplicate keys, deep nesting and trailing text are
// refused. NaN, Infinity and -Infinity (as Python writes them) and numbers beyond the range of a
// double are kept as the strings "NaN", "Infinity" and "-Infinity", so that the reader of a field
// can name it when it refuses them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "plait/error.h"

namespace plait::oracle {

using Json = nlohmann::json;

/// Parses `text`. Throws Error{kIo} naming `field`, with the byte position of a syntax error.
Json parse_strict_json(std::string_view text, std::string_view field);

/// One value of a document together with its path, such as "kv.last_page_len[2]". Getters throw
/// Error{kInvalidArgument} naming that path, the value and what was expected.
class Node {
 public:
  Node(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const Json& json() const noexcept { return *value_; }
  const std::string& path() const noexcept { return path_; }

  /// Refuses anything but an object whose keys are all listed.
  void expect_object(std::initializer_list<std::string_view> known) const;
  bool has(std::string_view key) const;
  Node get(std::string_view key) const;  // refuses a missing key
  std::string child_path(std::string_view key) const;

  std::size_t length(std::string_view expected) const;  // of an array
  Node element(std::size_t index) const;

  std::int64_t integer(std::int64_t low, std::int64_t high) const;
  double number(std::string_view expected = "a finite number") const;  // finite
  double any_number() const;                                           // NaN and infinities too
  bool boolean() const;
  const std::string& string(std::string_view expected = "a string") const;
  std::vector<std::int64_t> integers(std::int64_t low, std::int64_t high) const;

  [[noreturn]] void refuse(std::string_view expected,
                           ErrorCode code = ErrorCode::kInvalidArgument) const;

 private:
  const Json* value_;
  std::string path_;
};

/// `value` on one line, shortened for messages.
std::string brief(const Json& value);

}  // namespace plait::oracle
