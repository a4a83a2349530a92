// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What happens when any call fails, what leaks, and whose context is left current.
#include <cstdlib>
#include <vector>

#include "cuda_fake/fake_executor.h"

namespace plait::cuda {
namespace {

TEST_F(FakeExecutor, EveryFailingCallIsReportedAndLeaksNothing) {
  expect_every_failure_is_reported(20, [&](const auto& through) {
    const auto executor = make_executor();
    executor->upload(plan({1, 64}, 8), {});
    executor->run(args_);
    executor->status({});
    through();
  });
}

TEST_F(FakeExecutor, CallersContextIsCurrentAfterEveryCall) {
  make_context();
  make_operands();
  const Driver& driver = context_->driver();
  const auto other = DeviceContext::get(1);
  const ContextScope scope(*other);
  const std::vector<int> expected = {1};
  const auto executor = make_executor();
  EXPECT_EQ(fake_state().context_stack, expected);
  executor->upload(plan({1, 64}, 4), {});
  EXPECT_EQ(fake_state().context_stack, expected);
  executor->run(args_);
  EXPECT_EQ(fake_state().context_stack, expected);
  executor->status({});
  EXPECT_EQ(fake_state().context_stack, expected);
  static_cast<void>(driver);
}

TEST_F(FakeExecutor, BadPageIdsAreReportedOnce) {
  make_context();
  make_operands();
  void* workspace = nullptr;
  engine_options_.allocator.allocate = [&](std::int64_t bytes, Device) {
    workspace = std::aligned_alloc(256, static_cast<std::size_t>((bytes + 255) / 256 * 256));
    return workspace;
  };
  engine_options_.allocator.deallocate = [](void* memory, Device) { std::free(memory); };
  const auto executor = make_executor();
  const WorkspaceLayout layout(groups_, targets_, planner_->bounds(), false, false);
  auto* status = layout.ledger.carve<device::StatusBlock>(workspace, layout.status);
  EXPECT_NO_THROW(executor->status({}));
  *status = {device::kStatusBadPageId, 5, -7, 0};
  try {
    executor->status({});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.field(), "page_ids");
    EXPECT_EQ(error.value(), "-7 in request 5");
  }
  EXPECT_NO_THROW(executor->status({}));
}

TEST_F(FakeExecutor, WorkspaceSizesThatWrapAreRefusedByName) {
  make_context();
  targets_ = {family_.target(groups_[0], {}, context_->facts())};
  PlanBounds bounds;
  bounds.state_rows = std::int64_t{1} << 57;  // times 64 elements
  try {
    WorkspaceLayout(groups_, targets_, bounds, false, false);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.field(), "partial_o");
  }
}

TEST_F(FakeExecutor, AllocatorThatReturnsNothingIsNamed) {
  make_context();
  engine_options_.allocator.allocate = [](std::int64_t, Device) -> void* { return nullptr; };
  try {
    make_executor();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_EQ(error.field(), "workspace");
  }
}

}  // namespace
}  // namespace plait::cuda
