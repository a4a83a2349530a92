// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/graph_lifetime.h"

#include <mutex>
#include <utility>
#include <vector>

namespace plait::cuda {
namespace {

using Reference = std::shared_ptr<const void>;

struct Parking {
  std::mutex mutex;
  std::vector<Reference> references;
};

// Never destroyed: graphs may end after static destructors have run.
Parking& parking() {
  static Parking* instance = new Parking;
  return *instance;
}

void park(void* pointer) {
  const std::unique_ptr<Reference> reference(static_cast<Reference*>(pointer));
  const std::lock_guard lock(parking().mutex);
  parking().references.push_back(std::move(*reference));
}

}  // namespace

void keep_alive_with_graph(const Driver& driver, CuGraph graph, Reference object) {
  auto reference = std::make_unique<Reference>(std::move(object));
  CuUserObject user_object = nullptr;
  driver.check(driver.user_object_create(&user_object, reference.get(), park, 1,
                                         kCuUserObjectNoDestructorSync),
               "cuUserObjectCreate");
  static_cast<void>(reference.release());  // the user object's now
  const CuResult result =
      driver.graph_retain_user_object(graph, user_object, 1, kCuGraphUserObjectMove);
  if (result != kCuSuccess) {
    driver.user_object_release(user_object, 1);
    driver.fail(result, "cuGraphRetainUserObject");
  }
}

void release_parked() {
  std::vector<Reference> dropped;
  {
    const std::lock_guard lock(parking().mutex);
    dropped.swap(parking().references);
  }
}

}  // namespace plait::cuda
