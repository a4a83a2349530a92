// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// plait eval: computes attention problems described in text (docs/formats.md).
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "check/run_problem.h"
#include "core/file.h"
#include "core/text.h"
#include "oracle/safetensors.h"
#include "plait/engine_options.h"
#include "plait/error.h"
#include "plait/failure.h"
#include "plait/options.h"
#include "plait/paths.h"
#include "plait/problem_argument.h"
#include "plait/standard_streams.h"
#include "plait/verb.h"

namespace plait::tool {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kMaxBatchBytes = std::int64_t{1} << 30;
constexpr const char* kBatchLine =
    "three words: problem.json, in.safetensors or -, out.safetensors";

struct Job {
  std::string problem;  // a path, or the text of a problem itself
  std::string tensors;  // empty: none
  std::string out;      // empty: nothing is written
};

ordered_json report_of(const check::RunResult& result) {
  const PlanSummary& plan = result.summary;
  return {{"family", result.family},
          {"device", result.device},
          {"plan",
           {{"num_items", plan.num_items},
            {"num_partial_states", plan.num_partial_states},
            {"num_workers", plan.num_workers},
            {"largest_load", plan.largest_load},
            {"mean_load", plan.mean_load}}},
          {"plan_us", result.plan_us},
          {"run_us", result.run_us}};
}

// The files that a job reads; `where` says which job of several it is.
void name_inputs(const Job& job, const std::string& where, Paths& paths) {
  if (!is_problem_text(job.problem)) paths.input(where + "problem", job.problem);
  paths.input(where + "tensors", job.tensors);
}

// Computes one problem and writes its output; nothing is written unless all of it succeeded, and
// nothing over a file of `paths`, which gets to know the output.
ordered_json evaluate(const Job& job, const check::RunOptions& options, Paths& paths) {
  paths.output("out", job.out);
  const oracle::Problem problem = read_problem(job.problem, job.tensors);
  const check::RunResult result = check::run_problem(problem, options);
  if (!job.out.empty()) {
    std::vector<oracle::NamedTensor> outputs{{"o", &result.o}};
    if (result.lse.storage != nullptr) outputs.push_back({"lse", &result.lse});
    oracle::write_safetensors(job.out, outputs, "out");
  }
  return report_of(result);
}

void print_json(const ordered_json& line) {
  std::printf("%s\n", line.dump(-1, ' ', false, ordered_json::error_handler_t::replace).c_str());
  flush_output();
}

ordered_json error_json(const std::string& field, const std::string& value,
                        const std::string& expected, const std::string& message) {
  return {{"error",
           {{"field", field}, {"value", value}, {"expected", expected}, {"message", message}}}};
}

// One line of a batch file: problem, tensors or -, output; separated by blanks.
Job parse_batch_line(std::string_view line) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t begin = line.find_first_not_of(" \t\r", at);
    if (begin == std::string_view::npos) break;
    at = std::min(line.find_first_of(" \t\r", begin), line.size());
    words.emplace_back(line.substr(begin, at - begin));
  }
  if (words.size() != 3) {
    throw Error(ErrorCode::kInvalidArgument, "line", std::to_string(words.size()) + " words",
                kBatchLine);
  }
  return {words[0], words[1] == "-" ? "" : words[1], words[2]};
}

// Calls each(line, where) for the lines of a batch file that are not blank; returns whether there
// are any.
template <class Each>
bool for_lines(const std::string& path, const std::string& text, const Each& each) {
  bool any = false;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    any = true;
    each(line, printable(path) + ":" + std::to_string(number));
  }
  return any;
}

int run_batch(const std::string& path, const check::RunOptions& options) {
  const std::string text = read_file(path, "batch", kMaxBatchBytes);
  // No line may write over the batch, nor over what an earlier or a later one names.
  Paths paths;
  paths.input("--batch", path);
  for_lines(path, text, [&](std::string_view line, const std::string& where) {
    try {
      name_inputs(parse_batch_line(line), where + ": ", paths);
    } catch (const Error&) {
      // Refused in its turn.
    }
  });
  bool refused = false;
  const bool any = for_lines(path, text, [&](std::string_view line, const std::string& where) {
    try {
      print_json(evaluate(parse_batch_line(line), options, paths));
      return;
    } catch (const Error& error) {
      const std::string message = printable(error.what());
      print_json(error_json(error.field(), printable(error.value()), printable(error.expected()),
                            message));
      std::fprintf(stderr, "plait eval: %s: %s\n", where.c_str(), message.c_str());
    } catch (const std::exception& error) {
      const std::string message = failure_text(error);
      print_json(error_json("problem", message, "a problem that fits this machine", message));
      std::fprintf(stderr, "plait eval: %s: %s\n", where.c_str(), message.c_str());
    }
    refused = true;
  });
  if (!any)
    throw Error(ErrorCode::kInvalidArgument, "--batch", quote_text(path),
                std::string("lines of ") + kBatchLine);
  return refused ? kExitRefused : 0;
}

int run(const std::vector<std::string>& args) {
  CLI::App app{"Computes one attention problem, or many with --batch", "plait eval"};
  Job job;
  std::string batch;
  auto* problem =
      add_text(app, "problem", job.problem, "PROBLEM", "problem file, or its text: '{...}'");
  auto* tensors =
      add_text(app, "--tensors", job.tensors, "FILE", "safetensors file with named tensors");
  auto* out = add_text(app, "--out", job.out, "FILE", "safetensors file to write o and lse to");
  add_text(app, "--batch", batch, "FILE",
           "file of lines: problem.json in.safetensors|- out.safetensors")
      ->excludes(problem)
      ->excludes(tensors)
      ->excludes(out);
  EngineWords engine;
  add_engine_options(app, engine, "cpu, cuda or cuda:N");
  if (const auto code = parse_options(app, args)) return *code;
  const check::RunOptions options = run_options(app, engine);
  if (!batch.empty()) return run_batch(batch, options);
  if (job.problem.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "problem", "nothing",
                "a problem file or --batch FILE");
  }
  Paths paths;
  name_inputs(job, "", paths);
  print_json(evaluate(job, options, paths));
  return 0;
}

const VerbRegistration kRegistration{"eval", "compute an attention problem described in text", run};

}  // namespace
}  // namespace plait::tool
