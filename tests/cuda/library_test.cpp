// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Opening libcuda and libnvrtc, or failing to.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "plait/error.h"
#include "support/temporary_directory.h"

namespace plait::cuda {
namespace {

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBackend);
    return error.what();
  }
  return "nothing thrown";
}

TEST(Driver, BadPathIsNamed) {
  const std::string message = message_of([] { Driver::open("/nowhere/libcuda.so.1"); });
  EXPECT_NE(message.find("/nowhere/libcuda.so.1"), std::string::npos) << message;
}

TEST(Driver, LibraryThatIsNoDriverIsNamed) {
  const std::string message = message_of([] { Driver::open("libm.so.6"); });
  EXPECT_NE(message.find("without cuInit"), std::string::npos) << message;
}

TEST(Driver, MissingDriverIsAReasonNotACrash) {
  std::string reason;
  if (Driver::find(&reason) != nullptr) GTEST_SKIP() << "this machine has a driver";
  EXPECT_NE(reason.find("libcuda"), std::string::npos);
  EXPECT_THROW(Driver::get(), Error);
}

TEST(NvrtcLibrary, BadPathIsNamed) {
  const std::string message = message_of([] { Nvrtc::open("/nowhere/libnvrtc.so", {}); });
  EXPECT_NE(message.find("/nowhere/libnvrtc.so"), std::string::npos) << message;
  const test::TemporaryDirectory directory;
  const std::string empty = message_of([&] { Nvrtc::open(directory.path(), {}); });
  EXPECT_NE(empty.find(directory.path()), std::string::npos) << empty;
}

TEST(NvrtcLibrary, LibraryThatIsNoCompilerIsNamed) {
  const std::string message = message_of([] { Nvrtc::open("libm.so.6", {}); });
  EXPECT_NE(message.find("has no nvrtcVersion"), std::string::npos) << message;
}

TEST(NvrtcLibrary, NewerThanTheDriverIsRefusedByName) {
  std::string reason;
  const Nvrtc* nvrtc = Nvrtc::find(&reason);
  if (nvrtc == nullptr) GTEST_SKIP() << reason;
  const CudaVersion older{nvrtc->version().major - 1, 9};
  const std::string message = message_of([&] { Nvrtc::open(nvrtc->path(), older); });
  EXPECT_NE(message.find("NVRTC " + to_string(nvrtc->version()) + " is newer than the driver"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find(to_string(older)), std::string::npos) << message;
  EXPECT_NO_THROW(Nvrtc::open(nvrtc->path(), nvrtc->version()));
}

TEST(NvrtcLibrary, IsKnownByItsBuild) {
  std::vector<LibraryAttempt> attempts;
  const std::uint64_t libc = SharedLibrary::open("libc.so.6", &attempts).build_of("printf");
  const std::uint64_t libm = SharedLibrary::open("libm.so.6", &attempts).build_of("cos");
  EXPECT_NE(libc, 0U);
  EXPECT_NE(libm, 0U);
  EXPECT_NE(libc, libm);
  EXPECT_EQ(SharedLibrary::open("libm.so.6", &attempts).build_of("cos"), libm);
  EXPECT_EQ(SharedLibrary::open("libm.so.6", &attempts).build_of("no_such_symbol"), 0U);
  if (const Nvrtc* nvrtc = Nvrtc::find()) {
    EXPECT_EQ(Nvrtc::open(nvrtc->path(), {})->build(), nvrtc->build());
  }
}

TEST(NvrtcLibrary, DirectoryIsSearchedForItsLibrary) {
  std::string reason;
  const Nvrtc* nvrtc = Nvrtc::find(&reason);
  if (nvrtc == nullptr) GTEST_SKIP() << reason;
  const std::string directory = std::filesystem::path(nvrtc->path()).parent_path().string();
  EXPECT_EQ(Nvrtc::open(directory, {})->version(), nvrtc->version());
}

}  // namespace
}  // namespace plait::cuda
