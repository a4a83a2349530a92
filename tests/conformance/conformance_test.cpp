// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Random problems through the engine against the oracle and against themselves, and proof that the
// comparison would notice: wrong answers must fail it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "check/check_problem.h"
#include "check/compare.h"
#include "check/field/field_run.h"
#include "check/generate.h"
#include "check/transforms.h"
#include "check/variant_cases.h"
#include "core/convert.h"
#include "oracle/oracle.h"
#include "oracle/parse_problem.h"
#include "plait/error.h"
#include "support/cuda_options.h"

namespace plait::check {
namespace {

using nlohmann::json;

oracle::Problem problem_of(std::uint64_t seed, std::uint64_t index) {
  return oracle::problem_from_json(generate_problem(seed, index), nullptr);
}

// The oracle's own answer as if an engine had computed it.
RunResult result_of(const oracle::Problem& problem, const oracle::Answer& answer) {
  RunResult out;
  out.o = oracle::HostTensor::zeros(
      problem.output_dtype(), {problem.total_q(), problem.num_qo_heads, problem.head_dim_vo}, "o");
  std::size_t n = 0;
  out.o.fill([&](const auto&) { return answer.o[n++]; });
  if (problem.wants_lse()) {
    out.lse =
        oracle::HostTensor::zeros(DType::kF32, {problem.total_q(), problem.num_qo_heads}, "l");
    n = 0;
    out.lse.fill([&](const auto&) { return answer.lse[n++]; });
  }
  return out;
}

TEST(Generator, EveryProblemIsWellFormedAndRepeatable) {
  for (Aim aim : {Aim::kEverything, Aim::kCommon}) {
    int kinds[5] = {};
    for (std::uint64_t index = 0; index < 100; ++index) {
      const json document = generate_problem(11, index, aim);
      EXPECT_EQ(document, generate_problem(11, index, aim));
      oracle::Problem problem;
      ASSERT_NO_THROW(problem = oracle::parse_problem(document.dump(), nullptr)) << document.dump();
      ++kinds[static_cast<int>(problem.source)];
    }
    for (int count : kinds) EXPECT_GT(count, 1);
  }
}

TEST(Generator, DrawsEveryTypeOfEveryOperand) {
  const std::set<std::string> all = {"f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"};
  for (const char* operand : {"q", "kv", "o"}) {
    std::set<std::string> drawn;
    for (std::uint64_t index = 0; index < 400; ++index) {
      drawn.insert(generate_problem(14, index).at("dtype").at(operand).get<std::string>());
    }
    EXPECT_EQ(drawn, all) << operand;
  }
}

TEST(Generator, CommonProblemsAreOfOneSixteenBitType) {
  for (std::uint64_t index = 0; index < 60; ++index) {
    const oracle::Problem problem =
        oracle::problem_from_json(generate_problem(13, index, Aim::kCommon), nullptr);
    EXPECT_EQ(size_of(problem.q.dtype), 2);
    EXPECT_EQ(problem.k.dtype, problem.q.dtype);
    EXPECT_EQ(problem.head_dim_qk, problem.head_dim_vo);
    EXPECT_NE(problem.policy, oracle::PolicyName::kBatchInvariant);
  }
}

TEST(Comparison, AcceptsRoundedAnswers) {
  for (std::uint64_t index = 0; index < 30; ++index) {
    const oracle::Problem problem = problem_of(12, index);
    const Comparison exact =
        compare_with_oracle(problem, result_of(problem, oracle::solve(problem)));
    EXPECT_TRUE(exact.ok) << index << " " << exact.message;
    const Comparison rounded =
        compare_with_oracle(problem, result_of(problem, oracle::solve_same_precision(problem)));
    EXPECT_TRUE(rounded.ok) << index << " " << rounded.message;
  }
}

// Faults that engines have had, made on purpose: the answer to a slightly other problem.
struct Fault {
  const char* name;
  // Changes the problem; false if it has nothing to change.
  bool (*make)(oracle::Problem& problem);
};
constexpr Fault kFaults[] = {
    {"window off by one",
     [](oracle::Problem& p) {
       if (p.window_left < 1) return false;
       --p.window_left;
       return true;
     }},
    {"causal dropped",
     [](oracle::Problem& p) {
       if (p.mask != oracle::Mask::kCausal || p.total_q() < 8) return false;
       p.mask = oracle::Mask::kNone;
       return true;
     }},
    {"soft cap dropped",
     [](oracle::Problem& p) {
       if (p.logits_soft_cap <= 0 || p.logits_soft_cap > 2) return false;
       p.logits_soft_cap = 0;
       return true;
     }},
    {"alibi dropped",
     [](oracle::Problem& p) {
       if (p.alibi_slopes.empty()) return false;
       p.alibi_slopes.clear();
       return true;
     }},
    {"rope of the other kind",
     [](oracle::Problem& p) {
       if (p.rope.kind == oracle::Rope::kNone || p.rope.rotary_dim < 4) return false;
       p.rope.kind =
           p.rope.kind == oracle::Rope::kHalf ? oracle::Rope::kInterleaved : oracle::Rope::kHalf;
       return true;
     }},
    {"rope scaling dropped",
     [](oracle::Problem& p) {
       if (p.rope.scaling != oracle::RopeScaling::kLinear || p.rope.factor < 2) return false;
       p.rope.scaling = oracle::RopeScaling::kNone;
       return true;
     }},
    {"scale of a padded dim",
     [](oracle::Problem& p) {
       if (p.head_dim_qk != 96 && p.head_dim_qk != 80) return false;
       p.sm_scale = 1.0 / std::sqrt(128.0);
       return true;
     }},
    {"sink counted twice",
     [](oracle::Problem& p) {
       if (p.sink.empty() || p.state) return false;
       for (double& sink : p.sink) sink += std::log(2.0);
       return true;
     }},
    {"v_scale dropped",
     [](oracle::Problem& p) {
       if (p.v_scale.size() != 1 || std::fabs(p.v_scale[0] - 1) < 0.1) return false;
       p.v_scale = {1.0};
       return true;
     }},
    {"last token of every list lost",
     [](oracle::Problem& p) {
       if (p.source != oracle::Source::kPaged || p.mask == oracle::Mask::kCustom) return false;
       for (std::int64_t& tokens : p.levels[0].last_page_len) {
         if (tokens > 1) --tokens;
       }
       for (auto& list : p.rope.k_positions) list.resize(list.size() + 1);
       return true;
     }},
};

TEST(Comparison, SlowNoticesFaults) {
  for (const Fault& fault : kFaults) {
    int noticed = 0;
    int tried = 0;
    for (std::uint64_t index = 0; index < 4000 && tried < 5; ++index) {
      const oracle::Problem problem = problem_of(15, index);
      oracle::Problem faulty = problem;
      // An fp8 output is rounded by more than what some of these move.
      if (size_of(problem.output_dtype()) == 1) continue;
      if (problem.total_q() == 0 || !fault.make(faulty)) continue;
      const RunResult wrong = result_of(problem, oracle::solve(faulty));
      // A fault that does not reach the answer (nothing masked, no key in the window) is none.
      const oracle::Answer right = oracle::solve(problem);
      double moved = 0;
      double size = 0;
      for (std::size_t n = 0; n < right.o.size(); ++n) {
        moved =
            std::fmax(moved, std::fabs(wrong.o.load(static_cast<std::int64_t>(n)) - right.o[n]));
        size = std::fmax(size, std::fabs(right.o[n]));
      }
      if (!(moved > 0.05 * size)) continue;
      ++tried;
      if (!compare_with_oracle(problem, wrong).ok) ++noticed;
    }
    EXPECT_GE(tried, 4) << fault.name;
    EXPECT_EQ(noticed, tried) << fault.name;
  }
}

TEST(Comparison, NoticesSingleElements) {
  oracle::Problem problem;
  std::uint64_t index = 0;
  do {  // a small one
    problem = problem_of(13, index++);
  } while (problem.q.size() == 0 || problem.q.size() > 4000 || problem.k.size() > 60000);
  const RunResult right = result_of(problem, oracle::solve(problem));
  const Comparison self = compare_with_oracle(problem, right);
  ASSERT_TRUE(self.ok) << self.message;
  for (std::int64_t n = 0; n < right.o.size(); n += 1 + right.o.size() / 7) {
    for (double wrong : {std::numeric_limits<double>::quiet_NaN(), right.o.load(n) + 0.5}) {
      RunResult changed = right;
      changed.o = oracle::HostTensor::zeros(right.o.dtype, right.o.shape, "o");
      std::int64_t at = 0;
      changed.o.fill([&](const auto&) {
        const double value = right.o.load(at);
        return at++ == n ? wrong : value;
      });
      EXPECT_FALSE(compare_with_oracle(problem, changed).ok) << n << " " << wrong;
      EXPECT_FALSE(compare_bits(right.o, changed.o, "o").ok);
    }
  }
}

TEST(Transforms, KeepTheAnswer) {
  for (std::uint64_t index = 0; index < 60; ++index) {
    oracle::Problem problem = problem_of(14, index);
    poison_unread(problem);
    const oracle::Answer base = oracle::solve(problem);
    for (double o : base.o) ASSERT_FALSE(std::isnan(o)) << index;
    EXPECT_EQ(base.o, oracle::solve(with_other_strides(problem, index)).o) << index;
    if (problem.paged_storage()) {
      EXPECT_EQ(base.o, oracle::solve(with_moved_pages(problem, index)).o) << index;
    }
    if (!can_slice(problem)) continue;
    std::vector<Slice> all;
    for (std::int64_t r = 0; r < problem.num_requests(); ++r) {
      if (problem.qo_len(r) > 0) all.push_back({r, 0, problem.qo_len(r)});
    }
    if (all.empty()) continue;
    const oracle::Answer flat = oracle::solve(slice_requests(problem, all, 7));
    ASSERT_EQ(base.o.size(), flat.o.size());
    for (std::size_t n = 0; n < base.o.size(); ++n) ASSERT_EQ(base.o[n], flat.o[n]) << index;
  }
}

void check_random(const RunOptions& options, std::uint64_t seed, std::uint64_t count) {
  std::int64_t passed = 0;
  int failed = 0;
  for (std::uint64_t index = 0; index < count && failed < 5; ++index) {
    const CheckReport report = check_problem(problem_of(seed, index), options, seed);
    if (report.outcome == Outcome::kPassed) ++passed;
    if (report.outcome != Outcome::kFailed) continue;
    ++failed;
    ADD_FAILURE() << report.failures.front() << "\nrepro: plait check --device "
                  << device_name(options.device) << " --seed " << seed << " '"
                  << generate_problem(seed, index).dump() << "'";
  }
  EXPECT_GT(passed, static_cast<std::int64_t>(count) / 2) << "most problems must be served";
}

TEST(Conformance, UserVariantsOnCpu) {
  for (const VariantCase& which : variant_cases()) {
    for (std::uint64_t index = 0; index < 4; ++index) {
      const VariantReport report = check_variant(which, 31, index, {});
      EXPECT_FALSE(report.declined) << report.declined_by;
      EXPECT_EQ(report.failure, "")
          << which.name << "\nrepro: plait eval '" << report.document.dump() << "'";
    }
  }
}

// 1024 canonical segments, folded two by two. Equal weights and equal values are the worst: every
// fold rounds the same way.
TEST(Conformance, SlowCanonicalSegmentsOfAMillionKeys) {
  field::Shape shape;
  shape.qo_lens = {1};
  shape.kv_lens = {1 << 20};
  shape.dim_qk = shape.dim_vo = 16;
  shape.dtype = "f32";
  json document = field::ragged(shape);
  field::fill(document["q"], "zeros");
  field::fill(document["kv"]["v"], "ones");
  document["plan"] = {{"policy", "batch_invariant"}};
  const CheckReport report = check_problem(oracle::problem_from_json(document, nullptr), {}, 1);
  EXPECT_EQ(report.outcome, Outcome::kPassed) << report.failures.front();
}

TEST(Conformance, RandomProblemsOnCpu) { check_random({}, 21, 64); }

TEST(Conformance, SlowRandomProblemsOnCpu) { check_random({}, 22, 600); }

TEST(GpuConformance, RandomProblems) {
  std::string reason;
  const auto options = test::cuda_options(&reason);
  if (!options) GTEST_SKIP() << reason;
  check_random(*options, 23, 400);
}

}  // namespace
}  // namespace plait::check
