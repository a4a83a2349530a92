// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// From raw products to probabilities: soft cap, hooks, bias, mask, and references.h.
#pragma once

#include "cuda/kernels/device/alibi.h"
#include "cuda/kernels/mma/hooks.h"
#include "cuda/kernels/mma/key_table.h"
#include "cuda/kernels/mma/products.h"
#include "cuda/kernels/mma/references.h"

namespace plait::device::mma {

/// A query row as masks and biases see it; read from shared memory where a tile needs it.
struct RowFacts {
  using C = Config;
  static constexpr i32 kRows = C::kRowsPerThread;
  i32 low, high;  // positions it may see, inclusive
  i32 position;

  __device__ __forceinline__ RowFacts(const AttentionParams& p, const char* shared, i32 local) {
    position = reinterpret_cast<const i32*>(shared + C::kShared.query_positions)[local];
    high = C::kCausal ? position : KeyTable::kNoPosition - 1;
    low = C::kWindow && p.window_left >= 0 ? position - p.window_left : -0x7FFFFFFF;
    // Rows beyond the item see nothing, so that no mask bit is read for them.
    const auto& facts = *reinterpret_cast<const ItemFacts*>(shared + C::kShared.facts);
    if (local >= facts.run.num_fused_rows) high = -0x7FFFFFFF - 1;
  }
};

/// Scale factors of one item.
struct ScoreScale {
  float base2;    // score -> base-2 logit; a score is a raw product's magnitude, or capped its tanh
  float natural;  // raw product -> logit; negative: the raw products change sign first. With a soft
                  // cap and nothing else on the way: -> argument of scaled_tanh
};

/// A row's bias is slope * (key position - position).
struct RowBias {
  float slope;
  i32 position;
};

/// Where the slope of local row `row` lies: those of a thread's rows together.
__device__ __forceinline__ i32 bias_slot(i32 row) {
  constexpr i32 kWarpRows = 16 * Config::kRowBlocks;
  return row / kWarpRows * kWarpRows + row % 8 * Config::kRowsPerThread + row % kWarpRows / 8;
}

struct Softmax {
  using C = Config;
  static constexpr i32 kRows = RowFacts::kRows;

  /// Every tile may have hidden keys.
  static constexpr bool kHides = C::kCustomMask || Hooks::kHasMask;

  /// Full tiles may take ALiBi as `bases`, see device/alibi.h.
  static constexpr bool kBases = C::kAlibi && !kHookedLogits && !C::kSoftCap && !C::kCanonical &&
                                 !kHides && !(C::kTensorCores && RowReferences::kFiner);

  RowReferences rows;

  /// Whether raw products have to change their signs; kernels without that are spared a branch.
  static __device__ __forceinline__ bool is_negative(const ScoreScale& scale) {
    return !kHookedLogits && !C::kSoftCap && scale.natural < 0.0F;
  }

  /// Turns raw products into probabilities; rescales `outputs` where a row's reference moves.
  /// `positions`: of the warp's keys, in shared memory; `first_position`: of the first, if they are
  /// consecutive. `care`: some key may be hidden, or is_negative(scale).
  __device__ __forceinline__ void step(Scores& scores, Outputs& outputs, const ScoreScale& scale,
                                       const i32* positions, i32 first_position, bool care,
                                       const AttentionParams& p, i32 kv_head, const char* shared,
                                       const WarpPlace& at) {
    float unit = kHookedLogits ? 1.0F : scale.base2;
    float shift[kRows] = {};
    if constexpr (kHookedLogits) {
      finish_logits(scores, scale, positions, p, kv_head, shared, at);
    } else if constexpr (C::kSoftCap) {
      scaled_tanh_of<C::kRowBlocks * C::kKeyTiles * 4>(scale.natural, [&](i32 i) -> float& {
        return scores[i / (C::kKeyTiles * 4)][i / 4 % C::kKeyTiles].x[i % 4];
      });
    }
    if constexpr (C::kAlibi && !kHookedLogits) {
      if (care && is_negative(scale)) negate(scores);
      add_slopes(scores, unit, shift, positions, first_position, shared, at);
    }
    if (care) {
      if (!C::kAlibi && is_negative(scale)) negate(scores);
      hide(scores, positions, p, kv_head, shared, at);
    }
    if constexpr (C::kSumReduction) {
      // finish_logits left the weights; hidden keys hold -inf.
#pragma unroll
      for (i32 m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
        for (i32 n = 0; n < C::kKeyTiles; ++n) {
#pragma unroll
          for (i32 e = 0; e < 4; ++e) {
            float& x = scores[m][n].x[e];
            if (x == neg_inf()) x = 0.0F;
          }
        }
      }
    } else {
      rows.step(scores, outputs, unit, shift, p);
    }
  }

