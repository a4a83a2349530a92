// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "plait/error.h"

namespace plait::tool {
namespace {

/// Whether the far end of a pipe or socket is closed. What an earlier, implicit flush failed with
/// is forgotten; this is not.
bool reader_has_gone() {
  struct pollfd output {};
  output.fd = STDOUT_FILENO;
  output.events = POLLOUT;
  return ::poll(&output, 1, 0) == 1 && (output.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace

void prepare_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // Open the wrong way round, so that using a closed stream goes on being an error; except for
    // standard error, where nobody could be told. open() takes the lowest number that is free.
    const int flags = stream == STDOUT_FILENO ? O_RDONLY : O_WRONLY;
    if (::open("/dev/null", flags) != stream) ::_exit(2);
  }
  ::signal(SIGPIPE, SIG_IGN);
}

void flush_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  const int error = errno;
  if (error == EPIPE || reader_has_gone()) throw OutputClosed{};
  throw Error(ErrorCode::kIo, "standard output",
              error != 0 ? std::strerror(error) : "a write error", "a stream that can be written");
}

}  // namespace plait::tool
