#!/usr/bin/env python3
"""What the library costs a compiler: seconds over <Eigen/Core>, and its largest memory.

    bench/include_cost.py COMPILER EIGEN_INCLUDE_DIR [flags ...]

First a file with one include, which is only parsed. Then files with calls, compiled at -O2: without and with
ROPE_EXTERN_TEMPLATES, which leaves the kernels to the one file with ROPE_INSTANTIATE. The files alternate for several rounds, and
the fastest round is printed.
"""

import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = ["Eigen/Core", "rope/rotation.hpp", "rope/attention.hpp", "rope/models.hpp", "rope/rope.hpp"]
HEADER_ROUNDS = 7
VIEWS = "rope::head_view<float> q, rope::head_view<float> k, rope::head_view<float> out"
TABLE = "const rope::frequency_table<float>& table"
CALLS = {
    "one rotate": ("rotation", f"void test({VIEWS}, {TABLE}) {{ rope::rotate<rope::half_split>(q, k, table); }}"),
    "one attention": ("attention", f"void test({VIEWS}, {TABLE}) "
                      "{ rope::attention<rope::half_split>(q, k, k, out, table); }"),
    "a cache, append and attention": ("cache", f"void test(rope::kv_cache<float>& cache, {VIEWS}, {TABLE}) {{ "
                                      "cache.append<rope::half_split>(k, k, table); "
                                      "rope::attention<rope::half_split>(q, cache, out, table); }"),
    "ROPE_INSTANTIATE": ("rope", "ROPE_INSTANTIATE"),
}
CALL_ROUNDS = 3


def compile_once(compiler, arguments):
    """Seconds of processor time and largest resident memory in MB."""
    child = os.posix_spawnp(compiler, [compiler, *arguments], os.environ)
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        sys.exit(f"{compiler} {' '.join(arguments)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main(compiler, eigen, *flags):
    common = ["-std=c++20", f"-I{ROOT / 'include'}", f"-isystem{eigen}"]
    best = {}

    def measure(key, *arguments):
        best[key] = min(best.get(key, (float("inf"), 0.0)), compile_once(compiler, [*common, *arguments]))

    with tempfile.TemporaryDirectory() as folder:
        def source_of(number, text):
            path = pathlib.Path(folder) / f"{number}.cpp"
            path.write_text(text + "\n")
            return str(path)

        headers = {header: source_of(i, f"#include <{header}>") for i, header in enumerate(HEADERS)}
        calls = {call: source_of(f"call{i}", f"#include <rope/{header}.hpp>\n{code}")
                 for i, (call, (header, code)) in enumerate(CALLS.items())}
        # <rope/attention.hpp> is the first header that declares kernels, also kernels of rotation.
        code = CALLS["one rotate"][1]
        with_kernels = calls | {"one rotate": source_of("rotate", f"#include <rope/attention.hpp>\n{code}")}
        for _ in range(HEADER_ROUNDS):
            for header, source in headers.items():
                measure(header, "-fsyntax-only", *flags, source)
        for call_round in range(CALL_ROUNDS):
            for call, source in calls.items():
                if call == "ROPE_INSTANTIATE" and call_round > 0:  # as long as all others together
                    continue
                object_file = ["-c", "-o", f"{folder}/object.o"]
                if call != "ROPE_INSTANTIATE":
                    measure((call, "as it is"), "-O2", *flags, source, *object_file)
                measure((call, "extern"), "-O2", "-DROPE_EXTERN_TEMPLATES", *flags, with_kernels[call],
                        *object_file)
    core = best["Eigen/Core"][0]
    print(f"{'header':24} {'seconds':>8} {'over Eigen/Core':>16} {'memory':>9}")
    for header in HEADERS:
        seconds, memory = best[header]
        print(f"<{header}>".ljust(24) + f" {seconds:8.2f} {seconds - core:16.2f} {memory:6.0f} MB")
    print(f"\n{'call at -O2':32} {'seconds over Eigen/Core':>24} {'with ROPE_EXTERN_TEMPLATES':>28}")
    for call in CALLS:
        alone = f"{best[(call, 'as it is')][0] - core:.2f}" if (call, "as it is") in best else ""
        print(f"{call:32} {alone:>24} {best[(call, 'extern')][0] - core:28.2f}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
