// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Azure LLM inference CSV: a header TIMESTAMP,ContextTokens,GeneratedTokens and lines such as
// "2023-11-16 18:15:46.6805900,374,44". The published files carry seven fractional digits (100 ns
// ticks) and end without a newline; later ones carry six digits and a "+00:00" zone.
#include <charconv>
#include <optional>
#include <string>

#include "core/text.h"
#include "plait/error.h"
#include "serve/line_reader.h"
#include "serve/trace.h"

namespace plait::serve {
namespace {

constexpr std::string_view kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr std::string_view kTimestampExpected =
    "YYYY-MM-DD HH:MM:SS with up to 9 fractional digits";

/// Days since 1970-01-01 in the proleptic Gregorian calendar (years from March, as Hinnant's
/// chrono algorithms do: leap days then fall at the end of a year).
constexpr std::int64_t days_from_civil(std::int64_t year, std::int64_t month, std::int64_t day) {
  year -= month <= 2 ? 1 : 0;
  const std::int64_t era = year / 400;
  const std::int64_t year_of_era = year - era * 400;
  const std::int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  const std::int64_t day_of_era =
      year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
  return era * 146097 + day_of_era - 719468;
}
static_assert(days_from_civil(1970, 1, 1) == 0 && days_from_civil(2000, 3, 1) == 11017);

constexpr std::int64_t days_in_month(std::int64_t year, std::int64_t month) {
  constexpr std::int64_t kDays[12] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  return kDays[month - 1] + (month == 2 && leap ? 1 : 0);
}

/// Exactly `count` digits at the front of `text`, which loses them.
std::optional<std::int64_t> take_digits(std::string_view& text, std::size_t count) {
  if (text.size() < count) return std::nullopt;
  std::int64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (text[i] < '0' || text[i] > '9') return std::nullopt;
    value = value * 10 + (text[i] - '0');
  }
  text.remove_prefix(count);
  return value;
}

bool take(std::string_view& text, std::string_view expected) {
  if (text.substr(0, expected.size()) != expected) return false;
  text.remove_prefix(expected.size());
  return true;
}

/// Nanoseconds since 1970, or nothing if `text` is not a complete, existing date and time.
std::optional<std::int64_t> parse_timestamp(std::string_view text) {
  const auto year = take_digits(text, 4);
  if (!year || *year < 1970 || *year > 2200 || !take(text, "-")) return std::nullopt;
  const auto month = take_digits(text, 2);
  if (!month || *month < 1 || *month > 12 || !take(text, "-")) return std::nullopt;
  const auto day = take_digits(text, 2);
  if (!day || *day < 1 || *day > days_in_month(*year, *month)) return std::nullopt;
  if (!take(text, " ") && !take(text, "T")) return std::nullopt;
  const auto hour = take_digits(text, 2);
  if (!hour || *hour > 23 || !take(text, ":")) return std::nullopt;
  const auto minute = take_digits(text, 2);
  if (!minute || *minute > 59 || !take(text, ":")) return std::nullopt;
  const auto second = take_digits(text, 2);
  if (!second || *second > 59) return std::nullopt;
  std::int64_t nanoseconds = 0;
  if (take(text, ".")) {
    std::int64_t unit = 100'000'000;
    std::size_t digits = 0;
    while (!text.empty() && text[0] >= '0' && text[0] <= '9') {
      if (++digits > 9) return std::nullopt;
      nanoseconds += (text[0] - '0') * unit;
      unit /= 10;
      text.remove_prefix(1);
    }
    if (digits == 0) return std::nullopt;
  }
  if (!text.empty() && text != "Z" && text != "+00:00") return std::nullopt;
  const std::int64_t days = days_from_civil(*year, *month, *day);
  return (((days * 24 + *hour) * 60 + *minute) * 60 + *second) * 1'000'000'000 + nanoseconds;
}

std::int32_t parse_tokens(const LineReader& reader, std::string_view field, std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (text.empty() || result.ec != std::errc() || result.ptr != end || value < 1 ||
      value > kMaxRequestTokens) {
    reader.refuse(field, quote_text(text), "an integer in 1.." + std::to_string(kMaxRequestTokens));
  }
  return static_cast<std::int32_t>(value);
}

}  // namespace

Trace read_azure(std::istream& in, const std::string& name, std::int64_t limit) {
  Trace trace;
  trace.name = name;
  LineReader reader(in, name);
  if (!reader.next()) {
    throw Error(ErrorCode::kIo, name, "an empty file",
                "the header " + std::string(kHeader) + " and at least one line");
  }
  if (reader.line() != kHeader) {
    reader.refuse("header", quote_text(reader.line()), kHeader);
  }
  std::int64_t first_ns = 0;
  std::int64_t previous_ns = 0;
  while ((limit == 0 || std::ssize(trace.requests) < limit) && reader.next()) {
    if (std::ssize(trace.requests) == kMaxTraceRequests) {
      reader.refuse("line", "request number " + std::to_string(kMaxTraceRequests + 1),
                    "at most " + std::to_string(kMaxTraceRequests) + " requests (use --limit)");
    }
    const std::string_view line = reader.line();
    const std::size_t comma1 = line.find(',');
    const std::size_t comma2 =
        comma1 == std::string_view::npos ? comma1 : line.find(',', comma1 + 1);
    if (comma2 == std::string_view::npos || line.find(',', comma2 + 1) != std::string_view::npos) {
      reader.refuse("line", quote_text(line), "three fields: " + std::string(kHeader));
    }
    const std::string_view time_text = line.substr(0, comma1);
    const auto time_ns = parse_timestamp(time_text);
    if (!time_ns) reader.refuse("TIMESTAMP", quote_text(time_text), kTimestampExpected);
    if (trace.requests.empty()) {
      first_ns = *time_ns;
    } else if (*time_ns < previous_ns) {
      reader.refuse("TIMESTAMP", quote_text(time_text), "a time not before that of the line above");
    }
    previous_ns = *time_ns;
    TraceRequest request;
    request.arrival_ns = *time_ns - first_ns;
    request.input_tokens =
        parse_tokens(reader, "ContextTokens", line.substr(comma1 + 1, comma2 - comma1 - 1));
    request.output_tokens = parse_tokens(reader, "GeneratedTokens", line.substr(comma2 + 1));
    trace.requests.push_back(std::move(request));
  }
  if (trace.requests.empty()) {
    throw Error(ErrorCode::kIo, name, "a header and no request", "at least one line after it");
  }
  return trace;
}

}  // namespace plait::serve
