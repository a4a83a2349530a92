// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "check/check_problem.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "check/compare.h"
#include "check/random.h"
#include "check/transforms.h"
#include "oracle/parse_problem.h"
#include "plait/error.h"

namespace plait::check {
namespace {

using Json = nlohmann::json;
using oracle::HostTensor;
using oracle::Problem;

std::size_t z(std::int64_t value) { return static_cast<std::size_t>(value); }

// Rows [begin, end) of a row-major output.
HostTensor rows_of(const HostTensor& tensor, std::int64_t begin, std::int64_t end) {
  if (tensor.storage == nullptr) return {};
  std::vector<std::int64_t> shape = tensor.shape;
  shape[0] = end - begin;
  HostTensor out = HostTensor::zeros(tensor.dtype, shape, "rows");
  const std::int64_t row_bytes =
      (tensor.shape[0] > 0 ? tensor.size() / tensor.shape[0] : 0) * size_of(tensor.dtype);
  std::memcpy(out.storage->data(),
              static_cast<const char*>(tensor.storage->data()) + begin * row_bytes,
              z((end - begin) * row_bytes));
  return out;
}

class Checker {
 public:
  Checker(const Problem& problem, const RunOptions& options, std::uint64_t seed)
      : problem_(problem), options_(options), random_(seed) {}

  CheckReport run() {
    poison_unread(problem_);
    RunResult base;
    if (!attempt("the problem", problem_, base)) return report_;
    report_.family = base.family;
    if (problem_.variant.source.empty()) {
      const Comparison comparison = compare_with_oracle(problem_, base);
      report_.worst = comparison.worst;
      if (!comparison.ok) fail(comparison.message);
    }
    same_bits("run again", problem_, base);
    if (options_.device.kind == DeviceKind::kCuda) {
      options_.graph = true;
      same_bits("replayed from a graph", problem_, base);
      options_.graph = false;
    }
    if (problem_.paged_storage()) {
      same_bits("with moved pages", with_moved_pages(problem_, random_.next()), base);
    }
    options_.spread_outputs = true;
    same_bits("with other strides", with_other_strides(problem_, random_.next()), base);
    options_.spread_outputs = false;
    if (problem_.policy == oracle::PolicyName::kBatchInvariant) {
      Problem other = problem_;
      other.num_workers = random_.integer(1, 9);
      same_bits("with " + std::to_string(other.num_workers) + " workers", other, base);
      if (can_slice(problem_)) check_invariance(base);
    }
    if (problem_.num_requests() > 1) check_isolation(base);
    return report_;
  }

 private:
  void fail(const std::string& message) {
    report_.outcome = Outcome::kFailed;
    report_.failures.push_back(message);
  }

  // Runs; false if there is no result. A refusal as unsupported is an answer, not a failure, as
  // long as it is the first.
  bool attempt(const std::string& what, const Problem& problem, RunResult& result) {
    try {
      result = run_problem(problem, options_);
      ++report_.runs;
      return true;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUnsupported && report_.runs == 0) {
        report_.outcome = Outcome::kDeclined;
        report_.declined = error.what();
      } else {
        fail(what + ": refused: " + error.what());
      }
    } catch (const std::exception& error) {
      fail(what + ": threw: " + error.what());
    }
    return false;
  }

  void same_bits(const std::string& what, const Problem& problem, const RunResult& base) {
    RunResult other;
    if (!attempt(what, problem, other)) return;
    compare(what, base.o, other.o, "o");
    compare(what, base.lse, other.lse, "lse");
  }

  void compare(const std::string& what, const HostTensor& a, const HostTensor& b,
               const std::string& name) {
    const Comparison comparison = compare_bits(a, b, name);
    if (!comparison.ok) fail(what + ": " + comparison.message);
  }

  // Slices of `problem_` whose rows must come out as in the whole batch.
  void same_slices(const std::string& what, const std::vector<Slice>& slices,
                   std::int64_t page_size, const RunResult& base) {
    RunResult other;
    if (!attempt(what, slice_requests(problem_, slices, page_size), other)) return;
    std::int64_t row = 0;
    for (const Slice& slice : slices) {
      const std::int64_t rows = slice.row_end - slice.row_begin;
      const std::int64_t begin = problem_.qo_indptr[z(slice.request)] + slice.row_begin;
      const std::string name = what + ", request " + std::to_string(slice.request);
      compare(name, rows_of(base.o, begin, begin + rows), rows_of(other.o, row, row + rows), "o");
      compare(name, rows_of(base.lse, begin, begin + rows), rows_of(other.lse, row, row + rows),
              "lse");
      row += rows;
    }
  }

