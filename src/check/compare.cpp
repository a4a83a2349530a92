// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "check/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/convert.h"
#include "oracle/keys.h"

namespace plait::check {
namespace {

using oracle::Answer;
using oracle::Problem;

std::size_t z(std::int64_t value) { return static_cast<std::size_t>(value); }

// Half of the last place of a number of size 1, and half of the smallest number.
struct Rounding {
  double relative;
  double absolute;
};
Rounding rounding_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return {0x1p-11, 0x1p-25};
    case DType::kBF16: return {0x1p-8, 0x1p-134};
    case DType::kF8E4M3: return {0x1p-4, 0x1p-10};
    case DType::kF8E5M2: return {0x1p-3, 0x1p-17};
    default: return {0x1p-24, 0x1p-150};
  }
}

double largest_position(const Problem& problem) {
  double out = 1;
  for (std::int64_t r = 0; r < problem.num_requests(); ++r) {
    out = std::max(out, static_cast<double>(oracle::kv_len(problem, r)));
  }
  for (const auto& list : problem.rope.q_positions) {
    for (std::int64_t p : list) out = std::max(out, static_cast<double>(p));
  }
  for (const auto& list : problem.rope.k_positions) {
    for (std::int64_t p : list) out = std::max(out, static_cast<double>(p));
  }
  return out;
}

// What f32 may lose: in a score, of the size of its terms (products, sums, soft cap); in a sum of
// weighted values, of the size of these.
constexpr double kScoreError = 0x1p-21;
constexpr double kSumError = 0x1p-20;

// The contract of rope is 1e-4 rad at position 2^20; nearer positions must do better.
double angle_error(const Problem& problem) {
  return 1e-4 * std::clamp(largest_position(problem) * 0x1p-20, 0.01, 1.0);
}

class Comparer {
 public:
  Comparer(const Problem& problem, const RunResult& result)
      : p_(problem),
        result_(result),
        exact_(oracle::solve(problem)),
        reference_(oracle::solve_same_precision(problem)),
        sensitivity_(oracle::sensitivity(problem, kScoreError, angle_error(problem))) {}

  Comparison run() {
    for (std::int64_t request = 0; request < p_.num_requests(); ++request) {
      measure_reference(request);
      for (std::int64_t row = 0; row < p_.qo_len(request); ++row) {
        const std::int64_t token = p_.qo_indptr[z(request)] + row;
        for (std::int64_t head = 0; head < p_.num_qo_heads; ++head) check_row(token, head);
      }
    }
    return out_;
  }

 private:
  void measure_reference(std::int64_t request) {
    o_error_ = 0;
    lse_error_ = 0;
    const std::int64_t heads = p_.num_qo_heads;
    const std::int64_t begin = p_.qo_indptr[z(request)] * heads;
    const std::int64_t end = p_.qo_indptr[z(request + 1)] * heads;
    for (std::int64_t n = begin * p_.head_dim_vo; n < end * p_.head_dim_vo; ++n) {
      const double error = std::fabs(exact_.o[z(n)] - reference_.o[z(n)]);
      if (std::isfinite(error)) o_error_ = std::max(o_error_, error);
    }
    if (p_.sum_sigmoid) return;
    for (std::int64_t n = begin; n < end; ++n) {
      const double error = std::fabs(exact_.lse[z(n)] - reference_.lse[z(n)]);
      if (std::isfinite(error)) lse_error_ = std::max(lse_error_, error);
    }
  }

