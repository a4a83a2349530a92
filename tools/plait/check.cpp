// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// plait check: the conformance tool. Random problems and the cases from the field, on any device.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iterator>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "check/check_problem.h"
#include "check/field/cases.h"
#include "check/generate.h"
#include "check/run_problem.h"
#include "check/variant_cases.h"
#include "core/text.h"
#include "oracle/parse_problem.h"
#include "oracle/strict_json.h"
#include "plait/engine_options.h"
#include "plait/error.h"
#include "plait/failure.h"
#include "plait/options.h"
#include "plait/problem_argument.h"
#include "plait/standard_streams.h"
#include "plait/verb.h"

namespace plait::tool {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr const char* kKinds[] = {"paged", "ragged", "bsr", "cascade", "selected"};
constexpr int kShrinkAttempts = 40;
constexpr std::int64_t kMostDraws = 2000;

struct Options {
  std::vector<std::string> problems;  // files or texts; empty: the whole suite
  std::string tensors;
  std::uint64_t seed = 1;
  std::int64_t count = 200;
  std::string filter;
  double time_limit = 0;  // seconds; 0: none
  int jobs = 1;
  bool list = false;
  bool verbose = false;
  EngineWords engine;
  check::RunOptions run;
};

struct Totals {
  std::int64_t passed = 0;
  std::int64_t failed = 0;
  std::int64_t declined = 0;
  std::int64_t runs = 0;
  double worst = 0;
  std::string family;
};

// Quotes for a shell: JSON text has no single quote except inside strings of a variant's source.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string case_name(const check::field::FieldCase& field) {
  const std::string number = std::to_string(field.number);
  return "field/" + std::string(number.size() < 2 ? "0" : "") + number + "_" +
         std::string(field.name);
}

std::string case_name(const check::VariantCase& variant) {
  return "variant/" + std::string(variant.name);
}

class Suite {
 public:
  explicit Suite(const Options& options) : options_(options), start_(Clock::now()) {}

  bool wanted(const std::string& name) const {
    return options_.filter.empty() || name.find(options_.filter) != std::string::npos;
  }

  /// Whether the filter leaves random problems, variants, field cases, anything.
  bool wants_random() const {
    return std::any_of(std::begin(kKinds), std::end(kKinds),
                       [&](const char* kind) { return wanted("random/" + std::string(kind)); });
  }
  bool wants_variants() const { return wants_one_of(check::variant_cases()); }
  bool wants_fields() const { return wants_one_of(check::field::field_cases()); }
  bool wants_any() const { return wants_random() || wants_variants() || wants_fields(); }

  bool out_of_time() const {
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    return options_.time_limit > 0 && seconds >= options_.time_limit;
  }

  void field_cases() {
    in_parallel([this] {
      while (const check::field::FieldCase* field = next_field_case()) field_case(*field);
    });
  }

  void random_cases() {
    in_parallel([this] { random_worker(); });
    if (progress_) std::fprintf(stderr, "\n");
  }

  void variant_cases() {
    constexpr std::uint64_t kProblems = 8;
    for (const check::VariantCase& which : check::variant_cases()) {
      const std::string name = case_name(which);
      for (std::uint64_t index = 0; index < kProblems && wanted(name); ++index) {
        if (out_of_time()) return;
        const check::VariantReport report =
            check::check_variant(which, options_.seed, index, options_.run);
        totals_.worst = std::max(totals_.worst, report.worst);
        ++(report.declined          ? totals_.declined
           : report.failure.empty() ? totals_.passed
                                    : totals_.failed);
        if (report.failure.empty()) continue;
        std::printf("FAILED   %s#%llu.%llu: %s\n", name.c_str(),
                    static_cast<unsigned long long>(options_.seed),
                    static_cast<unsigned long long>(index), printable(report.failure).c_str());
        std::printf("  repro: plait check%s --seed %llu --filter %s\n", device_words().c_str(),
                    static_cast<unsigned long long>(options_.seed), name.c_str());
        std::printf("  eval:  plait eval%s --out out.safetensors %s\n", device_words().c_str(),
                    quoted(report.document.dump()).c_str());
        flush_output();
      }
    }
  }

