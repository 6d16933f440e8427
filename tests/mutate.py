#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes one small mistake at a time in the headers, and checks whether a test notices.

    tests/mutate.py               70 mutants of each module, drawn from a seed
    tests/mutate.py --module tables --count 100
    tests/mutate.py --header rope/tables/phase.hpp --count 0      all of one header
    tests/mutate.py --header rope/tables/phase.hpp --list         what they are; compiles nothing
    tests/mutate.py --check       compiles nothing: every survivor that mutants.json explains can still be made

Other options: --seed N, --tests N (files that are tried for a mutant, at most), --cxx COMPILER, --jobs N,
--timeout SECONDS of processor time for one file of tests, --scratch FOLDER, which is kept: results are used again until a
header or a test changes. --native compiles for this processor: it tests code for wider registers, and a run without it code
for narrower ones.

A mutant is one exchanged operator, comparison, sign, constant or bound (std::min for std::max) in code, or one
removed control statement. Texts of errors, comments, preprocessor lines and static assertions are not changed.
Files are tried in this order until one fails: the test that mirrors the header, those that include it, those of
headers that include it, the laws of its module. A mutant that does not compile is not counted.

mutants.json explains the mutants that no test can notice, or that are not worth one: objects with `header`,
`find` and `inject`, the lines before and after, and `why`. The last line has the counts. The exit status is 1 if
a mutant survived that is not explained there.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS / "known_mistakes"))
import inject  # noqa: E402  compiles a test against the headers with one of them replaced

INCLUDE = inject.INCLUDE
MODULES = ["base", "frequencies", "positions", "tables", "rotation", "attention", "cache", "block", "models"]

# Formatted code has a space on both sides of a binary operator, and none on either side of a bracket of a
# template.
EXCHANGES = [
    (r" \+ ", [" - "]), (r" - ", [" + "]), (r" \* ", [" / "]), (r" / ", [" * "]), (r" % ", [" * "]),
    (r" < ", [" <= ", " > "]), (r" <= ", [" < "]), (r" > ", [" >= ", " < "]), (r" >= ", [" > "]),
    (r" == ", [" != "]), (r" != ", [" == "]), (r" && ", [" || "]), (r" \|\| ", [" && "]),
    (r" \+= ", [" -= "]), (r" -= ", [" += "]), (r" \*= ", [" /= "]), (r" /= ", [" *= "]),
    (r" << ", [" >> "]), (r" >> ", [" << "]), (r" & ", [" | "]), (r" \| ", [" & "]), (r" \^ ", [" & "]),
    (r"\(std::min\)", ["(std::max)"]), (r"\(std::max\)", ["(std::min)"]),
    (r"\bstd::floor\b", ["std::ceil"]), (r"\bstd::ceil\b", ["std::floor"]), (r"\bstd::trunc\b", ["std::round"]),
    (r"\btrue\b", ["false"]), (r"\bfalse\b", ["true"]),
    (r"\.first\b(?!\()", [".last"]), (r"\.last\b(?!\()", [".first"]), (r"\bfront\(\)", ["back()"]),
    (r"(?<=[(,=] )-(?=[\w(])", [""]), (r"(?<=\()-(?=[\w(])", [""]), (r"(?<=return )-(?=[\w(])", [""]),
    (r"!(?=[\w(])(?!=)", [""]),
    (r"\+\+(?=\w)", ["--"]),
]
NUMBER = re.compile(r"(?<![\w.\[<\"'])(\d+)(?![\w.\"'>]|\s*>)")
CONTROL = re.compile(r"^\s*(continue|break|return);$")


def code_lines(text):
    """(index, line) of the lines that are code to be changed."""
    throwing = 0
    skipping = False
    for index, line in enumerate(text.split("\n")):
        bare = line.strip()
        if skipping:  # an assertion or a macro that continues
            skipping = not bare.endswith(";") and (bare.endswith("\\") or not bare.endswith(("}", ")")))
            continue
        if throwing:
            throwing = 0 if ";" in bare else 1
            continue
        if re.match(r"(#|//|/\*|\*|template|requires|concept|static_assert|using|inline namespace|namespace)", bare):
            skipping = (bare.startswith("static_assert") and ";" not in bare) or (
                bare.startswith("#") and bare.endswith("\\"))
            continue
        if re.search(r"ROPE_THROW|message\(|require_(field|positive)\(|throw_(invalid|out_of_range|length)\(", bare):
            throwing = 0 if ";" in bare else 1
            continue
        if "prefetch" in bare or "std::launder" in bare:
            continue
        yield index, line


