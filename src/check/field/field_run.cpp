// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "check/field/field_run.h"

#include <fmt/format.h>

#include <cmath>

#include "check/compare.h"
#include "check/transforms.h"
#include "oracle/parse_problem.h"

namespace plait::check::field {

oracle::Problem FieldRun::parse(const Json& document) const {
  return oracle::parse_problem(document.dump(), nullptr);
}

RunResult FieldRun::run(const oracle::Problem& problem) const {
  return run_problem(problem, options_);
}

RunResult FieldRun::run(const Json& document) const {
  oracle::Problem problem = parse(document);
  poison_unread(problem);
  return run(problem);
}

RunResult FieldRun::run_right(const Json& document, const std::string& what) const {
  oracle::Problem problem = parse(document);
  poison_unread(problem);
  RunResult result = run(problem);
  const Comparison comparison = compare_with_oracle(problem, result);
  expect(comparison.ok, what + ": " + comparison.message);
  return result;
}

Engine FieldRun::engine() const {
  EngineOptions engine_options;
  engine_options.device = options_.device;
  engine_options.family = options_.family;
  engine_options.num_threads = options_.num_threads;
  engine_options.allocator = memory()->poisoning_allocator();
  return Engine(engine_options);
}

void FieldRun::expect(bool condition, const std::string& what) const {
  if (!condition) throw CheckFailed(what);
}

void FieldRun::expect_near(double got, double expected, double tolerance,
                           const std::string& what) const {
  const bool same = got == expected;  // covers infinities
  expect(same || std::fabs(got - expected) <= tolerance,
         fmt::format("{}: got {:.9g}, expected {:.9g}", what, got, expected));
}

void FieldRun::expect_o(const RunResult& result, std::int64_t row, std::int64_t head,
                        double expected, double tolerance, const std::string& what) const {
  const std::int64_t heads = result.o.shape[1];
  const std::int64_t dim = result.o.shape[2];
  for (std::int64_t d = 0; d < dim; ++d) {
    expect_near(result.o.load((row * heads + head) * dim + d), expected, tolerance,
                fmt::format("{}: o[{}, {}, {}]", what, row, head, d));
  }
}

void FieldRun::expect_lse(const RunResult& result, std::int64_t row, std::int64_t head,
                          double expected, double tolerance, const std::string& what) const {
  const std::int64_t heads = result.lse.shape[1];
  expect_near(result.lse.load(row * heads + head), expected, tolerance,
              fmt::format("{}: lse[{}, {}]", what, row, head));
}

void FieldRun::expect_same_bits(const RunResult& a, const RunResult& b,
                                const std::string& what) const {
  const Comparison o = compare_bits(a.o, b.o, "o");
  expect(o.ok, what + ": " + o.message);
  const Comparison lse = compare_bits(a.lse, b.lse, "lse");
  expect(lse.ok, what + ": " + lse.message);
}

void FieldRun::expect_refused(const Json& document, const std::string& field) const {
  expect_error([&] { run(document); }, field, "problem");
}

Json generated(Json shape, Json fill) {
  return {{"shape", std::move(shape)}, {"fill", std::move(fill)}};
}
Json normal(std::int64_t seed) { return {{"normal", seed}}; }

void fill(Json& tensor, Json value) {
  tensor.erase("data");
  tensor["fill"] = std::move(value);
}

namespace {

Json common(const Shape& shape) {
  std::int64_t rows = 0;
  Json indptr = {0};
  for (std::int64_t len : shape.qo_lens) indptr.push_back(rows += len);
  return {{"version", 1},
          {"num_qo_heads", shape.qo_heads},
          {"num_kv_heads", shape.kv_heads},
          {"head_dim_qk", shape.dim_qk},
          {"head_dim_vo", shape.dim_vo},
          {"dtype", {{"q", shape.dtype}, {"kv", shape.dtype}, {"o", shape.o_dtype}}},
          {"q", generated({rows, shape.qo_heads, shape.dim_qk}, normal(101))},
          {"qo_indptr", indptr},
          {"return_lse", true}};
}

}  // namespace

Json paged(const Shape& shape) {
  Json document = common(shape);
  Json indptr = {0};
  Json indices = Json::array();
  Json last = Json::array();
  std::int64_t pages = 0;
  for (std::int64_t len : shape.kv_lens) {
    const std::int64_t count = (len + shape.page_size - 1) / shape.page_size;
    for (std::int64_t n = 0; n < count; ++n) indices.push_back(pages + n);
    pages += count;
    indptr.push_back(pages);
    last.push_back(len == 0 ? 0 : len - (count - 1) * shape.page_size);
  }
  const std::int64_t pool = pages > 0 ? pages : 1;
  document["kv"] = {
      {"kind", "paged"},
      {"page_size", shape.page_size},
      {"indptr", indptr},
      {"indices", indices},
      {"last_page_len", last},
      {"k_cache", generated({pool, shape.page_size, shape.kv_heads, shape.dim_qk}, normal(102))},
      {"v_cache", generated({pool, shape.page_size, shape.kv_heads, shape.dim_vo}, normal(103))}};
  return document;
}

Json ragged(const Shape& shape) {
  Json document = common(shape);
  Json indptr = {0};
  std::int64_t tokens = 0;
  for (std::int64_t len : shape.kv_lens) indptr.push_back(tokens += len);
  document["kv"] = {{"kind", "ragged"},
                    {"indptr", indptr},
                    {"k", generated({tokens, shape.kv_heads, shape.dim_qk}, normal(102))},
                    {"v", generated({tokens, shape.kv_heads, shape.dim_vo}, normal(103))}};
  return document;
}

Json values_by_token(const Shape& shape, bool is_paged,
                     double (*value)(std::int64_t, std::int64_t, std::int64_t)) {
  Json tokens = Json::array();
  Json page = Json::array();
  Json pages = Json::array();
  const auto row = [&](std::int64_t request, std::int64_t index) {
    Json heads = Json::array();
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      heads.push_back(
          std::vector<double>(static_cast<std::size_t>(shape.dim_vo), value(request, index, h)));
    }
    return heads;
  };
  for (std::size_t r = 0; r < shape.kv_lens.size(); ++r) {
    const auto request = static_cast<std::int64_t>(r);
    const std::int64_t count = (shape.kv_lens[r] + shape.page_size - 1) / shape.page_size;
    const std::int64_t end = is_paged ? count * shape.page_size : shape.kv_lens[r];
    for (std::int64_t index = 0; index < end; ++index) {
      (is_paged ? page : tokens).push_back(row(request, index));
      if (is_paged && static_cast<std::int64_t>(page.size()) == shape.page_size) {
        pages.push_back(page);
        page = Json::array();
      }
    }
  }
  return {{"data", is_paged ? pages : tokens}};
}

}  // namespace plait::check::field
