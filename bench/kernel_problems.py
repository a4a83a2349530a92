#!/usr/bin/env python3
# Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
"""Writes problem files that between them run every attention kernel of the default set, and prints
their names: small ones, for tools that make a kernel a thousand times slower.

  plait aot --list | python3 bench/kernel_problems.py mma FOLDER
"""
import json
import pathlib
import sys

# Tile classes of one spec are one problem: its requests have rows for each.
TILES = ("qt", "kt", "stages", "warps", "ta", "tb")


def parse(line):
    """Family, operation and fields of a kernel key."""
    family, operation, *words = line.split()
    return family, operation, dict(word.split("=", 1) for word in words)


def caches(tokens, kv_heads, dims, paged, page):
    shapes = ([-(-tokens // page), page, kv_heads] if paged else [tokens, kv_heads])
    names = ("k_cache", "v_cache") if paged else ("k", "v")
    return {name: {"shape": [*shapes, dim], "fill": {"normal": seed}}
            for seed, (name, dim) in enumerate(zip(names, dims))}


def problem(key):
    group = int(key.get("group", 1))
    dims = [int(key["dqk"]), int(key["dvo"])]
    paged = key.get("kv") == "paged"
    page = int(key.get("page", 5)) if paged else 1  # 5: read at run time
    kv_heads = 3  # workers with two of a request, and with one
    heads = group * kv_heads
    # Rows for each tile class, and so many requests that workers have several items.
    others = range(20, 120)  # their keys
    rows = [1, 64 // group, 128 // group + 3, *(1 for _ in others)]
    pages = [-(-keys // page) for keys in (300, 150, 290, *others)]
    masks = key.get("mask", "").split(",")
    hooks = key.get("hooks", "").split(",")
    kv_indptr = [sum(pages[:n]) for n in range(len(pages) + 1)]
    kv = {"indptr": kv_indptr, **caches(sum(pages) * page, kv_heads, dims, paged, page)}
    if paged:
        kv |= {"kind": "paged", "page_size": page,
               "last_page_len": [1, page, min(2, page), *(page for _ in others)],
               "indices": list(reversed(range(sum(pages))))}
    else:
        kv["kind"] = "ragged"
    document = {
        "version": 1, "num_qo_heads": heads, "num_kv_heads": kv_heads, "head_dim_qk": dims[0],
        "head_dim_vo": dims[1], "dtype": {"q": key["q"], "kv": key["k"], "o": key["o"]},
        "q": {"shape": [sum(rows), heads, dims[0]], "fill": {"normal": 7}},
        "qo_indptr": [sum(rows[:n]) for n in range(len(rows) + 1)], "kv": kv,
        "mask": {"kind": "causal" if "causal" in masks else "none"}, "return_lse": True,
        # Chunks, so that there are partial states and merges.
        "plan": {"policy": "fixed_chunk", "kv_chunk": 16 * page if paged else 64},
    }
    if "window" in masks:
        document["mask"]["window_left"] = 100
    if "softcap" in hooks:
        document["logits_soft_cap"] = 30.0
    if "alibi" in hooks:
        document["alibi_slopes"] = [2.0**-(head + 1) for head in range(heads)]
    if key.get("mode") == "canonical":
        document["plan"] = {"policy": "batch_invariant"}
    return document


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    wanted, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    known = set()
    for line in sys.stdin:
        family, operation, key = parse(line)
        if family != wanted or operation not in ("attention", "prefill", "decode"):
            continue
        spec = {name: value for name, value in key.items() if name not in TILES}
        name = "_".join([family, *(f"{n}{v.replace(',', '_')}" for n, v in spec.items())])
        if name in known:
            continue
        known.add(name)
        path = folder / f"{name}.json"
        path.write_text(json.dumps(problem(spec)), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
