// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/interrupt.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <thread>

#include "core/leftover.h"

namespace plait::tool {
namespace {

// A handler may do next to nothing: it passes the signal to a thread that may do everything.
int wake_pipe[2] = {-1, -1};

void on_signal(int number) {
  const int saved = errno;
  const char byte = static_cast<char>(number);
  // A pipe of which nobody has read yet is never full.
  [[maybe_unused]] const ssize_t written = ::write(wake_pipe[1], &byte, 1);
  errno = saved;
}

const char* what_happened(int number) {
  switch (number) {
    case SIGINT: return "interrupted";
    case SIGTERM: return "terminated";
    default: return "hung up";
  }
}

[[noreturn]] void end_when_woken(const std::string& name) {
  char byte = 0;
  while (::read(wake_pipe[0], &byte, 1) != 1) {
  }
  remove_leftovers();
  // A line of progress may stand on the terminal.
  std::fprintf(stderr, "%s%s: %s\n", ::isatty(STDERR_FILENO) == 1 ? "\r\033[K" : "", name.c_str(),
               what_happened(byte));
  ::_exit(128 + byte);
}

void handle(int number) {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(number, &action, nullptr);
}

}  // namespace

void end_on_signals(const std::string& name) {
  if (::pipe2(wake_pipe, O_CLOEXEC) != 0) return;
  try {
    std::thread(end_when_woken, name).detach();
  } catch (const std::system_error&) {
    return;  // no thread to be had: signals end the process as they do any other
  }
  handle(SIGINT);
  handle(SIGTERM);
  // nohup asks for it to be ignored.
  struct sigaction current {};
  if (::sigaction(SIGHUP, nullptr, &current) == 0 && current.sa_handler != SIG_IGN) handle(SIGHUP);
}

}  // namespace plait::tool
