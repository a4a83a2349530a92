// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// "kv": page tables, ragged ranges and block structure.
#include <algorithm>
#include <compare>
#include <utility>

#include "oracle/parse_internal.h"

namespace plait::oracle {
namespace {

std::size_t z(std::int64_t value) { return static_cast<std::size_t>(value); }

[[noreturn]] void refuse_at(const Node& list, std::size_t index, const std::string& expected) {
  list.element(index).refuse(expected);
}

void check_kv_total(std::int64_t tokens, const Node& node) {
  if (tokens > kMaxIndex) {
    throw Error(ErrorCode::kInvalidArgument, node.path(), std::to_string(tokens) + " tokens",
                "at most " + std::to_string(kMaxIndex) + " tokens in one request");
  }
}

// indptr, indices and last_page_len of one level, against a pool of `num_pages`.
void parse_table(const Node& node, std::int64_t lists, std::string_view meaning,
                 std::int64_t num_pages, const Problem& problem, Level& level) {
  level.indptr = parse_indptr(node.get("indptr"), lists, meaning);
  const Node indices = node.get("indices");
  level.indices = indices.integers(0, kMaxIndex);
  if (static_cast<std::int64_t>(level.indices.size()) != level.indptr.back()) {
    throw Error(ErrorCode::kInvalidArgument, indices.path(),
                std::to_string(level.indices.size()) + " page ids",
                std::to_string(level.indptr.back()) + ", the last entry of indptr");
  }
  for (std::size_t n = 0; n < level.indices.size(); ++n) {
    if (level.indices[n] >= num_pages) {
      refuse_at(indices, n, "a page of the pool, 0.." + std::to_string(num_pages - 1));
    }
  }
  const Node last = node.get("last_page_len");
  level.last_page_len = last.integers(-kMaxIndex, kMaxIndex);
  if (static_cast<std::int64_t>(level.last_page_len.size()) != lists) {
    throw Error(ErrorCode::kInvalidArgument, last.path(),
                std::to_string(level.last_page_len.size()) + " entries",
                std::to_string(lists) + ", one per " + std::string(meaning));
  }
  for (std::size_t n = 0; n < level.last_page_len.size(); ++n) {
    const std::int64_t pages = level.indptr[n + 1] - level.indptr[n];
    const std::int64_t tokens = level.last_page_len[n];
    if (pages == 0 && tokens != 0) refuse_at(last, n, "0 (the list has no page)");
    if (pages > 0 && (tokens < 1 || tokens > problem.page_size)) {
      refuse_at(last, n, "1.." + std::to_string(problem.page_size) + " (page_size) tokens");
    }
    if (pages > 0) check_kv_total((pages - 1) * problem.page_size + tokens, indices);
  }
}

// A page listed twice for one query would be attended twice; partial states over such key sets do
// not merge exactly. `pages` are all that one query reads.
struct ListedPage {
  std::int64_t id;
  std::size_t level;
  std::int64_t entry;  // of the level's indices
  auto operator<=>(const ListedPage&) const = default;
};

void refuse_duplicates(std::vector<ListedPage> pages, const Node& levels) {
  std::sort(pages.begin(), pages.end());
  const auto twice = std::adjacent_find(pages.begin(), pages.end(),
                                        [](const auto& a, const auto& b) { return a.id == b.id; });
  if (twice == pages.end()) return;
  const auto path = [&](const ListedPage& page) {
    return levels.element(page.level).path() + ".indices[" + std::to_string(page.entry) + "]";
  };
  throw Error(ErrorCode::kInvalidArgument, path(twice[1]), std::to_string(twice->id),
              "a page that the query does not read already (it is also " + path(*twice) + ")");
}

void check_list_duplicates(const Level& level, const std::string& path) {
  std::vector<std::pair<std::int64_t, std::int64_t>> ids;
  for (std::size_t list = 0; list + 1 < level.indptr.size(); ++list) {
    ids.clear();
    for (std::int64_t n = level.indptr[list]; n < level.indptr[list + 1]; ++n) {
      ids.emplace_back(level.indices[z(n)], n);
    }
    std::sort(ids.begin(), ids.end());
    for (std::size_t n = 1; n < ids.size(); ++n) {
      if (ids[n].first != ids[n - 1].first) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  path + ".indices[" + std::to_string(ids[n].second) + "]",
                  std::to_string(ids[n].first),
                  "a page that its list does not name already (it is also entry " +
                      std::to_string(ids[n - 1].second) + ")");
    }
  }
}

// Pools: two tensors, or one with an axis of extent 2 after the pages.
std::int64_t parse_pools(const Node& node, TensorResolver& tensors, Problem& problem) {
  const std::int64_t page = problem.page_size;
  const std::int64_t heads = problem.num_kv_heads;
  const auto shape = [&](std::int64_t dim) {
    return problem.hnd ? Ints{-1, heads, page, dim} : Ints{-1, page, heads, dim};
  };
  if (node.has("kv_cache")) {
    const Node both = node.get("kv_cache");
    if (node.has("k_cache") || node.has("v_cache")) {
      both.refuse("either kv_cache, or k_cache and v_cache");
    }
    if (problem.head_dim_qk != problem.head_dim_vo) {
      both.refuse("k_cache and v_cache, since head_dim_qk differs from head_dim_vo");
    }
    Ints expected = shape(problem.head_dim_qk);
    expected.insert(expected.begin() + 1, 2);
    HostTensor pool = tensors.resolve(both, problem.kv_dtype, expected);
    const auto half = [&](std::int64_t which) {
      HostTensor out = pool;
      out.offset += which * pool.strides[1];
      out.shape.erase(out.shape.begin() + 1);
      out.strides.erase(out.strides.begin() + 1);
      return out;
    };
    problem.k = half(0);
    problem.v = half(1);
    return problem.k.shape[0];
  }
  problem.k = tensors.resolve(node.get("k_cache"), problem.kv_dtype, shape(problem.head_dim_qk));
  problem.v = tensors.resolve(node.get("v_cache"), problem.kv_dtype, shape(problem.head_dim_vo),
                              &problem.k, "k_cache");
  if (problem.v.shape[0] != problem.k.shape[0]) {
    throw Error(ErrorCode::kInvalidArgument, node.child_path("v_cache"),
                std::to_string(problem.v.shape[0]) + " pages",
                std::to_string(problem.k.shape[0]) + ", as k_cache has");
  }
  return problem.k.shape[0];
}

void parse_flat_pair(const Node& node, TensorResolver& tensors, Problem& problem) {
  if (problem.hnd) {
    throw Error(ErrorCode::kInvalidArgument, "layout", "\"HND\"",
                "\"NHD\" for kv.kind " + node.get("kind").string());
  }
  problem.k = tensors.resolve(node.get("k"), problem.kv_dtype,
                              {-1, problem.num_kv_heads, problem.head_dim_qk});
  problem.v = tensors.resolve(node.get("v"), problem.kv_dtype,
                              {problem.k.shape[0], problem.num_kv_heads, problem.head_dim_vo},
                              &problem.k, "k");
  check_kv_total(problem.k.shape[0], node.get("k"));
}

void parse_paged(const Node& node, TensorResolver& tensors, Problem& problem) {
  const bool selected = problem.source == Source::kSelected;
  if (selected) {
    node.expect_object({"kind", "page_size", "indptr", "indices", "last_page_len", "k_cache",
                        "v_cache", "kv_cache", "positions", "per_kv_head"});
    problem.per_kv_head = node.has("per_kv_head") && node.get("per_kv_head").boolean();
  } else {
    node.expect_object({"kind", "page_size", "indptr", "indices", "last_page_len", "k_cache",
                        "v_cache", "kv_cache"});
  }
  problem.page_size = node.get("page_size").integer(1, kMaxIndex);
  const std::int64_t pages = parse_pools(node, tensors, problem);
  Level level;
  level.qo_indptr = problem.qo_indptr;
  const std::int64_t lists =
      problem.num_requests() * (problem.per_kv_head ? problem.num_kv_heads : 1);
  parse_table(node, lists, problem.per_kv_head ? "request and KV head" : "request", pages, problem,
              level);
  check_list_duplicates(level, node.path());
  problem.levels.push_back(std::move(level));
}

void parse_positions(const Node& node, Problem& problem) {
  Level& level = problem.levels.front();
  const Node positions = node.get("positions");
  level.positions = positions.integers(0, kMaxIndex);
  if (level.positions.size() != level.indices.size()) {
    throw Error(ErrorCode::kInvalidArgument, positions.path(),
                std::to_string(level.positions.size()) + " entries",
                std::to_string(level.indices.size()) + ", one per entry of indices");
  }
  for (std::size_t list = 0; list + 1 < level.indptr.size(); ++list) {
    for (std::int64_t n = level.indptr[list] + 1; n < level.indptr[list + 1]; ++n) {
      const std::int64_t least = level.positions[z(n - 1)] + problem.page_size;
      if (level.positions[z(n)] < least) {
        refuse_at(
            positions, z(n),
            "at least " + std::to_string(least) + " (strictly increasing, pages do not overlap)");
      }
    }
    if (level.indptr[list + 1] > level.indptr[list]) {
      check_kv_total(level.positions[z(level.indptr[list + 1] - 1)] + level.last_page_len[list],
                     positions);
    }
  }
  if (!problem.per_kv_head) return;
  const auto length = [&](std::int64_t row) -> std::int64_t {
    const std::int64_t end = level.indptr[z(row + 1)];
    return end == level.indptr[z(row)] ? 0
                                       : level.positions[z(end - 1)] + level.last_page_len[z(row)];
  };
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(level.last_page_len.size()); ++row) {
    const std::int64_t first = row / problem.num_kv_heads * problem.num_kv_heads;
    if (length(row) == length(first)) continue;
    throw Error(ErrorCode::kInvalidArgument,
                node.path() + ".last_page_len[" + std::to_string(row) + "]",
                "kv_len " + std::to_string(length(row)) + " (last position + last_page_len)",
                std::to_string(length(first)) + ", as for the other KV heads of the request");
  }
}

