// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Mooncake JSONL: one object a line with exactly "timestamp" (ms), "input_length",
// "output_length" and "hash_ids" (one id per 512-token prompt block, the last may be partial).
// Read through nlohmann's event interface, because its object type keeps the last of two equal
// keys without a word and holds every line in memory twice.
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "core/text.h"
#include "plait/error.h"
#include "serve/line_reader.h"
#include "serve/trace.h"

namespace plait::serve {
namespace {

constexpr std::array<const char*, 4> kFields = {"timestamp", "input_length", "output_length",
                                                "hash_ids"};
constexpr int kHashIds = 3;
/// One hundred years in ms: a larger timestamp is nanoseconds or garbage.
constexpr std::int64_t kMaxTimestampMs = std::int64_t{100} * 366 * 24 * 3600 * 1000;

/// Takes the events of one line. Each returns true (go on) or throws.
class LineHandler {
 public:
  using Json = nlohmann::json;

  explicit LineHandler(const LineReader& reader) : reader_(reader) {}

  bool null() { return wrong("null"); }
  bool boolean(bool value) { return wrong(value ? "true" : "false"); }
  bool number_integer(Json::number_integer_t value) { return wrong(std::to_string(value)); }
  bool number_float(Json::number_float_t, const Json::string_t& text) { return wrong(text); }
  bool string(Json::string_t& value) { return wrong(quote_text(value)); }
  bool binary(Json::binary_t&) { return wrong("binary data"); }

  bool number_unsigned(Json::number_unsigned_t value) {
    if (field_ < 0 || (field_ == kHashIds) != in_array_) return wrong(std::to_string(value));
    if (in_array_) {
      hash_ids.push_back(value);
      return true;
    }
    const std::int64_t low = field_ == 0 ? 0 : 1;
    const std::int64_t high = field_ == 0 ? kMaxTimestampMs : kMaxRequestTokens;
    if (value < static_cast<std::uint64_t>(low) || value > static_cast<std::uint64_t>(high)) {
      return wrong(std::to_string(value));
    }
    values[static_cast<std::size_t>(field_)] = static_cast<std::int64_t>(value);
    field_ = -1;
    return true;
  }

  bool start_object(std::size_t) {
    if (in_object_) return wrong("an object");
    in_object_ = true;
    return true;
  }

  bool key(Json::string_t& name) {
    for (std::size_t i = 0; i < kFields.size(); ++i) {
      if (name != kFields[i]) continue;
      if (seen[i]) reader_.refuse(name, "the key twice", "each key once");
      seen[i] = true;
      field_ = static_cast<int>(i);
      return true;
    }
    reader_.refuse("key", quote_text(name), "timestamp, input_length, output_length or hash_ids");
  }

  bool end_object() { return true; }

  bool start_array(std::size_t) {
    if (field_ != kHashIds || in_array_) return wrong("an array");
    in_array_ = true;
    return true;
  }

  bool end_array() {
    in_array_ = false;
    field_ = -1;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception&) {
    reader_.refuse("line", quote_text(reader_.line()),
                   "one JSON object (parsing stops at byte " + std::to_string(position) + ")");
  }

  std::array<std::int64_t, 3> values{};
  std::array<bool, 4> seen{};
  std::vector<std::uint64_t> hash_ids;

 private:
  bool wrong(const std::string& value) {
    if (!in_object_) reader_.refuse("line", value, "one JSON object");
    if (field_ == kHashIds) {
      reader_.refuse("hash_ids", value, "an array of integers, each at least 0");
    }
    const std::int64_t high = field_ == 0 ? kMaxTimestampMs : kMaxRequestTokens;
    reader_.refuse(
        kFields[static_cast<std::size_t>(field_ < 0 ? 0 : field_)], value,
        std::string("an integer in ") + (field_ == 0 ? "0" : "1") + ".." + std::to_string(high));
  }

  const LineReader& reader_;
  int field_ = -1;
  bool in_object_ = false;
  bool in_array_ = false;
};

}  // namespace

Trace read_mooncake(std::istream& in, const std::string& name, std::int64_t limit) {
  Trace trace;
  trace.name = name;
  LineReader reader(in, name);
  std::int64_t first_ms = 0;
  std::int64_t previous_ms = 0;
  while ((limit == 0 || std::ssize(trace.requests) < limit) && reader.next()) {
    if (std::ssize(trace.requests) == kMaxTraceRequests) {
      reader.refuse("line", "request number " + std::to_string(kMaxTraceRequests + 1),
                    "at most " + std::to_string(kMaxTraceRequests) + " requests (use --limit)");
    }
    // The parser takes a NUL for the end of its input.
    if (reader.line().find('\0') != std::string_view::npos) {
      reader.refuse("line", quote_text(reader.line()), "one JSON object without a NUL byte");
    }
    LineHandler handler(reader);
    nlohmann::json::sax_parse(reader.line(), &handler);
    for (std::size_t i = 0; i < kFields.size(); ++i) {
      if (!handler.seen[i]) reader.refuse(kFields[i], "nothing", "a value on every line");
    }
    const auto [timestamp, input, output] = handler.values;
    if (trace.requests.empty()) {
      first_ms = timestamp;
    } else if (timestamp < previous_ms) {
      reader.refuse("timestamp", std::to_string(timestamp),
                    "at least " + std::to_string(previous_ms) + ", the timestamp one line above");
    }
    previous_ms = timestamp;
    const std::int64_t blocks = (input + kTraceBlockTokens - 1) / kTraceBlockTokens;
    if (std::ssize(handler.hash_ids) != blocks) {
      reader.refuse("hash_ids", std::to_string(handler.hash_ids.size()) + " ids",
                    std::to_string(blocks) + ", one per started block of " +
                        std::to_string(kTraceBlockTokens) + " of its " + std::to_string(input) +
                        " input tokens");
    }
    TraceRequest request;
    request.arrival_ns = (timestamp - first_ms) * 1'000'000;
    request.input_tokens = static_cast<std::int32_t>(input);
    request.output_tokens = static_cast<std::int32_t>(output);
    request.block_keys.reserve(handler.hash_ids.size());
    std::uint64_t key = 0;
    for (const std::uint64_t id : handler.hash_ids) {
      key = chain_block_key(key, id);
      request.block_keys.push_back(key);
    }
    trace.requests.push_back(std::move(request));
  }
  if (trace.requests.empty()) {
    throw Error(ErrorCode::kIo, name, "no request", "at least one line of Mooncake JSONL");
  }
  return trace;
}

}  // namespace plait::serve
