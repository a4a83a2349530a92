// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A user's variant, compiled for this machine and loaded.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cpu/variant_abi.h"
#include "plait/spec.h"

namespace plait::cpu {

class UserVariant {
 public:
  /// Compiles (or takes from the disk cache) and loads. Throws Error{kCompile} with the compiler's
  /// log, Error{kInvalidArgument} if the variant's reduction is not the spec's.
  static std::shared_ptr<const UserVariant> load(const AttentionSpec& spec);

  ~UserVariant();
  UserVariant(const UserVariant&) = delete;
  UserVariant& operator=(const UserVariant&) = delete;

  const VariantTable& hooks() const noexcept { return *hooks_; }
  const VariantParams& params() const noexcept { return params_; }

 private:
  UserVariant() = default;
  void* library_ = nullptr;
  const VariantTable* hooks_ = nullptr;
  std::vector<VariantArray> arrays_;
  VariantParams params_{};
  VariantSpec spec_;
};

}  // namespace plait::cpu
