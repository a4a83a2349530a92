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

/// What a loop fetches, so many lines at a time: half of them at `at`, half `apart` bytes beyond,
/// each time `stride` bytes further on.
struct Pace {
  const char* at;
  std::ptrdiff_t apart;
  std::ptrdiff_t stride;
};

template <int kLines>
HWY_INLINE void fetch_lines(Pace& pace) {
#pragma GCC unroll 2
  for (int i = 0; i < kLines / 2; ++i) {
    prefetch_line(pace.at + 64 * i);
    prefetch_line(pace.at + pace.apart + 64 * i);
  }
  pace.at += pace.stride;
}

/// A place in a list of spans that ends with two which are never exhausted. The last bytes of a
/// span are fetched in turn with the first of the next one: the hardware's prefetcher takes its
/// time to follow to another place.
class FetchCursor {
 public:
  FetchCursor(const Span* spans, std::ptrdiff_t skip) : span_(spans) {
    for (; span_->end - span_->begin <= skip; ++span_) skip -= span_->end - span_->begin;
    at_ = span_->begin + skip;
    end_ = span_->end;
    next_ = span_[1].begin;
  }

  /// For a loop that fetches the next `bytes`, some lines at a time.
  HWY_INLINE Pace take(std::ptrdiff_t bytes, int lines) {
    const std::ptrdiff_t half = 32 * lines;
    Pace pace;
    if (at_ < end_ - kWindow && at_ + bytes <= end_) {
      pace = {at_, half, 2 * half};
      at_ += bytes;
    } else {
      const std::ptrdiff_t part = bytes / 2;
      const char* a = std::max(std::min(at_, end_ - part), span_->begin);
      pace = {a, next_ - a, half};
      at_ += part;
      next_ += part;
    }
    if (at_ >= end_) advance();
    return pace;
  }

 private:
  static constexpr std::ptrdiff_t kWindow = 4096;

  HWY_INLINE void advance() {
    do {
      ++span_;
      at_ = next_;
      end_ = span_->end;
      next_ = span_[1].begin;
    } while (at_ >= end_);
  }

  const Span* span_;
  const char* at_;
  const char* end_;
  const char* next_;  // of the next span
};

/// Prefetches what a step reads.
class Fetcher {
 public:
  struct Paces {
    Pace first;
    Pace again;
    int off;  // rounds whose number has one of these bits fetch nothing
  };

  /// Every loop is run `passes` times.
  Fetcher(const StreamStep& t, std::ptrdiff_t element_size, int passes)
      : t_(t),
        idle_{{reinterpret_cast<const char*>(t.q), 0, 0},
              {reinterpret_cast<const char*>(t.q), 0, 0},
              -1},
        scattered_(is_scattered(t, element_size)),
        passes_(std::min(2, passes)),
        // What comes before was fetched during the step before.
        ahead_(ahead(t, element_size)),
        left_(list(t, element_size) - ahead_),
        first_(spans_, ahead_),
        again_(spans_, std::max<std::ptrdiff_t>(0, ahead_ - kAgain)) {}

  /// For pass number `pass` of a loop that consumes `bytes`, kRound in each round.
  template <int kRound>
  HWY_INLINE Paces take(std::ptrdiff_t bytes, int pass) {
    bytes /= passes_;
    if (pass >= passes_ || left_ < bytes) return idle_;
    left_ -= bytes;
    // A round fetches two lines or four.
    constexpr int kLines = kRound > 128 ? 4 : 2;
    constexpr int kRoundsApart = kRound < 128 ? 128 / kRound : 1;
    return {first_.take(bytes, kLines), again_.take(bytes, kLines), kRoundsApart * passes_ - 1};
  }

  template <int kRound>
  static HWY_INLINE void round(Paces& paces, int number) {
    if ((number & paces.off) != 0) return;
    fetch_lines<(kRound > 128 ? 4 : 2)>(paces.first);
    fetch_lines<(kRound > 128 ? 4 : 2)>(paces.again);
  }

  /// Where single rows are scattered: those some way after rows [first, first + count) of a head,
  /// all at once, and again those half as far.
  HWY_INLINE void fetch_rows(const void* const* rows, int first, int count, std::ptrdiff_t offset,
                             std::ptrdiff_t bytes) const {
    if (!scattered_) return;
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
  // again this many bytes later, which costs little if it is there.
  static constexpr std::ptrdiff_t kAgain = 8192;
  // More spans than these, of caches with gaps between the heads, are not fetched.
  static constexpr int kMaxSpans = 2048;

  /// Whether spans are too short to be fetched at the pace of a loop.
  static bool is_scattered(const StreamStep& t, std::ptrdiff_t element_size) {
    StreamStep begin = t;
    begin.num_keys = std::min(kStreamBlock, t.num_keys);
    begin.num_ahead = 0;
    Span span{nullptr, nullptr};
    list_spans(begin, element_size, &span, 1);
    return t.num_keys > 1 && span.end - span.begin < 2 * t.dim_qk * element_size;
  }

  /// Far enough for the latency of memory, and near enough for the first cache to hold it. Where a
  /// unit takes a few rows of one head only, the rows of all heads have to be there.
  static std::ptrdiff_t ahead(const StreamStep& t, std::ptrdiff_t element_size) {
    const std::ptrdiff_t listed =
        std::ptrdiff_t{t.num_heads} * kStreamAhead * (t.dim_qk + t.dim_vo) * element_size;
    return std::min<std::ptrdiff_t>(listed, t.head_run == 1 ? 20480 : 16384);
  }

  /// Returns how many bytes there are.
  std::ptrdiff_t list(const StreamStep& t, std::ptrdiff_t element_size) {
    const int count = scattered_ ? 0 : list_spans(t, element_size, spans_, kMaxSpans);
    std::ptrdiff_t bytes = 0;
    for (int i = 0; i < count; ++i) bytes += spans_[i].end - spans_[i].begin;
    const char* idle = idle_.first.at;
    spans_[count] = {idle, idle + std::numeric_limits<std::int32_t>::max()};
    spans_[count + 1] = spans_[count];
    return bytes;
  }

  const StreamStep& t_;
  Paces idle_;  // something in cache
  bool scattered_;
  int passes_;
  Span spans_[kMaxSpans + 2];
  std::ptrdiff_t ahead_;
  std::ptrdiff_t left_;
  FetchCursor first_;
  FetchCursor again_;
};

}  // namespace plait::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
