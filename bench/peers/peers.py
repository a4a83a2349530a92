#!/usr/bin/env python3
# Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
"""Times peers on the shapes of `plait bench`, in the same CSV columns, so that one machine and one
call give both sides. Peers that are not importable, or that refuse a shape, are named on standard
error and skipped.

  python3 bench/peers/peers.py --suite prefill,variants,decode --csv peers.csv
"""
import argparse
import csv
import itertools
import math
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

COLUMNS = ["peer", "case", "batch", "qo_len", "kv_len", "qo_heads", "kv_heads", "dim", "mask",
           "median_us", "p10_us", "p90_us", "tflops", "gbps"]
# The table of the peers' published shapes: total tokens 8192, then longer single sequences.
PREFILL = [(16, 512), (8, 1024), (4, 2048), (2, 4096), (1, 8192), (1, 16384)]
DECODE = [(1, 512), (16, 512), (64, 512), (1, 8192), (16, 2048), (64, 2048), (64, 4096), (64, 8192),
          (256, 8192)]


class Timer:
    """Medians of CUDA events around one call, each after an L2 flush."""

    def __init__(self, repeats):
        self.repeats = repeats
        self.flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")

    def __call__(self, call):
        for _ in range(3):
            call()
        times = []
        for _ in range(self.repeats):
            self.flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
        return sorted(times)


class Report:
    def __init__(self, path):
        self.file = open(path, "w", newline="") if path else sys.stdout
        self.writer = csv.writer(self.file)
        self.writer.writerow(COLUMNS)

    def add(self, peer, case, shape, mask, times, flops, bytes_moved):
        median = statistics.median(times)
        spread = [times[len(times) // 10], times[len(times) * 9 // 10]]
        self.writer.writerow([peer, case, *shape, mask] + [f"{t:.2f}" for t in (median, *spread)] +
                             [f"{flops / median / 1e6:.1f}", f"{bytes_moved / median / 1e3:.1f}"])
        self.file.flush()


def attempt(report, name, case, shape, mask, flops, bytes_moved, timer, call):
    try:
        times = timer(call)
    except Exception as error:  # a peer's refusal must not end the run
        print(f"{name} {case} {shape} {mask}: {str(error).splitlines()[0][:160]}", file=sys.stderr)
        return
    report.add(name, case, shape, mask, times, flops, bytes_moved)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


def prefill(report, timer, heads, dim):
    qo_heads, kv_heads = heads
    for batch, length in PREFILL:
        q = normal(batch, qo_heads, length, dim)
        k, v = (normal(batch, kv_heads, length, dim) for _ in range(2))
        shape = (batch, length, length, qo_heads, kv_heads, dim)
        for causal in (False, True):
            flops = 4.0 * batch * qo_heads * length * length * dim * (0.5 if causal else 1.0)
            moved = 2 * (2 * q.numel() + k.numel() + v.numel())
            for name, backend in (("sdpa-flash", SDPBackend.FLASH_ATTENTION),
                                  ("sdpa-cudnn", SDPBackend.CUDNN_ATTENTION)):
                def call():
                    with sdpa_kernel(backend):
                        scaled_dot_product_attention(q, k, v, is_causal=causal,
                                                     enable_gqa=qo_heads != kv_heads)
                attempt(report, name, "prefill", shape, "causal" if causal else "none", flops, moved,
                        timer, call)


def variants(report, timer):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    flex = torch.compile(flex_attention, dynamic=False)
    heads, dim, window, cap = 32, 128, 1024, 30.0
    slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)], device="cuda")

    def causal(b, h, i, j):
        return i >= j

    def windowed(b, h, i, j):
        return (i >= j) & (i - j <= window)

    def soft_cap(score, b, h, i, j):
        return cap * torch.tanh(score / cap)

    def alibi(score, b, h, i, j):
        return score + slopes[h] * (j - i)

    for batch, length in ((4, 2048), (1, 16384)):
        q, k, v = (normal(batch, heads, length, dim) for _ in range(3))
        shape = (batch, length, length, heads, heads, dim)
        for name, score, mask in (("causal", None, causal), ("soft_cap", soft_cap, causal),
                                  ("alibi", alibi, causal), ("window", None, windowed)):
            block = create_block_mask(mask, None, None, length, length, device="cuda")
            seen = (length * length / 2 if name != "window"
                    else sum(min(i, window) + 1 for i in range(length)))
            attempt(report, "flex", "prefill", shape, name, 4.0 * batch * heads * seen * dim,
                    8 * q.numel(), timer, lambda: flex(q, k, v, score_mod=score, block_mask=block))


