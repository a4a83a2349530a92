// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Comparison with the reference.
#pragma once

#include "launch.h"

struct Accuracy {
  double relative = 0, worst_row = 0, lse = 0;
  int nan = 0;
  unsigned status = 0;
};
Accuracy check(Instance& in, Launch& launch, int max_samples) {
  const Problem& p = in.problem;
  const std::size_t elements = static_cast<std::size_t>(in.layout.total_q) * p.num_qo_heads * kDim;
  CHECK(cudaMemset(in.o, 0xFF, elements * 2));
  CHECK(cudaMemset(in.lse, 0xFF, elements / kDim * 4));
  launch.run();
  CHECK(cudaDeviceSynchronize());
  Accuracy acc;
  int* bad = device_copy(std::vector<int>{0});
  count_nan<<<256, 256>>>(in.o, elements, bad);
  CHECK(cudaMemcpy(&acc.nan, bad, 4, cudaMemcpyDeviceToHost));
  CHECK(cudaFree(bad));
  std::vector<int2> samples;
  std::mt19937 rng(7);
  long long all = 0;
  for (int qo : p.qo_len) all += static_cast<long long>(qo) * p.num_qo_heads;
  int longest = 1;
  for (std::size_t b = 0; b < p.qo_len.size(); ++b) {
    longest = std::max(longest, p.kv_len[b]);
    const int n = p.qo_len[b] * p.num_qo_heads;
    for (int i = 0; i < n; ++i) {
      if (all <= max_samples ||
          rng() % static_cast<unsigned>(all) < static_cast<unsigned>(max_samples)) {
        samples.push_back({static_cast<int>(b), i});
      }
    }
  }
  if (samples.empty()) return acc;
  RefArgs a{};
  a.q = in.q;
  a.k = in.k;
  a.v = in.v;
  a.o = in.o;
  a.lse = in.lse;
  a.page_ids = in.page_ids;
  int* page_begin = device_copy(in.layout.page_begin);
  int* q_begin = device_copy(in.layout.q_begin);
  int* qo_len = device_copy(p.qo_len);
  int* kv_len = device_copy(p.kv_len);
  int2* sample_list = device_copy(samples);
  a.page_begin = page_begin;
  a.q_begin = q_begin;
  a.qo_len = qo_len;
  a.kv_len = kv_len;
  a.samples = sample_list;
  a.heads = p.num_qo_heads;
  a.group = p.num_qo_heads / p.num_kv_heads;
  a.page_size = p.page_size;
  a.kv_token = in.kv_token;
  a.kv_head = in.kv_head;
  a.kv_page = in.kv_page;
  a.causal = p.causal;
  a.window = p.window;
  a.scale = 1.0F / std::sqrt(128.0F);
  a.scratch_stride = longest;
  a.scratch = device_alloc<float>(samples.size() * static_cast<std::size_t>(longest));
  a.errors = device_alloc<double>(samples.size() * 3);
  reference_kernel<<<static_cast<unsigned>(samples.size()), 256>>>(a);
  CHECK(cudaGetLastError());
  std::vector<double> errors(samples.size() * 3);
  CHECK(cudaMemcpy(errors.data(), a.errors, errors.size() * 8, cudaMemcpyDeviceToHost));
  double num = 0, den = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    num += errors[i * 3];
    den += errors[i * 3 + 1];
    const double row = errors[i * 3 + 1] > 0 ? std::sqrt(errors[i * 3] / errors[i * 3 + 1])
                                             : std::sqrt(errors[i * 3]);
    if (!(row <= acc.worst_row)) acc.worst_row = row;
    if (!(errors[i * 3 + 2] <= acc.lse)) acc.lse = errors[i * 3 + 2];
  }
  acc.relative = std::sqrt(num / std::max(den, 1e-300));
  CHECK(cudaMemcpy(&acc.status, &launch.params.status->bits, 4, cudaMemcpyDeviceToHost));
  for (void* pointer :
       {static_cast<void*>(page_begin), static_cast<void*>(q_begin), static_cast<void*>(qo_len),
        static_cast<void*>(kv_len), static_cast<void*>(sample_list), static_cast<void*>(a.scratch),
        static_cast<void*>(a.errors)}) {
    CHECK(cudaFree(pointer));
  }
  return acc;
}

int g_failures = 0;
bool matches(const Kernel& k, const Problem& p) {
  return k.page == p.page_size && k.causal == p.causal && k.window == (p.window >= 0) &&
         (k.group == 0 || k.group == p.num_qo_heads / p.num_kv_heads);
}
std::string name_of(const Kernel& k) {
  return k.name + (k.group == 0 ? " g?" : " g" + std::to_string(k.group));
}
void report(const Problem& p, const Kernel& k, const Accuracy& a) {
  const bool ok =
      a.nan == 0 && a.relative < 5e-3 && a.worst_row < 2e-2 && a.lse < 1e-3 && a.status == 0;
  if (!ok) ++g_failures;
  std::printf("%-4s %-24s %-34s rel %.2e worst row %.2e lse %.1e nan %d status %u\n",
              ok ? "ok" : "FAIL", name_of(k).c_str(), p.name.c_str(), a.relative, a.worst_row,
              a.lse, a.nan, a.status);
}

std::vector<Problem> check_problems(bool small) {
  std::vector<Problem> list;
  auto add = [&](Problem p) { list.push_back(std::move(p)); };
  for (int page : {16, 0, 64}) {
    for (bool causal : {false, true}) {
      Problem p;
      p.page_size = page;
      p.causal = causal;
      p.poison = page > 0;
      const std::string tag = std::string(page == 0 ? "ragged" : "page " + std::to_string(page)) +
                              (causal ? " causal" : " full");
      p.name = tag + " decode mix";
      p.qo_len = {1, 1, 1, 1, 1, 1, 1};
      p.kv_len = {1, 16, 17, 333, 0, 2049, 97};
      p.min_chunk = 64;
      add(p);
      p.num_qo_heads = 8;
      p.num_kv_heads = 1;
      p.name = tag + " decode g8, verify 2";
      p.qo_len = {2, 1, 2, 2};
      p.kv_len = {200, 5000, 31, 2};
      add(p);
      p.num_qo_heads = 4;
      p.num_kv_heads = 4;
      p.name = tag + " mixed prefill g1";
      p.qo_len = {130, 64, 1, 7, 200};
      p.kv_len = {130, 300, 129, 7, 513};
      add(p);
      p.num_qo_heads = 8;
      p.num_kv_heads = 2;
      p.name = tag + " prefill g4 split";
      p.qo_len = {100, 33, 260};
      p.kv_len = {1000, 33, 777};
      p.split_prefill = 256;
      add(p);
      {
        Problem w;
        w.page_size = page;
        w.causal = causal;
        w.window = 70;
        w.name = tag + " decode window 70";
        w.qo_len = {1, 2, 1, 1};
        w.kv_len = {300, 64, 5, 71};
        w.min_chunk = 32;
        add(w);
      }
      if (!small) {
        p.split_prefill = 0;
        p.name = tag + " window 100";
        p.window = 100;
        p.causal = true;
        add(p);
      }
    }
  }
  Problem p;
  p.hnd = true;
  p.poison = true;
  p.name = "hnd page 16";
  p.qo_len = {1, 1, 70, 1};
  p.kv_len = {500, 1000, 700, 64};
  add(p);
  return list;
}
