// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/kernel_key.h"

#include <array>
#include <charconv>
#include <type_traits>
#include <vector>

#include <xxhash.h>

#include "core/text.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

static_assert(std::has_unique_object_representations_v<KernelKey>,
              "hashing and comparing bytes needs a key without padding");

struct FlagName {
  unsigned bit;
  std::string_view name;
};
constexpr std::array kMaskNames = {FlagName{kMaskCausal, "causal"}, FlagName{kMaskWindow, "window"},
                                   FlagName{kMaskCustom, "custom"}};
constexpr std::array kVariantNames = {FlagName{kVariantSoftCap, "softcap"},
                                      FlagName{kVariantAlibi, "alibi"},
                                      FlagName{kVariantSink, "sink"},
                                      FlagName{kVariantRopeHalf, "ropehalf"},
                                      FlagName{kVariantRopeInterleaved, "ropeinterleaved"},
                                      FlagName{kVariantUser, "user"},
                                      FlagName{kVariantKvScale, "kvscale"}};
constexpr std::array kModeNames = {FlagName{kModeState, "state"},
                                   FlagName{kModeMeasured, "measured"},
                                   FlagName{kModeCanonical, "canonical"}};

constexpr std::array kFamilies = {KernelFamily::kCommon, KernelFamily::kMma, KernelFamily::kHopper};
constexpr std::array kOps = {
    KernelOp::kAttention,     KernelOp::kPrefill,     KernelOp::kDecode,
    KernelOp::kMergePartials, KernelOp::kMergeStates, KernelOp::kFinalizeState,
    KernelOp::kAppendPagedKv, KernelOp::kApplyRope,   KernelOp::kReadProbe,
    KernelOp::kSelfTest,      KernelOp::kMergeState};

[[noreturn]] void refuse(std::string_view field, std::string_view value,
                         const std::string& expected) {
  throw Error(ErrorCode::kInvalidArgument, "kernel key." + std::string(field), quote_text(value),
              expected);
}

template <std::size_t N>
std::string join_flags(unsigned value, const std::array<FlagName, N>& names) {
  std::string text;
  for (const FlagName& flag : names) {
    if ((value & flag.bit) == 0) continue;
    if (!text.empty()) text += ',';
    text += flag.name;
  }
  return text;
}

template <std::size_t N>
unsigned parse_flags(std::string_view field, std::string_view text,
                     const std::array<FlagName, N>& names) {
  unsigned value = 0;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    unsigned bit = 0;
    std::string known;
    for (const FlagName& flag : names) {
      if (flag.name == word) bit = flag.bit;
      known += (known.empty() ? "" : ", ") + std::string(flag.name);
    }
    if (bit == 0 || (value & bit) != 0) refuse(field, word, "each at most once, of " + known);
    value |= bit;
    begin = end + 1;
  }
  return value;
}

template <typename Integer>
Integer parse_number(std::string_view field, std::string_view text) {
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    refuse(field, text, "a whole number below 2^" + std::to_string(8 * sizeof(Integer)));
  }
  return value;
}

// One pair of overloads per kind of field; the flag fields are told apart by their text name.
std::string format_field(std::string_view field, std::uint64_t value) {
  if (field == "mask") return join_flags(static_cast<unsigned>(value), kMaskNames);
  if (field == "hooks") return join_flags(static_cast<unsigned>(value), kVariantNames);
  if (field == "mode") return join_flags(static_cast<unsigned>(value), kModeNames);
  if (field != "variant") return std::to_string(value);
  char digits[17] = {};
  std::to_chars(digits, digits + 16, value, 16);
  return digits;
}
std::string format_field(std::string_view, DType value) { return std::string(to_string(value)); }
std::string format_field(std::string_view, KvAccess value) {
  return value == KvAccess::kPaged ? "paged" : "ragged";
}
std::string format_field(std::string_view, KernelReduction value) {
  return value == KernelReduction::kSum ? "1" : "0";
}