void parse_cascade(const Node& node, TensorResolver& tensors, Problem& problem) {
  node.expect_object({"kind", "page_size", "k_cache", "v_cache", "kv_cache", "levels"});
  problem.page_size = node.get("page_size").integer(1, kMaxIndex);
  const std::int64_t pages = parse_pools(node, tensors, problem);
  const Node levels = node.get("levels");
  const std::size_t count = levels.length("a list of levels");
  if (count == 0) levels.refuse("at least one level");
  for (std::size_t n = 0; n < count; ++n) {
    const Node item = levels.element(n);
    item.expect_object({"qo_indptr", "indptr", "indices", "last_page_len"});
    Level level;
    const Node qo = item.get("qo_indptr");
    level.qo_indptr = parse_indptr(qo, -1, "row block");
    if (level.qo_indptr.back() != problem.total_q()) {
      qo.refuse("row blocks that end at " + std::to_string(problem.total_q()) +
                ", the last entry of the problem's qo_indptr");
    }
    const auto blocks = static_cast<std::int64_t>(level.qo_indptr.size()) - 1;
    parse_table(item, blocks, "row block", pages, problem, level);
    check_list_duplicates(level, item.path());
    problem.levels.push_back(std::move(level));
  }
  for (std::size_t n = 0; n < count; ++n) {
    const Node qo = levels.element(n).get("qo_indptr");
    if (n + 1 == count) {
      if (problem.levels[n].qo_indptr != problem.qo_indptr) {
        qo.refuse("the problem's qo_indptr (this is the last level)");
      }
      break;
    }
    const Ints& outer = problem.levels[n].qo_indptr;
    const Ints& inner = problem.levels[n + 1].qo_indptr;
    for (std::size_t k = 0; k < outer.size(); ++k) {
      if (std::binary_search(inner.begin(), inner.end(), outer[k])) continue;
      refuse_at(qo, k, "a boundary of the next level's qo_indptr");
    }
  }
  for (std::int64_t r = 0; r < problem.num_requests(); ++r) {
    check_kv_total(kv_len(problem, r), levels);
    if (problem.qo_len(r) == 0) continue;
    std::vector<ListedPage> read;
    for (std::size_t n = 0; n < count; ++n) {
      const Level& level = problem.levels[n];
      const auto block = z(block_of_request(problem, level, r));
      for (std::int64_t at = level.indptr[block]; at < level.indptr[block + 1]; ++at) {
        read.push_back({level.indices[z(at)], n, at});
      }
    }
    refuse_duplicates(std::move(read), levels);
  }
}

