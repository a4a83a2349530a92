// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/bsr.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "plait/error.h"

namespace plait {
namespace {

using i32 = std::int32_t;
using i64 = std::int64_t;

[[noreturn]] void refuse(std::string field, i64 value, std::string expected) {
  throw Error(ErrorCode::kInvalidArgument, std::move(field), std::to_string(value),
              std::move(expected));
}

std::string nth(const char* field, std::size_t i) {
  return std::string(field) + "[" + std::to_string(i) + "]";
}

/// Starts of blocks, with the end of the last one.
std::vector<i64> starts_of(const std::vector<i32>& sizes, const char* field) {
  std::vector<i64> starts{0};
  starts.reserve(sizes.size() + 1);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 1) refuse(nth(field, i), sizes[i], "at least 1");
    starts.push_back(starts.back() + sizes[i]);
  }
  if (starts.back() > INT32_MAX) refuse(field, starts.back(), "a sum below 2^31");
  return starts;
}

/// Checks the lists and the mask's size.
void check_lists(const BsrPattern& p, std::size_t num_rows, std::size_t num_cols) {
  if (p.indptr.size() != num_rows + 1) {
    refuse("kv.indptr (length)", static_cast<i64>(p.indptr.size()),
           std::to_string(num_rows + 1) + " = row blocks + 1");
  }
  if (p.indptr[0] != 0) refuse("kv.indptr[0]", p.indptr[0], "0");
  for (std::size_t r = 0; r < num_rows; ++r) {
    if (p.indptr[r + 1] < p.indptr[r]) {
      refuse(nth("kv.indptr", r + 1), p.indptr[r + 1], "a non-decreasing array");
    }
  }
  if (p.indptr.back() != static_cast<i64>(p.indices.size())) {
    refuse("kv.indices (length)", static_cast<i64>(p.indices.size()),
           std::to_string(p.indptr.back()) + " = the last entry of kv.indptr");
  }
  i64 cells = 0;
  for (std::size_t r = 0; r < num_rows; ++r) {
    i64 before = -1;
    for (std::size_t k = static_cast<std::size_t>(p.indptr[r]);
         k < static_cast<std::size_t>(p.indptr[r + 1]); ++k) {
      const i64 col = p.indices[k];
      if (col <= before || col >= static_cast<i64>(num_cols)) {
        refuse(nth("kv.indices", k), col,
               "a column block in [" + std::to_string(before + 1) + ", " +
                   std::to_string(num_cols) + "), increasing within its row");
      }
      before = col;
      cells += i64{p.block_rows[r]} * p.block_cols[static_cast<std::size_t>(col)];
    }
  }
  if (!p.block_mask.empty() && static_cast<i64>(p.block_mask.size()) != cells) {
    refuse("kv.block_mask (cells)", static_cast<i64>(p.block_mask.size()),
           std::to_string(cells) + ", one per cell of each listed block");
  }
}

bool bit(const std::vector<std::uint8_t>& bits, i64 index) {
  return ((bits[static_cast<std::size_t>(index >> 3)] >> (index & 7)) & 1) != 0;
}

/// Bits of the listed blocks, and-ed with the problem's own mask.
std::vector<std::uint8_t> pack_mask(const BsrPattern& p, const std::vector<i64>& rows,
                                    const std::vector<i64>& cols, MaskKind mask,
                                    const std::vector<std::uint8_t>& custom_bits) {
  const i64 m = rows.back();
  const i64 n = cols.back();
  if (n > 0 && m > (i64{1} << 36) / n) refuse("kv.block_mask", m, "at most 2^36 mask bits");
  std::vector<std::uint8_t> bits(static_cast<std::size_t>((m * n + 7) / 8), 0);
  std::size_t cell = 0;
  for (std::size_t r = 0; r < p.block_rows.size(); ++r) {
    for (std::size_t k = static_cast<std::size_t>(p.indptr[r]);
         k < static_cast<std::size_t>(p.indptr[r + 1]); ++k) {
      const std::size_t c = static_cast<std::size_t>(p.indices[k]);
      for (i64 i = rows[r]; i < rows[r + 1]; ++i) {
        for (i64 j = cols[c]; j < cols[c + 1]; ++j) {
          const std::uint8_t value = p.block_mask.empty() ? 1 : p.block_mask[cell++];
          if (value > 1) refuse(nth("kv.block_mask", cell - 1), value, "0 or 1");
          const bool seen = value == 1 && (mask != MaskKind::kCausal || j <= i + n - m) &&
                            (mask != MaskKind::kCustom || bit(custom_bits, i * n + j));
          const i64 at = i * n + j;
          if (seen) {
            bits[static_cast<std::size_t>(at >> 3)] |= static_cast<std::uint8_t>(1U << (at & 7));
          }
        }
      }
    }
  }
  return bits;
}

}  // namespace

