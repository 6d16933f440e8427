#!/usr/bin/env python3
"""What the headers cost a compiler: seconds over <Eigen/Core>, and its largest memory.

    bench/include_cost.py COMPILER EIGEN_INCLUDE_DIR [flags ...]

Compiles a file with one include, each in turn for seven rounds, and prints the quickest of each.
"""

import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = ["Eigen/Core", "rope/rotation.hpp", "rope/attention.hpp", "rope/models.hpp", "rope/rope.hpp"]
ROUNDS = 7


def compile_once(compiler, arguments):
    """Seconds of processor time and largest resident memory in MB."""
    child = os.posix_spawnp(compiler, [compiler, *arguments], os.environ)
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        sys.exit(f"{compiler} {' '.join(arguments)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main(compiler, eigen, *flags):
    best = {header: (float("inf"), 0.0) for header in HEADERS}
    with tempfile.TemporaryDirectory() as folder:
        for header in HEADERS:
            name = header.replace("/", "_")
            (pathlib.Path(folder) / f"{name}.cpp").write_text(f"#include <{header}>\n")
        for _ in range(ROUNDS):
            for header in HEADERS:
                source = f"{folder}/{header.replace('/', '_')}.cpp"
                best[header] = min(best[header], compile_once(compiler, [
                    "-std=c++20", "-fsyntax-only", *flags, f"-I{ROOT / 'include'}", f"-isystem{eigen}", source]))
    core = best["Eigen/Core"][0]
    print(f"{'header':24} {'seconds':>8} {'over Eigen/Core':>16} {'memory':>9}")
    for header in HEADERS:
        seconds, memory = best[header]
        print(f"<{header}>".ljust(24) + f" {seconds:8.2f} {seconds - core:16.2f} {memory:6.0f} MB")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