Ints parse_block_sizes(const Node& node, std::int64_t total, std::string_view what) {
  if (node.json().is_array()) {
    Ints sizes = node.integers(1, kMaxIndex);
    std::int64_t sum = 0;
    for (std::int64_t size : sizes) sum += size;
    if (sum != total) {
      node.refuse("sizes that sum to " + std::to_string(total) + " " + std::string(what));
    }
    return sizes;
  }
  // A remainder makes a smaller last block; indptr or indices tell if that was not meant.
  const std::int64_t size = node.integer(1, kMaxIndex);
  require_memory(total / size * std::int64_t{sizeof(std::int64_t)}, node.path());
  Ints sizes(z(total / size), size);
  if (total % size != 0) sizes.push_back(total % size);
  return sizes;
}

std::vector<std::uint8_t> parse_bits(const Node& node, std::int64_t rows, std::int64_t columns) {
  const std::string expected =
      "a " + std::to_string(rows) + " x " + std::to_string(columns) + " matrix of 0 and 1";
  std::vector<std::uint8_t> out;
  if (node.length(expected) != z(rows)) node.refuse(expected);
  for (std::size_t r = 0; r < z(rows); ++r) {
    const Node row = node.element(r);
    if (row.length(expected) != z(columns)) row.refuse(expected);
    for (std::size_t c = 0; c < z(columns); ++c) {
      out.push_back(static_cast<std::uint8_t>(row.element(c).integer(0, 1)));
    }
  }
  return out;
}

