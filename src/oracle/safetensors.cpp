// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "oracle/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/file.h"
#include "core/text.h"
#include "oracle/strict_json.h"
#include "plait/error.h"

namespace plait::oracle {
namespace {

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference reader
constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 40;
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 47;

constexpr std::array<std::pair<std::string_view, std::int64_t>, 16> kSizes{{{"F64", 8},
                                                                            {"F32", 4},
                                                                            {"F16", 2},
                                                                            {"BF16", 2},
                                                                            {"F8_E4M3", 1},
                                                                            {"F8_E5M2", 1},
                                                                            {"I64", 8},
                                                                            {"I32", 4},
                                                                            {"I16", 2},
                                                                            {"I8", 1},
                                                                            {"U64", 8},
                                                                            {"U32", 4},
                                                                            {"U16", 2},
                                                                            {"U8", 1},
                                                                            {"BOOL", 1},
                                                                            {"F8_E8M0", 1}}};

/// What the format allows beside tensors: text, for people.
void require_strings(const Node& node) {
  const Json& value = node.json();
  const bool strings =
      value.is_object() &&
      std::all_of(value.begin(), value.end(), [](const Json& text) { return text.is_string(); });
  if (!strings) node.refuse("an object of strings", ErrorCode::kIo);
}

SafetensorsEntry parse_entry(const Node& node, std::int64_t data_bytes) {
  node.expect_object({"dtype", "shape", "data_offsets"});
  SafetensorsEntry entry;
  entry.dtype = node.get("dtype").string();
  const auto element = safetensors_size(entry.dtype);
  if (!element) node.get("dtype").refuse("a safetensors dtype such as \"F32\"", ErrorCode::kIo);
  entry.shape = node.get("shape").integers(0, kMaxExtent);
  const std::int64_t count = checked_size(entry.shape, node.child_path("shape"));
  const Node offsets = node.get("data_offsets");
  const auto range = offsets.integers(0, data_bytes);
  if (range.size() != 2 || range[0] > range[1]) {
    offsets.refuse(
        "[begin, end] with begin <= end <= " + std::to_string(data_bytes) + " bytes of data",
        ErrorCode::kIo);
  }
  entry.begin = range[0];
  entry.end = range[1];
  if (entry.end - entry.begin != count * *element) {
    offsets.refuse(std::to_string(count * *element) + " bytes for shape " +
                       shape_text(entry.shape) + " of " + entry.dtype,
                   ErrorCode::kIo);
  }
  return entry;
}

}  // namespace

std::optional<std::int64_t> safetensors_size(std::string_view dtype) noexcept {
  for (const auto& [name, size] : kSizes) {
    if (name == dtype) return size;
  }
  return std::nullopt;
}

std::string_view safetensors_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kF16: return "F16";
    case DType::kBF16: return "BF16";
    case DType::kF8E4M3: return "F8_E4M3";
    case DType::kF8E5M2: return "F8_E5M2";
    case DType::kI32: return "I32";
    case DType::kI64: return "I64";
    case DType::kU8: return "U8";
  }
  return "F32";
}

Safetensors Safetensors::read(const std::string& path, std::string_view field) {
  return parse(read_file(path, field, kMaxFileBytes), field);
}

Safetensors Safetensors::parse(std::string bytes, std::string_view field) {
  const std::string name(field);
  const auto total = static_cast<std::int64_t>(bytes.size());
  if (total < kLengthBytes) {
    throw Error(ErrorCode::kIo, name, std::to_string(total) + " bytes",
                "a safetensors file (at least 8 bytes)");
  }
  std::uint64_t header_bytes = 0;
  for (int n = 7; n >= 0; --n) {
    header_bytes =
        header_bytes << 8 | static_cast<unsigned char>(bytes[static_cast<std::size_t>(n)]);
  }
  const std::int64_t most = std::min(total - kLengthBytes, kMaxHeaderBytes);
  if (header_bytes > static_cast<std::uint64_t>(most)) {
    throw Error(ErrorCode::kIo, name + ": header length", std::to_string(header_bytes),
                "at most " + std::to_string(most) + " bytes");
  }
  Safetensors out;
  out.bytes_ = std::move(bytes);
  out.data_begin_ = kLengthBytes + static_cast<std::int64_t>(header_bytes);
  const std::int64_t data_bytes = total - out.data_begin_;
  const Json header = parse_strict_json(
      std::string_view(out.bytes_).substr(kLengthBytes, header_bytes), name + ": header");
  if (!header.is_object()) Node(header, name + ": header").refuse("an object", ErrorCode::kIo);
  for (const auto& item : header.items()) {
    const std::string path = name + ": " + quote_text(item.key());
    if (item.key() == "__metadata__") {
      require_strings(Node(item.value(), path));
      continue;
    }
    out.entries_.emplace(item.key(), parse_entry(Node(item.value(), path), data_bytes));
  }

  // The data section must be covered exactly once, as the format demands.
  std::vector<std::pair<const SafetensorsEntry*, const std::string*>> order;
  for (const auto& [key, entry] : out.entries_) order.emplace_back(&entry, &key);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  std::int64_t covered = 0;
  for (const auto& [entry, key] : order) {
    if (entry->begin != covered) {
      throw Error(ErrorCode::kIo, name + ": " + quote_text(*key) + ".data_offsets",
                  "begin " + std::to_string(entry->begin),
                  "begin " + std::to_string(covered) + " (no overlap and no hole)");
    }
    covered = entry->end;
  }
  if (covered != data_bytes) {
    throw Error(ErrorCode::kIo, name + ": data", std::to_string(data_bytes) + " bytes",
                std::to_string(covered) + " bytes, as the header says");
  }
  return out;
}

std::string_view Safetensors::data(const SafetensorsEntry& entry) const noexcept {
  return std::string_view(bytes_).substr(static_cast<std::size_t>(data_begin_ + entry.begin),
                                         static_cast<std::size_t>(entry.end - entry.begin));
}

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       std::string_view field) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::vector<std::string_view> pieces(2);
  std::int64_t at = 0;
  for (const NamedTensor& item : tensors) {
    const HostTensor& tensor = *item.tensor;
    if (tensor.strides != contiguous_strides(tensor.shape)) {
      throw Error(ErrorCode::kInternal, item.name, "a strided tensor", "a row-major tensor");
    }
    const std::int64_t bytes = tensor.size() * size_of(tensor.dtype);
    header[item.name] = {{"dtype", safetensors_name(tensor.dtype)},
                         {"shape", tensor.shape},
                         {"data_offsets", {at, at + bytes}}};
    at += bytes;
    const auto* data =
        static_cast<const char*>(tensor.storage->data()) + tensor.offset * size_of(tensor.dtype);
    pieces.emplace_back(data, static_cast<std::size_t>(bytes));
  }
  std::string text = header.dump();
  while (text.size() % 8 != 0) text += ' ';  // the data starts aligned
  std::string length(8, '\0');
  for (std::size_t n = 0; n < 8; ++n) {
    length[n] = static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * n) & 0xFF);
  }
  pieces[0] = length;
  pieces[1] = text;
  write_file_atomic(path, pieces, field);
}

}  // namespace plait::oracle
