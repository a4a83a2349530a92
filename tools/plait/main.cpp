// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "plait/error.h"
#include "plait/verb.h"

namespace plait::tool {

std::vector<Verb>& registered_verbs() {
  static std::vector<Verb> verbs;
  return verbs;
}

namespace {

void print_usage(std::FILE* file) {
  std::vector<Verb> verbs = registered_verbs();
  std::sort(verbs.begin(), verbs.end(),
            [](const Verb& a, const Verb& b) { return a.name < b.name; });
  std::fprintf(file, "Usage: plait <verb> [options]\n\n");
  for (const Verb& verb : verbs) {
    std::fprintf(file, "  %-8.*s %.*s\n", static_cast<int>(verb.name.size()), verb.name.data(),
                 static_cast<int>(verb.summary.size()), verb.summary.data());
  }
  std::fprintf(file, "\nplait <verb> --help lists the options of a verb.\n");
}

int run_verb(const Verb& verb, const std::vector<std::string>& args) {
  try {
    return verb.run(args);
  } catch (const Error& error) {
    std::fprintf(stderr, "plait %s: %s\n", std::string(verb.name).c_str(), error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plait %s: %s\n", std::string(verb.name).c_str(), error.what());
  }
  return kExitRefused;
}

int run(const std::vector<std::string>& args) {
  if (args.empty()) {
    print_usage(stderr);
    return kExitRefused;
  }
  if (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    print_usage(stdout);
    return 0;
  }
  if (args[0] == "--version") {
    std::printf("plait %s\n", PLAIT_VERSION);
    return 0;
  }
  for (const Verb& verb : registered_verbs()) {
    if (verb.name == args[0]) return run_verb(verb, {args.begin() + 1, args.end()});
  }
  std::fprintf(stderr, "plait: got verb '%s', expected one that plait --help lists\n",
               args[0].c_str());
  return kExitRefused;
}

}  // namespace
}  // namespace plait::tool

int main(int argc, char** argv) { return plait::tool::run({argv + 1, argv + argc}); }