std::vector<i32> BsrPattern::uniform(i64 total, i32 size) {
  if (total < 0 || total > INT32_MAX) refuse("kv (length)", total, "0..2^31-1");
  if (size < 1) refuse("kv block size", size, "at least 1");
  std::vector<i32> sizes(static_cast<std::size_t>(total / size), size);
  if (total % size != 0) sizes.push_back(static_cast<i32>(total % size));
  return sizes;
}

i32 bsr_page_size(const std::vector<i32>& block_cols, i32 kv_chunk) {
  i32 page = kv_chunk;
  for (i32 width : block_cols) page = std::gcd(page, width);
  return std::max(page, 1);
}

LoweredBsr lower_bsr(const BsrPattern& p, MaskKind mask,
                     const std::vector<std::uint8_t>& custom_bits, i32 kv_chunk) {
  const std::vector<i64> rows = starts_of(p.block_rows, "kv.block_rows");
  const std::vector<i64> cols = starts_of(p.block_cols, "kv.block_cols");
  check_lists(p, p.block_rows.size(), p.block_cols.size());
  const i64 m = rows.back();
  const i64 n = cols.back();
  if (mask == MaskKind::kCustom && static_cast<i64>(custom_bits.size()) != (m * n + 7) / 8) {
    refuse("mask.custom (bytes)", static_cast<i64>(custom_bits.size()),
           std::to_string((m * n + 7) / 8) + " = ceil(rows * keys / 8)");
  }
  LoweredBsr out;
  out.page_size = bsr_page_size(p.block_cols, kv_chunk);
  out.num_pages = n / out.page_size;
  out.batch.qo_indptr = {0, static_cast<i32>(m)};
  out.batch.kv_len = {static_cast<i32>(n)};
  OwnedView view;
  for (std::size_t r = 0; r < p.block_rows.size(); ++r) {
    for (std::size_t k = static_cast<std::size_t>(p.indptr[r]);
         k < static_cast<std::size_t>(p.indptr[r + 1]); ++k) {
      const std::size_t c = static_cast<std::size_t>(p.indices[k]);
      for (i64 at = cols[c]; at < cols[c + 1]; at += out.page_size) {
        out.page_ids.push_back(static_cast<i32>(at / out.page_size));
        view.positions.push_back(static_cast<i32>(at));
      }
    }
    if (out.page_ids.size() > static_cast<std::size_t>(INT32_MAX)) {
      refuse("kv.indices (pages)", static_cast<i64>(out.page_ids.size()), "fewer than 2^31");
    }
    view.row_indptr.push_back(static_cast<i32>(rows[r + 1]));
    view.page_indptr.push_back(static_cast<i32>(out.page_ids.size()));
    view.last_page_len.push_back(p.indptr[r + 1] > p.indptr[r] ? out.page_size : 0);
  }
  out.batch.views.push_back(std::move(view));
  out.mask = mask;
  if (!p.block_mask.empty()) {
    out.mask = MaskKind::kCustom;
    out.custom_mask = pack_mask(p, rows, cols, mask, custom_bits);
  } else if (mask == MaskKind::kCustom) {
    out.custom_mask = custom_bits;
  }
  return out;
}

}  // namespace plait
