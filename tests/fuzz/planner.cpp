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

#include "plait/error.h"

namespace {

using plait::AttentionSpec;
using plait::Batch;
using plait::View;

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
  target.num_classes = 1 + in.below(2);
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

struct OwnedView {
  std::vector<std::int32_t> rows, pages, last, positions;
};

// Lists that grow, mostly; the first one with a wild value makes the batch malformed.
std::vector<std::int32_t> read_indptr(Bytes& in, std::int32_t count, std::int32_t step) {
  std::vector<std::int32_t> out = {0};
  for (std::int32_t i = 0; i < count; ++i) {
    const auto sum = static_cast<std::int64_t>(out.back()) + in.wild(step);
    out.push_back(static_cast<std::int32_t>(sum));
  }
  return out;
}

void print(const char* name, const std::vector<std::int32_t>& values) {
  std::fprintf(stderr, "  %s:", name);
  for (const std::int32_t value : values) std::fprintf(stderr, " %d", value);
  std::fprintf(stderr, "\n");
}

void describe(const AttentionSpec& spec, const plait::Policy& policy,
              const plait::PlanTarget& target, const std::vector<std::int32_t>& qo,
              const std::vector<OwnedView>& views) {
  std::fprintf(stderr, "heads %d/%d, page size %d, ragged %d, mask %d, window %d\n",
               spec.num_qo_heads, spec.num_kv_heads, spec.page_size,
               spec.kv_kind == plait::KvKind::kRagged, static_cast<int>(spec.mask),
               spec.window_left);
  std::fprintf(stderr, "policy %d, chunk %d, balance %d, write through %d, tile per item %d\n",
               static_cast<int>(policy.kind), policy.kv_chunk, policy.balance,
               policy.allow_write_through, policy.tile_per_item);
  std::fprintf(stderr, "workers %d, classes %d: %dx%d %dx%d\n", target.num_workers,
               target.num_classes, target.classes[0].q_tile, target.classes[0].kv_tile,
               target.classes[1].q_tile, target.classes[1].kv_tile);
  print("qo_indptr", qo);
  for (const OwnedView& view : views) {
    print("row_indptr", view.rows);
    print("page_indptr", view.pages);
    print("last_page_len", view.last);
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
  capacity.max_row_blocks = 24;
  capacity.max_views = 3;
  capacity.min_kv_chunk = policy.kv_chunk;
  plait::Planner planner(std::span(&spec, 1), capacity, policy, std::span(&target, 1));

  for (int step = 0; step < 2; ++step) {
    const std::int32_t requests = in.below(7);
    const std::vector<std::int32_t> qo = read_indptr(in, requests, 12);
    std::vector<OwnedView> owned(static_cast<std::size_t>(1 + in.below(2)));
    std::vector<View> views;
    for (OwnedView& own : owned) {
      const bool shared = &own != &owned.back() && in.flag();
      own.rows = shared ? std::vector<std::int32_t>{0, qo.back()} : qo;
      const auto blocks = static_cast<std::int32_t>(own.rows.size()) - 1;
      View view;
      view.per_kv_head = in.below(8) == 7;
      const std::int32_t lists = blocks * (view.per_kv_head ? spec.num_kv_heads : 1);
      const bool paged = spec.kv_kind == plait::KvKind::kPaged;
      own.pages = read_indptr(in, lists, paged ? 6 : 90);
      if (paged) {
        for (std::size_t i = 0; i + 1 < own.pages.size(); ++i) {
          const bool empty = own.pages[i] == own.pages[i + 1];
          own.last.push_back(empty ? 0 : in.wild(spec.page_size, 1));
        }
        // With outer views the positions would have to begin where those end.
        if (owned.size() == 1 && in.below(6) == 5) {
          std::int32_t position = 0;
          for (std::int32_t i = 0; i < std::clamp(own.pages.back(), 0, 500); ++i) {
            own.positions.push_back(position);
            position += spec.page_size * (1 + in.below(2));
          }
        }
      }
      view.row_indptr = own.rows;
      view.page_indptr = own.pages;
      view.last_page_len = own.last;
      view.positions = own.positions;
      views.push_back(view);
    }
    Batch batch;
    batch.qo_indptr = qo;
    batch.views = views;
    try {
      const plait::Plan& plan = planner.plan(std::span(&batch, 1));
      verify_plan(std::span(&spec, 1), std::span(&batch, 1), plan, planner.bounds());
    } catch (const plait::Error& error) {
      // A batch may be refused; a plan that breaks a rule of its own is a fault.
      if (error.code() == plait::ErrorCode::kInternal) {
        describe(spec, policy, target, qo, owned);
        throw;
      }
    }
  }
}

}  // namespace

/// Any batch is either refused with an Error, or gives a plan that the independent verifier
/// accepts; a refused one leaves the planner usable.
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
