// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The options of a verb. Whatever is refused is an Error that names the option, the value and what
// was expected, as everywhere else.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <concepts>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "plait/verb.h"

namespace plait::tool {

/// Throws Error{kInvalidArgument} with `value` quoted.
[[noreturn]] void refuse(const std::string& option, const std::string& value,
                         const std::string& expected);
/// Throws for an option whose presence is what is wrong.
[[noreturn]] void refuse_given(const std::string& option, const std::string& expected);

/// An integer in decimal notation, low..high.
template <std::integral T>
CLI::Option* add_integer(CLI::App& app, const std::string& name, T& value, T low, T high,
                         const std::string& description) {
  const auto assign = [=, &value](const CLI::results_t& words) {
    const std::string& word = words[0];
    const char* end = word.data() + word.size();
    T parsed{};
    const auto [at, error] = std::from_chars(word.data(), end, parsed);
    if (error != std::errc() || at != end || parsed < low || parsed > high) {
      refuse(name, word, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
    }
    value = parsed;
    return true;
  };
  return app
      .add_option(name, assign, description, false, [&value] { return std::to_string(value); })
      ->type_name("N");
}

/// A finite number, low..high.
CLI::Option* add_number(CLI::App& app, const std::string& name, double& value, double low,
                        double high, const std::string& description);

/// One of `words`.
CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value,
                        const std::vector<std::string>& words, const std::string& description);

/// Any text but an empty one; `what` stands for it in --help.
CLI::Option* add_text(CLI::App& app, const std::string& name, std::string& value,
                      const std::string& what, const std::string& description);

/// Present or not; takes no value.
CLI::Option* add_switch(CLI::App& app, const std::string& name, bool& value,
                        const std::string& description);

/// Parses a verb's words. Returns an exit code where the verb is done already: after --help.
/// Throws Error{kInvalidArgument}.
std::optional<int> parse_options(CLI::App& app, const std::vector<std::string>& args);

/// Throws for any option given besides `option` (itself given) and `allowed`: it would be ignored.
void refuse_beside(const CLI::App& app, const std::string& option,
                   std::initializer_list<std::string_view> allowed);

}  // namespace plait::tool