  void check_row(std::int64_t token, std::int64_t head) {
    const std::size_t at = z(token * p_.num_qo_heads + head);
    const bool empty = !p_.sum_sigmoid && std::isinf(exact_.lse[at]) && exact_.lse[at] < 0;
    const Rounding rounding = rounding_of(p_.output_dtype());
    for (std::int64_t d = 0; d < p_.head_dim_vo; ++d) {
      const std::int64_t n = static_cast<std::int64_t>(at) * p_.head_dim_vo + d;
      const double exact = exact_.o[z(n)];
      const double bound = empty ? 0.0
                                 : 2 * o_error_ + rounding.relative * std::fabs(exact) +
                                       rounding.absolute + kSumError * sensitivity_.value[at] +
                                       sensitivity_.o[at];
      check_element("o", token, head, d, result_.o.load(n), exact, bound, p_.output_dtype());
    }
    if (result_.lse.storage == nullptr) return;
    const double exact = exact_.lse[at];
    const double bound =
        empty ? 0.0
              : 2 * lse_error_ + sensitivity_.lse[at] + 0x1p-21 * std::fmax(1.0, std::fabs(exact));
    check_element("lse", token, head, -1, result_.lse.load(static_cast<std::int64_t>(at)), exact,
                  bound, DType::kF32);
  }

  void check_element(const char* name, std::int64_t token, std::int64_t head, std::int64_t dim,
                     double got, double exact, double bound, DType dtype) {
    double share;
    if (std::isnan(exact) || std::isnan(got)) {
      share = std::isnan(exact) && std::isnan(got) ? 0.0 : INFINITY;
    } else if (got == exact) {
      share = 0;
    } else if (std::isinf(got) && std::isfinite(exact)) {
      // Right where the exact value is at the edge of what the dtype holds.
      share = std::fabs(exact) + bound >= max_finite(dtype) && (got > 0) == (exact > 0) ? 0.0
                                                                                        : INFINITY;
    } else {
      const double error = std::fabs(got - exact);
      share = bound > 0 && std::isfinite(error) ? error / bound : INFINITY;
    }
    if (share <= out_.worst && !(share > 1 && out_.ok)) return;
    out_.worst = std::max(out_.worst, share);
    if (share <= 1) return;
    out_.ok = false;
    out_.message = dim >= 0 ? fmt::format("{}[row {}, head {}, dim {}]", name, token, head, dim)
                            : fmt::format("{}[row {}, head {}]", name, token, head);
    out_.message += fmt::format(": got {:.9g}, expected {:.9g} (error {:.3g}, bound {:.3g})", got,
                                exact, std::fabs(got - exact), bound);
  }

  const Problem& p_;
  const RunResult& result_;
  Answer exact_;
  Answer reference_;
  oracle::Sensitivity sensitivity_;
  double o_error_ = 0;
  double lse_error_ = 0;
  Comparison out_;
};

}  // namespace

Comparison compare_with_oracle(const Problem& problem, const RunResult& result) {
  return Comparer(problem, result).run();
}

Comparison compare_bits(const oracle::HostTensor& a, const oracle::HostTensor& b,
                        const std::string& name) {
  Comparison out;
  if (a.storage == nullptr && b.storage == nullptr) return out;
  const auto bytes = static_cast<std::size_t>(a.size() * size_of(a.dtype));
  if (a.shape == b.shape && a.dtype == b.dtype &&
      std::memcmp(a.storage->data(), b.storage->data(), bytes) == 0) {
    return out;
  }
  out.ok = false;
  out.worst = INFINITY;
  out.message = name + ": other shape or dtype";
  if (a.shape != b.shape || a.dtype != b.dtype) return out;
  const auto width = static_cast<std::size_t>(size_of(a.dtype));
  std::int64_t differing = 0;
  std::int64_t first = -1;
  for (std::int64_t n = 0; n < a.size(); ++n) {
    const auto* x = static_cast<const char*>(a.storage->data()) + z(n) * width;
    const auto* y = static_cast<const char*>(b.storage->data()) + z(n) * width;
    if (std::memcmp(x, y, width) == 0) continue;
    if (first < 0) first = n;
    ++differing;
  }
  out.message = fmt::format(
      "{}: {} of {} elements differ in their bits, first element {}: {:.9g} "
      "against {:.9g}",
      name, differing, a.size(), first, a.load(first), b.load(first));
  return out;
}

}  // namespace plait::check
