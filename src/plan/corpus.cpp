// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/corpus.h"

#include <algorithm>
#include <functional>

#include "core/bsr.h"
#include "plait/error.h"

namespace plait {
namespace {

using i32 = std::int32_t;

/// splitmix64: small, good enough for lengths, the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  i32 between(i32 low, i32 high) {
    return low + static_cast<i32>(next() % static_cast<std::uint64_t>(high - low + 1));
  }

 private:
  std::uint64_t state_;
};

AttentionSpec llama(i32 qo_heads = 32, i32 kv_heads = 8) {
  AttentionSpec s;
  s.num_qo_heads = qo_heads;
  s.num_kv_heads = kv_heads;
  s.head_dim_qk = 128;
  s.head_dim_vo = 128;
  s.page_size = 16;
  return s;
}

struct Request {
  i32 rows;
  i32 keys;
};

/// One view, one row block per request.
OwnedBatch flat(const std::vector<Request>& requests, i32 page_size) {
  OwnedBatch b;
  OwnedView v;
  for (const Request& r : requests) {
    b.qo_indptr.push_back(b.qo_indptr.back() + r.rows);
    v.add_list(r.keys, page_size);
  }
  v.row_indptr = b.qo_indptr;
  b.views.push_back(std::move(v));
  return b;
}

std::vector<Request> decode(int count, i32 keys) {
  return std::vector<Request>(static_cast<std::size_t>(count), Request{1, keys});
}

std::vector<Request> skewed(int count, std::uint64_t seed) {
  std::vector<Request> requests;
  for (i32 length : skewed_lengths(count, seed)) requests.push_back({1, length});
  return requests;
}

/// Levels of shared prefixes: level l has `groups[l]` blocks of `tokens[l]` tokens; requests are
/// spread evenly over them.
OwnedBatch prefix_tree(int requests, const std::vector<int>& groups, const std::vector<i32>& tokens,
                       const std::vector<i32>& own, i32 page) {
  OwnedBatch b;
  for (int r = 1; r <= requests; ++r) b.qo_indptr.push_back(r);
  for (std::size_t l = 0; l < groups.size(); ++l) {
    OwnedView v;
    for (int g = 1; g <= groups[l]; ++g) {
      v.row_indptr.push_back(requests * g / groups[l]);
      v.add_list(tokens[l], page);
    }
    b.views.push_back(std::move(v));
  }
  OwnedView last;
  last.row_indptr = b.qo_indptr;
  for (int r = 0; r < requests; ++r) {
    last.add_list(own[static_cast<std::size_t>(r) % own.size()], page);
  }
  b.views.push_back(std::move(last));
  return b;
}

CorpusCase simple(const AttentionSpec& spec, const std::vector<Request>& requests) {
  CorpusCase c;
  c.spec = spec;
  c.batch = flat(requests, spec.kv_kind == KvKind::kRagged ? 0 : spec.page_size);
  return c;
}

CorpusCase mixed() {
  std::vector<Request> requests = skewed(64, 7);
  for (int i = 0; i < 4; ++i) requests.push_back({4096, 4096});
  return simple(llama(), requests);
}

CorpusCase chunked_prefill() {
  std::vector<Request> requests = skewed(96, 11);
  requests.push_back({1536, 1536});
  requests.push_back({512, 20480});
  return simple(llama(), requests);
}

CorpusCase ragged_prefill() {
  AttentionSpec s = llama();
  s.kv_kind = KvKind::kRagged;
  s.page_size = 1;
  Random random(3);
  std::vector<Request> requests;
  for (int i = 0; i < 16; ++i) {
    const i32 n = random.between(300, 3000);
    requests.push_back({n, n});
  }
  return simple(s, requests);
}

CorpusCase window() {
  AttentionSpec s = llama(16, 8);
  s.window_left = 1023;
  std::vector<Request> requests = skewed(128, 5);
  requests.push_back({2048, 2048});
  return simple(s, requests);
}

CorpusCase selected_pages() {
  CorpusCase c;
  c.spec = llama();
  Random random(17);
  OwnedView v;
  v.per_kv_head = true;
  for (int r = 1; r <= 48; ++r) {
    c.batch.qo_indptr.push_back(r);
    const i32 pages = random.between(600, 2000);
    c.batch.kv_len.push_back(pages * 16);
    for (int h = 0; h < 8; ++h) {
      const i32 kept = 64 + 8 * (r % 4);
      v.add_list(std::int64_t{kept} * 16, 16);
      // Four pages of sink, the recent ones, and selected ones between.
      for (i32 p = 0; p < kept; ++p) {
        const i32 page = p < 4           ? p
                         : p < kept - 16 ? 4 + (p - 4) * ((pages - 20) / (kept - 20)) +
                                               h % ((pages - 20) / (kept - 20))
                                         : pages - kept + p;
        v.positions.push_back(page * 16);
      }
    }
  }
  v.row_indptr = c.batch.qo_indptr;
  c.batch.views.push_back(std::move(v));
  return c;
}

