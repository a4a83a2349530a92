// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Standalone harness of the hopper kernels: checks them against a naive kernel on random problems
// and times them beside the plain read of the same bytes. It needs nvcc, links no library of Plait
// and builds its own plans in the engine's layout, so that a kernel can be developed alone.
//
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -cudart static -Isrc \
//     bench/cuda/hopper_proto/main.cu -o hopper_proto
//   hopper_proto check [seed] | decode | prefill | sanitize
#include "accuracy.h"

struct Timing {
  double median, low, high;
};
template <class F>
Timing time_us(F&& run, int repeats) {
  static unsigned char* flush = device_alloc<unsigned char>(256u << 20);
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = 0; i < 2; ++i) run();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    CHECK(cudaMemsetAsync(flush, i, 256u << 20));
    CHECK(cudaEventRecord(begin));
    run();
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms * 1e3);
  }
  std::sort(times.begin(), times.end());
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  return {times[times.size() / 2], times[times.size() / 10], times[times.size() * 9 / 10]};
}

int sm_count() {
  int count = 0;
  CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
  return count;
}

void bench_decode() {
  const auto kernels = all_kernels();
  std::vector<Problem> problems;
  auto add = [&](int batch, int kv, int hq, int hk) {
    Problem p;
    p.num_qo_heads = hq;
    p.num_kv_heads = hk;
    p.qo_len.assign(static_cast<std::size_t>(batch), 1);
    p.kv_len.assign(static_cast<std::size_t>(batch), kv);
    p.name = std::to_string(batch) + " x " + std::to_string(kv) + " " + std::to_string(hq) + "/" +
             std::to_string(hk);
    problems.push_back(p);
  };
  add(1, 512, 32, 8);
  add(1, 8192, 32, 8);
  add(16, 2048, 32, 8);
  add(64, 512, 32, 8);
  add(64, 2048, 32, 8);
  add(64, 8192, 32, 8);
  add(64, 8192, 64, 8);
  add(64, 2048, 32, 32);
  add(256, 8192, 32, 8);
  add(256, 32768, 32, 8);  // pools of 8.6e9 elements each: beyond 32-bit offsets
  {
    Problem p;
    std::mt19937 rng(11);
    std::lognormal_distribution<double> dist(std::log(2600.0), 1.05);
    p.qo_len.assign(64, 1);
    for (int i = 0; i < 64; ++i) {
      p.kv_len.push_back(std::clamp(static_cast<int>(dist(rng)), 128, 32768));
    }
    p.name = "64 skewed 32/8";
    problems.push_back(p);
    p.num_qo_heads = 64;
    p.name = "64 skewed 64/8";
    problems.push_back(p);
  }
  std::printf("decode: case, kernel, us median (p10..p90), GB/s, plain read us, ratio\n");
  for (const Problem& p : problems) {
    Instance in(p, 5);
    const double tokens = std::accumulate(p.kv_len.begin(), p.kv_len.end(), 0.0);
    const double bytes = tokens * p.num_kv_heads * kDim * 2 * 2;
    uint4* sink = device_alloc<uint4>(1);
    const std::size_t half = static_cast<std::size_t>(bytes / 32);
    const Timing bound = time_us(
        [&] {
          plain_read<<<sm_count() * 4, 512>>>(reinterpret_cast<const uint4*>(in.k), half, sink);
          plain_read<<<sm_count() * 4, 512>>>(reinterpret_cast<const uint4*>(in.v), half, sink);
        },
        15);
    unsigned char* flat = device_alloc<unsigned char>(static_cast<std::size_t>(bytes));
    CHECK(cudaMemset(flat, 1, static_cast<std::size_t>(bytes)));
    Timing one{1e30, 0, 0};
    for (int blocks : {2, 4}) {
      const Timing t = time_us(
          [&] {
            plain_read<<<sm_count() * blocks, 512>>>(reinterpret_cast<const uint4*>(flat), 2 * half,
                                                     sink);
          },
          15);
      if (t.median < one.median) one = t;
    }
    CHECK(cudaFree(flat));
    std::printf("%-18s plain read %8.1f us %6.0f GB/s (two halves %8.1f us)\n", p.name.c_str(),
                one.median, bytes / one.median / 1e3, bound.median);
    for (const Kernel& k : kernels) {
      if (!k.decode || !matches(k, p) || (k.group == 0 && p.num_qo_heads / p.num_kv_heads != 2))
        continue;
      Launch launch(in, k, sm_count());
      const Accuracy a = check(in, launch, 256);
      const bool ok = a.nan == 0 && a.relative < 5e-3 && a.lse < 1e-3;
      if (!ok) ++g_failures;
      const Timing t = time_us([&] { launch.run(); }, 21);
      g_promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
      Launch wide(in, k, sm_count());
      g_promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
      const Timing w = time_us([&] { wide.run(); }, 21);
      std::printf(
          "%-18s %-14s %8.1f us (%.1f..%.1f) %6.0f GB/s %5.1f %% rel %.1e %s items %d; "
          "with 256-byte L2 promotion %.1f us\n",
          p.name.c_str(), name_of(k).c_str(), t.median, t.low, t.high, bytes / t.median / 1e3,
          100 * one.median / t.median, a.relative, ok ? "ok" : "FAIL", launch.plan.items, w.median);
    }
    CHECK(cudaFree(sink));
  }
}