void parse_bsr(const Node& node, TensorResolver& tensors, Problem& problem) {
  node.expect_object(
      {"kind", "k", "v", "block_rows", "block_cols", "indptr", "indices", "block_mask"});
  if (problem.num_requests() != 1) {
    throw Error(ErrorCode::kInvalidArgument, "qo_indptr",
                std::to_string(problem.num_requests()) + " requests",
                "one sequence for kv.kind bsr");
  }
  parse_flat_pair(node, tensors, problem);
  BlockSparse& bsr = problem.bsr;
  bsr.row_sizes = parse_block_sizes(node.get("block_rows"), problem.total_q(), "query rows");
  bsr.col_sizes = parse_block_sizes(node.get("block_cols"), problem.k.shape[0], "keys");
  bsr.indptr = parse_indptr(node.get("indptr"), static_cast<std::int64_t>(bsr.row_sizes.size()),
                            "row block");
  const Node indices = node.get("indices");
  bsr.indices = indices.integers(0, kMaxIndex);
  if (static_cast<std::int64_t>(bsr.indices.size()) != bsr.indptr.back()) {
    throw Error(ErrorCode::kInvalidArgument, indices.path(),
                std::to_string(bsr.indices.size()) + " blocks",
                std::to_string(bsr.indptr.back()) + ", the last entry of indptr");
  }
  const auto columns = static_cast<std::int64_t>(bsr.col_sizes.size());
  for (std::size_t row = 0; row + 1 < bsr.indptr.size(); ++row) {
    for (std::int64_t n = bsr.indptr[row]; n < bsr.indptr[row + 1]; ++n) {
      if (bsr.indices[z(n)] >= columns) {
        refuse_at(indices, z(n), "a column block, 0.." + std::to_string(columns - 1));
      }
      if (n > bsr.indptr[row] && bsr.indices[z(n)] <= bsr.indices[z(n - 1)]) {
        refuse_at(indices, z(n), "columns increasing within a row");
      }
    }
  }
  if (!node.has("block_mask")) return;
  const Node masks = node.get("block_mask");
  if (masks.length("a list of 0/1 matrices") != bsr.indices.size()) {
    throw Error(ErrorCode::kInvalidArgument, masks.path(),
                std::to_string(masks.json().size()) + " matrices",
                std::to_string(bsr.indices.size()) + ", one per listed block");
  }
  for (std::size_t row = 0; row + 1 < bsr.indptr.size(); ++row) {
    for (std::int64_t n = bsr.indptr[row]; n < bsr.indptr[row + 1]; ++n) {
      bsr.masks.push_back(
          parse_bits(masks.element(z(n)), bsr.row_sizes[row], bsr.col_sizes[z(bsr.indices[z(n)])]));
    }
  }
}

}  // namespace

Ints parse_indptr(const Node& node, std::int64_t entries, std::string_view meaning) {
  Ints out = node.integers(0, kMaxIndex);
  if (out.empty() || (entries >= 0 && static_cast<std::int64_t>(out.size()) != entries + 1)) {
    throw Error(ErrorCode::kInvalidArgument, node.path(), std::to_string(out.size()) + " entries",
                entries >= 0 ? std::to_string(entries + 1) + " (one per " + std::string(meaning) +
                                   ", and one)"
                             : "at least one entry");
  }
  if (out.front() != 0) refuse_at(node, 0, "0");
  for (std::size_t n = 1; n < out.size(); ++n) {
    if (out[n] < out[n - 1]) {
      refuse_at(node, n, "at least " + std::to_string(out[n - 1]) + " (indptr never decreases)");
    }
  }
  return out;
}

void parse_kv(const Node& node, TensorResolver& tensors, Problem& problem) {
  if (!node.json().is_object()) node.refuse("an object");
  const Node kind = node.get("kind");
  const std::string& name = kind.string();
  if (name == "paged") {
    problem.source = Source::kPaged;
    parse_paged(node, tensors, problem);
  } else if (name == "selected") {
    problem.source = Source::kSelected;
    parse_paged(node, tensors, problem);
    parse_positions(node, problem);
  } else if (name == "cascade") {
    problem.source = Source::kCascade;
    parse_cascade(node, tensors, problem);
  } else if (name == "ragged") {
    problem.source = Source::kRagged;
    node.expect_object({"kind", "indptr", "k", "v"});
    parse_flat_pair(node, tensors, problem);
    problem.kv_indptr = parse_indptr(node.get("indptr"), problem.num_requests(), "request");
    if (problem.kv_indptr.back() != problem.k.shape[0]) {
      refuse_at(node.get("indptr"), problem.kv_indptr.size() - 1,
                std::to_string(problem.k.shape[0]) + ", the number of tokens of k");
    }
  } else if (name == "bsr") {
    problem.source = Source::kBsr;
    parse_bsr(node, tensors, problem);
  } else {
    kind.refuse("one of paged, ragged, bsr, cascade, selected");
  }
}

}  // namespace plait::oracle
