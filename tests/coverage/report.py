#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints how many lines and branches of the headers a run of the tests has reached, by module and in all.

A line counts as reached when any instance of its template runs it, a branch (one way out of a condition) when any
instance takes it. Conditions that an instance decides while it is compiled have no branches there. Returns that no
program compiles have no counter and would be in neither number, so they are counted separately.

    tests/coverage/report.py --profiles build/coverage/tests/coverage --headers include/rope --missing \\
        build/coverage/tests/rope_tests ...

--missing also names every line and branch that is not reached.
"""
import argparse
import collections
import pathlib
import re
import subprocess
import sys

LINE = re.compile(r" *(\d+)\|([^|]*)\|(.*)")
BRANCH = re.compile(r" *\| +Branch \((\d+):(\d+)\): \[(?:True: ([^,]+), False: ([^\]]+)|Folded[^\]]*)\]")


class header:
    def __init__(self):
        self.lines = {}  # number: whether it was run
        self.branches = collections.defaultdict(bool)  # (line, column, way): whether it was taken
        self.texts = {}
        self.uncompiled = []


def counts(shown, root):
    """The headers under root in the output of `llvm-cov show`, by path below it."""
    headers, current = {}, None
    for row in shown.splitlines():
        if row.endswith(".hpp:"):
            path = pathlib.Path(row[:-1])
            current = headers.setdefault(path.relative_to(root), header()) if path.is_relative_to(root) else None
        elif current is None:
            continue
        elif match := BRANCH.match(row):
            line, column, true, false = match.groups()
            if true is not None:
                for way, times in (("true", true), ("false", false)):
                    current.branches[int(line), int(column), way] |= times != "0"
        elif match := LINE.match(row):
            number, times, text = int(match[1]), match[2].strip(), match[3]
            current.texts[number] = text
            if times:
                current.lines[number] = times != "0"
            elif re.match(r"\s+(\} else )?(if .*\) )?return\b", text):
                current.uncompiled.append(number)
    return headers


def percent(reached, all_):
    return 100 * reached / all_ if all_ else 100.0


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--profdata", default="llvm-profdata-14")
    arguments.add_argument("--cov", default="llvm-cov-14")
    arguments.add_argument("--profiles", type=pathlib.Path, required=True, help="the folder of *.profraw")
    arguments.add_argument("--headers", type=pathlib.Path, required=True)
    arguments.add_argument("--lines", type=float, default=0, help="fail below this percentage of lines")
    arguments.add_argument("--branches", type=float, default=0, help="fail below this percentage of branches")
    arguments.add_argument("--missing", action="store_true", help="name what is not reached")
    arguments.add_argument("programs", nargs="+")
    options = arguments.parse_args()

    raw = sorted(options.profiles.glob("*.profraw"))
    if not raw:
        sys.exit(f"no .profraw in {options.profiles}: run the programs with LLVM_PROFILE_FILE there")
    profile = options.profiles / "all.profdata"
    subprocess.run([options.profdata, "merge", "-o", profile, *raw], check=True)
    root = options.headers.resolve()
    objects = [word for program in options.programs[1:] for word in ("-object", program)]
    shown = subprocess.run(
        [options.cov, "show", options.programs[0], *objects, f"-instr-profile={profile}", "-show-branches=count",
         "-show-instantiations=false", root],
        check=True, capture_output=True, text=True)
    headers = counts(shown.stdout, root)
    if not headers:
        sys.exit(f"the programs have no counters in {root}: build them with ROPE_TEST_COVERAGE")

    modules = collections.defaultdict(lambda: [0, 0, 0, 0, 0])
    for path, found in sorted(headers.items()):
        module = path.parts[0] if len(path.parts) > 1 else "."
        here = [sum(found.lines.values()), len(found.lines), sum(found.branches.values()), len(found.branches),
                len(found.uncompiled)]
        for name in (module, "all"):
            modules[name] = [a + b for a, b in zip(modules[name], here)]
        if options.missing:
            for number in sorted(found.lines):
                if not found.lines[number]:
                    print(f"{path}:{number}: not run: {found.texts[number].strip()}")
            for (line, column, way), taken in sorted(found.branches.items()):
                if not taken:
                    print(f"{path}:{line}:{column}: never {way}: {found.texts[line].strip()}")
            for number in found.uncompiled:
                print(f"{path}:{number}: not compiled: {found.texts[number].strip()}")

    print(f"{'module':<12} {'lines':>8} {'reached':>9} {'branches':>9} {'reached':>9} {'not compiled':>13}")
    for module in [*sorted(set(modules) - {"all"}), "all"]:
        run, lines, taken, branches, uncompiled = modules[module]
        print(f"{module:<12} {lines:>8} {percent(run, lines):>7.2f} % {branches:>9} {percent(taken, branches):>7.2f} % "
              f"{uncompiled:>13}")
    run, lines, taken, branches, uncompiled = modules["all"]
    print(f"coverage of {len(headers)} headers: {percent(run, lines):.2f} % of lines, "
          f"{percent(taken, branches):.2f} % of branches")
    if percent(run, lines) < options.lines or percent(taken, branches) < options.branches:
        sys.exit(f"promised are {options.lines} % of lines and {options.branches} % of branches; --missing names the rest")


if __name__ == "__main__":
    main()
