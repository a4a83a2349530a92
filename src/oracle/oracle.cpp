// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "oracle/oracle.h"

#include <cmath>
#include <limits>

#include "oracle/keys.h"
#include "plait/error.h"

namespace plait::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t z(std::int64_t value) { return static_cast<std::size_t>(value); }

std::vector<double> load_row(const HostTensor& tensor, std::int64_t element, std::int64_t dim) {
  std::vector<double> out(z(dim));
  const std::int64_t stride = tensor.strides.back();
  for (std::int64_t d = 0; d < dim; ++d) out[z(d)] = tensor.load(element + d * stride);
  return out;
}

void rotate(const RopeOptions& rope, const std::vector<double>& frequencies, std::int64_t position,
            std::vector<double>& x) {
  const std::int64_t pairs = rope.rotary_dim / 2;
  for (std::int64_t p = 0; p < pairs; ++p) {
    const double angle = static_cast<double>(position) * frequencies[z(p)];
    const bool half = rope.kind == Rope::kHalf;
    double& a = x[z(half ? p : 2 * p)];
    double& b = x[z(half ? p + pairs : 2 * p + 1)];
    const double cosine = std::cos(angle);
    const double sine = std::sin(angle);
    const double rotated_a = a * cosine - b * sine;
    const double rotated_b = a * sine + b * cosine;
    a = rotated_a;
    b = rotated_b;
  }
}

double per_head(const std::vector<double>& values, std::int64_t head) {
  return values.size() == 1 ? values[0] : values[z(head)];
}

// Everything about one (request, rows alike, KV head) that does not depend on the query.
struct KeyBlock {
  std::vector<Key> keys;
  std::vector<std::vector<double>> k;  // transformed
  std::vector<std::vector<double>> v;  // scaled
};

class Solver {
 public:
  explicit Solver(const Problem& problem) : p_(problem) {
    if (!problem.variant.source.empty()) {
      throw Error(ErrorCode::kUnsupported, "variant", "\"" + problem.variant.name + "\"",
                  "no user variant: the reference knows the built-in ones only");
    }
    if (p_.rope.kind == Rope::kNone) return;
    for (std::int64_t pair = 0; pair < p_.rope.rotary_dim / 2; ++pair) {
      frequencies_.push_back(rope_frequency(p_.rope, pair));
    }
  }

  template <class Visit>  // visit(output row, head, request, row, block, q)
  void for_each_row(Visit&& visit) const {
    const std::int64_t group = p_.num_qo_heads / p_.num_kv_heads;
    for (std::int64_t request = 0; request < p_.num_requests(); ++request) {
      for (std::int64_t begin = 0; begin < p_.qo_len(request);) {
        const std::int64_t end = rows_alike(p_, request, begin).second;
        for (std::int64_t kv_head = 0; kv_head < p_.num_kv_heads; ++kv_head) {
          const KeyBlock block = load_keys(request, begin, kv_head);
          for (std::int64_t row = begin; row < end; ++row) {
            for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
              const std::int64_t token = p_.qo_indptr[z(request)] + row;
              visit(token, head, request, row, block, load_query(request, row, token, head));
            }
          }
        }
        begin = end;
      }
    }
  }

  // Steps 2 to 4 of docs/math.md.
  double score(std::int64_t request, std::int64_t row, std::int64_t head,
               const std::vector<double>& q, const std::vector<double>& k, const Key& key) const {
    double dot = 0;
    for (std::size_t d = 0; d < q.size(); ++d) dot += q[d] * k[d];
    double s = p_.sm_scale * dot;
    if (p_.logits_soft_cap > 0) s = p_.logits_soft_cap * std::tanh(s / p_.logits_soft_cap);
    return s + bias(request, row, head, key);
  }

  double bias(std::int64_t request, std::int64_t row, std::int64_t head, const Key& key) const {
    if (p_.alibi_slopes.empty()) return 0;
    const std::int64_t distance = key.position - query_position(p_, request, row);
    return p_.alibi_slopes[z(head)] * static_cast<double>(distance);
  }

 private:
  KeyBlock load_keys(std::int64_t request, std::int64_t row, std::int64_t kv_head) const {
    KeyBlock block;
    block.keys = listed_keys(p_, request, row, kv_head);
    for (const Key& key : block.keys) {
      std::vector<double> k = load_row(p_.k, key.k_element, p_.head_dim_qk);
      for (double& x : k) x *= per_head(p_.k_scale, kv_head);
      if (p_.rope.kind != Rope::kNone) rotate(p_.rope, frequencies_, key.rope_position, k);
      block.k.push_back(std::move(k));
      std::vector<double> v = load_row(p_.v, key.v_element, p_.head_dim_vo);
      for (double& x : v) x *= per_head(p_.v_scale, kv_head);
      block.v.push_back(std::move(v));
    }
    return block;
  }

  std::vector<double> load_query(std::int64_t request, std::int64_t row, std::int64_t token,
                                 std::int64_t head) const {
    const std::int64_t index[] = {token, head, 0};
    std::vector<double> q = load_row(p_.q, p_.q.at(index), p_.head_dim_qk);
    if (p_.rope.kind != Rope::kNone) {
      rotate(p_.rope, frequencies_, query_rope_position(p_, request, row), q);
    }
    return q;
  }

  const Problem& p_;
  std::vector<double> frequencies_;
};

