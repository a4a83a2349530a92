// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Products of warpgroups. Each warp computes its own 16 of the 64 rows. A product reads shared
// memory when it is issued or only when it is waited for, by a coin, and its accumulators hold NaN
// until then. Layouts: PTX ISA, "Asynchronous warpgroup level matrix", 128-byte swizzle.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "emulator/floats.h"
#include "emulator/launch.h"

namespace plait::emulator {

/// The registers of a warp that products add to, away from the threads while any is under way.
struct Accumulator {
  std::vector<float*> registers;  // [lane][count]
  std::vector<float> values;
  u32 count = 0;
  u32 pending = 0;
};

struct Product {
  std::shared_ptr<Accumulator> accumulator;
  float left[16][16];  // where A comes from registers
  bool bf16;           // else f16
  bool left_in_shared;
  bool transposed_b, accumulate;
  u32 first_row;  // of the warp in the warpgroup
  u64 a, b;
  bool done;
};

struct WarpgroupWork {
  std::deque<Product> products;    // oldest first
  std::deque<std::size_t> groups;  // products of each committed group
  std::size_t open = 0;            // products not committed yet
};

namespace {

struct Descriptor {
  u32 start, columns, rows;  // bytes; see matrix_descriptor in wgmma.h

  explicit Descriptor(u64 bits)
      : start(static_cast<u32>(bits & 0x3FFF) << 4),
        columns(static_cast<u32>(bits >> 16 & 0x3FFF) << 4),
        rows(static_cast<u32>(bits >> 32 & 0x3FFF) << 4) {
    if (bits >> 62 != 1 || (bits >> 49 & 7) != 0) {
      launch->fail("multiplies by a matrix descriptor without the 128-byte swizzle");
    }
  }
  /// Eight neighbouring elements from byte `unit` * 16 of a row on.
  void read(bool bf16, u32 row, u32 offset, float (&out)[8]) const {
    const u32 address = swizzled(start + row / 8 * rows + row % 8 * 128 + offset);
    const auto* from = static_cast<const std::uint16_t*>(plait_emulator::shared_read(address, 16));
    for (u32 i = 0; i < 8; ++i) out[i] = widen16(bf16, from[i]);
  }
};

void compute(Product& product) {
  if (std::exchange(product.done, true)) return;
  Accumulator& target = *product.accumulator;
  const u32 columns = target.count * 2;
  float unit[8];
  if (product.left_in_shared) {
    const Descriptor a(product.a);
    for (u32 row = 0; row < 16; ++row) {
      for (u32 k = 0; k < 16; k += 8) {
        a.read(product.bf16, product.first_row + row, k * 2, unit);
        std::copy_n(unit, 8, product.left[row] + k);
      }
    }
  }
  const Descriptor b(product.b);
  std::vector<float> right(std::size_t{16} * columns);  // [k][n]
  if (product.transposed_b) {
    for (u32 k = 0; k < 16; ++k) {
      for (u32 n = 0; n < columns; n += 8) {
        b.read(product.bf16, k, n / 64 * b.columns + n % 64 * 2, unit);
        std::copy_n(unit, 8, right.data() + k * columns + n);
      }
    }
  } else {
    for (u32 n = 0; n < columns; ++n) {
      for (u32 k = 0; k < 16; ++k) {
        if (k % 8 == 0) b.read(product.bf16, n, k * 2, unit);
        right[k * columns + n] = unit[k % 8];
      }
    }
  }
  std::vector<float> sums(columns);
  for (u32 row = 0; row < 16; ++row) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (u32 k = 0; k < 16; ++k) {
      for (u32 n = 0; n < columns; ++n) sums[n] += product.left[row][k] * right[k * columns + n];
    }
    for (u32 n = 0; n < columns; ++n) {
      const u32 lane = row % 8 * 4 + n % 8 / 2;
      float& value = target.values[lane * target.count + n / 8 * 4 + row / 8 * 2 + n % 2];
      value = (product.accumulate ? value : 0.0F) + sums[n];
    }
  }
}

/// Takes the accumulators from the threads, unless an earlier product has them.
template <typename Lane>
std::shared_ptr<Accumulator> take(const WarpgroupWork& work, u32 count, Lane lane) {
  for (const Product& product : work.products) {
    if (product.accumulator->registers[0] == lane(0).d[0]) return product.accumulator;
  }
  auto taken = std::make_shared<Accumulator>();
  taken->count = count;
  for (u32 l = 0; l < 32; ++l) {
    for (u32 i = 0; i < count; ++i) {
      taken->registers.push_back(lane(l).d[i]);
      taken->values.push_back(*lane(l).d[i]);
      *lane(l).d[i] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  return taken;
}

void finish_oldest(WarpgroupWork& work) {
  Product& product = work.products.front();
  compute(product);
  Accumulator& target = *product.accumulator;
  if (--target.pending == 0) {
    for (std::size_t i = 0; i < target.values.size(); ++i) *target.registers[i] = target.values[i];
  }
  work.products.pop_front();
}

WarpgroupWork& work_of(Warp& warp) {
  if (warp.products == nullptr) warp.products = std::make_shared<WarpgroupWork>();
  return *warp.products;
}

}  // namespace

bool has_products(const Warp& warp) {
  return warp.products != nullptr && !warp.products->products.empty();
}

}  // namespace plait::emulator

namespace plait_emulator {

using namespace plait::emulator;

void warpgroup_multiply(bool bf16, float* const* d, u32 columns, const u64* a, const u32* a_words,
                        u64 b, bool accumulate, bool transposed_b) {
  struct {
    float* const* d;
    const u32* words;
    u64 a, b;
    bool accumulate;
  } mine{d, a_words, a != nullptr ? *a : 0, b, accumulate};
  collective("wgmma", mine, [&](auto lane) {
    WarpgroupWork& work = work_of(*current->warp);
    for (u32 l = 0; l < 32; ++l) {
      if (lane(l).a != mine.a || lane(l).b != b || lane(l).accumulate != accumulate) {
        launch->fail("multiplies with other operands than its warp");
      }
    }
    Product product{};
    product.accumulator = take(work, columns / 2, lane);
    ++product.accumulator->pending;
    product.bf16 = bf16;
    product.left_in_shared = a != nullptr;
    product.transposed_b = transposed_b;
    product.accumulate = accumulate;
    product.first_row = current->index.x / 32 % 4 * 16;
    product.a = mine.a;
    product.b = b;
    for (u32 l = 0; a == nullptr && l < 32; ++l) {
      for (u32 i = 0; i < 4; ++i) {
        for (u32 e = 0; e < 2; ++e) {
          product.left[l / 4 + i % 2 * 8][l % 4 * 2 + i / 2 * 8 + e] =
              widen16(bf16, lane(l).words[i] >> (16 * e));
        }
      }
    }
    work.products.push_back(product);
    ++work.open;
    if (launch->coin()) std::for_each(work.products.begin(), work.products.end(), compute);
  });
}

void warpgroup_commit() {
  struct {
  } nothing;
  collective("wgmma.commit_group", nothing, [](auto) {
    WarpgroupWork& work = work_of(*current->warp);
    work.groups.push_back(std::exchange(work.open, 0));
  });
}

void warpgroup_wait(u32 pending) {
  struct {
  } nothing;
  collective("wgmma.wait_group", nothing, [pending](auto) {
    WarpgroupWork& work = work_of(*current->warp);
    while (work.groups.size() > pending) {
      for (std::size_t i = 0; i < work.groups.front(); ++i) finish_oldest(work);
      work.groups.pop_front();
    }
  });
}

}  // namespace plait_emulator
