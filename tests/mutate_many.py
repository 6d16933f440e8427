#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Puts many mutants of mutate.py into one program, and lets each run the tests that reach it.

    tests/mutate_many.py              100 mutants of each module, drawn from a seed
    tests/mutate_many.py --module tables --count 200

    tests/mutate_many.py --suite tables    all mutants are made, those of this module run its tests

Other options: --seed N, --jobs N, --cxx CLANG, --scratch FOLDER (kept: results are used again until a header or a
test changes), --alone N (seconds for mutants that cannot be switched in a running program, which are judged one by
one as mutate.py does; 0: no limit), --native (for this processor, as in mutate.py).

The tests are built once, with switches in a copy of the headers (support/mutants.hpp), and run once to see which
test case reaches which mutant. Slow tests are compiled again with -O1. Then each mutant runs the test cases that
reach it until one fails. mutate.py judges a mutant alone if its switch does not compile, if no test reaches it at run
time (a constant that the compiler evaluates, code that is not compiled here), or if it survived without an
explanation. In `a && b && c` a switch of the first operator makes (a || b) && c, and mutate.py makes a || (b && c).

mutants.json explains survivors, as for mutate.py. The last line has the counts. The exit status is 1 if a mutant
survived that is not explained there.
"""

import argparse
import collections
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
import time

import mutate

INFIX = {
    ("+", "-"): "plus_minus", ("-", "+"): "minus_plus", ("*", "/"): "times_over", ("/", "*"): "over_times",
    ("%", "*"): "rest_times", ("<", "<="): "less_at_most", ("<", ">"): "less_more", ("<=", "<"): "at_most_less",
    (">", ">="): "more_at_least", (">", "<"): "more_less", (">=", ">"): "at_least_more", ("==", "!="): "same_other",
    ("!=", "=="): "other_same", ("<<", ">>"): "up_down", (">>", "<<"): "down_up", ("&", "|"): "both_any",
    ("|", "&"): "any_both", ("^", "&"): "one_both", ("+=", "-="): "add_take", ("-=", "+="): "take_add",
    ("*=", "/="): "scale_divide", ("/=", "*="): "divide_scale",
}
LOGIC = {("&&", "||"): "and_or", ("||", "&&"): "or_and"}


def end_of_operand(code, begin):
    """Where the right operand of && or || that begins there ends, or None if it ends on another line."""
    depth = 0
    for place in range(begin, len(code)):
        if code[place] in "([{":
            depth += 1
        elif code[place] in ")]}":
            if depth == 0:
                return place
            depth -= 1
        elif depth == 0 and (code[place] in ";,?" or code.startswith((" && ", " || ", " : ", " {"), place)):
            return place
    return None


def switch(k, place):
    """The edits (begin, end, text) that make a mutant of a place selectable, or None."""
    _, _, code, begin, end, other = place
    old = code[begin:end]
    pair = (old.strip(), other.strip())
    if mutate.CONTROL.match(code):
        return [(begin, end, f"if (!rope_mutant::on({k})) {old}")]
    if pair in INFIX:
        return [(begin, end, f" {pair[0]} rope_mutant::{INFIX[pair]}<{k}>() {pair[0]} ")]
    if pair in LOGIC:
        close = end_of_operand(code, end)
        if close is None:
            return None
        return [(begin, end, f" {pair[0]} rope_mutant::{LOGIC[pair]}<{k}>() {pair[0]} [&] {{ return static_cast<bool>("),
                (close, close, "); }")]
    if old in ("(std::min)", "(std::max)"):
        typed = re.match(r"<([^<>()]+)>\(", code[end:])
        least = "true" if old == "(std::min)" else "false"
        if typed:
            return [(begin, end + typed.end() - 1, f"rope_mutant::either<{k}, {least}, {typed.group(1)}>")]
        return [(begin, end, f"rope_mutant::either<{k}, {least}>")] if code.startswith("(", end) else None
    if old.startswith("std::") and other.startswith("std::"):
        ways = ", ".join(f"rope_mutant::whole::{name[5:]}" for name in (old, other))
        return [(begin, end, f"rope_mutant::rounded_as<{k}, {ways}>")] if code.startswith("(", end) else None
    if old == "-":
        return [(begin, end, f"rope_mutant::sign<{k}>() * ")]
    if old == "!":
        return [(begin, end, f"rope_mutant::negation<{k}>() != ")]
    if old == "++":
        operand = re.match(r"[\w.]+(?![\w.\[(]|->)", code[end:])  # ++x[i] adds to x[i], not to x
        return operand and [(begin, end + operand.end(), f"(rope_mutant::on({k}) ? --{operand.group()} : ++{operand.group()})")]
    if old.isdigit() or old in ("true", "false"):
        return [(begin, end, f"(rope_mutant::on({k}) ? {other} : {old})")]
    return None


def switched(chosen):
    """The edits of every line of every header, and the mutants that have none."""
    edits, alone = collections.defaultdict(list), []
    for k, (header, place) in enumerate(chosen):
        new = switch(k, place)
        line = edits[header, place[0]]
        clash = new is None or any(a < d and c < b or a == c or b == d for a, b, _ in new for _, e in line
                                   for c, d, _ in e)
        if clash or (len(new) == 2 and any(len(e) == 2 for _, e in line)):
            alone.append(k)
        else:
            line.append((k, new))
    return edits, alone


class Builder:
    """The suite with switches, in a copy of the tree."""

    def __init__(self, options, chosen):
        self.options, self.chosen = options, chosen
        self.tree, self.programs, self.made = options.scratch / "tree", options.scratch / "programs", {}
        self.shop = mutate.inject.Workshop(options.cxx, options.scratch, options.timeout)
        self.shop.base += ["-Wno-c++11-narrowing", "-ferror-limit=0", "-ftemplate-backtrace-limit=0"]
        self.shop.base += ["-march=native"] * options.native
        self.shop.state.update(repr(self.shop.base).encode())
        self.key = self.shop.state.hexdigest() + hashlib.sha256(repr(chosen).encode()).hexdigest()
        self.edits, self.alone = switched(chosen)
        self.known = options.scratch / ("dropped_" + hashlib.sha256(repr((options.native, chosen)).encode()).hexdigest()[:16])
        if self.known.exists():  # or headers would change back and forth, and everything that includes them would be compiled again
            self.drop({int(k) for k in self.known.read_text(encoding="utf-8").split()})

    @staticmethod
    def put(file, text):
        """Writes a file unless it already has that text, so that compiled files stay valid."""
        if not file.exists() or file.read_bytes() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text)

    def copy(self):
        changed = {header for header, _ in self.chosen}
        for file in sorted(mutate.INCLUDE.rglob("*.hpp")):
            if str(file.relative_to(mutate.INCLUDE)) not in changed:
                self.put(self.tree / "include" / file.relative_to(mutate.INCLUDE), file.read_bytes())

    def write(self):
        for header in {header for header, _ in self.chosen}:
            lines = (mutate.INCLUDE / header).read_text(encoding="utf-8").split("\n")
            for (name, index), line in self.edits.items():
                if name != header:
                    continue
                code = re.sub(r"\s*//.*", "", lines[index])
                flat = sorted((edit for _, e in line for edit in e), reverse=True)
                for begin, end, text in flat:
                    code = code[:begin] + text + code[end:]
                lines[index] = code
            lines.insert(1, "#include <support/mutants.hpp>")
            lines[1] += " // one line more than in the tree"
            self.put(self.tree / "include" / header, "\n".join(lines).encode())

    def drop(self, those):
        for place in list(self.edits):
            self.edits[place] = [(k, e) for k, e in self.edits[place] if k not in those]
            if not self.edits[place]:
                del self.edits[place]
        self.alone = sorted({*self.alone, *those})

    def drop_what_fails(self, output):
        """Removes the switches that the compiler complains about; returns how many."""
        dropped = set()
        for block in re.split(r"\n(?=[^\n]*: (?:fatal )?error: )", output):
            for name, index in re.findall(r"include/(rope/[\w/]+\.hpp):(\d+):\d+:", block):
                at = [(name, int(index) - 2 + later) for later in range(3)]  # a call may continue for some lines
                line = next((self.edits.pop(place) for place in at if place in self.edits), None)
                if line:
                    dropped.update(k for k, _ in line)
                    break
        self.alone += sorted(dropped)
        self.known.write_text(" ".join(map(str, sorted(self.alone))), encoding="utf-8")
        return len(dropped)

    def compile(self, test, flags=()):
        """The errors of the compiler for a file of tests, or None; its program is made once."""
        text = (mutate.TESTS / test).read_bytes()
        program = self.programs / hashlib.sha256(repr((test, text, *flags, self.key)).encode()).hexdigest()[:16]
        if not program.exists():
            try:
                self.shop.build({"test": test, "flags": list(flags)}, [self.tree / "include"], program)
            except mutate.inject.Failure as failure:
                return str(failure)
        self.made[test] = program
        return None

    def make(self):
        """A program of each file of tests; self.made has them by name."""
        self.copy()
        self.write()
        self.programs.mkdir(exist_ok=True)
        code, output = mutate.inject.run([*self.shop.base, "-I", str(self.tree / "include"), "-fsyntax-only",
                                       str(mutate.TESTS / "hygiene/everything.cpp")])
        while code != 0:
            self.retry(output)
            code, output = mutate.inject.run([*self.shop.base, "-I", str(self.tree / "include"), "-fsyntax-only",
                                           str(mutate.TESTS / "hygiene/everything.cpp")])
        files = [f for module in self.options.suite + ["laws"] * (self.options.suite == mutate.MODULES) for f in sorted((mutate.TESTS / module).rglob("*.test.cpp"))]
        tests = [str(f.relative_to(mutate.TESTS)) for f in files if "uses.test.cpp" not in f.name]
        while len(self.made) < len(tests):
            left = [test for test in tests if test not in self.made]  # a switch that other files lack does not break a program
            with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
                output = "\n".join(text for text in pool.map(self.compile, left) if text is not None)
            if output:
                self.retry(output)

    def optimize(self, tests):
        """Makes the programs of these tests again with -O1: they take up to three times as long to compile and a sixth of the time to run."""
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            output = [text for text in pool.map(lambda test: self.compile(test, ["-O1"]), tests) if text is not None]
        if output:
            raise SystemExit("\n".join(output))

    def retry(self, output):
        count = self.drop_what_fails(output)
        if count == 0:
            (self.options.scratch / "failed.log").write_text(output, encoding="utf-8")
            raise SystemExit(f"the mutants do not compile, see {self.options.scratch}/failed.log")
        print(f"{count} switches do not compile", flush=True)
        self.write()


class Runner:
    def __init__(self, options):
        self.options = options
        self.cases = {}  # (program, name) -> (seconds, mutants it reaches)

    def go(self, program, names, seconds, **variables):
        """The exit status of the cases of these names."""
        with tempfile.TemporaryDirectory(dir=self.options.scratch) as folder:
            spec = pathlib.Path(folder) / "names"
            spec.write_text("\n".join('"' + re.sub(r'([\\\[\],"])', r"\\\1", name) + '"' for name in names) + "\n",
                            encoding="utf-8")
            limit = int(seconds) + 1
            try:  # threads that wait for each other use no processor time
                done = subprocess.run([str(program), "-f", str(spec), "--rng-seed", "1", "--abort"], cwd=folder,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                                      env={**os.environ, **variables}, timeout=20 + 4 * limit,
                                      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)))
            except subprocess.TimeoutExpired:
                return 1, b"waited for ever"
            return done.returncode, done.stdout

    def trace(self, item):
        program, name = item
        with tempfile.NamedTemporaryFile(dir=self.options.scratch) as file:
            before = time.monotonic()
            code, output = self.go(program, [name], 600, ROPE_MUTANTS_REACHED=file.name)
            if code != 0 or b"No test cases" in output or b"No tests ran" in output:
                raise SystemExit(f"the case {name!r} fails without a mutant:\n{output.decode('utf-8', 'replace')}")
            return item, time.monotonic() - before, {int(k) for k in pathlib.Path(file.name).read_text().split()}

    def trace_all(self, programs):
        items = []
        for program in programs:
            output = subprocess.run([str(program), "--list-test-names-only"], stdout=subprocess.PIPE, check=False).stdout
            items += [(program, name) for name in output.decode().splitlines() if name.strip()]
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            for item, seconds, mutants in pool.map(self.trace, items):
                self.cases[item] = (seconds, mutants)

    def drop_slow(self):
        """Drops the cases of programs that run for more than five seconds, and reports these programs."""
        total = collections.Counter()
        for (program, _), (seconds, _) in self.cases.items():
            total[program] += seconds
        slow = {program for program, seconds in total.items() if seconds > 5}
        self.cases = {item: found for item, found in self.cases.items() if item[0] not in slow}
        return slow

    def judge(self, k):
        """Whether a mutant is killed, and by which case; "unreached" if none reaches it."""
        reaching = sorted((seconds, *item) for item, (seconds, mutants) in self.cases.items() if k in mutants)
        if not reaching:
            return "unreached"
        rest = reaching
        while rest:
            program = rest[0][1]
            some, total = [], 0.0
            for case in rest:  # half a second of quick cases first, then more and more
                if case[1] == program and (not some or total < 0.5 * (1 + len(reaching) - len(rest))):
                    some.append(case)
                    total += case[0]
            code, _ = self.go(program, [name for _, _, name in some], 5 + 5 * total, ROPE_MUTANT=str(k))
            if code != 0:
                return "killed"
            rest = [case for case in rest if case not in some]
        return "survived"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", choices=mutate.MODULES, default=[])
    parser.add_argument("--suite", action="append", choices=mutate.MODULES, default=[])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", type=int, default=0)
    parser.add_argument("--tests", type=int, default=8)
    parser.add_argument("--cxx", default="clang++")
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=120)
    parser.add_argument("--scratch", type=pathlib.Path,
                        default=pathlib.Path(tempfile.gettempdir()) / f"rope_mutation_{os.getuid()}")
    options = parser.parse_args()
    options.suite = options.suite or options.module or mutate.MODULES
    options.scratch = options.scratch.resolve()
    options.scratch.mkdir(parents=True, exist_ok=True)

    chosen = []
    for module in options.module or mutate.MODULES:
        headers = sorted(str(f.relative_to(mutate.INCLUDE)) for f in (mutate.INCLUDE / "rope" / module).rglob("*.hpp"))
        every = [(header, place) for header in headers for place in mutate.places_of(header)]
        chosen += random.Random(options.seed).sample(every, min(options.count or len(every), len(every)))

    state = hashlib.sha256(repr((options.native, chosen)).encode())
    for folder in (mutate.INCLUDE, mutate.TESTS):
        for file in sorted(folder.rglob("*.[hc]pp")):
            state.update(file.read_bytes())
    kept, traced = (options.scratch / f"{what}_{state.hexdigest()[:16]}.json" for what in ("together", "traced"))
    verdicts = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}

    def note(k, verdict):
        verdicts[str(k)] = verdict
        kept.write_text(json.dumps(verdicts), encoding="utf-8")
        if verdict == "survived" and not explained(k):
            print("\n  ".join(describe(k)), flush=True)

    def mutant(k):
        header, (index, line, code, begin, end, other) = chosen[k]
        return header, (index, line, code[:begin] + other + code[end:])

    def describe(k):
        header, (index, before, after) = mutant(k)
        return f"survived {header}:{index + 1}", before.strip(), after.strip()

    entries = json.loads((mutate.TESTS / "mutants.json").read_text(encoding="utf-8"))

    def explained(k):
        header, (_, before, after) = mutant(k)
        return any((e["header"], e["find"], e["inject"]) == (header, before.strip(), after.strip()) for e in entries)

    if len(verdicts) < len(chosen):
        start = time.monotonic()
        builder = Builder(options, chosen)
        mine = {k for k in range(len(chosen)) if chosen[k][0].split("/")[1] in options.suite}
        runner = Runner(options)
        if traced.exists():
            runner.cases = {(pathlib.Path(program), name): (seconds, set(mutants))
                            for program, name, seconds, mutants in json.loads(traced.read_text(encoding="utf-8"))}
        else:
            builder.make()
            print(f"{len(chosen) - len(builder.alone)} of {len(chosen)} mutants switched in one program, "
                  f"{time.monotonic() - start:.0f} s", flush=True)
            runner.trace_all(builder.made.values())
            slow = runner.drop_slow()
            again = [test for test, program in builder.made.items() if program in slow]
            builder.optimize(again)
            runner.trace_all([builder.made[test] for test in again])
            traced.write_text(json.dumps([[str(program), name, seconds, sorted(mutants)] for (program, name),
                                          (seconds, mutants) in runner.cases.items()]), encoding="utf-8")
            print(f"{len(runner.cases)} test cases traced, {len(again)} programs optimised, "
                  f"{time.monotonic() - start:.0f} s", flush=True)
        todo = [k for k in sorted(mine) if k not in set(builder.alone) and str(k) not in verdicts]
        random.Random(options.seed).shuffle(todo)  # an interrupted run has judged some of every module
        later = [k for k in builder.alone if k in mine and str(k) not in verdicts]
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            running = {pool.submit(runner.judge, k): k for k in todo}
            for done in concurrent.futures.as_completed(running):
                k, verdict = running[done], done.result()
                if verdict == "unreached" or (verdict == "survived" and not explained(k)):
                    later.append(k)  # a switch that runs may also be in a constant, where it is off
                else:
                    note(k, verdict)
        print(f"{len(todo)} run, {len(later)} to be judged alone, {time.monotonic() - start:.0f} s", flush=True)
        judge = mutate.Judge(options)
        end = time.monotonic() + options.alone if options.alone else float("inf")
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            running = {pool.submit(lambda k=k: judge.judge(*mutant(k))[0] if time.monotonic() < end else None): k
                       for k in sorted(later)}
            for done in concurrent.futures.as_completed(running):
                if done.result() is not None:
                    note(running[done], done.result())

    modules = collections.defaultdict(collections.Counter)
    for k in range(len(chosen)):
        verdict = verdicts.get(str(k), "undecided")
        modules[chosen[k][0].split("/")[1]]["explained" if verdict == "survived" and explained(k) else verdict] += 1
    total = collections.Counter()
    for module in mutate.MODULES:
        if module in modules:
            total += modules[module]
            print(f"{module}: " + ", ".join(f"{count} {result}" for result, count in sorted(modules[module].items())))
    made = total["killed"] + total["survived"] + total["explained"]
    print(f"{made} mutants, {100 * total['killed'] / max(made, 1):.1f} % killed, {total['explained']} explained, "
          f"{total['survived']} survived; seed {options.seed}, {total['stillborn']} did not compile, "
          f"{total['left out']} left out, {total['undecided']} undecided")
    return 1 if total["survived"] else 0


if __name__ == "__main__":
    sys.exit(main())
