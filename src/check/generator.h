// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Draws one problem, part by part, as the JSON of a problem file.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "check/generate.h"
#include "check/random.h"

namespace plait::check {

class Generator {
 public:
  Generator(std::uint64_t spec_seed, std::uint64_t seed, Aim aim)
      : spec_(spec_seed), random_(seed), common_(aim == Aim::kCommon) {}

  nlohmann::json run();

 private:
  using Json = nlohmann::json;
  using Ints = std::vector<std::int64_t>;
  enum class Kind { kPaged, kRagged, kBlockSparse, kCascade, kSelected };

  // Heads, dims, dtypes; rows and lengths (generate.cpp).
  void heads();
  void dims();
  void dtypes();
  std::int64_t page_size(std::initializer_list<std::int64_t> sizes);
  void requests();
  std::int64_t keys();

  // Keys and values (generate_kv.cpp).
  Json fill();
  Json tensor(const Ints& shape, int axes);
  void pools(Json& kv, std::int64_t pages);
  Ints draw_pages(std::int64_t count, std::int64_t pool);
  void append_list(Json& indptr, Json& last, std::int64_t tokens, std::int64_t& pages);
  void paged();
  std::int64_t tokens_of(const Json& indptr, const Json& last, std::size_t list) const;
  void ragged();
  Ints split(std::int64_t total, std::int64_t parts);
  void block_sparse();
  void cascade();
  void selected();

  // What changes scores and who sees them; the plan (generate_options.cpp).
  Json bits(std::int64_t count);
  void mask();
  double number(double low, double high);
  void options();
  void rope();
  void plan();

  Random spec_;    // what a kernel is specialised for
  Random random_;  // lengths, values, memory, plans
  bool common_;
  Json document_ = Json::object();
  Kind kind_ = Kind::kPaged;
  std::int64_t kv_heads_ = 1;
  std::int64_t qo_heads_ = 1;
  std::int64_t dim_qk_ = 64;
  std::int64_t dim_vo_ = 64;
  std::int64_t page_ = 1;
  std::int64_t min_keys_ = 1;
  std::int64_t max_keys_ = 1;
  Ints qo_indptr_;
  Ints kv_lens_;
  Ints last_level_lens_;
};

}  // namespace plait::check
