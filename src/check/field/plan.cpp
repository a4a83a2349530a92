// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Invariance, re-used workspaces and plans, capacity, splits.
#include <algorithm>
#include <cstring>
#include <memory>

#include "check/compare.h"
#include "check/field/cases.h"
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

// One Attention that lives through several batches; every run must equal a fresh object's.
class Session {
 public:
  Session(const FieldRun& run, const Json& largest, const Capacity& capacity)
      : run_(run), engine_(run.engine()), memory_(run.memory()) {
    const oracle::Problem problem = run.parse(largest);
    Operands operands(problem);
    attention_ = std::make_unique<Attention>(engine_, std::vector{operands.spec()}, capacity,
                                             Attention::Options{operands.policy(), true, false});
  }

  RunResult step(const Json& document) { return run(document, true); }
  /// The same for a problem whose unread memory is left as it is.
  RunResult step(const oracle::Problem& problem) {
    Operands operands(problem);
    return run(operands, true);
  }

  void expect_same_as_fresh(const Json& document, const std::string& what) {
    expect_right(document, run(document, true), what);
  }
  /// The same with the plan that is there already.
  void expect_planned(const Json& document, const std::string& what) {
    expect_right(document, run(document, false), what);
  }

  Attention& attention() { return *attention_; }

 private:
  RunResult run(const Json& document, bool plan) {
    oracle::Problem problem = run_.parse(document);
    poison_unread(problem);
    Operands operands(problem);
    return run(operands, plan);
  }

  RunResult run(Operands& operands, bool plan) {
    const RunArgs args = operands.place(*memory_);
    if (plan) attention_->plan(operands.batch());
    attention_->run(args);
    RunResult result;
    result.o = memory_->fetch(args.o);
    if (args.lse.defined()) result.lse = memory_->fetch(args.lse);
    return result;
  }

  void expect_right(const Json& document, const RunResult& mine, const std::string& what) const {
    const oracle::Problem problem = run_.parse(document);
    const Comparison comparison = compare_with_oracle(problem, mine);
    run_.expect(comparison.ok, what + ": " + comparison.message);
  }

  const FieldRun& run_;
  Engine engine_;
  std::unique_ptr<OperandMemory> memory_;
  std::unique_ptr<Attention> attention_;
};

Shape decode_shape(std::vector<std::int64_t> kv_lens, std::int64_t heads = 8) {
  return {std::vector<std::int64_t>(kv_lens.size(), 1), std::move(kv_lens), heads, 2, 64, 64, 16};
}