  /// The same for a full tile with biases as `bases`, and references that stay as they are.
  /// `last_key`: the last of the warp's, counted from the item's first.
  __device__ __forceinline__ RowReferences::Attempt attempt(Scores& scores, float unit,
                                                            i32 last_key, const char* shared,
                                                            const WarpPlace& at) const {
    const u32 row = static_cast<u32>(at.row + at.lane / 4 * kRows);
    const i32 own = at.lane % 4 * 2;
    const auto last = static_cast<float>(last_key - 6 + own);  // of the thread's
    float slope[kRows];
    float base[kRows];
#pragma unroll
    for (i32 r = 0; r < kRows; r += 2) {
      float x[4];
      load_again(x, shared_address(shared + C::kShared.row_slopes) +
                        (row + static_cast<u32>(r)) * static_cast<u32>(sizeof(RowSlope)));
#pragma unroll
      for (i32 i = 0; i < 2; ++i) {
        slope[r + i] = x[2 * i];
        base[r + i] = __fmaf_rn(slope[r + i], __fsub_rn(x[2 * i + 1], last), rows.reference[r + i]);
      }
    }
    return rows.attempt(scores, unit, [&](i32 r, i32 n, i32 e) {
      const i32 behind = 8 * (C::kKeyTiles - 1 - n) + 1 - e;
      return behind == 0 ? base[r] : __fmaf_rn(slope[r], static_cast<float>(behind), base[r]);
    });
  }

 private:
  static __device__ __forceinline__ void negate(Scores& scores) {
#pragma unroll
    for (i32 m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
      for (i32 n = 0; n < C::kKeyTiles; ++n) {
#pragma unroll
        for (i32 e = 0; e < 4; ++e) scores[m][n].x[e] = -scores[m][n].x[e];
      }
    }
  }

  static __device__ __forceinline__ LogitSite<float> site(i32 q_position, i32 local_row,
                                                          i32 kv_position, i32 kv_head,
                                                          const char* shared) {
    LogitSite<float> s;
    const QueryRow& row =
        reinterpret_cast<const QueryRow*>(shared + C::kShared.query_rows)[local_row];
    s.request = row.request;
    s.q_pos = q_position;
    s.qo_len = row.qo_len;
    s.kv_len = row.kv_len;
    s.qo_head = row.head;
    s.kv_head = kv_head;
    s.kv_pos = kv_position;
    s.distance = static_cast<float>(kv_position - q_position);
    return s;
  }

  /// Calls body(score, r, local row, key position) for every score of the thread.
  template <bool kPositions, class Row, class Body>
  static __device__ __forceinline__ void for_each(Scores& scores, const i32* positions,
                                                  const WarpPlace& at, Row row, Body body) {
#pragma unroll
    for (i32 m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
      for (i32 half = 0; half < 2; ++half) {
        const i32 local = at.row + m * 16 + half * 8 + at.lane / 4;
        const auto facts = row(local);
#pragma unroll
        for (i32 n = 0; n < C::kKeyTiles; ++n) {
          int2 key{};
          if constexpr (kPositions) {
            key = *reinterpret_cast<const int2*>(positions + n * 8 + at.lane % 4 * 2);
          }
          body(scores[m][n].x[2 * half], facts, local, key.x);
          body(scores[m][n].x[2 * half + 1], facts, local, key.y);
        }
      }
    }
  }

