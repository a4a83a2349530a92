// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/resources.h"

#include <elf.h>

#include <charconv>
#include <cstring>

#include "cuda/kernels/common/launch_info.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

/// The number that stands before `unit` in `line`, or -1.
std::int32_t number_before(std::string_view line, std::string_view unit) {
  const std::size_t at = line.find(unit);
  if (at == std::string_view::npos || at == 0) return -1;
  std::size_t begin = at;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  std::int32_t value = -1;
  const auto [end, error] = std::from_chars(line.data() + begin, line.data() + at, value);
  return error == std::errc() && end == line.data() + at ? value : -1;
}

/// A section header table that was checked to lie inside the file.
struct Elf {
  const char* data;
  std::size_t size;
  Elf64_Ehdr header;

  bool inside(std::uint64_t offset, std::uint64_t length) const {
    return offset <= size && length <= size - offset;
  }
  bool section(std::size_t index, Elf64_Shdr* out) const {
    const std::uint64_t offset = header.e_shoff + index * sizeof(Elf64_Shdr);
    if (index >= header.e_shnum || !inside(offset, sizeof(Elf64_Shdr))) return false;
    std::memcpy(out, data + offset, sizeof(Elf64_Shdr));
    return true;
  }
};

bool open_elf(const std::vector<char>& cubin, Elf* elf) {
  elf->data = cubin.data();
  elf->size = cubin.size();
  if (cubin.size() < sizeof(Elf64_Ehdr)) return false;
  std::memcpy(&elf->header, cubin.data(), sizeof(Elf64_Ehdr));
  return std::memcmp(elf->header.e_ident, ELFMAG, SELFMAG) == 0 &&
         elf->header.e_ident[EI_CLASS] == ELFCLASS64 &&
         elf->header.e_shentsize == sizeof(Elf64_Shdr);
}

/// Copies the initial value of the object `name` to `out`; false if there is no such object of
/// exactly that size.
bool read_object(const Elf& elf, std::string_view name, void* out, std::size_t size) {
  for (std::size_t index = 0; index < elf.header.e_shnum; ++index) {
    Elf64_Shdr symbols;
    Elf64_Shdr strings;
    if (!elf.section(index, &symbols) || symbols.sh_type != SHT_SYMTAB ||
        symbols.sh_entsize != sizeof(Elf64_Sym) ||
        !elf.inside(symbols.sh_offset, symbols.sh_size) ||
        !elf.section(symbols.sh_link, &strings) ||
        !elf.inside(strings.sh_offset, strings.sh_size)) {
      continue;
    }
    for (std::uint64_t at = 0; at + sizeof(Elf64_Sym) <= symbols.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      std::memcpy(&symbol, elf.data + symbols.sh_offset + at, sizeof(symbol));
      if (symbol.st_size != size || symbol.st_name >= strings.sh_size) continue;
      const char* text = elf.data + strings.sh_offset + symbol.st_name;
      const std::string_view found(text, ::strnlen(text, strings.sh_size - symbol.st_name));
      Elf64_Shdr section;
      if (found != name || !elf.section(symbol.st_shndx, &section) ||
          section.sh_type != SHT_PROGBITS || symbol.st_value > section.sh_size ||
          size > section.sh_size - symbol.st_value ||
          !elf.inside(section.sh_offset + symbol.st_value, size)) {
        continue;
      }
      std::memcpy(out, elf.data + section.sh_offset + symbol.st_value, size);
      return true;
    }
  }
  return false;
}

}  // namespace

KernelResources parse_resources(std::string_view log, std::string_view symbol) {
  // ptxas prints, per function: "Compiling entry function 'f' for 'sm_90a'", "Function properties
  // for f", then the stack line and the "Used N registers" line.
  KernelResources resources;
  bool mine = false;
  bool saw_stack = false;
  bool saw_registers = false;
  const std::string quoted = "'" + std::string(symbol) + "'";
  for (std::string_view line : lines_of(log)) {
    if (line.find("Compiling entry function") != std::string_view::npos) {
      mine = line.find(quoted) != std::string_view::npos;
    }
    if (!mine) continue;
    if (line.find("bytes stack frame") != std::string_view::npos) {
      resources.stack_bytes = number_before(line, " bytes stack frame");
      resources.spill_store_bytes = number_before(line, " bytes spill stores");
      resources.spill_load_bytes = number_before(line, " bytes spill loads");
      saw_stack = resources.stack_bytes >= 0 && resources.spill_store_bytes >= 0 &&
                  resources.spill_load_bytes >= 0;
    }
    const std::int32_t registers = number_before(line, " registers");
    if (registers >= 0) {
      resources.registers = registers;
      // ptxas leaves out what is zero on this line.
      resources.static_shared_bytes = std::max(0, number_before(line, " bytes smem"));
      resources.barriers = std::max(0, number_before(line, " barriers"));
      saw_registers = true;
    }
  }
  if (!saw_stack || !saw_registers) {
    throw Error(ErrorCode::kInternal, "ptxas log", "'" + std::string(log) + "'",
                "resource lines of " + std::string(symbol));
  }
  return resources;
}

std::vector<std::string> parse_warnings(std::string_view log) {
  std::vector<std::string> warnings;
  for (std::string_view line : lines_of(log)) {
    const bool front_end = line.find(": warning ") != std::string_view::npos;
    const bool assembler =
        line.starts_with("ptxas") && (line.find("warning") != std::string_view::npos ||
                                      line.find("(C") != std::string_view::npos ||
                                      line.find("Performance Loss") != std::string_view::npos);
    if (front_end || assembler) warnings.emplace_back(line);
  }
  return warnings;
}

KernelLaunch read_launch_info(const std::vector<char>& cubin, std::string_view symbol) {
  Elf elf{};
  device::LaunchInfo info{};
  if (!open_elf(cubin, &elf) || !read_object(elf, "plait_launch_info", &info, sizeof(info)) ||
      info.magic != device::kLaunchInfoMagic) {
    throw Error(ErrorCode::kCompile, std::string(symbol),
                "no plait_launch_info in its machine code",
                "an entry source that states PLAIT_LAUNCH_INFO(...)");
  }
  KernelLaunch launch;
  launch.threads = static_cast<std::int32_t>(info.threads);
  launch.dynamic_shared_bytes = static_cast<std::int32_t>(info.dynamic_shared_bytes);
  launch.min_blocks_per_sm = static_cast<std::int32_t>(info.min_blocks_per_sm);
  launch.cluster_size = static_cast<std::int32_t>(info.cluster_size);
  return launch;
}

}  // namespace plait::cuda