void softmax_row(const std::vector<double>& scores, const std::vector<std::size_t>& visible,
                 const KeyBlock& block, double sink, bool has_sink, double* o, double& lse,
                 std::int64_t dim) {
  double largest = -kInfinity;
  for (double s : scores) {
    if (std::isnan(s)) largest = s;  // a NaN among the inputs that are read must show
    if (!std::isnan(largest)) largest = std::fmax(largest, s);
  }
  if (visible.empty() || largest == -kInfinity) {
    lse = -kInfinity;
    for (std::int64_t d = 0; d < dim; ++d) o[d] = 0;
    return;
  }
  double sum = 0;
  for (double s : scores) sum += std::exp(s - largest);
  lse = largest + std::log(sum);
  // o = sum exp(s - lse) v / (1 + exp(sink - lse)): the sink joins the denominator once.
  const double with_sink = has_sink ? 1.0 + std::exp(sink - lse) : 1.0;
  for (std::int64_t d = 0; d < dim; ++d) {
    double total = 0;
    for (std::size_t n = 0; n < visible.size(); ++n) {
      total += std::exp(scores[n] - lse) * block.v[visible[n]][z(d)];
    }
    o[d] = total / with_sink;
  }
}

}  // namespace

Answer solve(const Problem& problem) {
  const Solver solver(problem);
  const std::int64_t dim = problem.head_dim_vo;
  const std::int64_t rows = problem.total_q() * problem.num_qo_heads;
  Answer answer;
  answer.o.assign(z(rows * dim), std::numeric_limits<double>::quiet_NaN());
  if (!problem.sum_sigmoid) answer.lse.assign(z(rows), std::numeric_limits<double>::quiet_NaN());
  const bool has_sink = !problem.sink.empty() && !problem.state;
  solver.for_each_row([&](std::int64_t token, std::int64_t head, std::int64_t request,
                          std::int64_t row, const KeyBlock& block, const std::vector<double>& q) {
    std::vector<double> scores;
    std::vector<std::size_t> visible;
    for (std::size_t n = 0; n < block.keys.size(); ++n) {
      if (!is_visible(problem, request, row, block.keys[n])) continue;
      visible.push_back(n);
      scores.push_back(solver.score(request, row, head, q, block.k[n], block.keys[n]));
    }
    const std::int64_t out = token * problem.num_qo_heads + head;
    double* o = answer.o.data() + out * dim;
    if (!problem.sum_sigmoid) {
      softmax_row(scores, visible, block, has_sink ? problem.sink[z(head)] : 0.0, has_sink, o,
                  answer.lse[z(out)], dim);
      return;
    }
    for (std::int64_t d = 0; d < dim; ++d) {
      double total = 0;
      for (std::size_t n = 0; n < visible.size(); ++n) {
        const double weight = 1.0 / (1.0 + std::exp(-(scores[n] + problem.sigmoid_bias)));
        total += weight * block.v[visible[n]][z(d)];
      }
      o[d] = total;
    }
  });
  return answer;
}

Sensitivity sensitivity(const Problem& problem, double relative, double angle) {
  const Solver solver(problem);
  const Answer exact = solve(problem);
  const std::int64_t rows = problem.total_q() * problem.num_qo_heads;
  Sensitivity out;
  out.value.assign(z(rows), 0.0);
  out.o.assign(z(rows), 0.0);
  out.lse.assign(z(rows), 0.0);
  solver.for_each_row([&](std::int64_t token, std::int64_t head, std::int64_t request,
                          std::int64_t row, const KeyBlock& block, const std::vector<double>& q) {
    const std::size_t at = z(token * problem.num_qo_heads + head);
    double largest_o = 0;
    for (std::int64_t d = 0; d < problem.head_dim_vo; ++d) {
      largest_o = std::fmax(largest_o, std::fabs(exact.o[at * z(problem.head_dim_vo) + z(d)]));
    }
    for (std::size_t n = 0; n < block.keys.size(); ++n) {
      if (!is_visible(problem, request, row, block.keys[n])) continue;
      double dot = 0;
      double q2 = 0;
      double k2 = 0;
      for (std::size_t d = 0; d < q.size(); ++d) {
        dot += std::fabs(q[d] * block.k[n][d]);
        q2 += q[d] * q[d];
        k2 += block.k[n][d] * block.k[n][d];
      }
      const double scale = std::fabs(problem.sm_scale);
      const double bias = std::fabs(solver.bias(request, row, head, block.keys[n]));
      double error = relative * (dot * scale + bias);
      if (problem.rope.kind != Rope::kNone) error += angle * std::sqrt(q2 * k2) * scale;
      const double s = solver.score(request, row, head, q, block.k[n], block.keys[n]);
      const double weight = problem.sum_sigmoid
                                ? 1.0 / (1.0 + std::exp(-(s + problem.sigmoid_bias)))
                                : std::exp(s - exact.lse[at]);
      double largest_v = 0;
      for (double v : block.v[n]) largest_v = std::fmax(largest_v, std::fabs(v));
      out.value[at] += weight * largest_v;
      out.o[at] += weight * error * (largest_v + (problem.sum_sigmoid ? 0.0 : largest_o));
      out.lse[at] += weight * error;
    }
  });
  return out;
}

}  // namespace plait::oracle
