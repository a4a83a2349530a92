// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "check/generator.h"

namespace plait::check {

Generator::Json Generator::fill() { return {{"normal", random_.integer(0, 1 << 30)}}; }

// A generated tensor; in a quarter of the cases with padding after `axes` of its outer axes.
Generator::Json Generator::tensor(const Ints& shape, int axes) {
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
  return out;
}

void Generator::pools(Json& kv, std::int64_t pages) {
  const bool hnd = spec_.chance(40);
  if (hnd) document_["layout"] = "HND";
  const auto shape = [&](std::int64_t dim) {
    return hnd ? Ints{pages, kv_heads_, page_, dim} : Ints{pages, page_, kv_heads_, dim};
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
Generator::Ints Generator::draw_pages(std::int64_t count, std::int64_t pool) {
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

void Generator::append_list(Json& indptr, Json& last, std::int64_t tokens, std::int64_t& pages) {
  const std::int64_t count = (tokens + page_ - 1) / page_;
  pages += count;
  indptr.push_back(pages);
  last.push_back(tokens == 0 ? 0 : tokens - (count - 1) * page_);
}

void Generator::paged() {
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

std::int64_t Generator::tokens_of(const Json& indptr, const Json& last, std::size_t list) const {
  const std::int64_t pages =
      indptr[list + 1].get<std::int64_t>() - indptr[list].get<std::int64_t>();
  return pages == 0 ? 0 : (pages - 1) * page_ + last[list].get<std::int64_t>();
}

void Generator::ragged() {
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

Generator::Ints Generator::split(std::int64_t total, std::int64_t parts) {
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

void Generator::block_sparse() {
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

void Generator::cascade() {
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

void Generator::selected() {
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
    const bool shifted = random_.chance(20);  // pages that do not start on multiples of their size
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

}  // namespace plait::check
