// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "oracle/safetensors.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "oracle/parse_problem.h"
#include "support/problems.h"
#include "support/temporary_directory.h"

namespace plait::oracle {
namespace {

std::string container(const std::string& header, const std::string& data) {
  std::string out(8, '\0');
  for (std::size_t n = 0; n < 8; ++n) {
    out[n] = static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * n) & 0xFF);
  }
  return out + header + data;
}

std::string refusal(std::string bytes) {
  try {
    Safetensors::parse(std::move(bytes), "tensors");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

TEST(Safetensors, WriteThenRead) {
  const test::TemporaryDirectory folder;
  HostTensor o = HostTensor::zeros(DType::kBF16, {2, 3}, "o");
  o.fill([](const auto& index) { return static_cast<double>(index[0] * 3 + index[1]); });
  HostTensor lse = HostTensor::zeros(DType::kF32, {2}, "lse");
  const NamedTensor tensors[] = {{"o", &o}, {"lse", &lse}};
  write_safetensors(folder.path("out"), tensors, "out");
  const Safetensors back = Safetensors::read(folder.path("out"), "out");
  ASSERT_EQ(back.entries().size(), 2u);
  const SafetensorsEntry& entry = back.entries().at("o");
  EXPECT_EQ(entry.dtype, "BF16");
  EXPECT_EQ(entry.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(back.data(entry), std::string_view(static_cast<const char*>(o.storage->data()), 12));
  EXPECT_EQ(back.entries().at("lse").dtype, "F32");
  // Only the output itself is left in the folder.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Safetensors, HostileHeaders) {
  EXPECT_TRUE(says(refusal(""), "at least 8 bytes"));
  EXPECT_TRUE(says(refusal("1234567"), "at least 8 bytes"));
  EXPECT_TRUE(says(refusal(std::string(8, '\xff')), "header length"));
  EXPECT_TRUE(says(refusal(container("{", "")), "not JSON"));
  EXPECT_TRUE(says(refusal(container("[]", "")), "an object"));
  EXPECT_EQ(refusal(container("{}", "")), "accepted");
  EXPECT_EQ(refusal(container("{\"__metadata__\":{\"a\":\"b\"}}", "")), "accepted");
  EXPECT_TRUE(says(refusal(container("{\"__metadata__\":{\"a\":3}}", "")), "object of strings"));
  EXPECT_TRUE(says(refusal(container("{\"__metadata__\":[]}", "")), "object of strings"));
  EXPECT_TRUE(says(refusal(container("{}", "x")), "tensors: data"));
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return "\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
           ",\"data_offsets\":" + offsets + "}";
  };
  EXPECT_EQ(refusal(container("{" + entry("F32", "[1]", "[0,4]") + "}", "1234")), "accepted");
  EXPECT_EQ(refusal(container("{" + entry("F32", "[]", "[0,4]") + "}", "1234")), "accepted");
  EXPECT_TRUE(says(refusal(container("{" + entry("F32", "[1]", "[0,8]") + "}", "1234")),
                   "\"a\".data_offsets[1]"));
  EXPECT_TRUE(
      says(refusal(container("{" + entry("F32", "[1]", "[4,0]") + "}", "1234")), "data_offsets"));
  EXPECT_TRUE(says(refusal(container("{" + entry("F32", "[2]", "[0,4]") + "}", "1234")),
                   "8 bytes for shape"));
  EXPECT_TRUE(says(refusal(container("{" + entry("F31", "[1]", "[0,4]") + "}", "1234")), ".dtype"));
  EXPECT_TRUE(
      says(refusal(container("{" + entry("F32", "[-1]", "[0,4]") + "}", "1234")), ".shape[0]"));
  EXPECT_TRUE(
      says(refusal(container("{" + entry("F32", "[4611686018427387904,4]", "[0,0]") + "}", "")),
           ".shape"));
  EXPECT_TRUE(says(refusal(container("{" + entry("F32", "[1]", "[0,4]") + "," +
                                         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
                                         "\"data_offsets\":[2,6]}}",
                                     "123456")),
                   "no overlap"));
  EXPECT_TRUE(says(
      refusal(container(
          "{" + entry("F32", "[1]", "[0,4]") + "," + entry("F32", "[1]", "[0,4]") + "}", "1234")),
      "twice"));
  EXPECT_TRUE(says(refusal(container("{" + entry("F32", "[1]", "[4,8]") + "}", "12345678")),
                   "no overlap and no hole"));
}

TEST(Safetensors, NamedTensorsWithViews) {
  const test::TemporaryDirectory folder;
  HostTensor flat = HostTensor::zeros(DType::kF32, {100}, "flat");
  flat.fill([](const auto& index) { return static_cast<double>(index[0]); });
  HostTensor ids = HostTensor::zeros(DType::kI32, {4}, "ids");
  const NamedTensor tensors[] = {{"flat", &flat}, {"ids", &ids}};
  write_safetensors(folder.path("in"), tensors, "in");
  const Safetensors file = Safetensors::read(folder.path("in"), "tensors");

  Json document = test::mean_probe(2, 3, {{"kind", "none"}}, 1, 4);
  document["q"] = {{"name", "flat"}, {"shape", {2, 1, 4}}, {"stride", {10, 4, 1}}, {"offset", 7}};
  document["kv"]["k"] = {{"name", "flat"}, {"shape", {3, 1, 4}}};
  document["kv"]["v"] = {
      {"name", "flat"}, {"shape", {3, 1, 4}}, {"stride", {-1, 1, 1}}, {"offset", 20}};
  const Problem problem = parse_problem(document.dump(), &file);
  const std::int64_t index[] = {1, 0, 2};
  EXPECT_EQ(problem.q.load(problem.q.at(index)), 19.0);
  EXPECT_EQ(problem.v.load(problem.v.at(index)), 21.0);
  EXPECT_EQ(problem.k.storage, problem.v.storage);  // one file tensor is converted once
  const auto refused = [&](const char* pointer, Json value) {
    Json changed = document;
    changed[Json::json_pointer(pointer)] = std::move(value);
    return test::refused_field(changed, &file);
  };
  EXPECT_EQ(refused("/q/offset", 88), "q");
  EXPECT_EQ(refused("/q/offset", -1), "q.offset");
  EXPECT_EQ(refused("/kv/v/offset", 1), "kv.v");
  EXPECT_EQ(refused("/q/stride", {10, 4}), "q.stride");
  EXPECT_EQ(refused("/q/stride", {std::int64_t{1} << 47, 4, 1}), "q");
  EXPECT_EQ(refused("/q/name", "fat"), "q.name");
  EXPECT_EQ(refused("/q/name", "ids"), "q");
  EXPECT_EQ(refused("/q/shape", {2, 1, 5}), "q");
}

}  // namespace
}  // namespace plait::oracle
