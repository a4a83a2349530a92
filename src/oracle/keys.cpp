// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "oracle/keys.h"

#include <cmath>
#include <numbers>
#include <utility>

namespace plait::oracle {
namespace {

std::size_t z(std::int64_t value) { return static_cast<std::size_t>(value); }

std::int64_t page_element(const Problem& problem, const HostTensor& pool, std::int64_t page,
                          std::int64_t slot, std::int64_t head) {
  const std::int64_t nhd[] = {page, slot, head, 0};
  const std::int64_t hnd[] = {page, head, slot, 0};
  return pool.at(problem.hnd ? hnd : nhd);
}

std::int64_t token_element(const HostTensor& tensor, std::int64_t token, std::int64_t head) {
  const std::int64_t index[] = {token, head, 0};
  return tensor.at(index);
}

void set_rope_position(const Problem& problem, std::int64_t request, Key& key) {
  key.rope_position = problem.rope.k_positions.empty()
                          ? key.position
                          : problem.rope.k_positions[z(request)][z(key.position)];
}

// Appends the tokens of one page list. `base` is the logical position of the first one, unless
// the level lists a position for each page.
void append_pages(const Problem& problem, const Level& level, std::int64_t list,
                  std::int64_t kv_head, std::int64_t base, bool masked, std::vector<Key>& out) {
  const std::int64_t begin = level.indptr[z(list)];
  const std::int64_t end = level.indptr[z(list + 1)];
  for (std::int64_t entry = begin; entry < end; ++entry) {
    const bool last = entry + 1 == end;
    const std::int64_t tokens = last ? level.last_page_len[z(list)] : problem.page_size;
    const std::int64_t page = level.indices[z(entry)];
    for (std::int64_t slot = 0; slot < tokens; ++slot) {
      Key key;
      key.k_element = page_element(problem, problem.k, page, slot, kv_head);
      key.v_element = page_element(problem, problem.v, page, slot, kv_head);
      const std::int64_t ordinal = (entry - begin) * problem.page_size + slot;
      key.position = level.positions.empty() ? base + ordinal : level.positions[z(entry)] + slot;
      key.mask_column = masked ? key.position - base : -1;
      out.push_back(key);
    }
  }
}

std::vector<Key> bsr_keys(const Problem& problem, std::int64_t row, std::int64_t kv_head) {
  const BlockSparse& bsr = problem.bsr;
  std::size_t block_row = 0;
  std::int64_t first_row = 0;
  while (row >= first_row + bsr.row_sizes[block_row]) first_row += bsr.row_sizes[block_row++];
  std::vector<Key> out;
  for (std::int64_t entry = bsr.indptr[block_row]; entry < bsr.indptr[block_row + 1]; ++entry) {
    const std::int64_t column_block = bsr.indices[z(entry)];
    std::int64_t first = 0;
    for (std::int64_t c = 0; c < column_block; ++c) first += bsr.col_sizes[z(c)];
    for (std::int64_t c = 0; c < bsr.col_sizes[z(column_block)]; ++c) {
      Key key;
      key.position = first + c;
      key.k_element = token_element(problem.k, key.position, kv_head);
      key.v_element = token_element(problem.v, key.position, kv_head);
      key.mask_column = key.position;
      key.block_entry = entry;
      key.block_column = c;
      out.push_back(key);
    }
  }
  return out;
}

}  // namespace

std::vector<Key> listed_keys(const Problem& problem, std::int64_t request, std::int64_t row,
                             std::int64_t kv_head) {
  std::vector<Key> out;
  switch (problem.source) {
    case Source::kBsr: out = bsr_keys(problem, row, kv_head); break;
    case Source::kRagged: {
      const std::int64_t begin = problem.kv_indptr[z(request)];
      const std::int64_t end = problem.kv_indptr[z(request + 1)];
      for (std::int64_t token = begin; token < end; ++token) {
        Key key;
        key.k_element = token_element(problem.k, token, kv_head);
        key.v_element = token_element(problem.v, token, kv_head);
        key.position = token - begin;
        key.mask_column = key.position;
        out.push_back(key);
      }
      break;
    }
    case Source::kPaged:
    case Source::kSelected: {
      const std::int64_t list =
          problem.per_kv_head ? request * problem.num_kv_heads + kv_head : request;
      append_pages(problem, problem.levels.front(), list, kv_head, 0, true, out);
      break;
    }
    case Source::kCascade: {
      std::int64_t base = 0;
      for (const Level& level : problem.levels) {
        const std::int64_t block = block_of_request(problem, level, request);
        if (block < 0) continue;
        append_pages(problem, level, block, kv_head, base, &level == &problem.levels.back(), out);
        base += listed_tokens(problem, level, block);
      }
      break;
    }
  }
  for (Key& key : out) set_rope_position(problem, request, key);
  return out;
}

std::pair<std::int64_t, std::int64_t> rows_alike(const Problem& problem, std::int64_t request,
                                                 std::int64_t row) {
  if (problem.source != Source::kBsr) return {0, problem.qo_len(request)};
  std::int64_t first = 0;
  for (std::int64_t size : problem.bsr.row_sizes) {
    if (row < first + size) return {first, first + size};
    first += size;
  }
  return {row, row + 1};
}

std::int64_t query_position(const Problem& problem, std::int64_t request, std::int64_t row) {
  return row + kv_len(problem, request) - problem.qo_len(request);
}

std::int64_t query_rope_position(const Problem& problem, std::int64_t request, std::int64_t row) {
  if (problem.rope.q_positions.empty()) return query_position(problem, request, row);
  return problem.rope.q_positions[z(request)][z(row)];
}

bool is_visible(const Problem& problem, std::int64_t request, std::int64_t row, const Key& key) {
  const std::int64_t position = query_position(problem, request, row);
  if (problem.mask == Mask::kCausal && key.position > position) return false;
  if (problem.window_left >= 0 && key.position < position - problem.window_left) return false;
  if (problem.mask == Mask::kCustom && key.mask_column >= 0) {
    const std::int64_t bit = row * mask_columns(problem, request) + key.mask_column;
    const std::uint8_t byte = problem.mask_bytes[z(problem.mask_offsets[z(request)] + bit / 8)];
    if ((byte >> (bit % 8) & 1) == 0) return false;
  }
  if (key.block_entry >= 0 && !problem.bsr.masks.empty()) {
    const auto [first_row, last_row] = rows_alike(problem, request, row);
    const auto& block = problem.bsr.masks[z(key.block_entry)];
    const std::int64_t columns = static_cast<std::int64_t>(block.size()) / (last_row - first_row);
    if (block[z((row - first_row) * columns + key.block_column)] == 0) return false;
  }
  return true;
}

double rope_frequency(const RopeOptions& rope, std::int64_t pair) {
  const double frequency =
      std::pow(rope.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(rope.rotary_dim));
  switch (rope.scaling) {
    case RopeScaling::kNone: return frequency;
    case RopeScaling::kLinear: return frequency / rope.factor;
    case RopeScaling::kLlama31: break;
  }
  // Long wavelengths are interpolated, short ones kept, those between blended.
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(rope.original_max_position);
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double blend = (original / wavelength - rope.low_freq_factor) /
                       (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - blend) * frequency / rope.factor + blend * frequency;
}

}  // namespace plait::oracle
