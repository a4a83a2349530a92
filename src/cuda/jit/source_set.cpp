// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/source_set.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/embedded_file.h"
#include "core/environment.h"
#include "core/file.h"
#include "plait/error.h"

namespace plait::embedded {
extern const File kernels[];
extern const std::size_t kernels_count;
}  // namespace plait::embedded

namespace plait::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLargestSource = std::int64_t{1} << 24;  // bytes of a file
constexpr const char* kFolders[] = {"core/device", "cuda/kernels"};

bool is_source(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".h" || extension == ".cuh" || extension == ".cu" || extension == ".txt";
}

std::string_view without_blanks(std::string_view line) {
  while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
  return line;
}

/// What follows the word include in a line `# include ...`, or nothing.
std::string_view include_operand(std::string_view line) {
  line = without_blanks(line);
  if (!line.starts_with('#')) return {};
  line = without_blanks(line.substr(1));
  if (!line.starts_with("include")) return {};
  return without_blanks(line.substr(7));
}

/// The name in a line `#include "name"`, or nothing.
std::string_view included_name(std::string_view line) {
  const std::string_view operand = include_operand(line);
  if (!operand.starts_with('"')) return {};
  return operand.substr(1, operand.find('"', 1) - 1);
}

template <typename Visit>
void for_each_line(std::string_view text, Visit visit) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    visit(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

void visit_includes(std::string_view text, const SourceSet& set, std::set<std::string>* seen) {
  for_each_line(text, [&](std::string_view line) {
    const std::string_view name = included_name(line);
    if (name.empty()) return;
    const std::string* body = set.find(name);
    if (body != nullptr && seen->insert(std::string(name)).second) {
      visit_includes(*body, set, seen);
    }
  });
}

}  // namespace

SourceSet SourceSet::embedded() {
  std::map<std::string, std::string, std::less<>> files;
  for (std::size_t index = 0; index < plait::embedded::kernels_count; ++index) {
    const plait::embedded::File& file = plait::embedded::kernels[index];
    files.emplace(file.path, file.text);
  }
  return SourceSet(std::move(files));
}

SourceSet SourceSet::from_directory(const std::string& directory) {
  std::map<std::string, std::string, std::less<>> files;
  for (const char* folder : kFolders) {
    std::error_code error;
    const fs::path root = fs::path(directory) / folder;
    for (fs::recursive_directory_iterator entry(root, error), end; !error && entry != end;
         entry.increment(error)) {
      if (!entry->is_regular_file(error) || !is_source(entry->path())) continue;
      files.emplace(fs::relative(entry->path(), directory).generic_string(),
                    read_file(entry->path().string(), "PLAIT_KERNEL_DIR", kLargestSource));
    }
    if (error) {
      throw Error(ErrorCode::kIo, "PLAIT_KERNEL_DIR", root.string() + " (" + error.message() + ")",
                  "the src/ folder of a Plait source tree");
    }
  }
  return SourceSet(std::move(files));
}

SourceSet SourceSet::from_environment() {
  const std::string directory = environment("PLAIT_KERNEL_DIR");
  return directory.empty() ? embedded() : from_directory(directory);
}

const std::string* SourceSet::find(std::string_view name) const {
  const auto found = files_.find(name);
  return found == files_.end() ? nullptr : &found->second;
}

std::string SourceSet::foreign_include(std::string_view text) const {
  std::string found;
  for_each_line(text, [&](std::string_view line) {
    const std::string_view operand = include_operand(line);
    if (found.empty() && !operand.empty() && find(included_name(line)) == nullptr) found = operand;
  });
  return found;
}

std::vector<std::string> SourceSet::closure(std::string_view text) const {
  std::set<std::string> seen;
  visit_includes(text, *this, &seen);
  return {seen.begin(), seen.end()};
}

}  // namespace plait::cuda
