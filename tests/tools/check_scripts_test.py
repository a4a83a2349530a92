#!/usr/bin/env python3
# Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
"""The checkers have to find what they are there for: each test plants one fault in a small
repository and expects it to be named, and the clean repository to pass."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LICENCE = "// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0\n"


class Repository(unittest.TestCase):
    """A scratch repository that holds the checkers and a few clean files."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="plait-check-")
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        for name in ("tools/check_layers.py", "tools/check_docs.py", "dev"):
            (self.root / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        self.write(".ci/run", "./dev test\n")
        self.write("src/core/a.h", LICENCE + '#include "plait/error.h"\n')
        self.write("src/plan/b.cpp", LICENCE + '#include "core/a.h"\n')
        self.write("README.md", "# Title\n\nSee `src/core/a.h`.\n\n```sh\ntrue\n```\n")
        self.plait = self.write("build/bin/plait", textwrap.dedent("""\
            #!/bin/sh
            [ "$1" = replay ] && echo "  --trace FILE" && exit 0
            [ "$1" = --help ] && exit 0
            exit 2
            """))
        self.plait.chmod(0o755)
        self.write(".gitignore", "/build/\n")
        subprocess.run(["git", "init", "-q", "."], cwd=self.root, check=True)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def check(self, script, *arguments):
        result = subprocess.run([sys.executable, self.root / "tools" / script, *arguments],
                                capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    def expect(self, script, status, fragment, *arguments):
        code, output = self.check(script, *arguments)
        self.assertEqual(code, status, output)
        self.assertIn(fragment, output)


class CheckLayers(Repository):
    def test_clean(self):
        self.expect("check_layers.py", 0, "0 problems")

    def test_upward_include(self):
        self.write("src/core/a.h", LICENCE + '#include "plan/planner.h"\n')
        self.expect("check_layers.py", 1, "src/core/a.h:2: core includes plan/planner.h")

    def test_sideways_include(self):
        self.write("src/cpu/a.cpp", LICENCE + '#include "cuda/driver.h"\n')
        self.expect("check_layers.py", 1, "cpu includes cuda/driver.h")

    def test_cuda_header_in_plan(self):
        self.write("src/plan/b.cpp", LICENCE + "#include <cuda_runtime.h>\n")
        self.expect("check_layers.py", 1, "a CUDA header, cuda_runtime.h")

    def test_cuda_type_in_public_header(self):
        self.write("include/plait/x.h", LICENCE + "void f(CUstream stream);\n")
        self.expect("check_layers.py", 1, "CUstream in a layer that knows no CUDA")

    def test_cuda_type_in_a_comment_is_fine(self):
        self.write("include/plait/x.h", LICENCE + "/// A cudaStream_t or CUstream.\nint f();\n")
        self.expect("check_layers.py", 0, "0 problems")

    def test_toolkit_header_in_device_code(self):
        self.write("src/cuda/kernels/mma/a.cu", LICENCE + '#include "cuda/kernels/mma/a.h"\n')
        self.write("src/cuda/kernels/mma/a.h", LICENCE + "#include <cuda_bf16.h>\n")
        self.expect("check_layers.py", 1, "a.h:2: device code includes cuda_bf16.h")

    def test_toolkit_header_in_generated_device_code(self):
        self.write("src/cuda/kernels/mma/f.cpp",
                   LICENCE + 'auto text = "#include \\"cuda/kernels/mma/a.h\\"\\n";\n')
        self.write("src/cuda/kernels/mma/a.h", LICENCE + "#include <cuda_bf16.h>\n")
        self.expect("check_layers.py", 1, "a.h:2: device code includes cuda_bf16.h")

    def test_host_header_of_a_kernel_family(self):
        self.write("src/cuda/kernels/mma/f.cpp", LICENCE + '#include "cuda/kernels/mma/f.h"\n')
        self.write("src/cuda/kernels/mma/f.h", LICENCE + "#include <string>\n")
        self.expect("check_layers.py", 0, "0 problems")

    def test_library_that_prints_or_exits(self):
        for call in ('std::printf("x")', "exit(1)", "std::cerr << 1"):
            self.write("src/cpu/a.cpp", LICENCE + f"void f() {{ {call}; }}\n")
            self.expect("check_layers.py", 1, "src/cpu/a.cpp:2: ")
        self.write("src/cpu/a.cpp", LICENCE + "void f() { std::snprintf(b, 2, a); }  // no exit()\n")
        self.expect("check_layers.py", 0, "0 problems")

    def test_missing_licence(self):
        self.write("src/core/c.cpp", "int x;\n")
        self.expect("check_layers.py", 1, "src/core/c.cpp: no licence line")

    def test_long_file(self):
        self.write("src/core/c.cpp", LICENCE + "int x;\n" * 700)
        self.expect("check_layers.py", 1, "701 lines, expected at most 700")


class CheckDocs(Repository):
    def expect_docs(self, status, fragment, text, *arguments):
        self.write("README.md", text)
        self.expect("check_docs.py", status, fragment, *arguments)

    def test_clean(self):
        self.expect("check_docs.py", 0, "1 blocks run or compiled, 0 problems")

    def test_dead_path(self):
        self.expect_docs(1, "no such path: src/core/gone.h", "See `src/core/gone.h`.\n")

    def test_dead_path_in_a_block(self):
        self.expect_docs(1, "no such path: src/gone.cpp", "```sh manual\ncat src/gone.cpp\n```\n")

    def test_dead_link_and_anchor(self):
        self.expect_docs(1, "dead link: gone.md", "[x](gone.md)\n", "--static")
        self.expect_docs(1, "no heading for the anchor", "# Top\n[x](#bottom)\n", "--static")
        self.expect_docs(0, "0 problems", "# The `top` one\n[x](#the-top-one)\n", "--static")

    def test_page_that_no_index_names(self):
        self.write("docs/README.md", "[a](a.md)\n")
        self.write("docs/a.md", "# A\n")
        self.expect("check_docs.py", 0, "0 problems")
        self.write("docs/b.md", "# B\n")
        self.expect("check_docs.py", 1, "docs/README.md: no link to docs/b.md")

    def test_failing_block(self):
        self.expect_docs(1, "README.md:1: exit status 3", "```sh\nexit 3\n```\n")

    def test_failing_block_in_a_pipe(self):
        self.expect_docs(1, "README.md:1: exit status 1", "```sh\nfalse | cat\n```\n")

    def test_program(self):
        self.write("include/plait/spec.h", LICENCE + "namespace plait { struct Spec { int dim = 0; }; }\n")
        program = "```cpp\n#include <plait/spec.h>\nint f(const plait::Spec& s) { return s.%s; }\n```\n"
        self.expect_docs(0, "1 blocks run or compiled, 0 problems", program % "dim")
        self.expect_docs(1, "README.md:1: does not compile", program % "width")
        self.expect_docs(0, "0 blocks run or compiled, 0 problems", "```cpp\nspec.width = 1;\n```\n")

    def test_by_ci(self):
        self.expect_docs(0, "0 problems", "```sh by-ci\n./dev test\n```\n")
        self.expect_docs(1, ".ci/run does not run: ./dev lint", "```sh by-ci\n./dev lint\n```\n")

    def test_unknown_mark(self):
        self.expect_docs(1, "block marked sh later", "```sh later\ntrue\n```\n")

    def test_unknown_verbs_and_options(self):
        self.expect_docs(0, "0 problems", "`plait replay --trace x`\n")
        self.expect_docs(1, "plait replay knows no option --tracer", "`plait replay --tracer x`\n")
        self.expect_docs(1, "plait knows no verb dance", "`plait dance`\n")
        self.expect_docs(1, "./dev knows no verb dance", "`./dev dance`\n", "--static")


if __name__ == "__main__":
    unittest.main()