def mt19937_64(seed):
    """The words of std::mt19937_64."""
    state = [seed]
    for n in range(1, 312):
        last = state[-1] ^ (state[-1] >> 62)
        state.append((6364136223846793005 * last + n) % 2**64)
    while True:
        for n in range(312):
            x = (state[n] & 0xFFFFFFFF80000000) | (state[(n + 1) % 312] & 0x7FFFFFFF)
            state[n] = state[(n + 156) % 312] ^ (x >> 1) ^ (0xB5026F5AA96619E9 if x & 1 else 0)
        for x in state:
            x ^= (x >> 29) & 0x5555555555555555
            x ^= (x << 17) & 0x71D67FFFEDA60000
            x ^= (x << 37) & 0xFFF7EEE000000000
            yield (x ^ (x >> 43)) % 2**64


def skewed_lengths(count, seed=1):
    """The lengths of `skewed_requests` in tools/plait/bench/attention_case.cpp."""
    words = mt19937_64(seed)
    lengths = []
    for _ in range(count):
        a, b = (((next(words) >> 11) + 0.5) * 2.0**-53 for _ in range(2))
        draw = math.sqrt(-2.0 * math.log(a)) * math.cos(2.0 * math.pi * b)
        lengths.append(int(min(max(math.exp(7.5 + 1.2 * draw), 128.0), 32768.0)))
    return lengths


def decode(report, timer, heads, dim, page):
    import flashinfer
    qo_heads, kv_heads = heads
    cases = [(length, [length] * batch) for batch, length in DECODE]
    for name, lengths in cases + [("skewed", skewed_lengths(64))]:
        pages = [math.ceil(length / page) for length in lengths]
        indptr = torch.tensor([0, *itertools.accumulate(pages)], dtype=torch.int32, device="cuda")
        cache = normal(sum(pages), 2, page, kv_heads, dim)
        ids = torch.randperm(sum(pages), dtype=torch.int32, device="cuda")
        last = torch.tensor([(length - 1) % page + 1 for length in lengths], dtype=torch.int32,
                            device="cuda")
        q = normal(len(lengths), qo_heads, dim)
        workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, use_tensor_cores=True)
        wrapper.plan(indptr, ids, last, qo_heads, kv_heads, dim, page, q_data_type=torch.bfloat16)
        keys = sum(lengths)
        attempt(report, "flashinfer", "decode", (len(lengths), 1, name, qo_heads, kv_heads, dim),
                "none", 4.0 * qo_heads * keys * dim, 4 * keys * kv_heads * dim, timer,
                lambda: wrapper.run(q, cache))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--suite", default="prefill,variants,decode")
    parser.add_argument("--csv", help="write here instead of standard output")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    suites = set(args.suite.split(","))
    unknown = suites - {"prefill", "variants", "decode"}
    if unknown:
        parser.error(f"--suite: got {sorted(unknown)}, expected prefill, variants or decode")
    torch.manual_seed(0)
    report, timer = Report(args.csv), Timer(args.repeats)
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}", file=sys.stderr)
    if "prefill" in suites:
        for heads, dim in (((32, 32), 128), ((32, 8), 128), ((32, 32), 64), ((16, 16), 256)):
            prefill(report, timer, heads, dim)
    if "variants" in suites:
        variants(report, timer)
    if "decode" in suites:
        try:
            for heads, dim in (((32, 8), 128), ((64, 8), 128), ((32, 32), 128), ((32, 8), 64),
                               ((16, 8), 256)):
                decode(report, timer, heads, dim, 16)
        except ImportError as error:
            print(f"flashinfer: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
