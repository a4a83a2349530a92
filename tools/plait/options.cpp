// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/options.h"

#include <algorithm>
#include <cstdio>

#include "core/text.h"
#include "plait/error.h"

namespace plait::tool {
namespace {

/// "6" and not "6.000000".
std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

bool is_positional(const CLI::Option& option) { return option.get_lnames().empty(); }

/// What CLI11 makes of an option given twice, or without a value.
[[noreturn]] void refuse_number_of_values(const CLI::App& app, const std::string& message) {
  std::string name = message.substr(0, message.find_first_of(": "));
  // A switch with a value is named without its dashes.
  if (message.ends_with("flag override")) name = "--" + name;
  const CLI::Option* option = app.get_option_no_throw(name);
  const std::size_t given = option == nullptr ? 0 : option->results().size();
  if (option != nullptr && option->get_items_expected_max() == 0) {
    throw Error(ErrorCode::kInvalidArgument, name, "a value", "none: it is a switch");
  }
  throw Error(ErrorCode::kInvalidArgument, name,
              given == 0 ? "no value" : std::to_string(given) + " values", "one");
}

/// "A requires B" and "A excludes B".
[[noreturn]] void refuse_pair(const std::string& message, const std::string& word,
                              const std::string& expected) {
  const std::size_t at = message.find(word);
  const std::string first = message.substr(0, at);
  const std::string second = message.substr(at + word.size());
  refuse_given(first, second + expected);
}

void parse(CLI::App& app, std::vector<std::string> reversed) {
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    throw;
  } catch (const CLI::ArgumentMismatch& error) {
    refuse_number_of_values(app, error.what());
  } catch (const CLI::RequiresError& error) {
    refuse_pair(error.what(), " requires ", " beside it");
  } catch (const CLI::ExcludesError& error) {
    refuse_pair(error.what(), " excludes ", " left out");
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorCode::kInvalidArgument, "command line", error.what(),
                "options that " + app.get_name() + " --help lists");
  }
}

}  // namespace

void refuse(const std::string& option, const std::string& value, const std::string& expected) {
  throw Error(ErrorCode::kInvalidArgument, option, quote_text(value), expected);
}

void refuse_given(const std::string& option, const std::string& expected) {
  throw Error(ErrorCode::kInvalidArgument, option, "this option", expected);
}

CLI::Option* add_number(CLI::App& app, const std::string& name, double& value, double low,
                        double high, const std::string& description) {
  const auto assign = [=, &value](const CLI::results_t& words) {
    const std::string& word = words[0];
    const char* end = word.data() + word.size();
    double parsed = 0;
    const auto [at, error] = std::from_chars(word.data(), end, parsed);
    // A comparison with NaN is false.
    if (error != std::errc() || at != end || !(parsed >= low && parsed <= high)) {
      refuse(name, word, "a number from " + number_text(low) + " to " + number_text(high));
    }
    value = parsed;
    return true;
  };
  return app.add_option(name, assign, description, false, [&value] { return number_text(value); })
      ->type_name("X");
}

CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value,
                        const std::vector<std::string>& words, const std::string& description) {
  const auto assign = [=, &value](const CLI::results_t& given) {
    if (std::find(words.begin(), words.end(), given[0]) == words.end()) {
      std::string expected = words[0];
      for (std::size_t i = 1; i < words.size(); ++i) {
        expected += (i + 1 < words.size() ? ", " : " or ") + words[i];
      }
      refuse(name, given[0], expected);
    }
    value = given[0];
    return true;
  };
  return app.add_option(name, assign, description, false, [&value] { return value; })
      ->type_name("WORD");
}

CLI::Option* add_text(CLI::App& app, const std::string& name, std::string& value,
                      const std::string& what, const std::string& description) {
  return app.add_option(name, value, description)->type_name(what);
}

CLI::Option* add_switch(CLI::App& app, const std::string& name, bool& value,
                        const std::string& description) {
  return app.add_flag(name, value, description)->disable_flag_override();
}

std::optional<int> parse_options(CLI::App& app, const std::vector<std::string>& args) {
  app.allow_extras();
  try {
    // CLI11 takes the words last first.
    parse(app, {args.rbegin(), args.rend()});
  } catch (const CLI::CallForHelp&) {
    std::printf("%s", app.help().c_str());
    return 0;
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() == 0) continue;
    for (const std::string& word : option->results()) {
      if (word.empty()) refuse(option->get_name(), word, "a value");
      // CLI11 takes the next word for a value, whatever it is.
      if (!is_positional(*option) && word.starts_with("--")) {
        refuse(option->get_name(), word, "a value (./ before the name of such a file)");
      }
    }
  }
  if (const std::vector<std::string> unknown = app.remaining(); !unknown.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "command line", quote_text(unknown[0]),
                "options and arguments that " + app.get_name() + " --help lists");
  }
  return std::nullopt;
}

void refuse_beside(const CLI::App& app, const std::string& option,
                   std::initializer_list<std::string_view> allowed) {
  for (const CLI::Option* given : app.get_options()) {
    const std::string name = given->get_name();
    if (given->count() == 0 || name == option) continue;
    if (std::find(allowed.begin(), allowed.end(), name) != allowed.end()) continue;
    refuse_given(name, option + " without it");
  }
}

}  // namespace plait::tool
