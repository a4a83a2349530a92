// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/blob.h"

#include <string>

#include "plait/error.h"

namespace plait::planning {
void BlobWriter::overflow(i64 need) const {
  throw Error(ErrorCode::kInternal, "plan words", std::to_string(need),
              "at most the proven bound, " + std::to_string(capacity_));
}

}  // namespace plait::planning
