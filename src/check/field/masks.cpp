// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Empty requests, causality, windows, custom masks.
#include <cmath>
#include <limits>

#include "check/field/cases.h"
#include "core/owned_batch.h"

namespace plait::check::field {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double index_value(std::int64_t, std::int64_t index, std::int64_t) {
  return static_cast<double>(index);
}

// q = 0 and v[j] = j: the output is the mean of the visible positions.
Json mean_probe(const Shape& shape, Json mask, bool is_paged = true) {
  Json document = is_paged ? paged(shape) : ragged(shape);
  fill(document["q"], "zeros");
  if (is_paged) {
    document["kv"]["v_cache"] = values_by_token(shape, true, index_value);
  } else {
    document["kv"]["v"] = values_by_token(shape, false, index_value);
  }
  document["mask"] = std::move(mask);
  return document;
}

void expect_mean(const FieldRun& run, const RunResult& result, std::int64_t row, double mean,
                 std::int64_t count, const char* what) {
  for (std::int64_t head = 0; head < result.o.shape[1]; ++head) {
    run.expect_o(result, row, head, mean, 1e-3 + 1e-5 * std::fabs(mean), what);
    run.expect_lse(result, row, head, count == 0 ? -kInfinity : std::log(count), 1e-5, what);
  }
}

void decode_with_empty_request(const FieldRun& run) {
  const Shape shape{{1, 1, 1}, {5, 0, 3}, 8, 2, 64, 64, 4};
  for (const char* kind : {"none", "causal"}) {
    const RunResult result = run.run(mean_probe(shape, {{"kind", kind}}));
    expect_mean(run, result, 0, 2, 5, kind);
    expect_mean(run, result, 1, 0, 0, kind);
    expect_mean(run, result, 2, 1, 3, kind);
  }
}

void chunked_prefix_without_keys(const FieldRun& run) {
  Shape shape{{4, 4}, {6, 0}, 2, 2, 192, 128, 4, "bf16", "bf16"};
  for (bool is_paged : {true, false}) {
    Json document = is_paged ? paged(shape) : ragged(shape);
    document["state"] = true;
    const RunResult result = run.run_right(document, "state");
    for (std::int64_t row = 4; row < 8; ++row) {
      for (std::int64_t head = 0; head < 2; ++head) {
        run.expect_o(result, row, head, 0, 0, "request without keys");
        run.expect_lse(result, row, head, -kInfinity, 0, "request without keys");
      }
    }
  }
}

void cascade_with_empty_prefix(const FieldRun& run) {
  const Shape shape{{1, 3}, {9, 6}, 4, 2, 64, 64, 4};
  Json flat = paged(shape);
  flat["mask"] = {{"kind", "causal"}};
  Json cascade = flat;
  Json last = flat["kv"];
  for (const char* key : {"kind", "page_size", "k_cache", "v_cache"}) last.erase(key);
  last["qo_indptr"] = flat["qo_indptr"];
  const Json empty = {{"qo_indptr", {0, 4}},
                      {"indptr", {0, 0}},
                      {"indices", Json::array()},
                      {"last_page_len", {0}}};
  cascade["kv"] = {{"kind", "cascade"},
                   {"page_size", 4},
                   {"k_cache", flat["kv"]["k_cache"]},
                   {"v_cache", flat["kv"]["v_cache"]},
                   {"levels", {empty, last}}};
  for (const char* policy : {"batch_invariant", "throughput", "unsplit"}) {
    flat["plan"] = {{"policy", policy}};
    cascade["plan"] = {{"policy", policy}};
    const RunResult a = run.run_right(flat, "flat");
    const RunResult b = run.run_right(cascade, "cascade with an empty prefix");
    if (std::string(policy) == "batch_invariant") run.expect_same_bits(a, b, policy);
  }
}

void more_queries_than_keys(const FieldRun& run) {
  Shape shape{{5}, {2}};
  Json document = mean_probe(shape, {{"kind", "causal"}});
  document["kv"]["v_cache"] =
      values_by_token(shape, true, [](std::int64_t, std::int64_t index, std::int64_t) -> double {
        return static_cast<double>(index + 1);
      });
  const RunResult result = run.run(document);
  for (std::int64_t row = 0; row < 3; ++row) expect_mean(run, result, row, 0, 0, "no key");
  expect_mean(run, result, 3, 1, 1, "one key");
  expect_mean(run, result, 4, 1.5, 2, "two keys");
}

void tail_lanes(const FieldRun& run) {
  Shape shape{{1}, {1}, 8, 8, 128, 128, 16};
  for (std::int64_t keys = 1; keys <= 257; ++keys) {
    shape.kv_lens = {keys};
    Json document = paged(shape);
    fill(document["q"], "zeros");
    fill(document["kv"]["k_cache"], "ones");
    fill(document["kv"]["v_cache"], "ones");
    const RunResult result = run.run(document);
    for (std::int64_t head = 0; head < 8; ++head) {
      run.expect_o(result, 0, head, 1, 1e-6, "kv_len " + std::to_string(keys));
    }
  }
  // A block mask wider than the keys that exist.
  Json block = ragged({{1}, {64}});
  fill(block["q"], "zeros");
  fill(block["kv"]["v"], "ones");
  block["kv"].erase("indptr");
  block["kv"].update({{"kind", "bsr"},
                      {"block_rows", 1},
                      {"block_cols", 64},
                      {"indptr", {0, 1}},
                      {"indices", Json::array({0})}});
  run.expect_o(run.run(block), 0, 0, 1, 1e-6, "one block of 64");
}

void causal_alignment(const FieldRun& run) {
  RunResult result = run.run(mean_probe({{2}, {3}}, {{"kind", "causal"}}));
  expect_mean(run, result, 0, 0.5, 2, "first of two rows");
  expect_mean(run, result, 1, 1.0, 3, "second of two rows");
  result = run.run(mean_probe({{1}, {8}}, {{"kind", "causal"}}));
  expect_mean(run, result, 0, 3.5, 8, "decode sees every key");
}

void sliding_window(const FieldRun& run) {
  for (const char* kind : {"none", "causal"}) {
    const auto window = [&](std::int64_t w) { return Json{{"kind", kind}, {"window_left", w}}; };
    expect_mean(run, run.run(mean_probe({{1}, {8}}, window(3))), 0, 5.5, 4, "W = 3");
    expect_mean(run, run.run(mean_probe({{1}, {8}}, window(0))), 0, 7, 1, "W = 0");
    expect_mean(run, run.run(mean_probe({{1}, {8}}, window(8))), 0, 3.5, 8, "W = kv_len");
    expect_mean(run, run.run(mean_probe({{1}, {8}}, window(-1))), 0, 3.5, 8, "off");
  }
  const RunResult wide = run.run(mean_probe({{4}, {4}}, {{"kind", "causal"}, {"window_left", 10}}));
  for (std::int64_t row = 0; row < 4; ++row) {
    expect_mean(run, wide, row, static_cast<double>(row) / 2, row + 1, "window wider than keys");
  }
}

void window_without_causal_under_split(const FieldRun& run) {
  Json small = mean_probe({{3}, {64}}, {{"kind", "none"}, {"window_left", 2}});
  for (std::int64_t workers : {1, 3, 8}) {
    small["plan"] = {{"policy", "fixed_chunk"}, {"kv_chunk", 8}, {"num_workers", workers}};
    const RunResult result = run.run(small);
    for (std::int64_t row = 0; row < 3; ++row) {
      const std::int64_t first = row + 64 - 3 - 2;
      expect_mean(run, result, row, static_cast<double>(first + 63) / 2, 64 - first, "small");
    }
  }
  // 300 rows over 4096 keys, with a narrower head so that the probe data stays small.
  Json large = ragged({{300}, {4096}, 8, 2, 128, 128});
  fill(large["q"], "zeros");
  fill(large["kv"]["v"], {{"index", 0}});
  large["dtype"]["kv"] = "f16";
  large["mask"] = {{"kind", "none"}, {"window_left", 333}};
  large["plan"] = {{"policy", "fixed_chunk"}, {"kv_chunk", 256}, {"num_workers", 7}};
  const RunResult result = run.run(large);
  const oracle::HostTensor v = run.parse(large).v;
  for (std::int64_t row = 0; row < 300; row += 13) {
    const std::int64_t first = row + 4096 - 300 - 333;
    double sum = 0;  // v is rounded to f16 beyond 2048
    for (std::int64_t j = first; j < 4096; ++j) {
      const std::int64_t at[] = {j, 0, 0};
      sum += v.load(v.at(at));
    }
    run.expect_o(result, row, 3, sum / static_cast<double>(4096 - first), 2, "large");
    run.expect_lse(result, row, 3, std::log(4096 - first), 1e-5, "large");
  }
}

Json matrix(std::int64_t rows, std::int64_t columns, std::int64_t salt) {
  Json out = Json::array();
  for (std::int64_t i = 0; i < rows; ++i) {
    Json row = Json::array();
    for (std::int64_t j = 0; j < columns; ++j) row.push_back((i + j + salt) % 2);
    out.push_back(row);
  }
  return out;
}

// Json::array, not braces, around a single matrix: compilers disagree on whether Json{value} is an
// array of one or a copy.
void custom_mask_shape(const FieldRun& run) {
  Json document = paged({{10}, {20}});
  document["mask"] = {{"kind", "custom"}, {"custom", Json::array({matrix(10, 15, 0)})}};
  run.expect_refused(document, "mask.custom[0]");
  document["mask"]["custom"] = Json::array({matrix(20, 10, 0)});
  run.expect_refused(document, "mask.custom[0]");
  document["mask"]["custom"] = Json::array({matrix(10, 20, 0)});
  run.run_right(document, "right shape");
  document["mask"] = {{"kind", "custom"}, {"packed", std::vector<int>(24, 255)}};
  run.expect_refused(document, "mask.packed");
  // 9 bits end in the second byte; the operand is exactly two bytes long, the sanitizers watch.
  Json decode = paged({{1}, {9}});
  decode["mask"] = {{"kind", "custom"}, {"packed", {255, 1}}};
  run.run_right(decode, "nine keys");
}

void bit_packing_across_requests(const FieldRun& run) {
  Json document = paged({{3, 2}, {5, 7}});
  document["mask"] = {{"kind", "custom"}, {"custom", {matrix(3, 5, 0), matrix(2, 7, 1)}}};
  const RunResult lists = run.run_right(document, "lists");
  // The same checkers as bytes: little-endian bits, each request on a byte of its own.
  const auto pack = [](const Json& rows) {
    std::vector<int> bytes;
    int bit = 0;
    for (const Json& row : rows) {
      for (const Json& value : row) {
        if (bit % 8 == 0) bytes.push_back(0);
        bytes.back() |= value.get<int>() << (bit % 8);
        ++bit;
      }
    }
    return bytes;
  };
  std::vector<int> bytes = pack(matrix(3, 5, 0));
  run.expect(bytes.size() == 2, "15 bits are two bytes");
  for (int byte : pack(matrix(2, 7, 1))) bytes.push_back(byte);
  run.expect(bytes.size() == 4, "14 bits are two more");
  document["mask"] = {{"kind", "custom"}, {"packed", bytes}};
  run.expect_same_bits(lists, run.run(document), "packed against lists");
}

// Where page 1 claims to lie is known at run time only, and is wrong: no mask bit and no rope
// position exist there, and none may be read.
void positions_past_the_keys(const FieldRun& run) {
  AttentionSpec spec;
  spec.num_qo_heads = spec.num_kv_heads = 1;
  spec.head_dim_qk = spec.head_dim_vo = 64;
  spec.q_dtype = spec.kv_dtype = DType::kF16;
  spec.o_dtype = DType::kF32;
  spec.page_size = 4;
  spec.mask = MaskKind::kCustom;
  spec.rope.kind = RopeKind::kHalf;
  spec.rope.explicit_k_positions = true;
  OwnedBatch batch;
  batch.qo_indptr = {0, 2};
  batch.kv_len = {8};
  batch.views.resize(1);
  batch.views[0].row_indptr = {0, 2};
  batch.views[0].add_list(8, 4);
  batch.views[0].positions_at_run = true;
  Capacity capacity;
  capacity.max_requests = 1;
  capacity.max_query_rows = 2;
  capacity.max_kv_tokens = 8;

  using oracle::HostTensor;
  const auto memory = run.memory();
  HostTensor values = HostTensor::zeros(DType::kF16, {2, 4, 1, 64}, "v");
  values.fill([](const auto& index) { return static_cast<double>(4 * index[0] + index[1]); });
  RunArgs args;
  args.q = memory->place(HostTensor::zeros(DType::kF16, {2, 1, 64}, "q"));
  args.k = memory->place(HostTensor::zeros(DType::kF16, {2, 4, 1, 64}, "k"));
  args.v = memory->place(values);
  const std::vector<std::int64_t> pages{0, 1};
  const Tensor page_ids = memory->place_i32(pages);
  args.page_ids = {&page_ids, 1};
  const std::vector<std::uint8_t> all_ones(2, 0xFF);
  args.custom_mask = memory->place_u8(all_ones);
  const std::vector<std::int64_t> rope(8, 0);
  args.k_rope_positions = memory->place_i32(rope);
  const std::int64_t o_shape[] = {2, 1, 64};
  const std::int64_t lse_shape[] = {2, 1};

  const Engine engine = run.engine();
  for (const std::int64_t far : {std::int64_t{8}, std::int64_t{1} << 30}) {
    const std::vector<std::int64_t> starts{0, far};
    const Tensor positions = memory->place_i32(starts);
    args.positions = {&positions, 1};
    args.o = memory->output(DType::kF32, o_shape);
    args.lse = memory->output(DType::kF32, lse_shape);
    Attention attention(engine, {spec}, capacity, {});
    attention.plan(batch.get());
    attention.run(args);
    RunResult result;
    result.o = memory->fetch(args.o);
    result.lse = memory->fetch(args.lse);
    for (std::int64_t row = 0; row < 2; ++row) {
      expect_mean(run, result, row, 1.5, 4, "page 1 has no bits");
    }
    Attention checked(engine, {spec}, capacity, {{}, true, false});
    checked.plan(batch.get());
    run.expect_error([&] { checked.run(args); }, "positions[0][1]", "a position past kv_len");
  }
}

constexpr FieldCase kCases[] = {
    {1, "decode_with_an_empty_request", decode_with_empty_request},
    {2, "chunked_prefix_with_no_keys", chunked_prefix_without_keys},
    {3, "cascade_with_an_empty_prefix", cascade_with_empty_prefix},
    {4, "causal_with_more_queries_than_keys", more_queries_than_keys},
    {7, "tail_lanes_of_a_tile", tail_lanes},
    {15, "causal_alignment", causal_alignment},
    {16, "sliding_window_off_by_one", sliding_window},
    {17, "window_without_causal_under_split", window_without_causal_under_split},
    {18, "custom_mask_bounds_and_shape", custom_mask_shape},
    {18, "custom_mask_and_positions_past_the_keys", positions_past_the_keys},
    {19, "bit_packing_across_requests", bit_packing_across_requests},
};

}  // namespace

std::span<const FieldCase> empty_and_mask_cases() { return kCases; }

}  // namespace plait::check::field
