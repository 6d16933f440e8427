#!/usr/bin/env python3
"""Times rotation and attention of ggml, ik_llama.cpp or ONNX Runtime next to rope.

    bench/peers.py CHECKOUT [CHECKOUT ...] [--build FOLDER] [--cxx COMPILER] [--eigen FOLDER] [--only REGEX]

CHECKOUT is a clone of ggml-org/ggml, of ggml-org/llama.cpp or of ikawrakow/ik_llama.cpp, which is built for this processor by
its own CMake files, in FOLDER/NAME (build/peers), without OpenMP; or a folder with include/ and lib/ of ONNX Runtime: one of its
releases, or the folder of an installed package (/usr). Nothing is fetched. Then the program of peers/ for it is compiled, checks that both
libraries give the same numbers, and times both alternately, on one thread. Prints, for every row and checkout, the time of rope,
the time of the other library, and their quotient: above 1, rope is faster.

It needs CMake and Eigen.
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


def version_of(checkout):
    for library in (checkout / "lib").rglob("libonnxruntime.so"):
        return library.resolve().name
    done = subprocess.run(["git", "-C", str(checkout), "log", "-1", "--format=%h of %as"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, check=False)
    return f"{checkout.name}, {done.stdout.decode().strip() or 'no git history'}"


def compiled(options, source, program, *libraries):
    """The program of peers/ that is made of a source."""
    run(options.cxx, "-std=c++20", "-O3", "-DNDEBUG", "-march=native", f"-I{HERE.parent / 'include'}", "-isystem", options.eigen,
        "-DROPE_BENCH_FLAGS=\"\"", HERE / "peers" / source, "-o", program, *libraries,
        "-pthread", "-ldl")
    return program


def build_ggml(checkout, source, folder, options):
    run("cmake", "-S", checkout, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_OPENMP=OFF",
        "-DGGML_NATIVE=ON", "-DGGML_BUILD_TESTS=OFF", "-DGGML_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_TOOLS=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_CURL=OFF")
    run("cmake", "--build", folder, "--target", "ggml", "-j", "2")
    return compiled(options, "ggml_rows.cpp", folder / "rope_bench_peer", f"-I{source / 'include'}", "-Wl,--start-group",
                    *sorted(folder.rglob("libggml*.a")), "-Wl,--end-group")


def build(checkout, options):
    """The program that times this checkout."""
    folder = (options.build / (checkout.name or "onnxruntime")).resolve()
    for header in (checkout / "include").rglob("onnxruntime_c_api.h"):
        for library in (checkout / "lib").rglob("libonnxruntime.so"):
            folder.mkdir(parents=True, exist_ok=True)
            return compiled(options, "onnxruntime_rows.cpp", folder / "rope_bench_peer", "-isystem", header.parent, library,
                            f"-Wl,-rpath,{library.parent}")
    source = checkout / "ggml" if (checkout / "ggml/CMakeLists.txt").exists() else checkout
    if not (source / "include/ggml.h").exists():
        sys.exit(f"{checkout} has no include/ggml.h, as a checkout of ggml, llama.cpp or ik_llama.cpp has, and no "
                 "onnxruntime_c_api.h in include/ with a libonnxruntime.so in lib/")
    return build_ggml(checkout, source, folder, options)


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
        rows = [json.loads(line) for line in run(program, options.only).splitlines()[1:]]
        print(version_of(checkout))
        print(f"{'row':44} {'ours, us':>12} {'theirs, us':>12} {'theirs / ours':>14}")
        for row in rows:
            ratio = row["beside"]["peer"][0]
            print(f"{row['name']:44} {row['ns'] / 1e3:12.1f} {row['ns'] / 1e3 * ratio:12.1f} {ratio:14.2f}")


if __name__ == "__main__":
    main()
