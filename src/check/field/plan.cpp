// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Invariance, re-used workspaces and plans, splits.
#include <algorithm>
#include <cstring>
#include <memory>

#include "check/compare.h"
#include "check/field/cases.h"
#include "check/field/session.h"
#include "check/operands.h"
#include "check/random.h"
#include "check/transforms.h"

namespace plait::check::field {
namespace {

void batch_invariance(const FieldRun& run) {
  Shape shape{{70}, {3000}, 4, 2, 64, 64, 16, "bf16", "bf16"};
  for (int n = 0; n < 63; ++n) {
    shape.qo_lens.push_back(1);
    shape.kv_lens.push_back(1 + 37 * n % 200);
  }
  Json document = paged(shape);
  document["mask"] = {{"kind", "causal"}};
  // Enough workers for the request to be cut where it is alone and not where it has company.
  document["plan"] = {{"policy", "batch_invariant"}, {"num_workers", 24}};
  const oracle::Problem problem = run.parse(document);
  std::vector<Slice> slices;
  for (std::int64_t r = 0; r < 64; ++r) slices.push_back({r, 0, problem.qo_len(r)});
  const RunResult as_first = run.run(problem);
  std::rotate(slices.begin(), slices.begin() + 1, slices.end());
  const RunResult as_last = run.run(slice_requests(problem, slices, 16));
  const RunResult alone = run.run(slice_requests(problem, {{0, 0, 70}}, 16));
  const auto rows = [](const RunResult& result, std::int64_t begin, std::int64_t count) {
    const std::int64_t width = result.o.shape[1] * result.o.shape[2] * size_of(result.o.dtype);
    const auto* data = static_cast<const char*>(result.o.storage->data()) + begin * width;
    return std::string(data, static_cast<std::size_t>(count * width));
  };
  run.expect(rows(as_first, 0, 70) == rows(alone, 0, 70), "row 0 against alone");
  run.expect(rows(as_last, 63, 70) == rows(alone, 0, 70), "row 63 against alone");
  // Decode at 65 keys: the capacity a caller reserves does not matter, only the request does.
  Json decode = paged({{1}, {65}, 8, 2, 64, 64, 16, "bf16", "bf16"});
  decode["plan"] = {{"policy", "batch_invariant"}};
  const oracle::Problem one = run.parse(decode);
  std::vector<oracle::HostTensor> outputs;
  for (std::int64_t capacity_tokens : {128, 65536}) {
    Operands operands(one);
    const auto memory = run.memory();
    const Engine engine = run.engine();
    Capacity capacity = operands.capacity();
    capacity.max_kv_tokens = capacity_tokens;
    Attention attention(engine, {operands.spec()}, capacity, {operands.policy(), true, false});
    const RunArgs args = operands.place(*memory);
    attention.plan(operands.batch());
    attention.run(args);
    outputs.push_back(memory->fetch(args.o));
  }
  const Comparison same = compare_bits(outputs[0], outputs[1], "o");
  run.expect(same.ok, "max_kv_tokens 128 against 65536: " + same.message);
}

// Cut into chunks whatever the number of workers, so that partial states and counters are used.
Json in_chunks(Json document) {
  document["plan"] = {{"policy", "fixed_chunk"}, {"kv_chunk", 64}};
  return document;
}

Capacity capacity_in_chunks(std::int64_t requests, std::int64_t tokens) {
  Capacity capacity = capacity_for(requests, tokens);
  capacity.min_kv_chunk = 64;
  return capacity;
}

void reused_workspace(const FieldRun& run) {
  std::vector<std::int64_t> lens;
  for (std::int64_t n = 0; n < 64; ++n) lens.push_back(1 + 53 * n % 170);
  const Json many = in_chunks(paged(decode_shape(lens, 4)));
  const Json two = in_chunks(paged(decode_shape({300, 5}, 4)));
  Session session(run, many, capacity_in_chunks(64, 700));
  session.expect_same_as_fresh(many, "64 requests");
  session.expect_same_as_fresh(two, "2 requests after 64 in one workspace");
}

void replanned_lengths(const FieldRun& run) {
  const Json first = paged(decode_shape({16, 16, 16, 16}));
  Session session(run, first, capacity_for(4, 4096));
  session.expect_same_as_fresh(first, "16 x 4");
  session.expect_same_as_fresh(paged(decode_shape({1, 100, 16, 0})), "1, 100, 16, 0");
  session.expect_same_as_fresh(paged(decode_shape({4096, 1, 1, 1})), "4096, 1, 1, 1");
  session.expect_same_as_fresh(paged(decode_shape({30, 2, 7, 0})), "3 live requests of 4");
  session.expect_same_as_fresh(first, "16 x 4 again");
  // Over capacity is refused by name, and the plan before it stays.
  const oracle::Problem longer = run.parse(paged(decode_shape({5000, 1, 1, 1})));
  Operands operands(longer);
  run.expect_error([&] { session.attention().plan(operands.batch()); }, "kv_len",
                   "5000 keys in a capacity of 4096");
  session.expect_planned(first, "the plan before the refusal");
}

// Batches of every kind in a row through one object: short after long and the reverse, live
// requests beside padding, nothing at all, shared prefixes, and refused ones in between. What a
// plan leaves behind must not show in the next.
void sequences_of_plans(const FieldRun& run) {
  constexpr std::int64_t kRequests = 4;
  constexpr std::int64_t kTokens = 320;
  constexpr std::uint64_t kSeed = 27;
  Random random(kSeed);
  const auto draw_keys = [&] {
    return random.pick<std::int64_t>({0, 1, 3, 4, 5, 16, 63, 64, 65, 100, 257, kTokens});
  };
  for (const char* policy : {"throughput", "batch_invariant", "fixed_chunk", "unsplit"}) {
    const bool fixed = std::string(policy) == "fixed_chunk";
    const auto document_of = [&](const std::vector<std::int64_t>& rows,
                                 const std::vector<std::int64_t>& keys) {
      Json document = paged({rows, keys, 4, 2, 64, 64, 4});
      document["mask"] = {{"kind", "causal"}};
      document["plan"] = {{"policy", policy}, {"num_workers", 7}};
      if (fixed) document["plan"]["kv_chunk"] = 64;
      return document;
    };
    Capacity capacity = capacity_for(kRequests, kTokens);
    capacity.max_query_rows = 40;
    if (fixed) capacity.min_kv_chunk = 64;
    Session session(run, document_of({1}, {1}), capacity);
    for (int step = 0; step < 14; ++step) {
      const std::string what = std::string(policy) + ", step " + std::to_string(step) +
                               " of seed " + std::to_string(kSeed);
      std::vector<std::int64_t> rows;
      std::vector<std::int64_t> keys;
      const std::int64_t live = step % 5 == 4 ? 0 : random.integer(1, kRequests);
      for (std::int64_t r = 0; r < live; ++r) {
        rows.push_back(random.pick<std::int64_t>({0, 1, 1, 1, 2, 9}));
        keys.push_back(draw_keys());
      }
      // Padding to the captured number of requests: no rows, no keys.
      if (step % 2 == 0) {
        rows.resize(kRequests, 0);
        keys.resize(kRequests, 0);
      }
      const Json document = document_of(rows, keys);
      session.expect_same_as_fresh(document, what);
      if (step % 3 != 2) continue;
      const oracle::Problem longer = run.parse(document_of({1, 1}, {7, kTokens + 1}));
      Operands operands(longer);
      run.expect_error([&] { session.attention().plan(operands.batch()); }, "kv_len", what);
      session.expect_planned(document, what + ", after a refusal");
    }
  }
}

void dirty_counters(const FieldRun& run) {
  const Json a = in_chunks(paged(decode_shape({700, 30})));
  const Json b = in_chunks(paged(decode_shape({5, 640})));
  Session session(run, a, capacity_in_chunks(2, 1000));
  const RunResult first = session.step(a);
  session.expect_same_as_fresh(b, "another batch in between");
  run.expect_same_bits(first, session.step(a), "A, B, A in one workspace");
}

void automatic_splits(const FieldRun& run) {
  const Json document = paged({{1}, {2049}, 3, 1, 32, 32, 16});
  Session session(run, document, capacity_for(1, 2049));
  Json unsplit = document;
  unsplit["plan"] = {{"policy", "unsplit"}};
  Session whole(run, unsplit, capacity_for(1, 2049));
  // Every length; on a GPU up to 16 pages, then a stride that meets all residues of the page size.
  oracle::Problem problem = run.parse(document);
  const std::vector<std::int64_t> pages = problem.levels[0].indices;
  for (std::int64_t keys = 1; keys <= 2049; keys += run.on_cpu() || keys < 260 ? 1 : 13) {
    oracle::Level& level = problem.levels[0];
    const std::int64_t count = (keys + 15) / 16;
    level.indptr = {0, count};
    level.indices.assign(pages.begin(), pages.begin() + count);
    level.last_page_len = {keys - 16 * (count - 1)};
    const RunResult one = whole.step(problem);
    const RunResult split = session.step(problem);
    for (std::int64_t n = 0; n < one.o.size(); ++n) {
      run.expect_near(split.o.load(n), one.o.load(n), 2e-3, "kv_len " + std::to_string(keys));
    }
  }
  // A number of splits that is asked for; short requests fill the first of them only.
  for (std::int64_t splits = 1; splits <= 16; ++splits) {
    for (std::int64_t keys : {1, 16, 17, 255, 500, 2049}) {
      const std::int64_t blocks = (keys + 15) / 16;
      Json fixed = paged(decode_shape({keys, 3}, 4));
      fixed["plan"] = {{"policy", "fixed_chunk"},
                       {"kv_chunk", 16 * ((blocks + splits - 1) / splits)},
                       {"num_workers", splits % 5 + 1}};
      run.run_right(fixed, std::to_string(splits) + " splits, " + std::to_string(keys) + " keys");
    }
  }
}

// A fold of two thousand states would round its lse two thousand times.
void many_partial_states(const FieldRun& run) {
  Json document = paged({{1}, {4000}, 1, 1, 40, 40, 1});
  document["plan"] = {{"policy", "fixed_chunk"}, {"kv_chunk", 2}};
  run.run_right(document, "2000 partial states of a row");
}

void does_not_hang(const FieldRun& run) {
  for (std::int64_t keys : {256, 257}) {
    Shape shape{{1}, {keys}, 64, 8, 128, 128, 32, "bf16", "bf16"};
    Json document = paged(shape);
    document["dtype"]["kv"] = "f8_e4m3";
    document["mask"] = {{"kind", "causal"}, {"window_left", 511}};
    run.run_right(document, std::to_string(keys) + " keys");
    // fp8 queries are served or refused by name, within the test's time limit.
    document["dtype"]["q"] = "f8_e4m3";
    try {
      run.run(document);
    } catch (const Error& error) {
      run.expect(error.code() == ErrorCode::kUnsupported, error.what());
    }
  }
}

constexpr FieldCase kCases[] = {
    {25, "batch_invariance", batch_invariance},
    {26, "reused_workspace", reused_workspace},
    {27, "replanned_lengths", replanned_lengths},
    {27, "sequences_of_plans", sequences_of_plans},
    {36, "dirty_counters", dirty_counters},
    {37, "automatic_splits", automatic_splits},
    {37, "many_partial_states", many_partial_states},
    {41, "does_not_hang", does_not_hang},
};

}  // namespace

std::span<const FieldCase> plan_cases() { return kCases; }

}  // namespace plait::check::field
