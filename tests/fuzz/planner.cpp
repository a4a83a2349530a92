// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/planner.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "core/owned_batch.h"
#include "plait/error.h"

namespace {

using plait::AttentionSpec;
using plait::Batch;

/// Numbers from the input; zeros once it is used up.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::int32_t below(std::int32_t limit) {
    const std::uint32_t value = next() | static_cast<std::uint32_t>(next()) << 8U;
    return static_cast<std::int32_t>(value % static_cast<std::uint32_t>(limit));
  }
  bool flag() { return (next() & 1U) != 0; }
  /// Mostly one of `usual` values from `first` on; now and then anything that an int32 can hold.
  std::int32_t wild(std::int32_t usual, std::int32_t first = 0) {
    if (next() < 250U) return first + below(usual);
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8U | next();
    return static_cast<std::int32_t>(value);
  }

 private:
  std::uint8_t next() { return at_ < size_ ? data_[at_++] : std::uint8_t{0}; }
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

AttentionSpec read_spec(Bytes& in) {
  AttentionSpec spec;
  spec.num_kv_heads = 1 + in.below(4);
  spec.num_qo_heads = spec.num_kv_heads * (1 + in.below(5));
  spec.head_dim_qk = spec.head_dim_vo = 64;
  spec.kv_kind = in.flag() ? plait::KvKind::kPaged : plait::KvKind::kRagged;
  spec.page_size = spec.kv_kind == plait::KvKind::kPaged ? 1 + in.below(20) : 1;
  spec.mask = static_cast<plait::MaskKind>(in.below(3));
  spec.window_left = in.flag() ? in.below(70) : -1;
  if (in.below(8) == 7) {
    spec.rope.kind = plait::RopeKind::kHalf;
    spec.rope.explicit_k_positions = true;
  }
  return spec;
}

plait::Policy read_policy(Bytes& in, const AttentionSpec& spec) {
  plait::Policy policy;
  policy.kind = static_cast<plait::PolicyKind>(in.below(4));
  if (policy.kind == plait::PolicyKind::kFixedChunk) {
    policy.kv_chunk = spec.page_size * (1 + in.below(8));
  }
  policy.balance = in.flag();
  policy.allow_write_through = in.flag();
  policy.tile_per_item = in.flag();
  return policy;
}

plait::PlanTarget read_target(Bytes& in) {
  plait::PlanTarget target;
  target.num_workers = 1 + in.below(6);
  target.num_classes = 1 + in.below(3);
  target.shared_workers = in.flag();
  std::int32_t q_tile = 1 << in.below(5);
  for (std::int32_t c = 0; c < target.num_classes; ++c, q_tile *= 4) {
    auto& tile = target.classes[static_cast<std::size_t>(c)];
    tile.q_tile = q_tile;
    tile.kv_tile = 16 << in.below(3);
    tile.cost = {16 + in.below(1000), in.below(500), 1 + in.below(50), in.below(50)};
  }
  target.segment_tokens = 128;
  target.canonical = target.classes[0];
  target.canonical.kv_tile = 32;
  return target;
}

constexpr std::int64_t kFew = 500;

// A sum as arithmetic in 32 bits would leave it.
std::int32_t wrap(std::int32_t value, std::int64_t more) {
  return static_cast<std::int32_t>(value + more);
}

// Lists that grow, mostly; the first one with a wild value makes the batch malformed.
std::vector<std::int32_t> read_indptr(Bytes& in, std::int32_t count, std::int32_t step) {
  std::vector<std::int32_t> out = {0};
  for (std::int32_t i = 0; i < count; ++i) out.push_back(wrap(out.back(), in.wild(step)));
  return out;
}

// Boundaries of row blocks: those of the requests, the outermost two, or more than the requests'.
std::vector<std::int32_t> read_rows(Bytes& in, const std::vector<std::int32_t>& qo) {
  const std::int32_t kind = in.below(4);
  if (kind == 1) return {0, qo.back()};
  if (kind != 2) return qo;
  std::vector<std::int32_t> out = {0};
  for (std::size_t i = 1; i < qo.size(); ++i) {
    const std::int64_t rows = std::int64_t{qo[i]} - qo[i - 1];
    if (rows > 1 && in.flag()) {
      out.push_back(qo[i - 1] + 1 + in.below(static_cast<std::int32_t>(std::min(rows - 1, kFew))));
    }
    out.push_back(qo[i]);
  }
  return out;
}

// Where each listed page begins, a few tokens apart at most; now and then anywhere.
std::vector<std::int32_t> read_positions(Bytes& in, const plait::OwnedView& view,
                                         std::int32_t page_size) {
  std::vector<std::int32_t> out;
  for (std::size_t list = 0; list + 1 < view.page_indptr.size(); ++list) {
    const std::int64_t pages =
        std::int64_t{view.page_indptr[list + 1]} - std::int64_t{view.page_indptr[list]};
    std::int32_t position = in.wild(90);
    for (std::int64_t i = 0; i < std::min(pages, kFew); ++i) {
      out.push_back(position);
      position = wrap(position, page_size * (1 + in.below(2)));
    }
  }
  return out;
}

