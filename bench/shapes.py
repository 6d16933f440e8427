#!/usr/bin/env python3
"""Times rotation and attention in every shape, built by each compiler at each level, and writes the tables of the pages.

    bench/shapes.py [--cxx COMPILER ...] [--level -O2 -O3 ...] [--only REGEX] [--eigen FOLDER] [--build FOLDER]

Compiles bench/*/*_shapes.bench.cpp with -march=native, runs all programs one after the other, each prints JSON into FOLDER
(build/shapes). Then does what plot.py does with these files, unless --only leaves rows out.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys

import plot

HERE = pathlib.Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cxx", nargs="+", default=[cxx for cxx in ("g++", "clang++") if shutil.which(cxx)])
    parser.add_argument("--level", nargs="+", default=["-O2", "-O3"], help="written as --level=-O2 if it is one")
    parser.add_argument("--only", default="", help="rows whose names this expression finds")
    parser.add_argument("--eigen", default="/usr/include/eigen3")
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent / "build/shapes")
    options = parser.parse_args()
    options.build.mkdir(parents=True, exist_ok=True)

    programs = []
    for source in sorted(HERE.glob("*/*_shapes.bench.cpp")):
        for cxx in options.cxx:
            for level in options.level:
                program = options.build / f"{source.name.split('.')[0]}_{pathlib.Path(cxx).name}_{level.strip('-')}"
                subprocess.run([cxx, "-std=c++20", level, "-DNDEBUG", "-march=native", f"-I{HERE.parent / 'include'}", "-isystem",
                                options.eigen, f"-DROPE_BENCH_FLAGS=\"{level} -march=native\"", source,
                                *sorted(source.parent.glob("plain_*.cpp")), "-pthread", "-o", program], check=True)
                programs.append(program)
    files = []
    for program in programs:
        files.append(program.with_suffix(".json"))
        with open(files[-1], "w", encoding="utf-8") as file:
            subprocess.run([program, options.only], stdout=file, check=True)
    if options.only:
        plot.print_worst(plot.load(files)[0])
    else:
        plot.main(files)


if __name__ == "__main__":
    sys.exit(main())
