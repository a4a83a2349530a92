// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Problems with the same answer, written differently in memory or composed differently. What a
// bitwise check compares.
#pragma once

#include <cstdint>
#include <vector>

#include "oracle/problem.h"

namespace plait::check {

/// Sets every element of the KV storage that no query may read to NaN: unlisted pages, the slots
/// behind last_page_len, the padding between strides. Whoever reads them shows it.
void poison_unread(oracle::Problem& problem);

/// The same for all that one request may not read: keys and values of the others become NaN.
void poison_other_requests(oracle::Problem& problem, std::int64_t request);

/// The same pages elsewhere in a larger pool. Paged storage only.
oracle::Problem with_moved_pages(const oracle::Problem& problem, std::uint64_t seed);

/// The same elements with other strides, the padding full of NaN; paged pools change between NHD
/// and HND too.
oracle::Problem with_other_strides(const oracle::Problem& problem, std::uint64_t seed);

/// Query rows [row_begin, row_end) of a request, with the keys that precede or meet their last
/// row's position: what a chunk of a chunked prefill is.
struct Slice {
  std::int64_t request = 0;
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
};

/// True if `slice_requests` can take this problem apart: paged, ragged or cascade without a custom
/// mask.
bool can_slice(const oracle::Problem& problem);

/// A flat problem of these slices in this order, copied element for element: ragged if the
/// problem is, else paged with `page_size`.
oracle::Problem slice_requests(const oracle::Problem& problem, const std::vector<Slice>& slices,
                               std::int64_t page_size);

}  // namespace plait::check
