// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "check/generate.h"

#include <algorithm>
#include <string>

#include "check/generator.h"

namespace plait::check {

Generator::Json Generator::run() {
  heads();
  requests();
  document_["q"] = tensor({qo_indptr_.back(), qo_heads_, dim_qk_}, 2);
  document_["qo_indptr"] = qo_indptr_;
  switch (kind_) {
    case Kind::kPaged: paged(); break;
    case Kind::kRagged: ragged(); break;
    case Kind::kBlockSparse: block_sparse(); break;
    case Kind::kCascade: cascade(); break;
    case Kind::kSelected: selected(); break;
  }
  mask();
  options();
  rope();
  plan();
  return document_;
}

void Generator::heads() {
  document_["version"] = 1;
  kv_heads_ = spec_.pick<std::int64_t>({1, 1, 2, 2, 3, 4});
  qo_heads_ = kv_heads_ * (common_ ? spec_.pick<std::int64_t>({1, 2, 4, 4, 8, 16})
                                   : spec_.pick<std::int64_t>({1, 1, 2, 3, 4, 5, 8}));
  dims();
  document_["num_qo_heads"] = qo_heads_;
  document_["num_kv_heads"] = kv_heads_;
  document_["head_dim_qk"] = dim_qk_;
  document_["head_dim_vo"] = dim_vo_;
  dtypes();
  kind_ = spec_.pick({Kind::kPaged, Kind::kPaged, Kind::kPaged, Kind::kPaged, Kind::kRagged,
                      Kind::kRagged, Kind::kBlockSparse, Kind::kCascade, Kind::kCascade,
                      Kind::kSelected, Kind::kSelected});
}

void Generator::dims() {
  if (common_) {
    dim_qk_ = dim_vo_ = spec_.pick<std::int64_t>({64, 128, 128, 256});
    return;
  }
  dim_qk_ = spec_.pick<std::int64_t>({64, 64, 128, 128, 32, 40, 72, 80, 96, 112, 192, 256, 16});
  dim_vo_ =
      spec_.chance(70) ? dim_qk_ : spec_.pick<std::int64_t>({64, 128, 32, 48, 80, 96, 8, 256});
  if (spec_.chance(2)) {
    dim_qk_ = 576;
    dim_vo_ = 512;
  }
}

void Generator::dtypes() {
  if (common_) {
    const std::string all = spec_.pick<const char*>({"bf16", "bf16", "f16"});
    document_["dtype"] = {{"q", all}, {"kv", all}, {"o", all}};
    return;
  }
  // Mostly one dtype for all, or an fp8 cache; every other combination as well.
  const auto any = [&] {
    return std::string(spec_.pick<const char*>({"f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"}));
  };
  const std::string q = spec_.chance(80) ? spec_.pick<const char*>({"bf16", "f16"}) : any();
  std::string kv = q;
  if (spec_.chance(20)) kv = spec_.pick<const char*>({"f8_e4m3", "f8_e5m2"});
  if (spec_.chance(10)) kv = any();
  document_["dtype"] = {{"q", q}, {"kv", kv}, {"o", spec_.chance(60) ? q : any()}};
}

// A page size: one of `sizes`, or in half of the common problems a multiple of 16.
std::int64_t Generator::page_size(std::initializer_list<std::int64_t> sizes) {
  if (!common_ || spec_.chance(50)) return spec_.pick(sizes);
  return spec_.pick<std::int64_t>({16, 16, 32, 48, 64, 128});
}

void Generator::requests() {
  const std::int64_t count = kind_ == Kind::kBlockSparse ? 1 : random_.integer(1, 5);
  const int shape = random_.pick<int>({0, 1, 2});  // decode, prefill, mixed
  // Some batches have few rows and many keys: several canonical segments and long splits.
  const bool many_keys = kind_ != Kind::kBlockSparse && random_.chance(8);
  qo_indptr_ = {0};
  for (std::int64_t r = 0; r < count; ++r) {
    const bool decode = shape == 0 || (shape == 2 && random_.chance(50));
    std::int64_t rows = decode ? 1 : random_.integer(1, many_keys ? 3 : 40);
    if (random_.chance(6) && kind_ != Kind::kBlockSparse) rows = 0;
    qo_indptr_.push_back(qo_indptr_.back() + rows);
  }
  // Keys per request so that rows x keys x heads x dims stays within the oracle's means.
  const std::int64_t rows = std::max<std::int64_t>(qo_indptr_.back(), 1);
  const std::int64_t work = rows * qo_heads_ * (dim_qk_ + dim_vo_);
  if (many_keys) {
    const std::int64_t values = count * kv_heads_ * (dim_qk_ + dim_vo_);
    max_keys_ = std::clamp<std::int64_t>(12'000'000 / std::max(work, 2 * values), 20, 6000);
    min_keys_ = max_keys_ / 2;
  } else {
    max_keys_ =
        std::clamp<std::int64_t>((random_.chance(10) ? 6'000'000 : 1'200'000) / work, 20, 1500);
  }
}

std::int64_t Generator::keys() {
  if (random_.chance(6)) return 0;
  if (random_.chance(min_keys_ > 1 ? 10 : 40)) return random_.integer(1, 20);
  return random_.integer(min_keys_, max_keys_);
}

nlohmann::json generate_problem(std::uint64_t seed, std::uint64_t index, Aim aim) {
  // Consecutive problems share what kernels are compiled for, so that a device that compiles at run
  // time spends its minutes on running.
  constexpr std::uint64_t kProblemsPerSpec = 4;
  Random spec(seed * 0x2545F4914F6CDD1Du + index / kProblemsPerSpec);
  Random mix(seed * 0x2545F4914F6CDD1Du + ~index);
  return Generator(spec.next(), mix.next(), aim).run();
}

}  // namespace plait::check
