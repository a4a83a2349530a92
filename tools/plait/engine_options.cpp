// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/engine_options.h"

namespace plait::tool {

void add_engine_options(CLI::App& app, EngineWords& words, const std::string& devices) {
  add_text(app, "--device", words.device, "DEVICE", devices)->capture_default_str();
  add_choice(app, "--family", words.family, {"auto", "cpu", "mma", "hopper"},
             "kernels: auto, cpu, mma or hopper")
      ->capture_default_str();
  add_integer(app, "--threads", words.threads, 0, kMostThreads,
              "CPU threads; 0: PLAIT_NUM_THREADS or the cores");
}

check::RunOptions run_options(const CLI::App& app, const EngineWords& words) {
  check::RunOptions options;
  options.device = check::parse_device(words.device, "--device");
  options.family = words.family;
  options.num_threads = words.threads;
  if (options.device.kind != DeviceKind::kCpu && app.count("--threads") > 0) {
    refuse_given("--threads", "--device cpu with it");
  }
  return options;
}

}  // namespace plait::tool