def places_of(header):
    """Every mutant of a header as (line, code, begin, end, text for what is between)."""
    text = (INCLUDE / header).read_text(encoding="utf-8")
    found = []
    for index, line in code_lines(text):
        code = re.sub(r"\s*//.*", "", line)
        strings = [m.span() for m in re.finditer(r'"(?:[^"\\]|\\.)*"', code)]

        def inside(place):
            return any(a <= place < b for a, b in strings)

        if CONTROL.match(code):
            word = re.search(r"\w+(?=;)", code)
            found.append((index, line, code, *word.span(), ""))
        for pattern, others in EXCHANGES:
            for match in re.finditer(pattern, code):
                if not inside(match.start()):
                    found += [(index, line, code, *match.span(), other) for other in others]
        for match in NUMBER.finditer(code):
            if not inside(match.start()):
                found.append((index, line, code, *match.span(), str(int(match.group(1)) + 1)))
    return found


def mutants_of(header):
    """Every mutant of a header: (line, before, after)."""
    return [(index, line, code[:begin] + other + code[end:])
            for index, line, code, begin, end, other in places_of(header)]


def includers():
    """For every header, the headers that include it."""
    of = {}
    for file in INCLUDE.rglob("*.hpp"):
        for name in re.findall(r"#include <(rope/[^>]+)>", file.read_text(encoding="utf-8")):
            of.setdefault(name, set()).add(str(file.relative_to(INCLUDE)))
    return of


def tests_of(header, most, including):
    """The files of tests for a header, the most likely first."""
    module = header.split("/")[1]
    modules = MODULES if module == "base" else [module]  # changes of base show in the modules that use it
    every = [file for r in [*modules, "laws"] for file in sorted((TESTS / r).rglob("*.test.cpp"))]
    texts = {file: file.read_text(encoding="utf-8") for file in every}

    def mirror(name):
        return TESTS / name.split("/")[1] / (pathlib.Path(name).stem + ".test.cpp")

    order = [mirror(header), TESTS / module / "laws" / (pathlib.Path(header).stem + ".test.cpp")]
    names = [header]
    for _ in range(3):  # those that include it, then those that include these
        order += [file for name in names for file in every if f"<{name}>" in texts[file]]
        order += [mirror(name) for name in names]
        names = sorted({n for name in names for n in including.get(name, ()) if n.split("/")[1] in modules})
    order += [file for file in every if file.parent.parent.name == module or file.parent.name == module]
    kept = [file for file in dict.fromkeys(order) if file.exists() and "uses.test.cpp" not in file.name]
    return [str(file.relative_to(TESTS)) for file in kept[:most]]