plait::OwnedView read_view(Bytes& in, const AttentionSpec& spec,
                           const std::vector<std::int32_t>& qo) {
  plait::OwnedView view;
  view.row_indptr = read_rows(in, qo);
  view.per_kv_head = in.below(8) == 7;
  const auto blocks = static_cast<std::int32_t>(view.row_indptr.size()) - 1;
  const std::int32_t heads = view.per_kv_head ? spec.num_kv_heads : 1;
  // The lists of a block's heads have to be alike, if positions do not say otherwise.
  const bool alike = heads > 1 && !in.flag();
  const bool paged = spec.kv_kind == plait::KvKind::kPaged;
  const std::vector<std::int32_t> ends =
      read_indptr(in, alike ? blocks : blocks * heads, paged ? 6 : 90);
  for (std::size_t list = 0; list + 1 < ends.size(); ++list) {
    const bool empty = ends[list] == ends[list + 1];
    const std::int32_t last = empty ? 0 : paged ? in.wild(spec.page_size, 1) : 0;
    for (std::int32_t head = 0; head < (alike ? heads : 1); ++head) {
      view.page_indptr.push_back(
          wrap(view.page_indptr.back(), std::int64_t{ends[list + 1]} - std::int64_t{ends[list]}));
      if (paged) view.last_page_len.push_back(last);
    }
  }
  const std::int32_t positions = in.below(6);
  if (positions == 5) view.positions = read_positions(in, view, spec.page_size);
  view.positions_at_run = positions == 4;
  return view;
}

plait::OwnedBatch read_batch(Bytes& in, const AttentionSpec& spec) {
  plait::OwnedBatch batch;
  batch.qo_indptr = read_indptr(in, in.below(7), 12);
  batch.views.resize(static_cast<std::size_t>(1 + in.below(4)));
  for (plait::OwnedView& view : batch.views) view = read_view(in, spec, batch.qo_indptr);
  if (in.below(4) == 3) {
    for (std::size_t i = 1; i < batch.qo_indptr.size(); ++i) batch.kv_len.push_back(in.wild(1024));
  }
  return batch;
}

void print(const char* name, const std::vector<std::int32_t>& values) {
  std::fprintf(stderr, "  %s:", name);
  for (const std::int32_t value : values) std::fprintf(stderr, " %d", value);
  std::fprintf(stderr, "\n");
}

void describe(const std::vector<AttentionSpec>& specs, const plait::Policy& policy,
              const plait::PlanTarget& target, const plait::OwnedBatch& batch) {
  for (const AttentionSpec& spec : specs) {
    std::fprintf(stderr, "heads %d/%d, page size %d, ragged %d, mask %d, window %d\n",
                 spec.num_qo_heads, spec.num_kv_heads, spec.page_size,
                 spec.kv_kind == plait::KvKind::kRagged, static_cast<int>(spec.mask),
                 spec.window_left);
  }
  std::fprintf(stderr, "policy %d, chunk %d, balance %d, write through %d, tile per item %d\n",
               static_cast<int>(policy.kind), policy.kv_chunk, policy.balance,
               policy.allow_write_through, policy.tile_per_item);
  std::fprintf(stderr, "workers %d (shared %d), classes %d: %dx%d %dx%d %dx%d\n",
               target.num_workers, target.shared_workers, target.num_classes,
               target.classes[0].q_tile, target.classes[0].kv_tile, target.classes[1].q_tile,
               target.classes[1].kv_tile, target.classes[2].q_tile, target.classes[2].kv_tile);
  print("qo_indptr", batch.qo_indptr);
  print("kv_len", batch.kv_len);
  for (const plait::OwnedView& view : batch.views) {
    std::fprintf(stderr, "  view, per KV head %d, positions at run %d\n", view.per_kv_head,
                 view.positions_at_run);
    print("row_indptr", view.row_indptr);
    print("page_indptr", view.page_indptr);
    print("last_page_len", view.last_page_len);
    print("positions", view.positions);
  }
}

void plan_and_verify(Bytes& in) {
  const AttentionSpec spec = read_spec(in);
  const plait::Policy policy = read_policy(in, spec);
  const plait::PlanTarget target = read_target(in);
  plait::Capacity capacity;
  capacity.max_requests = 8;
  capacity.max_query_rows = 64;
  capacity.max_kv_tokens = 1024;
  capacity.max_row_blocks = 48;
  capacity.max_views = 3;
  capacity.min_kv_chunk = policy.kv_chunk;
  capacity.allow_split = in.below(8) != 7;
  if (!capacity.allow_split) capacity.max_views = 1;
  // Layers with a window and layers without.
  std::vector<AttentionSpec> specs = {spec};
  if (in.below(4) == 3) {
    specs.push_back(spec);
    specs.back().window_left = in.flag() ? in.below(70) : -1;
  }
  const std::vector<plait::PlanTarget> targets(specs.size(), target);
  plait::Planner planner(specs, capacity, policy, targets);

  std::vector<std::int32_t> previous;
  for (int step = 0; step < 2; ++step) {
    plait::OwnedBatch owned = read_batch(in, spec);
    const Batch& batch = owned.get();
    try {
      const plait::Plan& plan = planner.plan(std::span(&batch, 1));
      verify_plan(specs, std::span(&batch, 1), plan, planner.bounds());
      previous.assign(plan.words.begin(), plan.words.end());
    } catch (const plait::Error& error) {
      // A batch may be refused; a plan that breaks a rule of its own is a fault.
      if (error.code() == plait::ErrorCode::kInternal) {
        describe(specs, policy, target, owned);
        throw;
      }
      const std::span<const std::int32_t> kept = planner.current().words;
      if (!std::equal(kept.begin(), kept.end(), previous.begin(), previous.end())) std::abort();
    }
  }
}

}  // namespace

/// Any batch is either refused with an Error, or gives a plan that the independent verifier
/// accepts; a refused one leaves the planner usable, and the plan before as it was.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes in(data, size);
  try {
    plan_and_verify(in);
  } catch (const plait::Error& error) {
    if (error.code() == plait::ErrorCode::kInternal) {
      std::fprintf(stderr, "%s\n", error.what());
      std::abort();
    }
  }
  return 0;
}
