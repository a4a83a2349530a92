// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Prefetching for the stream kernels. What a step reads is fetched in the order of memory, as a
// plain read does it, at the pace at which the arithmetic consumes it. docs/perf-log.md has the
// measurements behind the constants.
#if defined(PLAIT_CPU_FETCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PLAIT_CPU_FETCH_INL_H_
#undef PLAIT_CPU_FETCH_INL_H_
#else
#define PLAIT_CPU_FETCH_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "cpu/span_list.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace plait::cpu::HWY_NAMESPACE {

HWY_INLINE void prefetch_line(const char* p) { __builtin_prefetch(p, 0, 3); }

/// Bytes that are fetched at a time.
inline constexpr int kPiece = 256;

/// Prefetches what a step reads: lists it in the order of memory in pieces, of which loops fetch
/// one for each that they consume.
class Fetcher {
 public:
  Fetcher(const StreamStep& t, std::ptrdiff_t element_size)
      : t_(t), element_size_(element_size), scattered_(is_scattered(t, element_size)) {}

  /// Whether rows cannot be fetched by their place in a list: fetch_rows does it.
  bool scattered() const { return scattered_; }

  /// For a loop that consumes the next `bytes`: a place in the list, at which it calls `fetch` for
  /// each piece.
  HWY_INLINE const char* const* take(std::ptrdiff_t bytes) {
    if (at_ + bytes > (end_ - kFarthest) * kPiece) refill();
    const char* const* place = pieces_ + static_cast<std::size_t>(at_) / kPiece;
    at_ += bytes;
    return place;
  }

  static HWY_INLINE void fetch(const char* const*& place) {
#pragma GCC unroll 8
    for (const int distance : kDistances) {
      const char* piece = place[distance / kPiece];
#pragma GCC unroll 8
      for (int line = 0; line < kPiece; line += 64) prefetch_line(piece + line);
    }
    ++place;
  }

  /// Where single rows are scattered: those some way after rows [first, first + count) of a head,
  /// all at once, and again those half as far.
  HWY_INLINE void fetch_rows(const void* const* rows, int first, int count, std::ptrdiff_t offset,
                             std::ptrdiff_t bytes) const {
    for (int keys = kStreamAhead; keys >= kStreamAhead / 2; keys /= 2) {
      const int begin = first + keys;
      const int end = std::min(begin + count, t_.num_keys + t_.num_ahead);
      for (int i = begin; i < end; ++i) {
        const char* row = static_cast<const char*>(rows[i]) + offset;
        for (std::ptrdiff_t line = 0; line < bytes; line += 64) prefetch_line(row + line);
      }
    }
  }

 private:
  // A processor that finds all its miss buffers taken drops a prefetch. So each line is asked for
  // again and again as it comes nearer, which costs little if it is there.
  static constexpr int kDistances[5] = {20480, 16384, 12288, 8192, 4096};
  // A loop fetches at whole steps of a few keys and columns. Of fewer than those it consumes less
  // than it fetches, by less than this many pieces.
  static constexpr std::ptrdiff_t kSurplus = 64;
  static constexpr std::ptrdiff_t kFarthest = kDistances[0] / kPiece + kSurplus;
  static constexpr std::ptrdiff_t kCapacity = kFarthest + 1024;
  // More spans than these in a block, of caches with gaps between the heads, are not fetched.
  static constexpr int kMaxSpans = 512;

  /// Replaces the pieces that are done by further ones.
  HWY_NOINLINE void refill() {
    const std::ptrdiff_t done = at_ / kPiece;
    end_ = std::copy(pieces_ + done, pieces_ + end_, pieces_) - pieces_;
    at_ -= done * kPiece;
    while (end_ < kCapacity && (span_ < num_spans_ || list_block())) {
      Span& span = spans_[span_];
      const std::ptrdiff_t rest = (span.end - span.begin + kPiece - 1) / kPiece;
      const std::ptrdiff_t count = std::min(rest, kCapacity - end_);
      const char* const begin = span.begin;
      for (std::ptrdiff_t i = 0; i < count; ++i) pieces_[end_ + i] = begin + i * kPiece;
      end_ += count;
      span.begin += count * kPiece;
      if (count == rest) ++span_;
    }
    std::fill(pieces_ + end_, pieces_ + kCapacity, idle());
    end_ = kCapacity;
  }

  /// Lists the next block. False if none is left.
  bool list_block() {
    if (scattered_ || listed_ >= t_.num_keys + t_.num_ahead) return false;
    num_spans_ = list_spans(t_, element_size_, listed_, spans_, kMaxSpans);
    span_ = 0;
    listed_ += kStreamBlock;
    return true;
  }

  /// Something in cache.
  const char* idle() const { return reinterpret_cast<const char*>(t_.q); }

  /// Whether spans are too short to be fetched at the pace of a loop, or end amid a piece so often
  /// that the list, which is consumed by the byte, would fall behind.
  static bool is_scattered(const StreamStep& t, std::ptrdiff_t element_size) {
    Span span{nullptr, nullptr};
    list_spans(t, element_size, 0, &span, 1);
    const std::ptrdiff_t bytes = span.end - span.begin;
    const std::ptrdiff_t surplus = (kPiece - bytes % kPiece) % kPiece;
    return t.num_keys > 1 && (bytes < 2 * t.dim_qk * element_size || surplus > bytes / 32);
  }

  const StreamStep& t_;
  std::ptrdiff_t element_size_;
  bool scattered_;
  int listed_ = 0;  // keys of the blocks whose spans were listed
  Span spans_[kMaxSpans];
  int num_spans_ = 0;
  int span_ = 0;
  std::ptrdiff_t end_ = 0;
  std::ptrdiff_t at_ = 0;          // bytes from the first of the pieces
  const char* pieces_[kCapacity];  // last, so that a sanitizer sees what reads beyond
};

}  // namespace plait::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