CorpusCase block_sparse() {
  CorpusCase c;
  c.spec = llama();
  BsrPattern p;
  p.block_rows = BsrPattern::uniform(8192, 128);
  p.block_cols = BsrPattern::uniform(8192, 64);
  p.indptr = {0};
  Random random(23);
  for (i32 r = 0; r < 64; ++r) {
    for (i32 k = 0; k < 128; ++k) {
      const bool diagonal = k / 2 >= r - 3 && k / 2 <= r;
      if (diagonal || (k / 2 < r && random.between(0, 7) == 0)) p.indices.push_back(k);
    }
    p.indptr.push_back(static_cast<i32>(p.indices.size()));
  }
  LoweredBsr low = lower_bsr(p, MaskKind::kCausal);
  c.spec.page_size = low.page_size;
  c.batch = std::move(low.batch);
  return c;
}

struct Entry {
  std::string_view name;
  std::string_view what;
  std::function<CorpusCase()> make;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> list = {
      {"decode-256", "256 decode requests of 8192 tokens",
       [] { return simple(llama(), decode(256, 8192)); }},
      {"decode-1024", "1024 decode requests of 8192 tokens",
       [] { return simple(llama(), decode(1024, 8192)); }},
      {"decode-64", "64 decode requests of 2048 tokens",
       [] { return simple(llama(), decode(64, 2048)); }},
      {"decode-1", "one decode request of 32768 tokens",
       [] { return simple(llama(), decode(1, 32768)); }},
      {"skewed", "64 decode requests of 128..32768 tokens, log-normal",
       [] { return simple(llama(), skewed(64, 7)); }},
      {"skewed-256", "256 decode requests of 128..32768 tokens, log-normal",
       [] { return simple(llama(), skewed(256, 9)); }},
      {"mixed", "64 skewed decode requests and four 4096-row prefill chunks", mixed},
      {"chunked-prefill", "96 skewed decode requests, a short prompt and a chunk of a long one",
       chunked_prefill},
      {"prefill-1", "one prompt of 8192 tokens",
       [] {
         return simple(llama(), {{8192, 8192}});
       }},
      {"ragged-prefill", "16 prompts of 300..3000 tokens, contiguous K and V", ragged_prefill},
      {"speculative", "64 skewed requests that verify 5 tokens each",
       [] {
         std::vector<Request> requests = skewed(64, 13);
         for (Request& r : requests) r.rows = 5;
         return simple(llama(), requests);
       }},
      {"window", "128 skewed decode requests and a prompt under a window of 1024 keys", window},
      {"shared-prefix", "64 requests that share 32768 tokens and own 128",
       [] {
         CorpusCase c;
         c.spec = llama();
         c.batch = prefix_tree(64, {1}, {32768}, {128}, 16);
         return c;
       }},
      {"prefix-tree", "48 requests over 3 levels of shared prefixes",
       [] {
         CorpusCase c;
         c.spec = llama();
         c.batch = prefix_tree(48, {1, 6}, {4096, 2000}, {700, 1500, 90, 2600}, 16);
         return c;
       }},
      {"selected-pages", "48 requests, each KV head with its own selected pages", selected_pages},
      {"block-sparse", "one sequence of 8192 tokens, blocks of 128 x 64", block_sparse},
  };
  return list;
}

}  // namespace

std::vector<std::int32_t> skewed_lengths(int count, std::uint64_t seed) {
  Random random(seed);
  std::vector<i32> lengths;
  for (int i = 0; i < count; ++i) {
    // The exponent is a sum of four uniforms over [0, 2), fixed point with 16 bits: near normal,
    // mean 4. Between powers of two the length is interpolated.
    std::int64_t x = 0;
    for (int k = 0; k < 4; ++k) x += random.between(0, (2 << 16) - 1);
    const std::int64_t low = std::int64_t{128} << (x >> 16);
    lengths.push_back(
        static_cast<i32>(std::min<std::int64_t>(low + (low * (x & 0xFFFF) >> 16), 32768)));
  }
  return lengths;
}

std::vector<std::string_view> corpus_names() {
  std::vector<std::string_view> names;
  for (const Entry& e : entries()) names.push_back(e.name);
  return names;
}

CorpusCase corpus_case(std::string_view name) {
  std::string known;
  for (const Entry& e : entries()) {
    if (e.name == name) {
      CorpusCase c = e.make();
      c.name = e.name;
      c.what = e.what;
      return c;
    }
    known += (known.empty() ? "" : ", ") + std::string(e.name);
  }
  throw Error(ErrorCode::kInvalidArgument, "batch", std::string(name), "one of " + known);
}

}  // namespace plait
