// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// plait check: the conformance tool. Random problems and the cases from the field, on any device.
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/text.h"
#include "oracle/strict_json.h"
#include "plait/check_suite.h"
#include "plait/engine_options.h"
#include "plait/error.h"
#include "plait/options.h"
#include "plait/problem_argument.h"
#include "plait/verb.h"

namespace plait::tool {
namespace {

using Json = nlohmann::json;

void named_problems(const CheckOptions& options, Suite& suite) {
  std::optional<oracle::Safetensors> tensors;
  if (!options.tensors.empty()) tensors = oracle::Safetensors::read(options.tensors, "tensors");
  // All are read before the first one runs.
  std::vector<std::pair<std::string, Json>> documents;
  for (const std::string& word : options.problems) {
    documents.emplace_back(is_problem_text(word) ? "problem" : printable(word),
                           oracle::parse_strict_json(problem_text(word), "problem"));
  }
  for (const auto& [name, document] : documents) {
    suite.problem(name, document, tensors.has_value() ? &*tensors : nullptr);
  }
}

int run(const std::vector<std::string>& args) {
  CheckOptions options;
  CLI::App app{"Checks the engine against the fp64 oracle and against itself", "plait check"};
  auto* problems = app.add_option("problems", options.problems,
                                  "problem files or texts '{...}'; none: the suite")
                       ->type_name("PROBLEM");
  add_text(app, "--tensors", options.tensors, "FILE", "safetensors file that the problems name")
      ->needs(problems);
  add_integer<std::uint64_t>(app, "--seed", options.seed, 0,
                             std::numeric_limits<std::uint64_t>::max(), "of the random problems")
      ->capture_default_str();
  add_integer<std::int64_t>(app, "--count", options.count, 0, 100'000'000,
                            "number of random problems")
      ->capture_default_str()
      ->excludes(problems);
  add_text(app, "--filter", options.filter, "TEXT", "only cases whose name contains this")
      ->excludes(problems);
  add_number(app, "--time-limit", options.time_limit, 0, 1e9, "seconds; no case starts after them")
      ->excludes(problems);
  add_engine_options(app, options.engine, "cpu, cuda or cuda:N");
  add_integer(app, "--jobs", options.jobs, 1, 256, "cases at a time")
      ->capture_default_str()
      ->excludes(problems);
  add_switch(app, "--list", options.list, "print the names of the cases and stop")
      ->excludes(problems);
  add_switch(app, "--verbose", options.verbose, "a line for every case");
  if (const auto code = parse_options(app, args)) return *code;
  if (options.list) refuse_beside(app, "--list", {"--filter"});
  options.run = run_options(app, options.engine);
  Suite suite(options);
  if (!suite.wants_any()) {
    refuse("--filter", options.filter, "part of a name that plait check --list prints");
  }
  for (const auto& [option, used] :
       {std::pair("--count", suite.wants_random()),
        std::pair("--jobs", suite.wants_random() || suite.wants_fields()),
        std::pair("--seed", suite.wants_random() || suite.wants_variants())}) {
    if (app.count(option) > 0 && !used) refuse_given(option, "a --filter that leaves a use for it");
  }
  if (options.list) {
    suite.print_list();
    return 0;
  }
  // Refuses a device or family that is not there before the first case.
  EngineOptions engine;
  engine.device = options.run.device;
  engine.family = options.run.family;
  engine.num_threads = options.run.num_threads;
  const Engine probe(engine);
  if (!options.problems.empty()) {
    named_problems(options, suite);
  } else {
    suite.field_cases();
    suite.variant_cases();
    suite.random_cases();
  }
  return suite.finish();
}

const VerbRegistration kRegistration{"check", "conformance against the fp64 oracle", run};

}  // namespace
}  // namespace plait::tool
