// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Asynchronous copies. Each takes effect at once or as late as it may, by a coin, and until it was
// waited for its target belongs to it.
#include <cstring>
#include <utility>

#include "emulator/launch.h"
#include "emulator/memory.h"
#include "emulator/tensor_map.h"

namespace plait::emulator {
namespace {

void land(Block& block, ThreadCopy& copy) {
  if (std::exchange(copy.landed, true)) return;
  std::byte* target = block.shared.pointer(copy.target);
  std::memcpy(target, copy.source, copy.valid);
  std::memset(target + copy.valid, 0, copy.bytes - copy.valid);
}

void finish_group(Block& block, std::vector<ThreadCopy>& group) {
  for (ThreadCopy& copy : group) {
    land(block, copy);
    block.shared.mark(copy.target, copy.bytes, -1);
  }
}

/// Calls body(offset in the box, address of the row or null) for every row of 128 bytes.
template <typename Body>
void for_each_row(const TensorMap& map, const std::int32_t (&at)[5], Body body) {
  u32 offset = 0;
  for (u32 i4 = 0; i4 < map.box[4]; ++i4) {
    for (u32 i3 = 0; i3 < map.box[3]; ++i3) {
      for (u32 i2 = 0; i2 < map.box[2]; ++i2) {
        for (u32 i1 = 0; i1 < map.box[1]; ++i1) {
          const std::int64_t index[4] = {std::int64_t{at[1]} + i1, std::int64_t{at[2]} + i2,
                                         std::int64_t{at[3]} + i3, std::int64_t{at[4]} + i4};
          bool inside = true;
          u64 address = map.address + static_cast<u64>(at[0]) * map.element_bytes;
          for (u32 d = 0; d < 4; ++d) {
            inside = inside && index[d] >= 0 && index[d] < map.extent[d + 1];
            address += static_cast<u64>(index[d]) * map.stride[d];
          }
          body(offset, inside ? reinterpret_cast<const std::byte*>(address) : nullptr);
          offset += map.row_bytes();
        }
      }
    }
  }
}

template <typename T>
T take(std::vector<T>& values, std::size_t index) {
  T value = std::move(values[index]);
  values.erase(values.begin() + static_cast<std::ptrdiff_t>(index));
  return value;
}

void complete_copy_arrival(Block& block, CopyArrival arrival) {
  finish_group(block, arrival.copies);
  arrive(block, arrival.barrier);
}

}  // namespace

/// The bits of an address by which the copy engine permutes 16-byte units of 128-byte rows.
u32 swizzled(u32 address) { return address ^ ((address >> 7 & 7U) << 4); }

namespace {

void complete_tensor_copy(Block& block, const TensorCopy& copy) {
  const TensorMap& map = *reinterpret_cast<const TensorMap*>(copy.map);
  for_each_row(map, copy.at, [&](u32 offset, const std::byte* row) {
    for (u32 unit = 0; unit < map.row_bytes(); unit += 16) {
      std::byte* target = block.shared.pointer(swizzled(copy.target + offset + unit));
      if (row != nullptr) {
        std::memcpy(target, row + unit, 16);
      } else {
        std::memset(target, map.nan_outside ? 0xFF : 0, 16);
      }
    }
  });
  block.shared.mark(copy.target, map.box_bytes(), -1);
  add_bytes(block, copy.barrier, map.box_bytes());
}

}  // namespace

void complete_some_copy(Block& block) {
  const std::size_t boxes = block.tensor_copies.size();
  const std::size_t index = launch->random()() % (boxes + block.copy_arrivals.size());
  if (index < boxes) {
    complete_tensor_copy(block, take(block.tensor_copies, index));
  } else {
    complete_copy_arrival(block, take(block.copy_arrivals, index - boxes));
  }
}

}  // namespace plait::emulator

namespace plait_emulator {

using namespace plait::emulator;

void copy_async(u32 shared, u64 global, u32 bytes, u32 valid) {
  if (shared % bytes != 0 || (valid != 0 && global % bytes != 0)) {
    launch->fail("copies " + std::to_string(bytes) +
                 " bytes between addresses that are not "
                 "multiples of that");
  }
  const auto* source = reinterpret_cast<const void*>(global);
  if (valid != 0) check_access(source, valid, Access::kRead);
  shared_write(shared, bytes);
  Block& block = *current->warp->block;
  ThreadCopy copy{shared, bytes, valid, source, false};
  if (launch->coin()) land(block, copy);
  block.shared.mark(shared, bytes, 1);
  current->open_copies.push_back(copy);
}

void copy_commit() { current->copies.push_back(std::exchange(current->open_copies, {})); }

void copy_wait(u32 pending) {
  while (current->copies.size() > pending) {
    finish_group(*current->warp->block, current->copies.front());
    current->copies.pop_front();
  }
}

void mbarrier_arrive_after_copies(u32 barrier) {
  shared_read(barrier, 8);
  CopyArrival arrival{barrier, std::exchange(current->open_copies, {})};
  for (std::vector<ThreadCopy>& group : std::exchange(current->copies, {})) {
    arrival.copies.insert(arrival.copies.end(), group.begin(), group.end());
  }
  Block& block = *current->warp->block;
  if (launch->coin()) {
    complete_copy_arrival(block, std::move(arrival));
  } else {
    block.copy_arrivals.push_back(std::move(arrival));
  }
}

void tensor_copy(u32 shared, u64 map_address, const u32 (&coordinates)[5], u32 barrier) {
  const TensorMap& map = *reinterpret_cast<const TensorMap*>(map_address);
  if (!map.valid()) launch->fail("copies by a tensor map that nobody encoded");
  if (shared % 128 != 0) launch->fail("copies a box to an address that is no multiple of 128");
  Block& block = *current->warp->block;
  TensorCopy copy{shared, barrier, map_address, {}};
  for (u32 i = 0; i < 5; ++i) copy.at[i] = static_cast<std::int32_t>(coordinates[i]);
  for (u32 at = 0; at < map.box_bytes(); at += 128) shared_write(shared + at, 128);
  for_each_row(map, copy.at, [&](u32, const std::byte* row) {
    if (row != nullptr) check_access(row, map.row_bytes(), Access::kRead);
  });
  block.shared.mark(shared, map.box_bytes(), 1);
  block.tensor_copies.push_back(copy);
}

}  // namespace plait_emulator
