// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plait/attention.h"       // IWYU pragma: export
#include "plait/configurations.h"  // IWYU pragma: export
#include "plait/ops.h"             // IWYU pragma: export
