// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "check/generate.h"

#include <algorithm>
#include <string>
#include <vector>

#include "check/random.h"

namespace plait::check {
namespace {

using Json = nlohmann::json;
using Ints = std::vector<std::int64_t>;

class Generator {
 public:
  Generator(std::uint64_t spec_seed, std::uint64_t seed, Aim aim)
      : spec_(spec_seed), random_(seed), common_(aim == Aim::kCommon) {}

  Json run() {
    heads();
    requests();
    document_["q"] = tensor({qo_indptr_.back(), qo_heads_, dim_qk_}, 2);
    document_["qo_indptr"] = qo_indptr_;
    switch (kind_) {
      case 0: paged(); break;
      case 1: ragged(); break;
      case 2: block_sparse(); break;
      case 3: cascade(); break;
      default: selected(); break;
    }
    mask();
    options();
    rope();
    plan();
    return document_;
  }

 private:
  void heads() {
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
    kind_ = spec_.pick<int>({0, 0, 0, 0, 1, 1, 2, 3, 3, 4, 4});
  }

  void dims() {
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

  void dtypes() {
    if (common_) {
      const std::string all = spec_.pick<const char*>({"bf16", "bf16", "f16"});
      document_["dtype"] = {{"q", all}, {"kv", all}, {"o", all}};
      return;
    }
    const std::string q = spec_.pick<const char*>({"bf16", "bf16", "f16", "f16", "f32"});
    std::string kv = q;
    if (q != "f32" && spec_.chance(20)) kv = spec_.pick<const char*>({"f8_e4m3", "f8_e5m2"});
    document_["dtype"] = {{"q", q}, {"kv", kv}, {"o", spec_.chance(70) ? q : "f32"}};
  }

  // A page size: one of `sizes`, or in half of the common problems a multiple of 16.
  std::int64_t page_size(std::initializer_list<std::int64_t> sizes) {
    if (!common_ || spec_.chance(50)) return spec_.pick(sizes);
    return spec_.pick<std::int64_t>({16, 16, 32, 48, 64, 128});
  }

  void requests() {
    const std::int64_t count = kind_ == 2 ? 1 : random_.integer(1, 5);
    const int shape = random_.pick<int>({0, 1, 2});  // decode, prefill, mixed
    // Some batches have few rows and many keys: several canonical segments and long splits.
    const bool many_keys = kind_ != 2 && random_.chance(8);
    qo_indptr_ = {0};
    for (std::int64_t r = 0; r < count; ++r) {
      const bool decode = shape == 0 || (shape == 2 && random_.chance(50));
      std::int64_t rows = decode ? 1 : random_.integer(1, many_keys ? 3 : 40);
      if (random_.chance(6) && kind_ != 2) rows = 0;
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

  std::int64_t keys() {
    if (random_.chance(6)) return 0;
    if (random_.chance(min_keys_ > 1 ? 10 : 40)) return random_.integer(1, 20);
    return random_.integer(min_keys_, max_keys_);
  }

  Json fill() { return {{"normal", random_.integer(0, 1 << 30)}}; }

  // A generated tensor; in a quarter of the cases with padding after `axes` of its outer axes.
  Json tensor(Ints shape, int axes, std::int64_t leading_offset = 0) {
    Json out = {{"shape", shape}, {"fill", fill()}};
    if (!random_.chance(25)) return out;
    Ints strides(shape.size());
    std::int64_t stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      strides[axis] = stride;
      stride *= std::max<std::int64_t>(shape[axis], 1);
      // Padding in steps of eight elements keeps rows aligned for vector loads.
      if (static_cast<int>(axis) <= axes && random_.chance(50)) stride += 8 * random_.integer(1, 3);
    }
    out["stride"] = strides;
    if (leading_offset > 0) out["offset"] = leading_offset;
    return out;
  }

  void pools(Json& kv, std::int64_t pages) {
    hnd_ = spec_.chance(40);
    if (hnd_) document_["layout"] = "HND";
    const auto shape = [&](std::int64_t dim) {
      return hnd_ ? Ints{pages, kv_heads_, page_, dim} : Ints{pages, page_, kv_heads_, dim};
    };
    if (dim_qk_ == dim_vo_ && random_.chance(20)) {
      Ints both = shape(dim_qk_);
      both.insert(both.begin() + 1, 2);
      kv["kv_cache"] = tensor(both, 3);
      return;
    }
    kv["k_cache"] = tensor(shape(dim_qk_), 2);
    if (dim_vo_ <= dim_qk_ && random_.chance(10)) {
      // One latent cache: V is the front of K.
      if (!kv["k_cache"].contains("stride")) {
        Ints strides(4, 1);
        const Ints k = shape(dim_qk_);
        for (std::size_t axis = 3; axis-- > 0;) strides[axis] = strides[axis + 1] * k[axis + 1];
        kv["k_cache"]["stride"] = strides;
      }
      kv["v_cache"] = {
          {"view_of", "k_cache"}, {"shape", shape(dim_vo_)}, {"stride", kv["k_cache"]["stride"]}};
      return;
    }
    kv["v_cache"] = tensor(shape(dim_vo_), 2);
  }

  // Distinct pages in random order, or ascending: then long runs follow one another in the pool.
  Ints draw_pages(std::int64_t count, std::int64_t pool) {
    Ints all(static_cast<std::size_t>(pool));
    for (std::int64_t n = 0; n < pool; ++n) all[static_cast<std::size_t>(n)] = n;
    for (std::int64_t n = 0; n < count; ++n) {
      std::swap(all[static_cast<std::size_t>(n)],
                all[static_cast<std::size_t>(random_.integer(n, pool - 1))]);
    }
    all.resize(static_cast<std::size_t>(count));
    if (random_.chance(30)) std::sort(all.begin(), all.end());
    return all;
  }

  void append_list(Json& indptr, Json& last, std::int64_t tokens, std::int64_t& pages) {
    const std::int64_t count = (tokens + page_ - 1) / page_;
    pages += count;
    indptr.push_back(pages);
    last.push_back(tokens == 0 ? 0 : tokens - (count - 1) * page_);
  }

  void paged() {
    page_ = page_size({1, 2, 3, 4, 5, 8, 16, 16, 19, 32, 64});
    Json indptr = {0};
    Json last = Json::array();
    std::int64_t pages = 0;
    for (std::size_t r = 0; r + 1 < qo_indptr_.size(); ++r) {
      append_list(indptr, last, keys(), pages);
      kv_lens_.push_back(tokens_of(indptr, last, r));
    }
    const std::int64_t pool = pages + random_.integer(1, 4);
    Json kv = {{"kind", "paged"},
               {"page_size", page_},
               {"indptr", indptr},
               {"indices", draw_pages(pages, pool)},
               {"last_page_len", last}};
    pools(kv, pool);
    document_["kv"] = kv;
  }

  std::int64_t tokens_of(const Json& indptr, const Json& last, std::size_t list) const {
    const std::int64_t pages =
        indptr[list + 1].get<std::int64_t>() - indptr[list].get<std::int64_t>();
    return pages == 0 ? 0 : (pages - 1) * page_ + last[list].get<std::int64_t>();
  }

  void ragged() {
    Json indptr = {0};
    std::int64_t total = 0;
    for (std::size_t r = 0; r + 1 < qo_indptr_.size(); ++r) {
      kv_lens_.push_back(keys());
      total += kv_lens_.back();
      indptr.push_back(total);
    }
    page_ = 1;
    document_["kv"] = {{"kind", "ragged"},
                       {"indptr", indptr},
                       {"k", tensor({total, kv_heads_, dim_qk_}, 1)},
                       {"v", tensor({total, kv_heads_, dim_vo_}, 1)}};
  }

  Ints split(std::int64_t total, std::int64_t parts) {
    Ints sizes;
    while (total > 0) {
      const std::int64_t most =
          std::max<std::int64_t>(1, 2 * total / std::max<std::int64_t>(parts, 1));
      sizes.push_back(std::min(total, random_.integer(1, most)));
      total -= sizes.back();
      if (parts > 1) --parts;
    }
    return sizes;
  }

  void block_sparse() {
    const std::int64_t rows = qo_indptr_.back();
    Ints row_sizes;
    Ints col_sizes;
    Json kv = {{"kind", "bsr"}};
    std::int64_t columns = 0;
    if (random_.chance(50)) {
      const std::int64_t width = random_.pick<std::int64_t>({1, 4, 8, 16, 24});
      col_sizes.assign(
          static_cast<std::size_t>(random_.integer(
              1, std::max<std::int64_t>(1, std::min<std::int64_t>(20, max_keys_ / width)))),
          width);
      columns = width * static_cast<std::int64_t>(col_sizes.size());
      kv["block_cols"] = width;
    } else {
      columns = random_.integer(1, std::min<std::int64_t>(max_keys_, 200));
      col_sizes = split(columns, 6);
      kv["block_cols"] = col_sizes;
    }
    row_sizes = split(rows, 4);
    kv["block_rows"] = row_sizes;
    Json indptr = {0};
    Json indices = Json::array();
    Json masks = Json::array();
    const bool masked = random_.chance(30);
    for (std::int64_t size : row_sizes) {
      for (std::size_t c = 0; c < col_sizes.size(); ++c) {
        if (random_.chance(40)) continue;
        indices.push_back(c);
        if (!masked) continue;
        Json block = Json::array();
        for (std::int64_t i = 0; i < size; ++i) block.push_back(bits(col_sizes[c]));
        masks.push_back(block);
      }
      indptr.push_back(indices.size());
    }
    kv["indptr"] = indptr;
    kv["indices"] = indices;
    if (masked) kv["block_mask"] = masks;
    kv["k"] = tensor({columns, kv_heads_, dim_qk_}, 1);
    kv["v"] = tensor({columns, kv_heads_, dim_vo_}, 1);
    kv_lens_ = {columns};
    document_["kv"] = kv;
    page_ = 1;
  }

  void cascade() {
    page_ = page_size({1, 2, 4, 5, 16, 32});
    const std::int64_t levels = random_.integer(1, 4);
    std::vector<Ints> rows(static_cast<std::size_t>(levels));
    rows.back() = qo_indptr_;
    for (std::size_t n = rows.size() - 1; n-- > 0;) {
      const Ints& inner = rows[n + 1];
      rows[n].push_back(0);
      for (std::size_t k = 1; k + 1 < inner.size(); ++k) {
        if (inner[k] != rows[n].back() && inner[k] != inner.back() && random_.chance(40)) {
          rows[n].push_back(inner[k]);
        }
      }
      if (inner.back() > 0) rows[n].push_back(inner.back());
    }
    Json list = Json::array();
    std::int64_t pages = 0;
    kv_lens_.assign(qo_indptr_.size() - 1, 0);
    for (std::size_t n = 0; n < rows.size(); ++n) {
      Json indptr = {0};
      Json last = Json::array();
      std::int64_t own = 0;
      for (std::size_t b = 0; b + 1 < rows[n].size(); ++b) {
        append_list(indptr, last, keys() / levels, own);
        const std::int64_t tokens = tokens_of(indptr, last, b);
        if (n + 1 == rows.size()) last_level_lens_.push_back(tokens);
        for (std::size_t r = 0; r + 1 < qo_indptr_.size(); ++r) {
          if (qo_indptr_[r] < rows[n][b] || qo_indptr_[r + 1] > rows[n][b + 1]) continue;
          if (qo_indptr_[r] < qo_indptr_[r + 1]) kv_lens_[r] += tokens;
        }
      }
      pages += own;
      list.push_back({{"qo_indptr", rows[n]}, {"indptr", indptr}, {"last_page_len", last}});
    }
    const std::int64_t pool = pages + random_.integer(1, 4);
    Ints ids = draw_pages(pages, pool);
    std::size_t at = 0;
    for (Json& level : list) {
      Json indices = Json::array();
      const auto count = level["indptr"].back().get<std::int64_t>();
      for (std::int64_t n = 0; n < count; ++n) indices.push_back(ids[at++]);
      level["indices"] = indices;
    }
    Json kv = {{"kind", "cascade"}, {"page_size", page_}, {"levels", list}};
    pools(kv, pool);
    document_["kv"] = kv;
  }

  void selected() {
    page_ = page_size({1, 2, 4, 8, 16});
    const bool per_head = spec_.chance(40);
    const std::int64_t lists = per_head ? kv_heads_ : 1;
    Json indptr = {0};
    Json last = Json::array();
    Json positions = Json::array();
    std::int64_t pages = 0;
    for (std::size_t r = 0; r + 1 < qo_indptr_.size(); ++r) {
      const std::int64_t total = keys();
      const std::int64_t total_pages = (total + page_ - 1) / page_;
      const bool shifted =
          random_.chance(20);  // pages that do not start on multiples of their size
      const std::int64_t shift = shifted ? random_.integer(1, 50) : 0;
      for (std::int64_t h = 0; h < lists; ++h) {
        for (std::int64_t n = 0; n < total_pages; ++n) {
          const bool recent = n + 1 == total_pages;  // every head keeps the last page
          if (!recent && n != 0 && random_.chance(50)) continue;
          positions.push_back(n * page_ + (n == 0 ? 0 : shift));
          ++pages;
        }
        indptr.push_back(pages);
        last.push_back(total == 0 ? 0 : total - (total_pages - 1) * page_);
      }
      kv_lens_.push_back(total == 0 ? 0 : total + (total_pages > 1 ? shift : 0));
    }
    const std::int64_t pool = pages + random_.integer(1, 4);
    Json kv = {{"kind", "selected"},    {"page_size", page_},
               {"indptr", indptr},      {"indices", draw_pages(pages, pool)},
               {"last_page_len", last}, {"positions", positions}};
    if (per_head) kv["per_kv_head"] = true;
    pools(kv, pool);
    document_["kv"] = kv;
  }

  Json bits(std::int64_t count) {
    Json row = Json::array();
    for (std::int64_t n = 0; n < count; ++n) row.push_back(random_.chance(60) ? 1 : 0);
    return row;
  }

  void mask() {
    const int kind = common_ ? spec_.pick<int>({0, 1, 1}) : spec_.pick<int>({0, 1, 1, 1, 2});
    Json out = {{"kind", kind == 0 ? "none" : kind == 1 ? "causal" : "custom"}};
    if (kind == 2) {
      const bool last_only = kind_ == 3;
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

  double number(double low, double high) {
    // A short decimal, so that the repro line stays readable.
    const std::int64_t steps = random_.integer(0, 64);
    return low + (high - low) * static_cast<double>(steps) / 64.0;
  }

  void options() {
    if (spec_.chance(20)) document_["sm_scale"] = number(0.02, 0.4);
    if (spec_.chance(20)) document_["logits_soft_cap"] = number(0.5, 30.0);
    const auto per_head = [&](std::int64_t heads, double low, double high) {
      Json out = Json::array();
      for (std::int64_t h = 0; h < heads; ++h) out.push_back(number(low, high));
      return out;
    };
    if (spec_.chance(20)) document_["alibi_slopes"] = per_head(qo_heads_, -0.05, 0.5);
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

  void rope() {
    if (common_ || !spec_.chance(25) || dim_qk_ % 2 != 0) return;
    Json out = {{"kind", spec_.pick<const char*>({"half", "interleaved"})}};
    if (spec_.chance(40)) out["theta"] = random_.pick<double>({10000.0, 500000.0, 100.0});
    if (spec_.chance(40)) out["rotary_dim"] = 2 * spec_.integer(1, dim_qk_ / 2);
    const int scaling = spec_.pick<int>({0, 0, 1, 2});
    if (scaling == 1) out["scaling"] = {{"kind", "linear"}, {"factor", number(1.0, 8.0)}};
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
    if ((kind_ != 3 || rows_everywhere) && spec_.chance(20)) {
      out["k_positions"] = positions(kv_lens_);
    }
    document_["rope"] = out;
  }

  void plan() {
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

  Random spec_;    // what a kernel is specialised for
  Random random_;  // lengths, values, memory, plans
  bool common_;
  Json document_ = Json::object();
  int kind_ = 0;
  bool hnd_ = false;
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

}  // namespace

Json generate_problem(std::uint64_t seed, std::uint64_t index, Aim aim) {
  // Consecutive problems share what kernels are compiled for, so that a device that compiles at run
  // time spends its minutes on running.
  constexpr std::uint64_t kProblemsPerSpec = 4;
  Random spec(seed * 0x2545F4914F6CDD1Du + index / kProblemsPerSpec);
  Random mix(seed * 0x2545F4914F6CDD1Du + ~index);
  return Generator(spec.next(), mix.next(), aim).run();
}

}  // namespace plait::check
