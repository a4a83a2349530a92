// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/captures.h"

#include <span>
#include <string>

#include "cuda/graph_lifetime.h"
#include "plait/error.h"
#include "plan/plan_words.h"

namespace plait::cuda {
namespace {

/// Bit v is set if tensors[v] brings an address.
std::uint32_t defined_bits(std::span<const Tensor> tensors) {
  std::uint32_t bits = 0;
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    if (tensors[index].data != nullptr) bits |= 1U << index;
  }
  return bits;
}

/// An operand that a current plan does not read may be without memory, but not in a graph.
void refuse_missing_operand(const char* field, const Tensor& tensor) {
  if (tensor.data != nullptr) return;
  throw Error(ErrorCode::kInvalidArgument, field, "no address in a captured run",
              "the memory that replays after later plans shall use");
}

/// The operand of its view that `block` reads and that is not among the bits, or null.
const char* missing_operand(const device::RowBlock& block, std::uint32_t page_ids,
                            std::uint32_t positions) {
  const std::uint32_t bit = 1U << block.view;
  const bool paged = (block.flags & device::kBlockRagged) == 0 && block.num_slots > 0;
  if (paged && (page_ids & bit) == 0) return "page_ids";
  const bool has_positions = (block.flags & device::kBlockHasPositions) != 0;
  if (has_positions && (positions & bit) == 0) return "positions";
  return nullptr;
}

}  // namespace

void Captures::note(const Driver& driver, const CaptureInfo& info, const RunArgs& args,
                    const std::shared_ptr<const void>& state) {
  std::shared_ptr<Capture> capture = capture_with(info.id);
  if (capture == nullptr) {
    capture = std::make_shared<Capture>();
    capture->id = info.id;
    capture->state = state;
    capture->page_ids.assign(num_groups_, ~0U);
    capture->positions.assign(num_groups_, ~0U);
    keep_alive_with_graph(driver, info.graph, capture);
    forget_ended();
    captures_.push_back(capture);
  }
  refuse_missing_operand("q", args.q);
  refuse_missing_operand("k", args.k);
  refuse_missing_operand("v", args.v);
  refuse_missing_operand("o", args.o);
  const auto group = static_cast<std::size_t>(args.group);
  capture->page_ids[group] &= defined_bits(args.page_ids);
  capture->positions[group] &= defined_bits(args.positions);
}

std::vector<std::uint64_t> Captures::living() const {
  std::vector<std::uint64_t> ids;
  for (const std::weak_ptr<Capture>& known : captures_) {
    if (const std::shared_ptr<Capture> capture = known.lock()) ids.push_back(capture->id);
  }
  return ids;
}

void Captures::check(const Plan& plan) {
  forget_ended();
  for (const std::weak_ptr<Capture>& known : captures_) {
    const std::shared_ptr<Capture> capture = known.lock();
    if (capture == nullptr) continue;
    for (std::size_t group = 0; group < num_groups_; ++group) {
      const device::GroupHeader& header = group_header(plan, group);
      const auto* blocks = array_at<device::RowBlock>(plan, header.block_offset);
      for (std::int32_t index = 0; index < header.num_blocks; ++index) {
        const device::RowBlock& block = blocks[index];
        const char* const missing =
            missing_operand(block, capture->page_ids[group], capture->positions[group]);
        if (missing == nullptr) continue;
        throw Error(
            ErrorCode::kMismatch, "plan",
            "a batch that reads " + std::string(missing) + " of view " + std::to_string(block.view),
            "views whose operands the runs captured in a living graph brought");
      }
    }
  }
}

std::shared_ptr<Captures::Capture> Captures::capture_with(std::uint64_t id) const {
  // The latest first: captures rarely take turns.
  for (auto known = captures_.rbegin(); known != captures_.rend(); ++known) {
    std::shared_ptr<Capture> capture = known->lock();
    if (capture != nullptr && capture->id == id) return capture;
  }
  return nullptr;
}

void Captures::forget_ended() {
  std::erase_if(captures_, [](const auto& known) { return known.expired(); });
}

}  // namespace plait::cuda
