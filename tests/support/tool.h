// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Runs of the command line tool as a user sees them: words in, exit code and two streams out.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/paths.h"
#include "support/temporary_directory.h"

namespace plait::test {

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

inline int lines_of(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

struct Ran {
  int code = -1;  // 1000 + its number where a signal ended the process
  std::string out;
  std::string err;
  struct rusage usage {};
};

/// One run of `plait` with `words`, from its start on.
class Tool {
 public:
  /// Each of `environment` reads NAME=value.
  explicit Tool(std::vector<std::string> words, const std::vector<std::string>& environment = {}) {
    words.insert(words.begin(), plait_binary().string());
    start(std::move(words), environment);
  }
  /// A command line of the shell, in which $PLAIT is the tool.
  static Tool shell(const std::string& command) {
    return Tool(Command{{"/bin/sh", "-c", command}});
  }

  pid_t process() const { return process_; }
  std::string err() const { return content_of(folder_.path("err")); }

  /// Waits for its end.
  Ran finish() {
    Ran ran;
    int status = 0;
    while (::wait4(process_, &status, 0, &ran.usage) < 0 && errno == EINTR) {
    }
    ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    ran.out = content_of(folder_.path("out"));
    ran.err = err();
    return ran;
  }

 private:
  struct Command {
    std::vector<std::string> words;
  };
  explicit Tool(Command command) {
    start(std::move(command.words), {"PLAIT=" + plait_binary().string()});
  }

  void start(std::vector<std::string> words, std::vector<std::string> environment) {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string out = folder_.path("out");
    const std::string err = folder_.path("err");
    process_ = ::fork();
    if (process_ != 0) return;
    for (std::string& variable : environment) ::putenv(variable.data());
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
    ::dup2(::open(out.c_str(), kFlags, 0600), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), kFlags, 0600), STDERR_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }

  TemporaryDirectory folder_;
  pid_t process_ = -1;
};

inline Ran run_tool(std::vector<std::string> words) { return Tool(std::move(words)).finish(); }

}  // namespace plait::test
