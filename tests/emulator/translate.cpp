// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "emulator/translate.h"

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <vector>

namespace plait::emulator {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1));
}

/// Parts of `text` between separators that stand outside of brackets and string literals.
std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' && (i == 0 || text[i - 1] != '\\')) quoted = !quoted;
    if (!quoted && (c == '(' || c == '{' || c == '[')) ++depth;
    if (!quoted && (c == ')' || c == '}' || c == ']')) --depth;
    if (c == separator && depth == 0 && !quoted) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// The text of adjacent string literals.
std::string literal_text(std::string_view literals) {
  std::string text;
  bool inside = false;
  for (std::size_t i = 0; i < literals.size(); ++i) {
    const char c = literals[i];
    if (c == '"') {
      inside = !inside;
    } else if (inside && c == '\\') {
      ++i;
      text += ' ';  // \n and \t
    } else if (inside) {
      text += c;
    }
  }
  return text;
}

/// C++ for the operands `%0`, `%1` ... of an asm statement.
std::vector<std::string> operand_expressions(const std::vector<std::string>& sections) {
  std::vector<std::string> expressions;
  for (std::size_t section = 1; section <= 2 && section < sections.size(); ++section) {
    for (const std::string& part : split(sections[section], ',')) {
      const std::string operand = trimmed(part);
      if (operand.empty()) continue;
      const std::size_t open = operand.find('(');
      const std::string constraint = literal_text(operand.substr(0, open));
      const std::string value = operand.substr(open);  // in its parentheses
      expressions.push_back(section == 1 ? value
                                         : "::plait_emulator::operand_" + constraint + value);
    }
  }
  return expressions;
}

struct Statement {
  const std::vector<std::string>& expressions;

  /// `%0`, `%%tid.x`, a number, `{...}`, `[...]` or a register of the statement's own.
  std::string operand(std::string text) const {
    text = trimmed(text);
    if (text.front() == '{') {
      return "::plait_emulator::group(" + list(text.substr(1, text.size() - 2)) + ")";
    }
    if (text.front() == '[') return list(text.substr(1, text.size() - 2));
    if (text.starts_with("%%")) {
      std::replace(text.begin(), text.end(), '.', '_');
      return "::plait_emulator::ptx::" + text.substr(2) + "()";
    }
    if (text.front() == '%') return expressions.at(std::stoul(text.substr(1)));
    if (std::isdigit(static_cast<unsigned char>(text.front())) != 0) return text;
    return "ptx_" + text;
  }

  std::string list(std::string_view text) const {
    std::string out;
    for (const std::string& part : split(text, ',')) {
      if (trimmed(part) == "_") continue;  // a result that nobody wants
      out += (out.empty() ? "" : ", ") + operand(part);
    }
    return out;
  }

  std::string code(const std::string& text) const {
    const std::size_t end = text.find_first_of(" \t");
    const std::string opcode = text.substr(0, end);
    const std::string rest = end == std::string::npos ? "" : trimmed(text.substr(end));
    if (opcode == ".reg") {
      if (!rest.starts_with(".pred ")) throw std::runtime_error("a register that is no predicate");
      return "bool ptx_" + trimmed(rest.substr(6)) + " = false; ";
    }
    std::string name;
    for (char c : opcode) {
      if (is_word(c)) name += c;
      if (!is_word(c) && name.back() != '_') name += '_';
    }
    return "::plait_emulator::ptx::" + name + "(" + (rest.empty() ? "" : list(rest)) + "); ";
  }
};

/// `body`: what stands between the parentheses of an asm statement.
std::string translate_asm(std::string_view body) {
  const std::vector<std::string> sections = split(body, ':');
  const std::vector<std::string> expressions = operand_expressions(sections);
  const Statement statement{expressions};
  std::string out = "do { ";
  std::string ptx = trimmed(literal_text(sections[0]));
  if (ptx.starts_with('{')) ptx = ptx.substr(1, ptx.size() - 2);  // a block
  for (const std::string& part : split(ptx, ';')) {
    if (const std::string text = trimmed(part); !text.empty()) out += statement.code(text);
  }
  return out + "} while (false)";
}

/// `declaration`: between `extern __shared__` and the semicolon.
std::string translate_shared(std::string declaration) {
  if (const std::size_t align = declaration.find("alignas"); align != std::string::npos) {
    declaration.erase(align, declaration.find(')', align) + 1 - align);
  }
  declaration = trimmed(declaration.substr(0, declaration.find('[')));
  std::size_t name = declaration.size();
  while (name > 0 && is_word(declaration[name - 1])) --name;
  const std::string type = trimmed(declaration.substr(0, name));
  return type + "* const " + declaration.substr(name) + " = static_cast<" + type +
         "*>(::plait_emulator::dynamic_shared())";
}

class Scanner {
 public:
  explicit Scanner(std::string_view source) : source_(source) {}

  std::string run() {
    while (at_ < source_.size()) {
      if (starts("//")) {
        copy_to(source_.find('\n', at_));
      } else if (starts("/*")) {
        copy_to(source_.find("*/", at_ + 2) + 2);
      } else if (source_[at_] == '"') {
        copy_to(end_of_literal(at_));
      } else if (is_word(source_[at_])) {
        word();
      } else {
        copy_to(at_ + 1);
      }
    }
    return out_;
  }

 private:
  bool starts(std::string_view text) const { return source_.substr(at_).starts_with(text); }
  void copy_to(std::size_t end) {
    end = std::min(end, source_.size());
    out_ += source_.substr(at_, end - at_);
    at_ = end;
  }
  std::size_t end_of_literal(std::size_t at) const {
    for (++at; at < source_.size() && source_[at] != '"'; ++at) {
      if (source_[at] == '\\') ++at;
    }
    return at + 1;
  }
  std::size_t end_of_word(std::size_t at) const {
    while (at < source_.size() && is_word(source_[at])) ++at;
    return at;
  }
  std::size_t skip_blanks(std::size_t at) const {
    return std::min(source_.find_first_not_of(" \t\n", at), source_.size());
  }
  /// Puts `text` in place of the source up to `end`, which keeps its line breaks.
  void replace(std::size_t end, const std::string& text) {
    const std::string_view old = source_.substr(at_, end - at_);
    out_ += text +
            std::string(static_cast<std::size_t>(std::count(old.begin(), old.end(), '\n')), '\n');
    at_ = end;
  }

  void word() {
    const std::size_t end = end_of_word(at_);
    const std::string_view name = source_.substr(at_, end - at_);
    std::size_t next = skip_blanks(end);
    if (name == "extern" && source_.substr(next).starts_with("__shared__")) {
      const std::size_t begin = end_of_word(next);
      const std::size_t semicolon = source_.find(';', begin);
      replace(semicolon, translate_shared(std::string(source_.substr(begin, semicolon - begin))));
    } else if (name == "asm") {
      if (source_.substr(next).starts_with("volatile")) next = skip_blanks(end_of_word(next));
      const std::size_t begin = next + 1;
      int depth = 1;
      for (next = begin; next < source_.size() && depth > 0; ++next) {
        if (source_[next] == '"') next = end_of_literal(next) - 1;
        if (source_[next] == '(') ++depth;
        if (source_[next] == ')') --depth;
      }
      replace(next, translate_asm(source_.substr(begin, next - 1 - begin)));
    } else {
      copy_to(end);
    }
  }

  std::string_view source_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string translate(std::string_view source) { return Scanner(source).run(); }

}  // namespace plait::emulator
