// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The yardstick of the error bound: the same attention in the arithmetic of a kernel.
#include <cmath>
#include <limits>

#include "core/convert.h"
#include "oracle/keys.h"
#include "oracle/oracle.h"
#include "plait/error.h"

namespace plait::oracle {
namespace {

std::size_t z(std::int64_t value) { return static_cast<std::size_t>(value); }

bool is_16_bit(DType dtype) { return size_of(dtype) == 2; }

// The type of a matrix unit's operands: 16-bit if q or the cache is, or if both are fp8, which bf16
// holds; f32 otherwise.
DType operand_dtype(const Problem& problem) {
  if (is_16_bit(problem.kv_dtype)) return problem.kv_dtype;
  if (is_16_bit(problem.q_dtype)) return problem.q_dtype;
  const bool fp8 = size_of(problem.q_dtype) == 1 && size_of(problem.kv_dtype) == 1;
  return fp8 ? DType::kBF16 : DType::kF32;
}

float rounded(DType dtype, float value) {
  return static_cast<float>(decode(dtype, encode(dtype, static_cast<double>(value))));
}

class Kernel {
 public:
  explicit Kernel(const Problem& problem) : p_(problem), operand_(operand_dtype(problem)) {}

  std::vector<float> load(const HostTensor& tensor, std::int64_t element, std::int64_t dim) const {
    std::vector<float> out(z(dim));
    for (std::int64_t d = 0; d < dim; ++d) {
      out[z(d)] = static_cast<float>(tensor.load(element + d * tensor.strides.back()));
    }
    return out;
  }

  void rotate(std::int64_t position, std::vector<float>& x) const {
    if (p_.rope.kind == Rope::kNone) return;
    const std::int64_t pairs = p_.rope.rotary_dim / 2;
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const double angle = static_cast<double>(position) * rope_frequency(p_.rope, pair);
      const auto cosine = static_cast<float>(std::cos(angle));
      const auto sine = static_cast<float>(std::sin(angle));
      const bool half = p_.rope.kind == Rope::kHalf;
      float& a = x[z(half ? pair : 2 * pair)];
      float& b = x[z(half ? pair + pairs : 2 * pair + 1)];
      const float rotated_a = a * cosine - b * sine;
      const float rotated_b = a * sine + b * cosine;
      a = rounded(operand_, rotated_a);
      b = rounded(operand_, rotated_b);
    }
  }

  float score(std::int64_t request, std::int64_t row, std::int64_t head, const Key& key,
              const std::vector<float>& q, const std::vector<float>& k, float k_scale) const {
    float dot = 0;
    for (std::size_t d = 0; d < q.size(); ++d) dot += q[d] * k[d];
    float s = dot * (static_cast<float>(p_.sm_scale) * k_scale);
    const auto cap = static_cast<float>(p_.logits_soft_cap);
    if (cap > 0) s = cap * std::tanh(s / cap);
    if (!p_.alibi_slopes.empty()) {
      const std::int64_t distance = key.position - query_position(p_, request, row);
      s += static_cast<float>(p_.alibi_slopes[z(head)]) * static_cast<float>(distance);
    }
    return s;
  }

  void attend(std::int64_t head, const std::vector<float>& scores,
              const std::vector<const std::vector<float>*>& values, float v_scale, double* o,
              double* lse) const {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    float largest = -kInfinity;
    for (float s : scores) largest = std::fmax(largest, s);
    if (p_.sum_sigmoid) largest = 0;
    if (largest == -kInfinity) {
      *lse = -std::numeric_limits<double>::infinity();
      for (std::int64_t d = 0; d < p_.head_dim_vo; ++d) o[d] = 0;
      return;
    }
    std::vector<float> weights;
    float sum = 0;
    for (float s : scores) {
      const float weight =
          p_.sum_sigmoid ? 1.0F / (1.0F + std::exp(-(s + static_cast<float>(p_.sigmoid_bias))))
                         : std::exp(s - largest);
      sum += weight;
      weights.push_back(rounded(operand_, weight));
    }
    float denominator = p_.sum_sigmoid ? 1.0F : sum;
    if (!p_.sum_sigmoid) {
      *lse = static_cast<double>(largest + std::log(sum));
      if (!p_.sink.empty() && !p_.state) {
        denominator += std::exp(static_cast<float>(p_.sink[z(head)]) - largest);
      }
    }
    for (std::int64_t d = 0; d < p_.head_dim_vo; ++d) {
      float total = 0;
      for (std::size_t n = 0; n < weights.size(); ++n) total += weights[n] * (*values[n])[z(d)];
      const float value = total / denominator * v_scale;
      const DType dtype = p_.output_dtype();
      o[d] = decode(dtype, encode(dtype, static_cast<double>(value), overflow_of(dtype)));
    }
  }

 private:
  const Problem& p_;
  DType operand_;
};

}  // namespace

Answer solve_same_precision(const Problem& problem) {
  if (!problem.variant.source.empty()) {
    throw Error(ErrorCode::kUnsupported, "variant", "\"" + problem.variant.name + "\"",
                "no user variant: the reference knows the built-in ones only");
  }
  const Kernel kernel(problem);
  const std::int64_t group = problem.num_qo_heads / problem.num_kv_heads;
  const std::int64_t dim = problem.head_dim_vo;
  Answer answer;
  answer.o.resize(z(problem.total_q() * problem.num_qo_heads * dim));
  if (!problem.sum_sigmoid) answer.lse.resize(z(problem.total_q() * problem.num_qo_heads));
  for (std::int64_t request = 0; request < problem.num_requests(); ++request) {
    for (std::int64_t begin = 0; begin < problem.qo_len(request);) {
      const std::int64_t end = rows_alike(problem, request, begin).second;
      for (std::int64_t kv_head = 0; kv_head < problem.num_kv_heads; ++kv_head) {
        const auto scale_of = [&](const std::vector<double>& scale) {
          return static_cast<float>(scale.size() == 1 ? scale[0] : scale[z(kv_head)]);
        };
        const std::vector<Key> keys = listed_keys(problem, request, begin, kv_head);
        std::vector<std::vector<float>> k;
        std::vector<std::vector<float>> v;
        for (const Key& key : keys) {
          k.push_back(kernel.load(problem.k, key.k_element, problem.head_dim_qk));
          kernel.rotate(key.rope_position, k.back());
          v.push_back(kernel.load(problem.v, key.v_element, dim));
        }
        for (std::int64_t row = begin; row < end; ++row) {
          for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
            const std::int64_t token = problem.qo_indptr[z(request)] + row;
            const std::int64_t index[] = {token, head, 0};
            std::vector<float> q = kernel.load(problem.q, problem.q.at(index), problem.head_dim_qk);
            kernel.rotate(query_rope_position(problem, request, row), q);
            std::vector<float> scores;
            std::vector<const std::vector<float>*> values;
            for (std::size_t n = 0; n < keys.size(); ++n) {
              if (!is_visible(problem, request, row, keys[n])) continue;
              scores.push_back(
                  kernel.score(request, row, head, keys[n], q, k[n], scale_of(problem.k_scale)));
              values.push_back(&v[n]);
            }
            const std::int64_t out = token * problem.num_qo_heads + head;
            double unused = 0;
            kernel.attend(head, scores, values, scale_of(problem.v_scale),
                          answer.o.data() + out * dim,
                          problem.sum_sigmoid ? &unused : &answer.lse[z(out)]);
          }
        }
      }
      begin = end;
    }
  }
  return answer;
}

}  // namespace plait::oracle