void bench_prefill() {
  const auto kernels = all_kernels();
  std::printf("prefill: case, kernel, us, TFLOP/s\n");
  for (const auto& [batch, len] : std::vector<std::pair<int, int>>{
           {16, 512}, {8, 1024}, {4, 2048}, {2, 4096}, {1, 8192}, {1, 16384}}) {
    for (int hk : {32, 8}) {
      for (int page : {0, 16}) {
        for (bool causal : {false, true}) {
          Problem p;
          p.num_kv_heads = hk;
          p.page_size = page;
          p.causal = causal;
          p.qo_len.assign(static_cast<std::size_t>(batch), len);
          p.kv_len = p.qo_len;
          p.name = std::to_string(batch) + "x" + std::to_string(len) + " 32/" + std::to_string(hk) +
                   (page ? " page16" : " ragged") + (causal ? " causal" : " full");
          Instance in(p, 9);
          const double flops =
              4.0 * batch * static_cast<double>(len) * len * 32 * kDim * (causal ? 0.5 : 1.0);
          for (const Kernel& k : kernels) {
            if (k.decode || !matches(k, p) || k.group == 0) continue;
            Launch launch(in, k, sm_count());
            const Accuracy a = check(in, launch, 200);
            const bool ok = a.nan == 0 && a.relative < 5e-3 && a.lse < 1e-3;
            if (!ok) ++g_failures;
            const Timing t = time_us([&] { launch.run(); }, 9);
            std::printf("%-28s %-24s %8.1f us %6.1f TFLOP/s rel %.1e %s\n", p.name.c_str(),
                        name_of(k).c_str(), t.median, flops / t.median / 1e6, a.relative,
                        ok ? "ok" : "FAIL");
          }
        }
      }
    }
  }
}

void run_checks(bool small, unsigned seed) {
  const auto kernels = all_kernels();
  for (const Problem& p : check_problems(small)) {
    Instance in(p, seed);
    int most = 0;
    for (int q : p.qo_len) most = std::max(most, q);
    for (const Kernel& k : kernels) {
      if (!matches(k, p)) continue;
      if (k.decode && most > 8) continue;
      for (int workers : {sm_count(), 5}) {
        if (small && workers != 5) continue;
        Launch launch(in, k, workers);
        report(p, k, check(in, launch, small ? 40 : 4000));
        if (!small) report(p, k, check(in, launch, 4000));
      }
    }
  }
}

void bad_page() {
  for (const Kernel& k : all_kernels()) {
    if (k.page != 16 || k.causal || k.window || (k.group != 0 && k.group != 4)) continue;
    Problem p;
    p.name = "bad page id";
    p.qo_len = {1, 1, 1};
    p.kv_len = {100, 700, 64};
    Instance in(p, 3);
    const int bad = 1 << 20;
    CHECK(cudaMemcpy(in.page_ids + in.layout.page_begin[1] + 3, &bad, 4, cudaMemcpyHostToDevice));
    Launch launch(in, k, 7);
    CHECK(cudaMemset(in.o, 0, static_cast<std::size_t>(3) * 32 * kDim * 2));
    launch.run();
    CHECK(cudaDeviceSynchronize());
    std::vector<unsigned short> o(static_cast<std::size_t>(3) * 32 * kDim);
    CHECK(cudaMemcpy(o.data(), in.o, o.size() * 2, cudaMemcpyDeviceToHost));
    unsigned status = 0;
    CHECK(cudaMemcpy(&status, &launch.params.status->bits, 4, cudaMemcpyDeviceToHost));
    int nan[3] = {0, 0, 0};
    for (std::size_t i = 0; i < o.size(); ++i) {
      nan[i / (32 * kDim)] += (o[i] & 0x7FFF) > 0x7F80;
    }
    const bool ok = nan[0] == 0 && nan[1] == 32 * kDim && nan[2] == 0 && status == 1;
    if (!ok) ++g_failures;
    std::printf("%-4s %-20s bad page id: NaN %d %d %d status %u\n", ok ? "ok" : "FAIL",
                name_of(k).c_str(), nan[0], nan[1], nan[2], status);
  }
}

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "check";
  const unsigned seed = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (mode == "check") {
    std::printf("seed %u\n", seed);
    run_checks(false, seed);
    bad_page();
  } else if (mode == "sanitize") {
    run_checks(true, seed);
  } else if (mode == "decode") {
    bench_decode();
  } else if (mode == "prefill") {
    bench_prefill();
  }
  std::printf("%s: %d failures\n", mode.c_str(), g_failures);
  return g_failures == 0 ? 0 : 1;
}