Capacity capacity_for(std::int64_t requests, std::int64_t tokens) {
  Capacity capacity;
  capacity.max_requests = requests;
  capacity.max_query_rows = requests;
  capacity.max_kv_tokens = tokens;
  return capacity;
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

void masked_then_causal(const FieldRun& run) {
  // Plans of one object differ in counts only; another mask kind is another spec and refused.
  Json masked = paged({{3, 2}, {5, 7}});
  masked["mask"] = {{"kind", "custom"}, {"packed", {0x55, 0x55, 0x55, 0x55}}};
  run.run_right(masked, "masked");
  Json causal = paged({{3, 2}, {5, 7}});
  causal["mask"] = {{"kind", "causal"}};
  run.run_right(causal, "causal after masked");
  const oracle::Problem problem = run.parse(causal);
  Operands operands(problem);
  const auto memory = run.memory();
  Session session(run, causal, operands.capacity());
  session.attention().plan(operands.batch());
  RunArgs args = operands.place(*memory);
  const std::vector<std::uint8_t> bytes(4, 0x55);
  args.custom_mask = memory->place_u8(bytes);
  run.expect_error([&] { session.attention().run(args); }, "custom_mask",
                   "a mask for a spec without one");
}

void options_at_run_time(const FieldRun& run) {
  const Json document = paged({{1}, {9}, 2, 1});
  const oracle::Problem problem = run.parse(document);
  Operands operands(problem);
  Session session(run, document, operands.capacity());
  session.attention().plan(operands.batch());
  const auto memory = run.memory();
  const std::vector<double> heads(2, 0.5);
  RunArgs args = operands.place(*memory);
  args.sink = memory->place_f32(heads);
  run.expect_error([&] { session.attention().run(args); }, "sink", "a sink that was not planned");
  args = operands.place(*memory);
  args.alibi_slopes = memory->place_f32(heads);
  run.expect_error([&] { session.attention().run(args); }, "alibi_slopes",
                   "slopes that were not planned");
  args = operands.place(*memory);
  args.state = true;
  args.lse = {};
  run.expect_error([&] { session.attention().run(args); }, "o",
                   "a state into an o of another kind");
}

void index_dtypes(const FieldRun& run) {
  const Json document = paged({{1, 1}, {2, 2}, 1, 1, 64, 64, 2});
  const oracle::Problem problem = run.parse(document);
  Operands operands(problem);
  Session session(run, document, operands.capacity());
  session.attention().plan(operands.batch());
  const auto memory = run.memory();
  RunArgs args = operands.place(*memory);
  std::vector<Tensor> ids(args.page_ids.begin(), args.page_ids.end());
  const std::vector<std::int64_t> wide{0, 0, 1, 1};
  ids[0] = memory->place_i32(wide);
  ids[0].dtype = DType::kI64;  // two 64-bit zeros and ones in the same bytes
  ids[0].shape[0] = 2;
  args.page_ids = ids;
  run.expect_error([&] { session.attention().run(args); }, "page_ids[0]", "64-bit page ids");
  // A stride-2 view: honoured or refused, never read as if it were dense.
  ids[0] = memory->place_i32(wide);
  ids[0].shape[0] = 2;
  ids[0].strides[0] = 2;
  args.page_ids = ids;
  run.expect_error([&] { session.attention().run(args); }, "page_ids[0]", "strided page ids");
}

void workspace_one_byte_short(const FieldRun& run) {
  Json document = paged(decode_shape({900, 3, 64}, 64));
  document["head_dim_qk"] = 64;
  const oracle::Problem problem = run.parse(document);
  Operands operands(problem);
  EngineOptions options = run.engine().options();
  // Counts what is asked for, then refuses the last byte of it.
  const auto wanted = std::make_shared<std::int64_t>(0);
  const auto limit = std::make_shared<std::int64_t>(std::int64_t{1} << 60);
  const Allocator inner = options.allocator;
  options.allocator.allocate = [=](std::int64_t bytes, Device device) -> void* {
    *wanted += bytes;
    return *wanted > *limit ? nullptr : inner.allocate(bytes, device);
  };
  const Engine engine(options);
  const Attention::Options how{operands.policy(), true, false};
  const std::vector<AttentionSpec> specs{operands.spec()};
  { const Attention enough(engine, specs, operands.capacity(), how); }
  const std::int64_t needed = *wanted;
  const std::int64_t said = Attention::workspace_bytes(engine, specs, operands.capacity(), how);
  run.expect(said == needed, "workspace_bytes says " + std::to_string(said) + ", allocated " +
                                 std::to_string(needed));
  for (std::int64_t available : {needed - 1, std::int64_t{0}}) {
    *wanted = 0;
    *limit = available;
    run.expect_error([&] { Attention(engine, specs, operands.capacity(), how); }, "workspace",
                     std::to_string(available) + " bytes");
  }
  for (std::int64_t available : {needed, needed + 1}) {
    *wanted = 0;
    *limit = available;
    Attention(engine, specs, operands.capacity(), how);
  }
  // The bound grows with every limit.
  Capacity larger = operands.capacity();
  const auto bytes = [&] { return Attention::workspace_bytes(engine, specs, larger, how); };
  std::int64_t before = bytes();
  for (std::int64_t* field :
       {&larger.max_requests, &larger.max_query_rows, &larger.max_kv_tokens}) {
    *field *= 4;
    run.expect(bytes() >= before, "the bound is monotone");
    before = bytes();
  }
}

void mixed_devices(const FieldRun& run) {
  // Every operand that a run can have, each once on another device than the engine's.
  Json document = paged({{2}, {9}, 2, 2});
  document["kv"]["kind"] = "selected";
  document["kv"]["positions"] = {0, 8, 12};
  document["mask"] = {{"kind", "custom"}, {"packed", {255, 255, 255, 255}}};
  document["alibi_slopes"] = {0.5, 0.25};
  document["sink"] = {0.0, 1.0};
  document["k_scale"] = {0.5, 0.25};
  document["v_scale"] = {2.0, 1.0};
  document["rope"] = {{"kind", "half"},
                      {"q_positions", {{3, 4}}},
                      {"k_positions", {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}}};
  const oracle::Problem problem = run.parse(document);
  Operands operands(problem);
  const auto memory = run.memory();
  Session session(run, document, operands.capacity());
  session.attention().plan(operands.batch());
  const RunArgs right = operands.place(*memory);
  session.attention().run(right);
  const std::pair<const char*, Tensor RunArgs::*> tensors[] = {
      {"q", &RunArgs::q},
      {"k", &RunArgs::k},
      {"v", &RunArgs::v},
      {"o", &RunArgs::o},
      {"lse", &RunArgs::lse},
      {"custom_mask", &RunArgs::custom_mask},
      {"alibi_slopes", &RunArgs::alibi_slopes},
      {"sink", &RunArgs::sink},
      {"k_scales", &RunArgs::k_scales},
      {"v_scales", &RunArgs::v_scales},
      {"q_rope_positions", &RunArgs::q_rope_positions},
      {"k_rope_positions", &RunArgs::k_rope_positions},
  };
  std::vector<Device> others{{DeviceKind::kCuda, 97}};
  if (!run.on_cpu()) others.push_back(Device{});
  for (const Device other : others) {
    for (const auto& [name, member] : tensors) {
      RunArgs args = right;
      run.expect((args.*member).defined(), std::string(name) + " is an operand of this call");
      (args.*member).device = other;
      run.expect_error([&] { session.attention().run(args); }, name,
                       std::string(name) + " on another device");
    }
    RunArgs args = right;
    Tensor moved = right.page_ids[0];
    moved.device = other;
    args.page_ids = {&moved, 1};
    run.expect_error([&] { session.attention().run(args); }, "page_ids[0]", "page ids elsewhere");
    args = right;
    moved = right.positions[0];
    moved.device = other;
    args.positions = {&moved, 1};
    run.expect_error([&] { session.attention().run(args); }, "positions[0]", "positions elsewhere");
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
    {10, "index_dtypes", index_dtypes},
    {19, "causal_after_a_masked_call", masked_then_causal},
    {21, "options_at_run_time", options_at_run_time},
    {25, "batch_invariance", batch_invariance},
    {26, "reused_workspace", reused_workspace},
    {27, "replanned_lengths", replanned_lengths},
    {27, "sequences_of_plans", sequences_of_plans},
    {29, "workspace_one_byte_short", workspace_one_byte_short},
    {30, "mixed_devices", mixed_devices},
    {36, "dirty_counters", dirty_counters},
    {37, "automatic_splits", automatic_splits},
    {37, "many_partial_states", many_partial_states},
    {41, "does_not_hang", does_not_hang},
};

}  // namespace

std::span<const FieldCase> plan_cases() { return kCases; }

}  // namespace plait::check::field
