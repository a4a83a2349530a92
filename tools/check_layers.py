#!/usr/bin/env python3
# Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
"""Checks the rules of the house that a compiler does not: which layer may include which, that
core, plan and the public headers know nothing of CUDA, that the library neither prints nor exits,
licence lines and file sizes.

With `--build DIR` it also reads what the compiler really opened for plait_core and plait_plan
(ninja's dependency log) and which symbols their objects want.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What each folder of src/ may include of the others. HACKING.md explains the order.
MAY_INCLUDE = {
    "core": {"core"},
    "plan": {"core", "plan"},
    "cpu": {"core", "plan", "cpu"},
    "cuda": {"core", "plan", "cuda"},
    "engine": {"core", "plan", "cpu", "cuda", "engine"},
    "serve": {"core", "plan", "cpu", "cuda", "engine", "serve"},
    "oracle": {"core", "plan", "oracle"},
    "check": {"core", "plan", "cuda", "engine", "oracle", "check"},
}
# Third party headers that only some layers may see: host-only libraries stay out of core and plan,
# whose headers everything includes.
THIRD_PARTY = {
    "hwy/": {"cpu"},
    "nlohmann/": {"serve", "oracle", "check"},
    "fmt/": {"cpu", "cuda", "engine", "serve", "oracle", "check"},
    "CLI/": set(),
    "cblas.h": set(),
}
CUDA_HEADER = re.compile(r"\b(cuda\w*|nvrtc|cublas\w*|device_launch_parameters)\.h\b|^cu(da)?/|^nv/")
CUDA_WORD = re.compile(
    r"\b(CU(stream|device|context|function|module|event|deviceptr|result)|cuda[A-Z]\w+|nvrtc\w+|"
    r"__global__|dim3|__half|__nv_\w+)\b")
CUDA_SYMBOL = re.compile(r"^(cu[A-Z]|cuda[A-Z]|nvrtc|cublas)|\bdlopen\b")
# The one file that opens a toolkit's header, and is empty where there is none.
TOOLKIT_FILE = "tests/cuda/driver_types_test.cpp"
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# The library never prints and never exits: that is the caller's to decide.
LIBRARY = ("core", "plan", "cpu", "cuda", "engine")
LOUD = re.compile(r"\b(v?f?printf|f?puts|putc|putchar|perror|_?exit|quick_exit|abort)\s*\(|"
                  r"\b(std::)?(cout|cerr|clog)\b")
LICENCE = "Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0"
SOURCE_SUFFIXES = {".h", ".cpp", ".cuh", ".cu", ".py", ".cmake"}
MAX_LINES = 700


def tracked_files():
    output = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [pathlib.PurePosixPath(line) for line in output.splitlines() if (ROOT / line).is_file()]


def without_comments(text):
    """The text with comments blanked, line structure kept."""
    def blank(match):
        token = match.group(0)
        return token if token[0] in "\"'" else re.sub(r"[^\n]", " ", token)
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


def check_includes(path, text, problems):
    parts = path.parts
    layer = parts[1] if parts[0] == "src" and len(parts) > 2 else None
    public = parts[0] == "include"
    neutral = public or layer in ("core", "plan")
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(2)
        where = f"{path}:{number}"
        folder = header.split("/")[0]
        if public and match.group(1) == '"' and folder != "plait":
            problems.append(f"{where}: a public header includes {header}, expected plait/... only")
        if layer and folder in MAY_INCLUDE and folder not in MAY_INCLUDE[layer]:
            allowed = ", ".join(sorted(MAY_INCLUDE[layer]))
            problems.append(f"{where}: {layer} includes {header}, expected one of {allowed}")
        for prefix, layers in THIRD_PARTY.items():
            if header.startswith(prefix) and (public or (layer and layer not in layers)):
                problems.append(f"{where}: {header} may not be seen from here")
        if header.startswith("/") and str(path) != TOOLKIT_FILE:
            problems.append(f"{where}: {header} is not everywhere, expected in {TOOLKIT_FILE} only")
        if neutral and CUDA_HEADER.search(header):
            problems.append(f"{where}: a CUDA header, {header}, in a layer that builds without CUDA")


def check_device_code(files, problems):
    """Device code: the .cu files, what host code of a kernel family names as a source to include,
    and all that those include. It may open nothing that the run-time compiler would have to find
    on the user's machine."""
    texts = {str(path): (ROOT / path).read_text(encoding="utf-8", errors="replace")
             for path in files if path.parts[0] == "src" and path.suffix in SOURCE_SUFFIXES}
    kernels = [name for name in texts if name.startswith("src/cuda/kernels/")]
    todo = [name for name in kernels if name.endswith(".cu")]
    for name in kernels:
        if name.endswith(".cpp"):
            for header in re.findall(r'#include \\"([^"\\]+)\\"', texts[name]):
                todo.append("src/" + header)
    seen = set()
    while todo:
        name = todo.pop()
        if name in seen or name not in texts:
            continue
        seen.add(name)
        for number, line in enumerate(texts[name].splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            if match.group(1) == "<":
                problems.append(f"{name}:{number}: device code includes {match.group(2)}, expected "
                                "no header that the user's machine would have to have")
            else:
                todo.append("src/" + match.group(2))


def check_quiet(path, text, problems):
    if not (path.parts[0] == "include" or (path.parts[0] == "src" and path.parts[1] in LIBRARY)):
        return
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        match = LOUD.search(line)
        if match:
            problems.append(f"{path}:{number}: {match.group(0)} in the library, which throws Error")


def check_words(path, text, problems):
    """Public headers, core and plan use no CUDA type. src/core/device is shared with device code
    and may mention what a device compiler predefines, behind its macros."""
    parts = path.parts
    if not (parts[0] == "include" or parts[:2] in (("src", "core"), ("src", "plan"))):
        return
    if parts[:3] == ("src", "core", "device"):
        return
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        match = CUDA_WORD.search(line)
        if match:
            problems.append(f"{path}:{number}: {match.group(0)} in a layer that knows no CUDA")


def check_file(path, problems):
    text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
    lines = text.count("\n")
    if path.suffix in SOURCE_SUFFIXES or path.name == "CMakeLists.txt":
        if LICENCE not in text[:400]:
            problems.append(f"{path}: no licence line, expected '{LICENCE}'")
        if lines > MAX_LINES:
            problems.append(f"{path}: {lines} lines, expected at most {MAX_LINES}")
    if path.suffix in {".h", ".cpp", ".cuh", ".cu"}:
        check_includes(path, text, problems)
        check_words(path, text, problems)
        check_quiet(path, text, problems)


def run(*command, cwd):
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def check_build(build, problems):
    """What the build of core and plan opened and what it links to."""
    before = len(problems)
    objects = 0
    owner = None
    for line in run("ninja", "-t", "deps", cwd=build).splitlines():
        if line and not line.startswith(" "):
            name = line.split(":")[0]
            owner = name if re.match(r"src/(core|plan)/CMakeFiles/", name) else None
            objects += owner is not None
        elif owner and line.strip():
            opened = pathlib.PurePosixPath(line.strip())
            if CUDA_HEADER.search(opened.name) or any("cuda" in part.lower() for part in opened.parts[-4:]):
                problems.append(f"{owner}: opened {opened}")
    if objects == 0:
        problems.append(f"{build}: no object of core or plan in ninja's log, expected a build")
    for library in ("src/core/libplait_core.a", "src/plan/libplait_plan.a"):
        if not (build / library).is_file():
            problems.append(f"{build / library}: missing, expected the no-cuda build to make it")
            continue
        for line in run("nm", "-u", "-C", library, cwd=build).splitlines():
            symbol = line.strip().removeprefix("U ").removeprefix("w ").strip()
            if CUDA_SYMBOL.search(symbol):
                problems.append(f"{library}: wants {symbol}")
    print(f"check_layers: {objects} objects of core and plan opened no CUDA header, want no CUDA symbol"
          if len(problems) == before else "check_layers: the build is not free of CUDA")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, help="build folder of the no-cuda preset")
    arguments = parser.parse_args()
    problems = []
    files = tracked_files()
    for path in files:
        check_file(path, problems)
    check_device_code(files, problems)
    if arguments.build:
        check_build(arguments.build.resolve(), problems)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"check_layers: {len(files)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
