// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "check/run_problem.h"

#include <charconv>
#include <chrono>
#include <optional>

#include "check/operand_memory.h"
#include "check/operands.h"
#include "check/spread_output.h"
#include "engine/attention_impl.h"
#include "plait/error.h"
#include "plan/planner.h"

namespace plait::check {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

// Planning alone: the checked plan() also verifies, which takes far longer than it plans.
double planning_time(const Attention& attention, const Operands& operands) {
  const detail::AttentionImpl& impl = attention.impl();
  Planner planner(impl.groups(), operands.capacity(), operands.policy(), impl.targets());
  const Batch batch = operands.batch();
  const auto begin = Clock::now();
  planner.plan({&batch, 1});
  return microseconds(begin, Clock::now());
}

}  // namespace

Device parse_device(const std::string& text, const std::string& field) {
  if (text == "cpu") return {};
  if (text == "cuda") return {DeviceKind::kCuda, 0};
  if (text.starts_with("cuda:")) {
    Device device{DeviceKind::kCuda, -1};
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + 5, end, device.index);
    if (parsed.ec == std::errc() && parsed.ptr == end && device.index >= 0) return device;
  }
  throw Error(ErrorCode::kInvalidArgument, field, "\"" + text + "\"", "cpu, cuda or cuda:N");
}

std::string device_name(Device device) {
  return device.kind == DeviceKind::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

RunResult run_problem(const oracle::Problem& problem, const RunOptions& options) {
  Operands operands(problem);
  const std::unique_ptr<OperandMemory> memory = make_operand_memory(options.device);
  EngineOptions engine_options;
  engine_options.device = options.device;
  engine_options.family = options.family;
  engine_options.num_threads = options.num_threads;
  engine_options.allocator = memory->poisoning_allocator();
  const Engine engine(engine_options);

  Attention::Options attention_options;
  attention_options.policy = operands.policy();
  // Checked mode reads page ids back, which a capture does not allow.
  attention_options.checked = !options.graph;
  Attention attention(engine, {operands.spec()}, operands.capacity(), attention_options);

  RunResult result;
  RunArgs args = operands.place(*memory);
  std::optional<SpreadOutput> o;
  std::optional<SpreadOutput> lse;
  if (options.spread_outputs) {
    args.o = o.emplace(*memory, "o", args.o).view();
    if (args.lse.defined()) args.lse = lse.emplace(*memory, "lse", args.lse).view();
  }
  if (options.graph) {
    memory->replay([&](Stream stream) { attention.plan(operands.batch(), stream); },
                   [&](Stream stream) {
                     args.stream = stream;
                     attention.run(args);
                   });
  } else {
    args.stream = memory->stream();
    attention.plan(operands.batch(), args.stream);
    memory->synchronize();
    const auto before_run = Clock::now();
    attention.run(args);
    memory->synchronize();
    result.plan_us = planning_time(attention, operands);
    result.run_us = microseconds(before_run, Clock::now());
  }
  attention.status();

  result.o = o ? o->fetch() : memory->fetch(args.o);
  if (args.lse.defined()) result.lse = lse ? lse->fetch() : memory->fetch(args.lse);
  result.family = attention.family();
  result.device = device_name(options.device);
  result.summary = attention.summary(0);
  return result;
}

}  // namespace plait::check
