// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What the lanes of a warp do together. Fragment layouts: PTX ISA, "Matrix fragments for
// mma.m16n8k16" and "ldmatrix".
#include <cstring>

#include "emulator/floats.h"
#include "emulator/launch.h"

namespace plait_emulator {

using plait::emulator::collective;
using plait::emulator::launch;
using plait::emulator::widen16;

namespace {

void require_full_mask(const char* operation, u32 mask) {
  if (mask == ~0U) return;
  launch->fail(std::string("calls ") + operation + " for lanes " + std::to_string(mask) +
               "; the emulator knows whole warps only");
}

struct Nothing {};

}  // namespace

void warp_step(const char* operation) {
  Nothing nothing;
  collective(operation, nothing, [](auto) {});
}

void sync_warp(u32 mask) {
  require_full_mask("__syncwarp", mask);
  warp_step("__syncwarp");
}

u32 shuffle(u32 mask, u32 value, u32 source_lane) {
  require_full_mask("__shfl_sync", mask);
  struct {
    u32 value, source, result;
  } mine{value, source_lane, 0};
  collective("__shfl_sync", mine, [](auto lane) {
    for (u32 l = 0; l < 32; ++l) lane(l).result = lane(lane(l).source).value;
  });
  return mine.result;
}

bool any(u32 mask, bool value) {
  require_full_mask("__any_sync", mask);
  struct {
    bool value;
  } mine{value};
  collective("__any_sync", mine, [](auto lane) {
    bool result = false;
    for (u32 l = 0; l < 32; ++l) result = result || lane(l).value;
    for (u32 l = 0; l < 32; ++l) lane(l).value = result;
  });
  return mine.value;
}

void load_matrices(bool transposed, u32* const (&words)[4], u32 address) {
  struct {
    const u16* row;
    u32 word[4];
  } mine{static_cast<const u16*>(shared_read(address, 16)), {}};
  collective(transposed ? "ldmatrix.trans" : "ldmatrix", mine, [transposed](auto lane) {
    for (u32 l = 0; l < 32; ++l) {
      for (u32 matrix = 0; matrix < 4; ++matrix) {
        u32 word = 0;
        for (u32 e = 0; e < 2; ++e) {
          const u32 row = transposed ? l % 4 * 2 + e : l / 4;
          const u32 column = transposed ? l / 4 : l % 4 * 2 + e;
          word |= static_cast<u32>(lane(matrix * 8 + row).row[column]) << (16 * e);
        }
        lane(l).word[matrix] = word;
      }
    }
  });
  for (u32 i = 0; i < 4; ++i) *words[i] = mine.word[i];
}

void store_matrices(u32 address, const u32 (&words)[4]) {
  struct {
    u16* row;
    const u32* word;
  } mine{static_cast<u16*>(shared_write(address, 16)), words};
  collective("stmatrix", mine, [](auto lane) {
    for (u32 l = 0; l < 32; ++l) {
      for (u32 matrix = 0; matrix < 4; ++matrix) {
        std::memcpy(lane(matrix * 8 + l / 4).row + l % 4 * 2, &lane(l).word[matrix], 4);
      }
    }
  });
}

void multiply(bool bf16, float* const (&d)[4], const u32 (&a)[4], const u32 (&b)[2],
              const float (&c)[4]) {
  struct {
    const u32 *a, *b;
    const float* c;
    float d[4];
  } mine{a, b, c, {}};
  collective(bf16 ? "mma.sync.bf16" : "mma.sync.f16", mine, [bf16](auto lane) {
    float left[16][16];
    float right[16][8];
    for (u32 l = 0; l < 32; ++l) {
      for (u32 i = 0; i < 4; ++i) {
        for (u32 e = 0; e < 2; ++e) {
          left[l / 4 + i % 2 * 8][l % 4 * 2 + i / 2 * 8 + e] =
              widen16(bf16, lane(l).a[i] >> (16 * e));
        }
      }
      for (u32 i = 0; i < 2; ++i) {
        for (u32 e = 0; e < 2; ++e) {
          right[l % 4 * 2 + i * 8 + e][l / 4] = widen16(bf16, lane(l).b[i] >> (16 * e));
        }
      }
    }
    for (u32 row = 0; row < 16; ++row) {
      float sums[8] = {};
      for (u32 k = 0; k < 16; ++k) {
        for (u32 n = 0; n < 8; ++n) sums[n] += left[row][k] * right[k][n];
      }
      for (u32 n = 0; n < 8; ++n) {
        auto& owner = lane(row % 8 * 4 + n / 2);
        const u32 at = row / 8 * 2 + n % 2;
        owner.d[at] = owner.c[at] + sums[n];
      }
    }
  });
  for (u32 i = 0; i < 4; ++i) *d[i] = mine.d[i];
}

}  // namespace plait_emulator
