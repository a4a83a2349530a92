// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/workload.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <numbers>

#include "core/text.h"
#include "plait/error.h"
#include "serve/hash.h"

namespace plait::serve {
namespace {

constexpr double kDefaultRate = 8.0;

std::int32_t log_normal(Random& random, double median, double sigma, double low, double high) {
  const double radius = std::sqrt(-2.0 * std::log1p(-random.uniform()));
  const double normal = radius * std::cos(2.0 * std::numbers::pi * random.uniform());
  return static_cast<std::int32_t>(std::clamp(median * std::exp(sigma * normal), low, high));
}

/// Blocks of a prompt that come from one text.
struct Stretch {
  std::int64_t blocks;
  std::uint64_t text;
};

/// Keys of a prompt of `tokens`: the blocks of shared texts first, then its own.
std::vector<std::uint64_t> block_keys(std::int64_t tokens, std::initializer_list<Stretch> shared,
                                      std::uint64_t own) {
  std::vector<std::uint64_t> keys;
  std::uint64_t key = 0;
  const auto add = [&](std::uint64_t text) {
    key = chain_block_key(key, hash_combine(text, keys.size()));
    keys.push_back(key);
  };
  for (const Stretch& stretch : shared) {
    for (std::int64_t b = 0; b < stretch.blocks; ++b) add(stretch.text);
  }
  while (std::ssize(keys) * kTraceBlockTokens < tokens) add(own);
  return keys;
}

bool parse_count(std::string_view text, std::int64_t& value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return !text.empty() && result.ec == std::errc() && result.ptr == end && value >= 1 &&
         value <= kMaxRequestTokens;
}

[[noreturn]] void refuse(std::string_view text) {
  throw Error(ErrorCode::kInvalidArgument, "workload", quote_text(text), known_workloads());
}

}  // namespace

std::string known_workloads() {
  return "sharegpt-like, uniform:a:b (1 <= a <= b), skewed, shared-prefix or parallel:n (n >= 1)";
}

Trace generate_workload(std::string_view text, std::int64_t num_requests, std::uint64_t seed) {
  if (num_requests < 1 || num_requests > kMaxTraceRequests) {
    throw Error(ErrorCode::kInvalidArgument, "limit", std::to_string(num_requests),
                "1.." + std::to_string(kMaxTraceRequests) + " requests");
  }
  const std::string_view kind = text.substr(0, text.find(':'));
  const std::string_view arguments =
      kind.size() == text.size() ? std::string_view{} : text.substr(kind.size() + 1);
  const bool takes_arguments = kind == "uniform" || kind == "parallel";
  if (takes_arguments == (kind.size() == text.size())) refuse(text);
  std::int64_t low = 0;
  std::int64_t high = 0;
  std::int64_t samples = 1;
  if (kind == "uniform") {
    const std::size_t colon = arguments.find(':');
    if (colon == std::string_view::npos || !parse_count(arguments.substr(0, colon), low) ||
        !parse_count(arguments.substr(colon + 1), high) || low > high) {
      refuse(text);
    }
  } else if (kind == "parallel") {
    if (!parse_count(arguments, samples) || samples > 1024) refuse(text);
  } else if (kind != "sharegpt-like" && kind != "skewed" && kind != "shared-prefix") {
    refuse(text);
  }

  Trace trace;
  trace.name = std::string(text);
  Random random(hash_combine(seed, 0x776f726b));
  std::int64_t prompt_tokens = 0;  // parallel: of the samples that share it
  for (std::int64_t i = 0; i < num_requests; ++i) {
    const std::uint64_t own = hash_combine(seed, static_cast<std::uint64_t>(i) + (1ULL << 32));
    TraceRequest request;
    if (kind == "sharegpt-like") {
      request.input_tokens = log_normal(random, 130.0, 1.1, 4.0, 4096.0);
      request.output_tokens = log_normal(random, 180.0, 0.8, 4.0, 1024.0);
    } else if (kind == "uniform") {
      request.input_tokens = static_cast<std::int32_t>(random.integer(low, high));
      request.output_tokens = 256;
    } else if (kind == "skewed") {
      request.input_tokens = log_normal(random, 2048.0, 1.2, 128.0, 32768.0);
      request.output_tokens = static_cast<std::int32_t>(random.integer(32, 256));
    } else if (kind == "shared-prefix") {
      // The first few system prompts and documents are the popular ones.
      const auto prefix = static_cast<std::uint64_t>(8.0 * random.uniform() * random.uniform());
      const auto document = static_cast<std::uint64_t>(4.0 * random.uniform() * random.uniform());
      const std::uint64_t prefix_id = hash_combine(seed, prefix);
      const std::uint64_t document_id = hash_combine(prefix_id, document);
      const auto blocks = static_cast<std::int64_t>(4 + prefix_id % 9);
      const auto document_blocks = static_cast<std::int64_t>(2 + document_id % 7);
      request.input_tokens =
          static_cast<std::int32_t>((blocks + document_blocks) * kTraceBlockTokens) +
          log_normal(random, 200.0, 0.8, 8.0, 2048.0);
      request.output_tokens = static_cast<std::int32_t>(random.integer(64, 256));
      request.block_keys = block_keys(request.input_tokens,
                                      {{blocks, prefix_id}, {document_blocks, document_id}}, own);
    } else {
      if (i % samples == 0) prompt_tokens = random.integer(1024, 4096);
      request.input_tokens = static_cast<std::int32_t>(prompt_tokens);
      request.output_tokens = static_cast<std::int32_t>(random.integer(64, 256));
      const std::uint64_t prompt = hash_combine(seed, static_cast<std::uint64_t>(i / samples));
      request.block_keys = block_keys(prompt_tokens, {}, prompt);
    }
    if (request.block_keys.empty()) {
      request.block_keys = block_keys(request.input_tokens, {}, own);
    }
    trace.requests.push_back(std::move(request));
  }
  set_rate(trace, kDefaultRate, seed);
  for (std::int64_t i = 0; i < num_requests; ++i) {
    trace.requests[static_cast<std::size_t>(i)].arrival_ns =
        trace.requests[static_cast<std::size_t>(i / samples * samples)].arrival_ns;
  }
  return trace;
}

}  // namespace plait::serve