  // One problem; `document` is shrunk when it fails. Called from several threads.
  void problem(const std::string& name, const Json& document, const oracle::Safetensors* tensors) {
    const oracle::Problem parsed = oracle::problem_from_json(document, tensors);
    const check::CheckReport report = check::check_problem(parsed, options_.run, options_.seed);
    const bool shrink = report.outcome == check::Outcome::kFailed && tensors == nullptr;
    const Json smallest =
        shrink ? check::shrink_problem(document, options_.run, options_.seed, kShrinkAttempts)
               : document;
    const std::lock_guard lock(mutex_);
    totals_.runs += report.runs;
    totals_.worst = std::max(totals_.worst, report.worst);
    if (!report.family.empty()) totals_.family = report.family;
    switch (report.outcome) {
      case check::Outcome::kPassed:
        ++totals_.passed;
        if (options_.verbose) std::printf("ok       %s (%.2f)\n", name.c_str(), report.worst);
        return;
      case check::Outcome::kDeclined:
        ++totals_.declined;
        if (options_.verbose) {
          std::printf("declined %s: %s\n", name.c_str(), printable(report.declined).c_str());
        }
        return;
      case check::Outcome::kFailed: break;
    }
    ++totals_.failed;
    for (const std::string& failure : report.failures) {
      std::printf("FAILED   %s: %s\n", name.c_str(), printable(failure).c_str());
    }
    std::string text = quoted(smallest.dump());
    if (tensors != nullptr) text += " --tensors " + quoted(options_.tensors);
    std::printf("  repro: plait check%s --seed %llu %s\n", device_words().c_str(),
                static_cast<unsigned long long>(options_.seed), text.c_str());
    std::printf("  eval:  plait eval%s --out out.safetensors %s\n", device_words().c_str(),
                text.c_str());
    flush_output();
  }

  int finish() const {
    if (totals_.passed + totals_.declined + totals_.failed == 0) {
      if (out_of_time()) {
        throw Error(ErrorCode::kInvalidArgument, "--time-limit",
                    fmt::format("{}", options_.time_limit), "seconds enough for one case");
      }
      throw Error(ErrorCode::kInvalidArgument, "--count", std::to_string(options_.count),
                  "at least one case");
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    std::printf(
        "%lld passed, %lld failed, %lld declined on %s%s%s; %lld engine runs, largest error "
        "%.2f of its bound, %.1f s, seed %llu%s\n",
        static_cast<long long>(totals_.passed), static_cast<long long>(totals_.failed),
        static_cast<long long>(totals_.declined), options_.engine.device.c_str(),
        totals_.family.empty() ? "" : ", family ", totals_.family.c_str(),
        static_cast<long long>(totals_.runs), totals_.worst, seconds,
        static_cast<unsigned long long>(options_.seed),
        out_of_time() ? " (stopped by --time-limit)" : "");
    if (totals_.failed > 0) return kExitFailed;
    return totals_.passed > 0 ? 0 : kExitRefused;  // who declines everything has shown nothing
  }

 private:
  // `work` on --jobs threads; the first exception of any ends the others soon and is thrown.
  template <class Work>
  void in_parallel(const Work& work) {
    std::vector<std::thread> workers;
    const auto guarded = [&] {
      try {
        work();
      } catch (...) {
        const std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
      }
    };
    try {
      while (static_cast<int>(workers.size()) < options_.jobs) workers.emplace_back(guarded);
    } catch (const std::system_error&) {
      if (workers.empty()) throw;  // otherwise those that could be had do the work
    }
    for (std::thread& worker : workers) worker.join();
    if (failure_) std::rethrow_exception(failure_);
  }

  // The next field case that the filter wants; null when there is none left.
  const check::field::FieldCase* next_field_case() {
    const std::lock_guard lock(mutex_);
    const auto& all = check::field::field_cases();
    while (next_field_ < all.size() && !out_of_time() && !failure_) {
      const check::field::FieldCase& field = all[next_field_++];
      if (wanted(case_name(field))) return &field;
    }
    return nullptr;
  }

  void field_case(const check::field::FieldCase& field) {
    const std::string name = case_name(field);
    std::string failure;
    std::string declined;
    try {
      field.body(check::field::FieldRun(options_.run));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUnsupported) {
        declined = failure_text(error);
      } else {
        failure = "refused: " + failure_text(error);
      }
    } catch (const std::exception& error) {
      failure = failure_text(error);
    }
    const std::lock_guard lock(mutex_);
    if (!failure.empty()) {
      ++totals_.failed;
      std::printf("FAILED   %s: %s\n", name.c_str(), failure.c_str());
      std::printf("  repro: plait check%s --filter %s\n", device_words().c_str(), name.c_str());
    } else if (!declined.empty()) {
      ++totals_.declined;
      std::printf("declined %s: %s\n", name.c_str(), declined.c_str());
    } else {
      ++totals_.passed;
      if (options_.verbose) std::printf("ok       %s\n", name.c_str());
    }
    flush_output();
  }

