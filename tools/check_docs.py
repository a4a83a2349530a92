#!/usr/bin/env python3
# Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
"""Checks that the documentation tells the truth about commands, paths and links.

- A fenced block marked ```sh is run, line by line in one shell, from the root of the repository
  with build/bin in PATH and an empty folder in $OUT. Exit status 0 is expected.
- ```sh by-ci: a command that .ci/run itself runs; every line has to stand there.
- ```sh manual: not run (a device or another machine is needed); its paths, verbs and options are
  still checked.
- A fenced block marked ```cpp that includes a header of Plait has to compile as it stands.
- Every `path` in inline code that starts with a name of the top level has to exist (* works).
- Every `plait verb --option` and `./dev verb`, inline or in a block, has to be known to --help.
- Every relative link has to lead to a file, and its #anchor to a heading.
- Every page below docs/ has to be linked from docs/README.md.

`--static` leaves out what needs a build: running and compiling blocks, and asking plait for its
options.
"""

import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOP_LEVEL = ("include", "src", "tools", "tests", "bench", "docs", "examples", "cmake", ".ci")
BLOCK_TIMEOUT_S = 300
FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*(.*)$")
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


class Document:
    """One Markdown file, split into prose lines and fenced blocks."""

    def __init__(self, path):
        self.path = path
        self.name = str(path.relative_to(ROOT))
        self.prose = []   # (line number, text)
        self.blocks = []  # (line number of the fence, info string, text)
        fence, info, start, body = None, "", 0, []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = FENCE.match(line)
            if fence is None and match:
                fence, info, start, body = match.group(2), match.group(3).strip(), number, []
            elif fence is not None and match and match.group(2) == fence and not match.group(3):
                self.blocks.append((start, info, "\n".join(body)))
                fence = None
            elif fence is not None:
                body.append(line)
            else:
                self.prose.append((number, line))
        self.unclosed = start if fence is not None else None

    def anchors(self):
        found = set()
        for _, line in self.prose:
            match = re.match(r"#+\s+(.*?)\s*#*$", line)
            if match:
                text = re.sub(r"[`*\[\]]|\([^)]*\)(?=$)", "", match.group(1)).lower()
                found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
        return found


class Plait:
    """What the command line tool and ./dev say of themselves."""

    def __init__(self, binary):
        self.binary = binary
        self.help_texts = {}
        self.dev_help = subprocess.run(["./dev", "help"], cwd=ROOT, capture_output=True, text=True,
                                       check=True).stdout

    def help_of(self, verb):
        if verb not in self.help_texts:
            command = [str(self.binary), *([verb] if verb else []), "--help"]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            self.help_texts[verb] = result.stdout if result.returncode == 0 else None
        return self.help_texts[verb]

    def complaint(self, words):
        """Why the command `plait ...` or `./dev ...` would not be understood, or None."""
        program, arguments = words[0], words[1:]
        if program in ("./dev", "dev"):
            if arguments and not re.search(rf"^  {re.escape(arguments[0])}\b", self.dev_help, re.M):
                return f"./dev knows no verb {arguments[0]}"
            if not arguments or arguments[0] not in ("replay", "run"):
                return None
            arguments = arguments[1:] if arguments[0] == "run" else arguments
        if self.binary is None:
            return None
        verb = arguments[0] if arguments and re.fullmatch(r"[a-z][a-z-]*", arguments[0]) else ""
        text = self.help_of(verb)
        if text is None:
            return f"plait knows no verb {verb}"
        for word in arguments:
            option = re.match(r"--[a-z][a-z0-9-]*", word)
            if option and not re.search(rf"{re.escape(option.group(0))}(?![a-z0-9-])", text):
                return f"plait {verb} knows no option {option.group(0)}"
        return None


def commands_in(text):
    """The simple commands of a shell text that begin with plait or ./dev, as word lists."""
    for line in text.replace("\\\n", " ").splitlines():
        for piece in re.split(r"\|\||&&|[|;]", line.split(" #")[0]):
            try:
                words = shlex.split(piece, comments=True)
            except ValueError:
                continue
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if words and words[0].removeprefix("build/bin/") in ("plait", "./dev"):
                yield [words[0].removeprefix("build/bin/"), *words[1:]]


def is_repository_path(text):
    if re.search(r"[<>{}$\s]|\.\.\.", text):
        return False
    return text.split("/")[0] in TOP_LEVEL and "/" in text


def check_path(text):
    text = re.sub(r":\d+$", "", text).rstrip("/")
    if "*" in text:
        return any(ROOT.glob(text))
    return (ROOT / text).exists()


