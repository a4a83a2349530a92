// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// One ledger of named entries both sizes and carves a workspace, so that the arithmetic of a
// buffer is written once:
//
//   Ledger ledger;
//   const auto o = ledger.add("partial_o", state_rows * head_dim, sizeof(float), 256);
//   void* base = allocate(ledger.total());
//   float* partial_o = ledger.carve<float>(base, o);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "plait/error.h"

namespace plait {

/// Adds and multiplies sizes; a result beyond 2^62 is refused by name instead of wrapping.
class CheckedSize {
 public:
  static std::int64_t add(std::string_view name, std::int64_t a, std::int64_t b) {
    std::int64_t sum = 0;
    if (__builtin_add_overflow(a, b, &sum) || sum > kLimit) refuse(name);
    return sum;
  }
  static std::int64_t multiply(std::string_view name, std::int64_t a, std::int64_t b) {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product) || product > kLimit) refuse(name);
    return product;
  }

 private:
  static constexpr std::int64_t kLimit = std::int64_t{1} << 62;
  [[noreturn]] static void refuse(std::string_view name) {
    throw Error(ErrorCode::kUnsupported, std::string(name), "more than 2^62",
                "a size that fits 64-bit arithmetic");
  }
};

class Ledger {
 public:
  static constexpr std::size_t kMaxEntries = 64;
  enum class Handle : std::uint32_t {};

  struct Entry {
    std::string_view name;  // must outlive the ledger; a literal
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
  };

  /// Appends `count` elements of `element_bytes`, aligned to `alignment` (a power of two).
  Handle add(std::string_view name, std::int64_t count, std::int64_t element_bytes,
             std::int64_t alignment) {
    if (count < 0) {
      throw Error(ErrorCode::kInternal, std::string(name), std::to_string(count),
                  "a non-negative count");
    }
    if (size_ == kMaxEntries) {
      throw Error(ErrorCode::kInternal, std::string(name), std::to_string(size_),
                  "fewer ledger entries");
    }
    const std::int64_t padded = CheckedSize::add(name, total_, alignment - 1);
    Entry& entry = entries_[size_];
    entry.name = name;
    entry.offset = padded & ~(alignment - 1);
    entry.bytes = CheckedSize::multiply(name, count, element_bytes);
    total_ = CheckedSize::add(name, entry.offset, entry.bytes);
    return static_cast<Handle>(size_++);
  }

  /// Bytes of everything added so far. The base must be aligned like the strictest entry.
  std::int64_t total() const noexcept { return total_; }
  std::span<const Entry> entries() const noexcept { return {entries_.data(), size_}; }
  const Entry& entry(Handle handle) const noexcept {
    return entries_[static_cast<std::size_t>(handle)];
  }

  template <class T>
  T* carve(void* base, Handle handle) const noexcept {
    return reinterpret_cast<T*>(static_cast<std::byte*>(base) + entry(handle).offset);
  }

 private:
  std::array<Entry, kMaxEntries> entries_{};
  std::size_t size_ = 0;
  std::int64_t total_ = 0;
};

}  // namespace plait