  template <typename Cases>
  bool wants_one_of(const Cases& cases) const {
    return std::any_of(cases.begin(), cases.end(),
                       [&](const auto& which) { return wanted(case_name(which)); });
  }

  // The next random case that the filter wants; false when there is none left.
  bool next_case(std::int64_t& index, Json& document) {
    const std::lock_guard lock(mutex_);
    while (drawn_ < options_.count && !out_of_time() && !failure_) {
      index = next_index_++;
      document = check::generate_problem(options_.seed, static_cast<std::uint64_t>(index), aim_);
      if (wanted("random/" + document.at("kv").at("kind").get<std::string>())) {
        ++drawn_;
        if (terminal_ && drawn_ % 50 == 0) {
          std::fprintf(stderr, "\r%lld of %lld", static_cast<long long>(drawn_),
                       static_cast<long long>(options_.count));
          std::fflush(stderr);
          progress_ = true;
        }
        return true;
      }
      // A filter that names no random case would draw for ever.
      if (drawn_ == 0 && index > kMostDraws) return false;
    }
    return false;
  }

  void random_worker() {
    std::int64_t index = 0;
    Json document;
    while (next_case(index, document)) {
      problem("random/" + document.at("kv").at("kind").get<std::string>() + "#" +
                  std::to_string(options_.seed) + "." + std::to_string(index),
              document, nullptr);
    }
  }

  std::string device_words() const {
    std::string out;
    if (options_.engine.device != "cpu") out += " --device " + options_.engine.device;
    if (options_.run.family != "auto") out += " --family " + options_.run.family;
    return out;
  }

  const Options& options_;
  check::Aim aim_ = options_.run.family == "hopper" ? check::Aim::kCommon : check::Aim::kEverything;
  Clock::time_point start_;
  std::mutex mutex_;  // guards everything below
  Totals totals_;
  std::size_t next_field_ = 0;
  std::int64_t next_index_ = 0;
  std::int64_t drawn_ = 0;
  std::exception_ptr failure_;
  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool progress_ = false;
};

void print_list(const Suite& suite) {
  for (const char* kind : kKinds) {
    const std::string name = std::string("random/") + kind;
    if (suite.wanted(name)) {
      std::printf("%-40s random problems against the oracle, then bit for bit\n", name.c_str());
    }
  }
  for (const check::VariantCase& which : check::variant_cases()) {
    const std::string name = case_name(which);
    if (suite.wanted(name)) {
      std::printf("%-40s a user variant against the built-in option that does the same\n",
                  name.c_str());
    }
  }
  for (const check::field::FieldCase& field : check::field::field_cases()) {
    const std::string name = case_name(field);
    if (suite.wanted(name)) std::printf("%s\n", name.c_str());
  }
}

void named_problems(const Options& options, Suite& suite) {
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
  Options options;
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
    print_list(suite);
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