template <typename Integer>
void parse_field(std::string_view field, std::string_view text, Integer* value) {
  if (field == "mask") {
    *value = static_cast<Integer>(parse_flags(field, text, kMaskNames));
  } else if (field == "hooks") {
    *value = static_cast<Integer>(parse_flags(field, text, kVariantNames));
  } else if (field == "mode") {
    *value = static_cast<Integer>(parse_flags(field, text, kModeNames));
  } else if (field == "variant") {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value, 16);
    if (error != std::errc() || end != text.data() + text.size()) {
      refuse(field, text, "a hash in hexadecimal");
    }
  } else {
    *value = parse_number<Integer>(field, text);
  }
}
void parse_field(std::string_view field, std::string_view text, DType* value) {
  *value = parse_dtype(text, "kernel key." + std::string(field));
}
void parse_field(std::string_view field, std::string_view text, KvAccess* value) {
  if (text != "paged" && text != "ragged") refuse(field, text, "paged or ragged");
  *value = text == "paged" ? KvAccess::kPaged : KvAccess::kRagged;
}
void parse_field(std::string_view field, std::string_view text, KernelReduction* value) {
  if (text != "0" && text != "1") refuse(field, text, "0 or 1");
  *value = text == "1" ? KernelReduction::kSum : KernelReduction::kSoftmax;
}

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    if (end > begin) words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

template <typename Enum, std::size_t N>
Enum parse_name(std::string_view field, std::string_view text, const std::array<Enum, N>& values) {
  std::string known;
  for (Enum value : values) {
    if (to_string(value) == text) return value;
    known += (known.empty() ? "" : ", ") + std::string(to_string(value));
  }
  refuse(field, text, "one of " + known);
}

}  // namespace

std::string_view to_string(KernelFamily family) noexcept {
  switch (family) {
    case KernelFamily::kCommon: return "common";
    case KernelFamily::kMma: return "mma";
    case KernelFamily::kHopper: return "hopper";
  }
  return "unknown";
}

std::string_view to_string(KernelOp op) noexcept {
  switch (op) {
    case KernelOp::kAttention: return "attention";
    case KernelOp::kPrefill: return "prefill";
    case KernelOp::kDecode: return "decode";
    case KernelOp::kMergePartials: return "merge_partials";
    case KernelOp::kMergeStates: return "merge_states";
    case KernelOp::kFinalizeState: return "finalize_state";
    case KernelOp::kAppendPagedKv: return "append_paged_kv";
    case KernelOp::kApplyRope: return "apply_rope";
    case KernelOp::kReadProbe: return "read_probe";
    case KernelOp::kSelfTest: return "self_test";
    case KernelOp::kMergeState: return "merge_state";
  }
  return "unknown";
}

std::uint64_t hash_of(const KernelKey& key) noexcept { return XXH3_64bits(&key, sizeof(key)); }

std::string to_string(const KernelKey& key) {
  const KernelKey initial;
  std::string text = std::string(to_string(key.family)) + " " + std::string(to_string(key.op));
#define PLAIT_FORMAT(member, type, value, name, config)              \
  if (std::is_same_v<type, DType> || key.member != initial.member) { \
    text += " " name "=" + format_field(name, key.member);           \
  }
  PLAIT_KERNEL_KEY_FIELDS(PLAIT_FORMAT)
#undef PLAIT_FORMAT
  return text;
}

KernelKey parse_kernel_key(std::string_view text) {
  const std::vector<std::string_view> words = split_words(text);
  if (words.size() < 2) refuse("text", text, "'<family> <op> field=value ...'");
  KernelKey key;
  key.family = parse_name("family", words[0], kFamilies);
  key.op = parse_name("op", words[1], kOps);
  std::vector<std::string_view> seen;
  for (std::size_t index = 2; index < words.size(); ++index) {
    const std::size_t equals = words[index].find('=');
    if (equals == std::string_view::npos) refuse("text", words[index], "field=value");
    const std::string_view field = words[index].substr(0, equals);
    const std::string_view value = words[index].substr(equals + 1);
    for (std::string_view earlier : seen) {
      if (earlier == field) refuse(field, value, "the field once");
    }
    seen.push_back(field);
    bool known = false;
// NOLINTBEGIN(bugprone-macro-parentheses): the name of a member takes none
#define PLAIT_PARSE(member, type, initial, name, config) \
  if (field == name) {                                   \
    parse_field(field, value, &key.member);              \
    known = true;                                        \
  }
    // NOLINTEND(bugprone-macro-parentheses)
    PLAIT_KERNEL_KEY_FIELDS(PLAIT_PARSE)
#undef PLAIT_PARSE
    if (!known) refuse("text", words[index], "a field of KernelKey");
  }
  return key;
}

std::string symbol_of(const KernelKey& key) {
  std::string symbol = "plait";
  for (char c : " " + to_string(key)) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (word) {
      symbol += c;
    } else if (c != '=') {
      symbol += '_';
    }
  }
  return symbol;
}

std::string entry_path(const KernelKey& key) {
  return "cuda/kernels/" + std::string(to_string(key.family)) + "/" +
         std::string(to_string(key.op)) + ".cu";
}

}  // namespace plait::cuda
