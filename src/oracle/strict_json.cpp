// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "oracle/strict_json.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>

namespace plait::oracle {
namespace {

constexpr int kMaxDepth = 32;

bool starts_with(std::string_view text, std::size_t at, std::string_view word) {
  return text.substr(at, word.size()) == word;
}

bool is_number_char(char c) {
  return (c >= '0' && c <= '9') || c == '.' || c == '+' || c == '-' || c == 'e' || c == 'E';
}

// Replaces non-finite literals and numbers that overflow a double by strings (see the header).
std::string quote_non_finite(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (in_string) {
      out += c;
      if (c == '\\' && at + 1 < text.size()) out += text[++at];
      if (c == '"') in_string = false;
      ++at;
      continue;
    }
    bool replaced = false;
    for (std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
      if (!starts_with(text, at, word)) continue;
      out.append("\"").append(word).append("\"");
      at += word.size();
      replaced = true;
      break;
    }
    if (replaced) continue;
    if ((c >= '0' && c <= '9') || c == '-') {
      std::size_t end = at;
      bool wide = false;
      while (end < text.size() && is_number_char(text[end])) {
        wide = wide || text[end] == 'e' || text[end] == 'E';
        ++end;
      }
      const std::string token(text.substr(at, end - at));
      // Only an exponent or hundreds of digits can leave the range of a double.
      if ((wide || token.size() > 300) && std::isinf(std::strtod(token.c_str(), nullptr))) {
        out += c == '-' ? "\"-Infinity\"" : "\"Infinity\"";
      } else {
        out += token;
      }
      at = end;
      continue;
    }
    if (c == '"') in_string = true;
    out += c;
    ++at;
  }
  return out;
}

}  // namespace

Json parse_strict_json(std::string_view text, std::string_view field) {
  const std::string name(field);
  // The parser takes a NUL for the end of its input and would accept whatever follows.
  if (const auto at = text.find('\0'); at != std::string_view::npos) {
    throw Error(ErrorCode::kIo, name, "a NUL byte at offset " + std::to_string(at),
                "one JSON object");
  }
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (depth >= kMaxDepth) {
          throw Error(ErrorCode::kIo, name,
                      "values nested deeper than " + std::to_string(kMaxDepth),
                      "at most " + std::to_string(kMaxDepth) + " levels");
        }
        if (event == Json::parse_event_t::object_start) keys.emplace_back();
        break;
      case Json::parse_event_t::object_end: keys.pop_back(); break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(parsed.get_ref<const std::string&>()).second) {
          throw Error(ErrorCode::kIo, name, "key " + brief(parsed) + " twice in one object",
                      "every key once");
        }
        break;
      default: break;
    }
    return true;
  };
  try {
    return Json::parse(quote_non_finite(text), watch);
  } catch (const Json::exception& error) {
    std::string reason = error.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..." without the tag.
    if (const auto bracket = reason.find("] "); bracket != std::string::npos) {
      reason.erase(0, bracket + 2);
    }
    for (char& c : reason) {
      if (static_cast<unsigned char>(c) < 0x20) c = ' ';
    }
    throw Error(ErrorCode::kIo, name,
                text.empty() ? "an empty file" : "text that is not JSON (" + reason + ")",
                "one JSON object");
  }
}

std::string brief(const Json& value) {
  constexpr std::size_t kMost = 80;
  // Long arrays are cut before they are printed: they may hold millions of numbers.
  if (value.is_array() && value.size() > 16) {
    std::string out = "[";
    for (std::size_t n = 0; n < 4; ++n) out += brief(value[n]) + ", ";
    return out + "... " + std::to_string(value.size()) + " values]";
  }
  if (value.is_array() || value.is_object()) {
    std::string out = value.is_array() ? "[" : "{";
    bool first = true;
    for (const auto& item : value.items()) {
      if (!first) out += ", ";
      first = false;
      if (value.is_object()) out += Json(item.key()).dump(-1, ' ', true) + ": ";
      out += brief(item.value());
      if (out.size() > kMost) return out.substr(0, kMost) + "...";
    }
    return out + (value.is_array() ? "]" : "}");
  }
  std::string out = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (out.size() > kMost) out = out.substr(0, kMost) + "...";
  return out;
}

void Node::expect_object(std::initializer_list<std::string_view> known) const {
  if (!value_->is_object()) refuse("an object");
  for (const auto& item : value_->items()) {
    bool found = false;
    for (std::string_view key : known) found = found || key == item.key();
    if (found) continue;
    std::string list;
    for (std::string_view key : known) list.append(list.empty() ? "" : ", ").append(key);
    std::string key = Json(item.key()).dump(-1, ' ', true);
    if (key.size() > 2) key = key.substr(1, key.size() - 2);  // escapes, without the quotes
    if (key.size() > 80) key = key.substr(0, 80) + "...";
    throw Error(ErrorCode::kInvalidArgument, child_path(key), brief(item.value()),
                "no such key (known here: " + list + ")");
  }
}

bool Node::has(std::string_view key) const { return value_->is_object() && value_->contains(key); }

std::string Node::child_path(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

Node Node::get(std::string_view key) const {
  if (!has(key)) {
    throw Error(ErrorCode::kInvalidArgument, child_path(key), "nothing",
                "a value (it is required)");
  }
  return Node(value_->at(std::string(key)), child_path(key));
}

std::size_t Node::length(std::string_view expected) const {
  if (!value_->is_array()) refuse(expected);
  return value_->size();
}

Node Node::element(std::size_t index) const {
  return Node((*value_)[index], path_ + "[" + std::to_string(index) + "]");
}

std::int64_t Node::integer(std::int64_t low, std::int64_t high) const {
  const bool fits_signed =
      value_->is_number_integer() &&
      (!value_->is_number_unsigned() ||
       value_->get<std::uint64_t>() <=
           static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  const std::int64_t value = fits_signed ? value_->get<std::int64_t>() : 0;
  if (!fits_signed || value < low || value > high) {
    refuse("an integer in " + std::to_string(low) + ".." + std::to_string(high));
  }
  return value;
}

double Node::any_number() const {
  if (value_->is_number()) return value_->get<double>();
  if (value_->is_string()) {
    const auto& text = value_->get_ref<const std::string&>();
    if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (text == "Infinity") return std::numeric_limits<double>::infinity();
    if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  }
  refuse("a number");
}

double Node::number(std::string_view expected) const {
  if (!value_->is_number() || !std::isfinite(value_->get<double>())) refuse(expected);
  return value_->get<double>();
}

bool Node::boolean() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

const std::string& Node::string(std::string_view expected) const {
  if (!value_->is_string()) refuse(expected);
  return value_->get_ref<const std::string&>();
}

std::vector<std::int64_t> Node::integers(std::int64_t low, std::int64_t high) const {
  const std::size_t count = length("a list of integers");
  std::vector<std::int64_t> out;
  out.reserve(count);
  for (std::size_t n = 0; n < count; ++n) {
    const Json& value = (*value_)[n];
    if (value.is_number_unsigned() &&
        value.get<std::uint64_t>() <= static_cast<std::uint64_t>(high) &&
        static_cast<std::int64_t>(value.get<std::uint64_t>()) >= low) {
      out.push_back(static_cast<std::int64_t>(value.get<std::uint64_t>()));
    } else {
      out.push_back(element(n).integer(low, high));
    }
  }
  return out;
}

void Node::refuse(std::string_view expected, ErrorCode code) const {
  throw Error(code, path_.empty() ? "problem" : path_, brief(*value_), std::string(expected));
}

}  // namespace plait::oracle
