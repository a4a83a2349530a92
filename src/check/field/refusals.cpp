// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Operands and workspaces that do not belong to the plan, the spec or the device at hand.
#include <memory>
#include <utility>

#include "check/field/cases.h"
#include "check/field/session.h"
#include "plait/error.h"

namespace plait::check::field {
namespace {

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

constexpr FieldCase kCases[] = {
    {10, "index_dtypes", index_dtypes},
    {19, "causal_after_a_masked_call", masked_then_causal},
    {21, "options_at_run_time", options_at_run_time},
    {29, "workspace_one_byte_short", workspace_one_byte_short},
    {30, "mixed_devices", mixed_devices},
};

}  // namespace

std::span<const FieldCase> refusal_cases() { return kCases; }

}  // namespace plait::check::field