  static __device__ __forceinline__ RowBias row_bias(const char* shared, i32 local) {
    return {
        reinterpret_cast<const RowSlope*>(shared + C::kShared.row_slopes)[bias_slot(local)].slope,
        reinterpret_cast<const i32*>(shared + C::kShared.query_positions)[local]};
  }

  /// ALiBi: device/alibi.h. Base 2 is score * unit + shift, before and afterwards. Under canonical
  /// segments a row's bits may not depend on what other rows there are: all biases are added in
  /// base 2.
  static __device__ __forceinline__ void add_slopes(Scores& scores, float& unit,
                                                    float (&shift)[kRows], const i32* positions,
                                                    i32 first_position, const char* shared,
                                                    const WarpPlace& at) {
    constexpr i32 kMiddle = C::kWarpKeys / 2;
    const auto bias = [&](i32 r) {
      return row_bias(shared, at.row + r / 2 * 16 + r % 2 * 8 + at.lane / 4);
    };
    const i32 own = at.lane % 4 * 2;
    bool small = reinterpret_cast<const ItemFacts*>(shared + C::kShared.facts)->consecutive != 0;
    bool far = false;
    if constexpr (!C::kCanonical) {
      const RowBias row = row_bias(shared, at.row + at.lane % (16 * C::kRowBlocks));
      const i32 middle = first_position + kMiddle - row.position;
      const i32 distance = max_of(middle, -middle);
      small = small && are_small_biases(row.slope, distance);
      far = distance >= C::kWarpKeys;
    }
    // One branch, not one for each row: between branches nothing overlaps.
    if (!__any_sync(0xFFFFFFFFU, !(small && far))) {
      const float inverse = fast_reciprocal(unit);
#pragma unroll
      for (i32 r = 0; r < kRows; ++r) {
        const RowBias row = bias(r);
        const float step = __fmul_rn(row.slope, inverse);
        const i32 distance = first_position + own + kMiddle - row.position;
        shift[r] = __fmul_rn(row.slope, static_cast<float>(distance));
#pragma unroll
        for (i32 n = 0; n < C::kKeyTiles; ++n) {
          float* x = scores[r / 2][n].x + r % 2 * 2;
          x[0] = __fmaf_rn(step, static_cast<float>(n * 8 - kMiddle), x[0]);
          x[1] = __fmaf_rn(step, static_cast<float>(n * 8 + 1 - kMiddle), x[1]);
        }
      }
    } else if (!__any_sync(0xFFFFFFFFU, !small)) {
      const auto scaled = [&](float x) { return C::kCanonical ? __fmul_rn(x, unit) : x; };
      const float inverse = C::kCanonical ? 1.0F : fast_reciprocal(unit);
#pragma unroll
      for (i32 r = 0; r < kRows; ++r) {
        const RowBias row = bias(r);
        const float step = __fmul_rn(row.slope, inverse);
        const auto first = static_cast<float>(first_position + own - row.position);
#pragma unroll
        for (i32 n = 0; n < C::kKeyTiles; ++n) {
          float* x = scores[r / 2][n].x + r % 2 * 2;
          x[0] = __fmaf_rn(step, __fadd_rn(first, static_cast<float>(n * 8)), scaled(x[0]));
          x[1] = __fmaf_rn(step, __fadd_rn(first, static_cast<float>(n * 8 + 1)), scaled(x[1]));
        }
      }
      if constexpr (C::kCanonical) unit = 1.0F;
    } else {
#pragma unroll
      for (i32 r = 0; r < kRows; ++r) {
        const RowBias row = bias(r);
#pragma unroll
        for (i32 n = 0; n < C::kKeyTiles; ++n) {
          float* x = scores[r / 2][n].x + r % 2 * 2;
          const int2 key = *reinterpret_cast<const int2*>(positions + n * 8 + own);
          x[0] =
              __fmaf_rn(row.slope, static_cast<float>(key.x - row.position), __fmul_rn(x[0], unit));
          x[1] =
              __fmaf_rn(row.slope, static_cast<float>(key.y - row.position), __fmul_rn(x[1], unit));
        }
      }
      unit = 1.0F;
    }
  }

