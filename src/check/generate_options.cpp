// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <string>

#include "check/generator.h"

namespace plait::check {

Generator::Json Generator::bits(std::int64_t count) {
  Json row = Json::array();
  for (std::int64_t n = 0; n < count; ++n) row.push_back(random_.chance(60) ? 1 : 0);
  return row;
}

void Generator::mask() {
  const int kind = common_ ? spec_.pick<int>({0, 1, 1}) : spec_.pick<int>({0, 1, 1, 1, 2});
  Json out = {{"kind", kind == 0 ? "none" : kind == 1 ? "causal" : "custom"}};
  if (kind == 2) {
    const bool last_only = kind_ == Kind::kCascade;
    const bool packed = random_.chance(50);
    Json custom = Json::array();
    Json bytes = Json::array();
    for (std::size_t r = 0; r + 1 < qo_indptr_.size(); ++r) {
      const std::int64_t rows = qo_indptr_[r + 1] - qo_indptr_[r];
      const std::int64_t columns = last_only ? last_level_lens_[r] : kv_lens_[r];
      Json matrix = Json::array();
      for (std::int64_t i = 0; i < rows; ++i) matrix.push_back(bits(columns));
      custom.push_back(matrix);
      for (std::int64_t n = 0; n < (rows * columns + 7) / 8; ++n) {
        bytes.push_back(random_.integer(0, 255));
      }
    }
    if (packed) {
      out["packed"] = bytes;
    } else {
      out["custom"] = custom;
    }
  }
  if (spec_.chance(25)) out["window_left"] = random_.integer(0, 60);
  document_["mask"] = out;
}

double Generator::number(double low, double high) {
  // A short decimal, so that the repro line stays readable.
  const std::int64_t steps = random_.integer(0, 64);
  return low + (high - low) * static_cast<double>(steps) / 64.0;
}

void Generator::options() {
  if (spec_.chance(20)) document_["sm_scale"] = number(0.02, 0.4);
  if (spec_.chance(20)) document_["logits_soft_cap"] = number(0.5, 30.0);
  const auto per_head = [&](std::int64_t heads, double low, double high) {
    Json out = Json::array();
    for (std::int64_t h = 0; h < heads; ++h) out.push_back(number(low, high));
    return out;
  };
  if (spec_.chance(20)) {
    // With small logits and steep slopes nothing hides what the bias loses.
    const double steep = random_.pick<double>({1.0, 1.0, 4.0, 600.0, 20000.0});
    document_["alibi_slopes"] = per_head(qo_heads_, -0.05 * steep, 0.5 * steep);
    if (random_.chance(30)) document_["sm_scale"] = number(0.0005, 0.005);
  }
  const bool fp8 = document_["dtype"]["kv"].get<std::string>().starts_with("f8");
  if (spec_.chance(fp8 ? 70 : 12)) document_["k_scale"] = number(0.2, 2.0);
  if (spec_.chance(fp8 ? 70 : 12)) document_["v_scale"] = number(0.2, 2.0);
  if (!common_ && spec_.chance(8)) document_["k_scale"] = per_head(kv_heads_, 0.2, 2.0);
  if (spec_.chance(8)) document_["v_scale"] = per_head(kv_heads_, 0.2, 2.0);
  if (!common_ && spec_.chance(12)) {
    document_["reduction"] = {{"sum", "sigmoid"}, {"bias", number(-4.0, 1.0)}};
  } else {
    if (spec_.chance(20)) document_["sink"] = per_head(qo_heads_, -3.0, 3.0);
    if (spec_.chance(70)) document_["return_lse"] = true;
  }
  if (spec_.chance(12)) document_["state"] = true;
}

void Generator::rope() {
  if (common_ || !spec_.chance(25) || dim_qk_ % 2 != 0) return;
  Json out = {{"kind", spec_.pick<const char*>({"half", "interleaved"})}};
  if (spec_.chance(40)) out["theta"] = random_.pick<double>({10000.0, 500000.0, 100.0});
  if (spec_.chance(40)) out["rotary_dim"] = 2 * spec_.integer(1, dim_qk_ / 2);
  const int scaling = spec_.pick<int>({0, 0, 1, 2});
  if (scaling == 1) out["scaling"] = {{"kind", "linear"}, {"factor", number(1.0, 8.0)}};
  if (scaling == 1 && random_.chance(30)) {
    // Pairs that turn by more than the limit, and by nearly that once they are scaled.
    out["theta"] = 0.001;
    out["scaling"]["factor"] = number(16.0, 32.0);
  }
  if (scaling == 2) {
    out["scaling"] = {{"kind", "llama3.1"},
                      {"factor", 8},
                      {"low_freq_factor", 1},
                      {"high_freq_factor", 4},
                      {"original_max_position", random_.pick<int>({8192, 64})}};
  }
  const auto positions = [&](const Ints& lens) {
    Json lists = Json::array();
    for (std::int64_t len : lens) {
      Json list = Json::array();
      std::int64_t position = random_.integer(0, 1000);
      for (std::int64_t n = 0; n < len; ++n) {
        list.push_back(position);
        position += random_.integer(0, 2);
      }
      lists.push_back(list);
    }
    return lists;
  };
  if (spec_.chance(20)) {
    Ints lens;
    for (std::size_t r = 0; r + 1 < qo_indptr_.size(); ++r) {
      lens.push_back(qo_indptr_[r + 1] - qo_indptr_[r]);
    }
    out["q_positions"] = positions(lens);
  }
  // The length of a request without rows depends on which prefix it is counted to.
  bool rows_everywhere = true;
  for (std::size_t r = 0; r + 1 < qo_indptr_.size(); ++r) {
    rows_everywhere = rows_everywhere && qo_indptr_[r] < qo_indptr_[r + 1];
  }
  if ((kind_ != Kind::kCascade || rows_everywhere) && spec_.chance(20)) {
    out["k_positions"] = positions(kv_lens_);
  }
  document_["rope"] = out;
}

void Generator::plan() {
  Json out = Json::object();
  const int policy =
      common_ ? random_.pick<int>({0, 0, 2, 3}) : random_.pick<int>({0, 0, 1, 1, 2, 2, 3});
  if (policy == 1) out["policy"] = "batch_invariant";
  if (policy == 3) out["policy"] = "unsplit";
  if (policy == 2) {
    out["policy"] = "fixed_chunk";
    const std::int64_t least = (8 + page_ - 1) / page_;
    out["kv_chunk"] = page_ * random_.integer(1, least * 6);
  }
  if (random_.chance(60)) out["num_workers"] = random_.integer(1, 7);
  if (!out.empty()) document_["plan"] = out;
}

}  // namespace plait::check
