// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/cache_entry.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <system_error>
#include <type_traits>

namespace plait::cuda {
namespace {

constexpr const char* kSuffix = ".plk";
constexpr char kMagic[8] = {'P', 'L', 'A', 'I', 'T', 'K', 'R', 'N'};
// Raised when the header, the meaning of a field, or the host's side of a launch changes.
constexpr std::uint32_t kEntryFormat = 2;

struct EntryHeader {
  char magic[8];
  std::uint32_t format;
  std::uint32_t compiler_major;
  std::uint32_t compiler_minor;
  std::uint32_t symbol_bytes;
  std::uint64_t compiler_build;
  std::uint64_t key_low;
  std::uint64_t key_high;
  KernelResources resources;
  KernelLaunch launch;
  std::uint64_t warning_bytes;  // warnings joined by '\n'
  std::uint64_t cubin_bytes;
  std::uint64_t checksum;  // XXH3 of the payload, seeded with the XXH3 of the fields above
};
static_assert(std::is_trivially_copyable_v<EntryHeader> && sizeof(EntryHeader) == 112);

std::uint64_t checksum_of(const EntryHeader& header, std::span<const char> payload) {
  const std::uint64_t seed = XXH3_64bits(&header, offsetof(EntryHeader, checksum));
  return XXH3_64bits_withSeed(payload.data(), payload.size(), seed);
}

void append_hex(std::string* text, std::uint64_t word) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (int shift = 60; shift >= 0; shift -= 4) *text += kDigits[word >> shift & 15];
}

void add_text(XXH3_state_t* state, std::string_view text) {
  // Length first: ("ab", "c") and ("a", "bc") are different inputs.
  const std::uint64_t size = text.size();
  XXH3_128bits_update(state, &size, sizeof(size));
  XXH3_128bits_update(state, text.data(), text.size());
}

}  // namespace

DiskKey disk_key(const CompileUnit& unit, CompilerBuild compiler) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const std::uint64_t counts[] = {kEntryFormat, unit.flags.size(), unit.headers.size()};
  XXH3_128bits_update(&state, counts, sizeof(counts));
  add_text(&state, unit.symbol);
  add_text(&state, unit.source);
  add_text(&state, unit.variant);
  for (const std::string& flag : unit.flags) add_text(&state, flag);
  for (const auto& [name, text] : unit.headers) {
    add_text(&state, name);
    add_text(&state, text);
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  return {hash.low64, hash.high64, compiler};
}

std::string hash_text(const DiskKey& key) {
  std::string text;
  append_hex(&text, key.high);
  append_hex(&text, key.low);
  return text;
}

std::string entry_name(const DiskKey& key) {
  std::string name = hash_text(key) + "-" + to_string(key.compiler.version) + "-";
  append_hex(&name, key.compiler.build);
  return name + kSuffix;
}

std::optional<CompilerBuild> compiler_of(std::string_view entry_name, const DiskKey& key) {
  CompilerBuild compiler;
  const char* at = entry_name.data();
  const char* const end = at + entry_name.size();
  const auto skip = [&](std::string_view text) {
    const bool found = std::string_view(at, end).starts_with(text);
    if (found) at += text.size();
    return found;
  };
  const auto read = [&](auto* number, int base) {
    const auto [next, error] = std::from_chars(at, end, *number, base);
    at = next;
    return error == std::errc();
  };
  const bool whole = skip(hash_text(key)) && skip("-") && read(&compiler.version.major, 10) &&
                     skip(".") && read(&compiler.version.minor, 10) && skip("-") &&
                     read(&compiler.build, 16) && skip(kSuffix) && at == end;
  return whole ? std::optional(compiler) : std::nullopt;
}

std::vector<char> encode_entry(const DiskKey& key, const CompiledKernel& kernel) {
  std::string warnings;
  for (const std::string& warning : kernel.warnings) warnings += warning + "\n";

  EntryHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.format = kEntryFormat;
  header.compiler_major = static_cast<std::uint32_t>(key.compiler.version.major);
  header.compiler_minor = static_cast<std::uint32_t>(key.compiler.version.minor);
  header.compiler_build = key.compiler.build;
  header.key_low = key.low;
  header.key_high = key.high;
  header.resources = kernel.resources;
  header.launch = kernel.launch;
  header.symbol_bytes = static_cast<std::uint32_t>(kernel.symbol.size());
  header.warning_bytes = warnings.size();
  header.cubin_bytes = kernel.cubin.size();

  std::vector<char> bytes(sizeof(header) + kernel.symbol.size() + warnings.size() +
                          kernel.cubin.size());
  char* at = bytes.data() + sizeof(header);
  at = std::copy(kernel.symbol.begin(), kernel.symbol.end(), at);
  at = std::copy(warnings.begin(), warnings.end(), at);
  std::copy(kernel.cubin.begin(), kernel.cubin.end(), at);
  header.checksum = checksum_of(header, std::span<const char>(bytes).subspan(sizeof(header)));
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

std::optional<CompiledKernel> decode_entry(const DiskKey& key, std::span<const char> bytes) {
  EntryHeader header;
  if (bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const std::span<const char> payload = bytes.subspan(sizeof(header));
  const std::uint64_t room = payload.size();
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 || header.format != kEntryFormat ||
      header.compiler_major != static_cast<std::uint32_t>(key.compiler.version.major) ||
      header.compiler_minor != static_cast<std::uint32_t>(key.compiler.version.minor) ||
      header.compiler_build != key.compiler.build || header.key_low != key.low ||
      header.key_high != key.high || header.warning_bytes > room || header.cubin_bytes > room ||
      header.symbol_bytes + header.warning_bytes + header.cubin_bytes != room ||
      header.cubin_bytes == 0 || header.checksum != checksum_of(header, payload)) {
    return std::nullopt;
  }
  CompiledKernel kernel;
  const char* at = payload.data();
  kernel.symbol.assign(at, header.symbol_bytes);
  at += header.symbol_bytes;
  std::string_view warnings(at, header.warning_bytes);
  while (!warnings.empty()) {
    const std::size_t end = warnings.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    kernel.warnings.emplace_back(warnings.substr(0, end));
    warnings.remove_prefix(end + 1);
  }
  at += header.warning_bytes;
  kernel.cubin.assign(at, at + header.cubin_bytes);
  kernel.resources = header.resources;
  kernel.launch = header.launch;
  return kernel;
}

}  // namespace plait::cuda
