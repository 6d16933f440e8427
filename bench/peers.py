#!/usr/bin/env python3
"""Builds ggml or ik_llama.cpp from checkouts, and times their rotation and attention beside ours.

    bench/peers.py CHECKOUT [CHECKOUT ...] [--build FOLDER] [--cxx COMPILER] [--eigen FOLDER] [--only REGEX]

CHECKOUT is a clone of ggml-org/ggml, of ggml-org/llama.cpp or of ikawrakow/ik_llama.cpp; nothing is fetched. It is built for
this processor by its own CMake files, in FOLDER/NAME (build/peers), without OpenMP: every row has one thread. Then
peers/ggml_rows.cpp is compiled beside it, checks that both libraries give the same numbers, and times both in turn.
Prints, for every row and checkout, our time, the peer's, and the peer's over ours: above 1, rope is faster.

It needs CMake, Google Benchmark and Eigen.
"""

import argparse
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def run(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(word) for word in command)}\n{done.stdout.decode('utf-8', 'replace')[-4000:]}")
    return done.stdout.decode("utf-8", "replace")


def commit_of(checkout):
    done = subprocess.run(["git", "-C", str(checkout), "log", "-1", "--format=%h of %as"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, check=False)
    return done.stdout.decode().strip() or "no git history"


def build(checkout, options):
    """The program that times this checkout."""
    source = checkout / "ggml" if (checkout / "ggml/CMakeLists.txt").exists() else checkout
    if not (source / "include/ggml.h").exists():
        sys.exit(f"{checkout} is no checkout of ggml, llama.cpp or ik_llama.cpp: it has no include/ggml.h")
    folder = (options.build / checkout.name).resolve()
    run("cmake", "-S", checkout, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_OPENMP=OFF",
        "-DGGML_NATIVE=ON", "-DGGML_BUILD_TESTS=OFF", "-DGGML_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_TOOLS=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_CURL=OFF")
    run("cmake", "--build", folder, "--target", "ggml", "-j", "2")
    program = folder / "rope_bench_peer"
    libraries = sorted(folder.rglob("libggml*.a"))
    run(options.cxx, "-std=c++20", "-O3", "-DNDEBUG", "-march=native", f"-I{HERE.parent / 'include'}",
        f"-I{source / 'include'}", "-isystem", options.eigen, "-DROPE_BENCH_COMPILER=\"\"", "-DROPE_BENCH_FLAGS=\"\"",
        HERE / "peers/ggml_rows.cpp", "-o", program, "-Wl,--start-group", *libraries, "-Wl,--end-group", "-lbenchmark",
        "-pthread", "-ldl")
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", type=pathlib.Path, metavar="CHECKOUT")
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent / "build/peers")
    parser.add_argument("--cxx", default="g++")
    parser.add_argument("--eigen", default="/usr/include/eigen3")
    parser.add_argument("--only", default=".", help="rows whose names this expression finds")
    options = parser.parse_args()

    programs = [(checkout, build(checkout, options)) for checkout in options.checkouts]
    for checkout, program in programs:
        result = program.with_suffix(".json")
        run(program, f"--benchmark_filter={options.only}", "--benchmark_min_time=0.3", f"--benchmark_out={result}",
            "--benchmark_out_format=json")
        print(f"{checkout.name}, {commit_of(checkout)}")
        print(f"{'row':44} {'ours, us':>12} {'theirs, us':>12} {'theirs / ours':>14}")
        for row in json.loads(result.read_text(encoding="utf-8"))["benchmarks"]:
            name = row["name"].removesuffix("/manual_time")
            print(f"{name:44} {row['us']:12.1f} {row['us'] * row['share']:12.1f} {row['share']:14.2f}")


if __name__ == "__main__":
    main()