class Judge:
    def __init__(self, options):
        options.scratch.mkdir(parents=True, exist_ok=True)
        self.options = options
        self.shop = inject.Workshop(options.cxx, options.scratch, options.timeout)
        if options.native:
            self.shop.base.append("-march=native")
        self.shop.state.update(repr(self.shop.base).encode())
        self.including = includers()
        self.preprocessed = {}

    def text_of(self, file):
        """The text of a header after the preprocessor."""
        code, text = inject.run(self.shop.base + ["-I", str(INCLUDE), "-E", "-P", "-x", "c++", str(file)])
        if code != 0:
            raise inject.Failure(f"{file} cannot be preprocessed:\n{text}")
        return text

    def is_left_out(self, header, changed):
        """Whether a change of a header is in code that is not compiled here."""
        if header not in self.preprocessed:
            self.preprocessed[header] = self.text_of(INCLUDE / header)
        return self.text_of(changed) == self.preprocessed[header]

    def fails(self, program):
        """How a file of tests notices, or None."""
        seconds = self.options.timeout
        try:  # threads that wait for each other use no processor time
            done = subprocess.run([str(program), "--rng-seed", "1", "--abort"], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, check=False, timeout=10 * seconds,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds)))
        except subprocess.TimeoutExpired:
            return "waits for ever"
        if done.returncode == 0:
            return None
        return f"signal {-done.returncode}" if done.returncode < 0 else "fails"

    def passes_before(self, test):
        """Whether a file of tests passes on the true headers; evaluated once."""
        mistake = {"test": test}
        program = self.shop.true_program(mistake)
        known = program.with_name(program.name + "_all")

        def make(out):
            seen = self.fails(program)
            if seen is not None:
                raise inject.Failure(f"{test} {seen} on the true headers")
            out.touch()

        self.shop.once(known, make)

    def judge(self, header, mutant):
        """killed, survived, stillborn or left out, and by which file."""
        index, before, after = mutant
        tests = tests_of(header, self.options.tests, self.including)
        state = self.shop.state.copy()
        state.update(repr((header, index, before, after, tests)).encode())
        for test in tests:
            state.update((TESTS / test).read_bytes())
        known = self.options.scratch / ("mutant_" + state.hexdigest()[:16])
        if known.exists():
            return tuple(json.loads(known.read_text(encoding="utf-8")))
        result = self.decide(header, mutant, tests)
        known.write_text(json.dumps(result), encoding="utf-8")
        return result

    def decide(self, header, mutant, tests):
        index, _, after = mutant
        with tempfile.TemporaryDirectory(dir=self.options.scratch) as folder:
            place = pathlib.Path(folder)
            lines = (INCLUDE / header).read_text(encoding="utf-8").split("\n")
            lines[index] = after
            changed = place / "include" / header
            changed.parent.mkdir(parents=True)
            changed.write_text("\n".join(lines), encoding="utf-8")
            if self.is_left_out(header, changed):
                return "left out", ""
            for test in tests:
                self.passes_before(test)
                try:
                    self.shop.build({"test": test}, [place / "include"], place / "program")
                except inject.Failure:
                    return "stillborn", test
                if self.fails(place / "program") is not None:
                    return "killed", test
                os.remove(place / "program")
        return "survived", ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", choices=MODULES, default=[])
    parser.add_argument("--header", action="append", default=[])
    parser.add_argument("--count", type=int, default=70)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", type=int, default=8)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--cxx", default="clang++")
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=120)
    parser.add_argument("--scratch", type=pathlib.Path,
                        default=pathlib.Path(tempfile.gettempdir()) / f"rope_mutation_{os.getuid()}")
    options = parser.parse_args()

    explained = json.loads((TESTS / "mutants.json").read_text(encoding="utf-8"))
    if options.check:
        stale = [e for e in explained
                 if not any((b.strip(), a.strip()) == (e["find"], e["inject"]) for _, b, a in mutants_of(e["header"]))]
        for e in stale:
            print(f"{e['header']}: there is no such mutant any more: {e['find']}")
        print(f"{len(explained)} explained survivors, {len(stale)} of them stale")
        return 1 if stale else 0

    def is_explained(header, mutant):
        return any(e["header"] == header and (e["find"], e["inject"]) == (mutant[1].strip(), mutant[2].strip())
                   for e in explained)

    chosen = []
    modules = options.module or ([] if options.header else MODULES)
    for headers in [options.header] * bool(options.header) + [
            sorted(str(f.relative_to(INCLUDE)) for f in (INCLUDE / "rope" / module).rglob("*.hpp")) for module in modules]:
        all_of = [(header, mutant) for header in headers for mutant in mutants_of(header)]
        count = len(all_of) if options.count == 0 else min(options.count, len(all_of))
        chosen += random.Random(options.seed).sample(all_of, count)
    if options.list:
        for header, (index, before, after) in chosen:
            print(f"{header}:{index + 1}\n  {before.strip()}\n  {after.strip()}")
        return 0

    judge = Judge(options)
    counts = {}
    unexplained = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(judge.judge, header, mutant): (header, mutant) for header, mutant in chosen}
        for done in concurrent.futures.as_completed(running):
            header, mutant = running[done]
            result, by = done.result()
            if result == "survived" and is_explained(header, mutant):
                result = "explained"
            module = counts.setdefault(header.split("/")[1], {})
            module[result] = module.get(result, 0) + 1
            if result == "survived":
                unexplained += 1
                print(f"survived {header}:{mutant[0] + 1}\n  {mutant[1].strip()}\n  {mutant[2].strip()}", flush=True)
    total = {}
    for module in MODULES:
        if module in counts:
            for result, count in counts[module].items():
                total[result] = total.get(result, 0) + count
            print(f"{module}: " + ", ".join(f"{count} {result}" for result, count in sorted(counts[module].items())))
    made = sum(total.get(r, 0) for r in ("killed", "survived", "explained"))
    share = 100 * total.get("killed", 0) / made if made else 100
    print(f"{made} mutants, {share:.1f} % killed, {total.get('explained', 0)} explained, {unexplained} survived; "
          f"seed {options.seed}, {total.get('stillborn', 0)} did not compile, {total.get('left out', 0)} left out")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
