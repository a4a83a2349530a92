// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/check_suite.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <system_error>
#include <thread>

#include "check/check_problem.h"
#include "core/text.h"
#include "oracle/parse_problem.h"
#include "plait/error.h"
#include "plait/failure.h"
#include "plait/problem_argument.h"
#include "plait/standard_streams.h"
#include "plait/verb.h"

namespace plait::tool {
namespace {

constexpr const char* kKinds[] = {"paged", "ragged", "bsr", "cascade", "selected"};
constexpr int kShrinkAttempts = 40;
constexpr std::int64_t kMostDraws = 2000;

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

}  // namespace

Suite::Suite(const CheckOptions& options)
    : options_(options),
      aim_(options.run.family == "hopper" ? check::Aim::kCommon : check::Aim::kEverything),
      start_(Clock::now()),
      terminal_(::isatty(STDERR_FILENO) == 1) {}

bool Suite::wanted(const std::string& name) const {
  return options_.filter.empty() || name.find(options_.filter) != std::string::npos;
}

bool Suite::wants_random() const {
  return std::any_of(std::begin(kKinds), std::end(kKinds),
                     [&](const char* kind) { return wanted("random/" + std::string(kind)); });
}
bool Suite::wants_variants() const {
  const auto all = check::variant_cases();
  return std::any_of(all.begin(), all.end(),
                     [&](const check::VariantCase& which) { return wanted(case_name(which)); });
}
bool Suite::wants_fields() const {
  const auto all = check::field::field_cases();
  return std::any_of(all.begin(), all.end(), [&](const check::field::FieldCase& field) {
    return wanted(case_name(field));
  });
}

void Suite::print_list() const {
  for (const char* kind : kKinds) {
    const std::string name = std::string("random/") + kind;
    if (wanted(name)) {
      std::printf("%-40s random problems against the oracle, then bit for bit\n", name.c_str());
    }
  }
  for (const check::VariantCase& which : check::variant_cases()) {
    const std::string name = case_name(which);
    if (wanted(name)) {
      std::printf("%-40s a user variant against the built-in option that does the same\n",
                  name.c_str());
    }
  }
  for (const check::field::FieldCase& field : check::field::field_cases()) {
    const std::string name = case_name(field);
    if (wanted(name)) std::printf("%s\n", name.c_str());
  }
}

bool Suite::out_of_time() const {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  return options_.time_limit > 0 && seconds >= options_.time_limit;
}

/// `work` on --jobs threads; the first exception of any ends the others soon and is thrown.
template <class Work>
void Suite::in_parallel(const Work& work) {
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

void Suite::field_cases() {
  in_parallel([this] {
    while (const check::field::FieldCase* field = next_field_case()) field_case(*field);
  });
}

/// The next field case that the filter wants; null when there is none left.
const check::field::FieldCase* Suite::next_field_case() {
  const std::lock_guard lock(mutex_);
  const auto& all = check::field::field_cases();
  while (next_field_ < all.size() && !out_of_time() && !failure_) {
    const check::field::FieldCase& field = all[next_field_++];
    if (wanted(case_name(field))) return &field;
  }
  return nullptr;
}

void Suite::field_case(const check::field::FieldCase& field) {
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
    print_declined(name, declined);
  } else {
    ++totals_.passed;
    print_passed(name, 0);
  }
  flush_output();
}

void Suite::variant_cases() {
  constexpr std::uint64_t kProblems = 8;
  for (const check::VariantCase& which : check::variant_cases()) {
    const std::string name = case_name(which);
    for (std::uint64_t index = 0; index < kProblems && wanted(name); ++index) {
      if (out_of_time()) return;
      variant_case(name, which, index);
    }
  }
}

void Suite::variant_case(const std::string& name, const check::VariantCase& which,
                         std::uint64_t index) {
  const check::VariantReport report =
      check::check_variant(which, options_.seed, index, options_.run);
  totals_.worst = std::max(totals_.worst, report.worst);
  const std::string numbered =
      name + "#" + std::to_string(options_.seed) + "." + std::to_string(index);
  if (report.declined) {
    ++totals_.declined;
    print_declined(numbered, report.declined_by);
    return;
  }
  if (report.failure.empty()) {
    ++totals_.passed;
    print_passed(numbered, report.worst);
    return;
  }
  ++totals_.failed;
  std::printf("FAILED   %s: %s\n", numbered.c_str(), printable(report.failure).c_str());
  std::printf("  repro: plait check%s --seed %llu --filter %s\n", device_words().c_str(),
              static_cast<unsigned long long>(options_.seed), name.c_str());
  std::printf("  eval:  plait eval%s --out out.safetensors %s\n", device_words().c_str(),
              quoted(report.document.dump()).c_str());
  flush_output();
}

void Suite::random_cases() {
  in_parallel([this] { random_worker(); });
  if (progress_) std::fprintf(stderr, "\n");
}

/// The next random case that the filter wants; false when there is none left.
bool Suite::next_case(std::int64_t& index, Json& document) {
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

void Suite::random_worker() {
  std::int64_t index = 0;
  Json document;
  while (next_case(index, document)) {
    problem("random/" + document.at("kv").at("kind").get<std::string>() + "#" +
                std::to_string(options_.seed) + "." + std::to_string(index),
            document, nullptr);
  }
}

void Suite::problem(const std::string& name, const Json& document,
                    const oracle::Safetensors* tensors) {
  const oracle::Problem parsed = oracle::problem_from_json(document, tensors);
  if (tensors != nullptr) require_use(options_.tensors, parsed);
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
      print_passed(name, report.worst);
      return;
    case check::Outcome::kDeclined:
      ++totals_.declined;
      print_declined(name, report.declined);
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

void Suite::print_passed(const std::string& name, double worst) {
  if (!options_.verbose) return;
  const std::string share = worst > 0 ? fmt::format(" ({:.2f})", worst) : "";
  std::printf("ok       %s%s\n", name.c_str(), share.c_str());
}

void Suite::print_declined(const std::string& name, const std::string& reason) {
  if (options_.verbose) std::printf("declined %s: %s\n", name.c_str(), printable(reason).c_str());
}

std::string Suite::device_words() const {
  std::string out;
  if (options_.engine.device != "cpu") out += " --device " + options_.engine.device;
  if (options_.run.family != "auto") out += " --family " + options_.run.family;
  return out;
}

int Suite::finish() const {
  if (totals_.passed + totals_.declined + totals_.failed == 0) {
    if (out_of_time()) {
      throw Error(ErrorCode::kInvalidArgument, "--time-limit",
                  fmt::format("{}", options_.time_limit), "seconds enough for one case");
    }
    throw Error(ErrorCode::kInvalidArgument, "--count", std::to_string(options_.count),
                "at least one case");
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  std::string more;
  if (totals_.runs > 0) more = fmt::format("; {} engine runs of problems", totals_.runs);
  if (totals_.worst > 0) more += fmt::format(", largest error {:.2f} of its bound", totals_.worst);
  std::printf("%s\n",
              fmt::format("{} passed, {} failed, {} declined on {}{}{}{}, {:.1f} s, seed {}{}",
                          totals_.passed, totals_.failed, totals_.declined, options_.engine.device,
                          totals_.family.empty() ? "" : ", family ", totals_.family, more, seconds,
                          options_.seed, out_of_time() ? " (stopped by --time-limit)" : "")
                  .c_str());
  if (totals_.failed > 0) return kExitFailed;
  return totals_.passed > 0 ? 0 : kExitRefused;  // who declines everything has shown nothing
}

}  // namespace plait::tool