  void check_invariance(const RunResult& base) {
    const std::int64_t requests = problem_.num_requests();
    std::vector<Slice> reversed;
    for (std::int64_t r = requests; r-- > 0;) {
      if (problem_.qo_len(r) > 0) reversed.push_back({r, 0, problem_.qo_len(r)});
    }
    if (reversed.empty()) return;
    const std::int64_t page = problem_.page_size > 0 ? problem_.page_size : 1;
    same_slices("in another order", reversed, page, base);
    same_slices("with page size 7", reversed, 7, base);
    const Slice& one =
        reversed[z(random_.integer(0, static_cast<std::int64_t>(reversed.size()) - 1))];
    same_slices("alone", {one}, page, base);
    const std::int64_t rows = one.row_end;
    if (problem_.mask != oracle::Mask::kCausal || rows < 2 ||
        oracle::kv_len(problem_, one.request) < rows) {
      return;
    }
    const std::int64_t cut = random_.integer(1, rows - 1);
    same_slices("first chunk of a chunked prefill", {{one.request, 0, cut}}, page, base);
    same_slices("second chunk of a chunked prefill", {{one.request, cut, rows}}, page, base);
  }

  // What a request's keys and values are changes nothing for others. Last: it spoils the problem.
  void check_isolation(const RunResult& base) {
    const std::int64_t request = random_.integer(0, problem_.num_requests() - 1);
    const std::string what = "request " + std::to_string(request) + " beside others of NaN";
    poison_other_requests(problem_, request);
    RunResult other;
    if (!attempt(what, problem_, other)) return;
    const std::int64_t begin = problem_.qo_indptr[z(request)];
    const std::int64_t end = begin + problem_.qo_len(request);
    compare(what, rows_of(base.o, begin, end), rows_of(other.o, begin, end), "o");
    compare(what, rows_of(base.lse, begin, end), rows_of(other.lse, begin, end), "lse");
  }

  Problem problem_;
  RunOptions options_;
  Random random_;
  CheckReport report_;
};

}  // namespace

CheckReport check_problem(const Problem& problem, const RunOptions& options, std::uint64_t seed) {
  return Checker(problem, options, seed).run();
}

Json shrink_problem(const Json& document, const RunOptions& options, std::uint64_t seed,
                    int attempts) {
  const auto fails = [&](const Json& candidate) {
    try {
      const Problem problem = oracle::problem_from_json(candidate, nullptr);
      return check_problem(problem, options, seed).outcome == Outcome::kFailed;
    } catch (const Error&) {
      return false;  // no longer a problem at all
    }
  };
  Json smallest = document;
  bool changed = true;
  while (changed && attempts > 0) {
    changed = false;
    std::vector<std::string> removable;
    for (const char* pointer : {"/rope/scaling",
                                "/rope/q_positions",
                                "/rope/k_positions",
                                "/rope/rotary_dim",
                                "/rope/theta",
                                "/rope",
                                "/sink",
                                "/alibi_slopes",
                                "/logits_soft_cap",
                                "/sm_scale",
                                "/k_scale",
                                "/v_scale",
                                "/state",
                                "/reduction",
                                "/mask/window_left",
                                "/mask",
                                "/plan/num_workers",
                                "/plan",
                                "/kv/block_mask",
                                "/kv/k_cache/stride",
                                "/kv/v_cache/stride",
                                "/kv/kv_cache/stride",
                                "/kv/k/stride",
                                "/kv/v/stride",
                                "/q/stride",
                                "/return_lse"}) {
      const Json::json_pointer at(pointer);
      if (attempts <= 0) break;
      if (!smallest.contains(at)) continue;
      Json candidate = smallest;
      candidate[at.parent_pointer()].erase(at.back());
      --attempts;
      if (!fails(candidate)) continue;
      smallest = std::move(candidate);
      changed = true;
    }
  }
  return smallest;
}

}  // namespace plait::check
