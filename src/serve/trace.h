// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A serving trace: who asked when, for how many tokens, sharing which prompt blocks. Readers are
// strict: a line that is not understood completely is refused with file, line, field, value and
// what was expected; nothing is skipped, sorted or repaired behind the user's back.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace plait::serve {

/// Tokens of one prompt block of a trace; sharing between requests happens in whole blocks.
inline constexpr std::int32_t kTraceBlockTokens = 512;
/// Longest input or output that a trace may claim. Far above any served context; low enough that
/// input + output, times 2^20 requests, stays clear of 2^63 in every sum made downstream.
inline constexpr std::int64_t kMaxRequestTokens = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxTraceRequests = std::int64_t{1} << 20;
/// Longest line accepted. A prompt of kMaxRequestTokens has 32768 block ids.
inline constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20;

struct TraceRequest {
  std::int64_t arrival_ns = 0;  // since the first request of the trace
  std::int32_t input_tokens = 0;
  std::int32_t output_tokens = 0;
  /// One key per prompt block of kTraceBlockTokens (the last may be partial), each a hash of all
  /// block ids up to it, so that equal keys mean equal prefixes. Empty: shares with nobody.
  std::vector<std::uint64_t> block_keys;
};

struct Trace {
  std::string name;
  std::vector<TraceRequest> requests;  // by arrival
};

enum class TraceFormat { kAuto, kMooncake, kAzure };

/// Reads at most `limit` requests (0: all). `name` appears in messages as "name:line: field".
/// Throws Error{kIo} for anything malformed, empty or absurd.
Trace read_mooncake(std::istream& in, const std::string& name, std::int64_t limit);
Trace read_azure(std::istream& in, const std::string& name, std::int64_t limit);

/// Either of them, after a byte order mark if there is one. kAuto takes Mooncake JSONL if the first
/// character is '{' and Azure CSV otherwise.
Trace read_trace(std::istream& in, const std::string& name, TraceFormat format, std::int64_t limit);

/// The same from a file.
Trace read_trace_file(const std::string& path, TraceFormat format, std::int64_t limit);

/// Chains a block id to the key of the blocks before it (0 for the first).
std::uint64_t chain_block_key(std::uint64_t previous_key, std::uint64_t block_id) noexcept;

/// Divides all arrival times by `factor` (2: requests come twice as fast). Precondition: factor >
/// 0. This and set_rate throw Error{kInvalidArgument} if an arrival would lie beyond a hundred
/// years.
void scale_time(Trace& trace, double factor);

/// Replaces arrival times by a seeded Poisson process of `requests_per_second`.
void set_rate(Trace& trace, double requests_per_second, std::uint64_t seed);

}  // namespace plait::serve