  static __device__ __forceinline__ void finish_logits(Scores& scores, const ScoreScale& scale,
                                                       const i32* positions,
                                                       const AttentionParams& p, i32 kv_head,
                                                       const char* shared, const WarpPlace& at) {
    const float inverse_cap = C::kSoftCap ? kTanhScale / p.soft_cap : 0.0F;
    const auto bias = [&](i32 local) {
      RowBias b{0.0F, 0};
      if constexpr (C::kAlibi) {
        b = row_bias(shared, local);
      } else if constexpr (C::kUser) {
        b.position = reinterpret_cast<const i32*>(shared + C::kShared.query_positions)[local];
      }
      return b;
    };
    for_each<C::kAlibi || C::kUser>(
        scores, positions, at, bias, [&](float& x, const RowBias& b, i32 local, i32 kv_position) {
          float s = __fmul_rn(x, scale.natural);
          if constexpr (C::kSoftCap) {
            s = __fmul_rn(p.soft_cap, scaled_tanh(__fmul_rn(s, inverse_cap)));
          }
          if constexpr (Hooks::kHasLogits) {
            s = Hooks::logits(s, site(b.position, local, kv_position, kv_head, shared), p);
          }
          if constexpr (C::kAlibi) {
            s = __fmaf_rn(b.slope, static_cast<float>(kv_position - b.position), s);
          }
          if constexpr (C::kSumReduction) {
            LogitSite<float> where{};
            if constexpr (C::kUser) where = site(b.position, local, kv_position, kv_head, shared);
            x = Hooks::weight(s, where, p);
          } else {
            x = __fmul_rn(s, kLog2E);
          }
        });
  }

  static __device__ __forceinline__ void hide(Scores& scores, const i32* positions,
                                              const AttentionParams& p, i32 kv_head,
                                              const char* shared, const WarpPlace& at) {
    const auto& item = *reinterpret_cast<const ItemFacts*>(shared + C::kShared.facts);
    const RowBlock* mask = &item.block;
    if constexpr (C::kCanonical && C::kCustomMask) {
      // The mask belongs to the last view; keys of the views before it lie before mask_pos_base.
      const GroupView group(p);
      const i32 last = item.run.piece_begin + item.run.num_pieces - 1;
      mask = &group.block(group.piece(last).block);
    }
    const auto facts = [&](i32 local) { return RowFacts(p, shared, local); };
    for_each<true>(
        scores, positions, at, facts,
        [&](float& x, const RowFacts& row, i32 local, i32 kv_position) {
          bool visible = kv_position >= row.low && kv_position <= row.high;
          if constexpr (C::kCustomMask) {
            if (visible && (mask->flags & kBlockCustomMask) != 0 &&
                kv_position >= mask->mask_pos_base) {
              visible = mask_bit(p, *mask, (item.run.fused_row_begin + local) / C::kGroupSize,
                                 kv_position);
            }
          }
          if constexpr (Hooks::kHasMask) {
            if (visible) {
              visible = Hooks::visible(site(row.position, local, kv_position, kv_head, shared), p);
            }
          }
          if (!visible) x = neg_inf();
        });
  }

  static __device__ __forceinline__ bool mask_bit(const AttentionParams& p, const RowBlock& block,
                                                  i32 row, i32 kv_position) {
    const i32 column = kv_position - block.mask_pos_base;
    // A position past kv_len, which only positions known at run time can have: there is no bit.
    if (column >= block.mask_row_bits) return false;
    const i64 first =
        static_cast<i64>(static_cast<u64>(block.mask_bit0_hi) << 32 | block.mask_bit0_lo);
    const i64 bit = first + static_cast<i64>(row - block.row_begin) * block.mask_row_bits + column;
    return (__ldg(p.custom_mask + bit / 8) >> (bit % 8) & 1) != 0;
  }
};

}  // namespace plait::device::mma