def check_prose(document, documents, plait, problems):
    for number, line in document.prose:
        where = f"{document.name}:{number}"
        for match in INLINE.finditer(line):
            code = match.group(1).strip()
            if is_repository_path(code) and not check_path(code):
                problems.append(f"{where}: no such path: {code}")
            for words in commands_in(code):
                complaint = plait.complaint(words)
                if complaint:
                    problems.append(f"{where}: {complaint}")
        for match in LINK.finditer(INLINE.sub("", line)):
            target = match.group(1) or match.group(2)
            if re.match(r"[a-z]+:", target):
                continue
            file_part, _, anchor = target.partition("#")
            path = (document.path.parent / file_part).resolve() if file_part else document.path
            if not path.exists():
                problems.append(f"{where}: dead link: {target}")
            elif anchor and path in documents and anchor not in documents[path].anchors():
                problems.append(f"{where}: no heading for the anchor of {target}")


def check_blocks(document, plait, problems):
    ci_script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    for number, info, text in document.blocks:
        words = info.split()
        where = f"{document.name}:{number}"
        if not words or words[0] not in ("sh", "bash", "console", "shell"):
            continue
        if words[0] != "sh" or words[1:] not in ([], ["by-ci"], ["manual"]):
            problems.append(f"{where}: block marked {info}, expected sh, sh by-ci or sh manual")
        for command in commands_in(text):
            complaint = plait.complaint(command)
            if complaint:
                problems.append(f"{where}: {complaint}")
        for token in re.findall(r"[^\s'\"=]+", text):
            if is_repository_path(token) and not check_path(token):
                problems.append(f"{where}: no such path: {token}")
        if words[1:] == ["by-ci"]:
            for line in text.splitlines():
                command = line.split("#")[0].strip()
                if command and command not in ci_script:
                    problems.append(f"{where}: .ci/run does not run: {command}")


def check_index(documents, problems):
    index = (ROOT / "docs/README.md").resolve()
    if index not in documents:
        return
    linked = {(index.parent / (match.group(1) or match.group(2)).partition("#")[0]).resolve()
              for _, line in documents[index].prose for match in LINK.finditer(line)}
    for path, document in documents.items():
        if document.name.startswith("docs/") and path != index and path not in linked:
            problems.append(f"docs/README.md: no link to {document.name}")


def run_block(document, number, text, binary, problems):
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="plait-docs-") as out:
        environment = dict(os.environ, OUT=out, PLAIT_CACHE_DIR=f"{out}/cache",
                           PATH=f"{binary.parent}:{os.environ['PATH']}")
        try:
            result = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text], cwd=ROOT, env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", timeout=BLOCK_TIMEOUT_S, check=False)
            status, output = result.returncode, result.stdout
        except subprocess.TimeoutExpired:
            status, output = f"timeout after {BLOCK_TIMEOUT_S} s", ""
    seconds = time.monotonic() - started
    print(f"  {document.name}:{number}: {'ok' if status == 0 else 'FAILED'} in {seconds:.1f} s",
          flush=True)
    if status != 0:
        tail = "\n".join(output.splitlines()[-15:])
        problems.append(f"{document.name}:{number}: exit status {status}\n{text}\n--\n{tail}")


def compile_block(document, number, text, problems):
    command = ["c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
               f"-I{ROOT / 'include'}", "-x", "c++", "-"]
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        problems.append(f"{document.name}:{number}: does not compile\n{result.stderr}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--static", action="store_true", help="check without a build")
    parser.add_argument("--plait", type=pathlib.Path, default=ROOT / "build/bin/plait")
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="default: all Markdown files")
    arguments = parser.parse_args()

    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"], cwd=ROOT,
        check=True, capture_output=True, text=True).stdout.split()
    documents = {}
    for name in listed:
        path = ROOT / name
        if path.is_file():
            documents[path.resolve()] = Document(path)
    chosen = [path.resolve() for path in arguments.files] or sorted(documents)

    problems = []
    if not arguments.static and not arguments.plait.is_file():
        sys.exit(f"check_docs: no {arguments.plait}: run ./dev build first, or use --static")
    plait = Plait(None if arguments.static else arguments.plait)
    blocks = 0
    for path in chosen:
        document = documents[path]
        if document.unclosed:
            problems.append(f"{document.name}:{document.unclosed}: fence is never closed")
        check_prose(document, documents, plait, problems)
        check_blocks(document, plait, problems)
        if not arguments.static:
            for number, info, text in document.blocks:
                if info == "sh":
                    blocks += 1
                    run_block(document, number, text, arguments.plait.resolve(), problems)
                elif info == "cpp" and "#include <plait/" in text:
                    blocks += 1
                    compile_block(document, number, text, problems)
    if not arguments.files:
        check_index(documents, problems)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"check_docs: {len(chosen)} documents, {blocks} blocks run or compiled, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
