#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Known mistakes that must never come back: injects them one by one, and tests that a test catches each.

    tests/known_mistakes/inject.py                    every mistake
    tests/known_mistakes/inject.py --only TEXT        those whose name contains TEXT; may be repeated
    tests/known_mistakes/inject.py --since COMMIT     those that differ from COMMIT, or whose header or test does
    tests/known_mistakes/inject.py --list             their names
    tests/known_mistakes/inject.py --check            compiles nothing: every bug still applies, every test exists, the
                                             table in README.md is that of the mistakes
    tests/known_mistakes/inject.py --table            writes that table

Other options: --minutes M (no other mistake is begun after that, and the last line counts the rest),
--cxx COMPILER (clang++ or g++), --jobs N, --timeout SECONDS for one run of a test, --scratch FOLDER. The folder
is kept: until a header, a test or a mistake changes, a second run neither injects again the mistakes that were
caught, nor tests the true headers again. Remove it, or name another, for a complete run.

It needs Python 3, Eigen (pkg-config, or /usr/include/eigen3) and Catch2 2.13 or 3. The headers of the tree are
only read: a header with a bug is in the scratch folder, which is searched before include/.

mistakes.json is a list of objects:

    name      what is prevented
    reports   where it was reported: "project#number", or "here", in an earlier state of this library; empty if
              it would break a guarantee and no report is known
    test      the file below tests/ that catches it
    case      the test case in it, TEMPLATE_TEST_CASEs by their common name; for a refusal the name after #ifdef
    with      more files below tests/, to compile and link; for a warning, those that the test includes
    flags     more flags of the compiler and linker
    header    the header below include/ in which the bug is injected
    find      the text to be replaced, which occurs there exactly once
    inject    the bug
    by        how the test notices: "run" (the case fails, or crashes), "compile" (the test no longer compiles),
              "refusal" (a case of compile_fail/ is compiled though it must not be) or "warning"
              (the compiler, with the flags, prints something for the test); default "run"
    gate      instead of case, header, find and inject: the check of a rule that no header can break

The last line has the counts. The exit status is 1 if a bug was not caught or could not be injected.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent
ROOT = TESTS.parent
INCLUDE = ROOT / "include"
PAGE = HERE / "README.md"
TABLE_BEGIN, TABLE_END = "<!-- mistakes -->\n", "<!-- end -->\n"


class Failure(Exception):
    """The errors of a mistake or of this machine, in words."""


def changed_since(commit, mistakes):
    """The mistakes that differ from those of a commit, or whose files do."""
    def git(*arguments):
        code, printed = run(["git", "-C", str(ROOT), *arguments])
        if code != 0:
            raise SystemExit(printed)
        return printed

    files = git("diff", "--name-only", commit, "--", "include", "tests").splitlines()
    files = {file.removeprefix("include/").removeprefix("tests/") for file in files}
    place = "tests/known_mistakes/mistakes.json"  # which older commits lack
    before = json.loads(git("show", f"{commit}:{place}")) if git("ls-tree", commit, "--", place) else []
    return [e for e in mistakes if e not in before or files & {e["test"], e.get("header"), *e.get("with", [])}]


def cases_in(text):
    """The names of the test cases of a file, where adjacent literals are one, and of what must not compile."""
    found = re.findall(r'TEST_CASE\w*\(\s*("(?:[^"\\]|\\.)*"(?:\s*"(?:[^"\\]|\\.)*")*)', text)
    return ({re.sub(r'"\s*"', "", name)[1:-1].replace('\\"', '"') for name in found}
            | set(re.findall(r"#ifdef (\w+)\n *// EXPECT: ", text)))


def check(mistake):
    """Whether a mistake still applies, without compiling anything."""
    test = TESTS / mistake["test"]
    if not test.exists():
        raise Failure(f"no longer applies: there is no {mistake['test']}")
    if "gate" in mistake:
        return
    way = mistake.get("by", "run")
    if way not in ("run", "compile", "refusal", "warning"):
        raise Failure(f"is noticed by run, compile, refusal or warning, got {way}")
    if way in ("run", "refusal") and mistake["case"] not in cases_in(test.read_text(encoding="utf-8")):
        raise Failure(f"no longer applies: {mistake['test']} has no case \"{mistake['case']}\"")
    header = INCLUDE / mistake["header"]
    if not header.is_file():
        raise Failure(f"no longer applies: there is no {mistake['header']}")
    times = header.read_text(encoding="utf-8").count(mistake["find"])
    if times != 1:
        raise Failure(f"no longer applies: the text is {times} times in {mistake['header']}, and must be once")
    if mistake["find"] == mistake["inject"]:
        raise Failure("injects nothing")


def table(mistakes):
    lines = ["| prevented | seen in | held by |\n", "|---|---|---|\n"]
    for e in mistakes:
        place = f"[{e['test']}](../{e['test']})"
        held = e["gate"] if "gate" in e else "\"" + e["case"] + "\"" if "case" in e else "the compiler"
        lines.append(f"| {e['name']} | {', '.join(e['reports'])} | {place}: {held} |\n".replace("\\|", "|"))
    return "".join(lines)


def page_with(text, mistakes):
    begin, end = text.index(TABLE_BEGIN) + len(TABLE_BEGIN), text.index(TABLE_END)
    return text[:begin] + table(mistakes) + text[end:]


def run(command, timeout=None):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False)
    return done.returncode, done.stdout.decode("utf-8", "replace")


class Workshop:
    """Compiles tests against the headers of the tree, or with one of them replaced."""

    def __init__(self, cxx, scratch, timeout):
        self.cxx, self.scratch, self.timeout = cxx, scratch, timeout
        # A compiler rejects a precompiled header if a file it includes has another date, as in another
        # checkout.
        self.precompiled = tempfile.TemporaryDirectory(dir=scratch)
        self.locks, self.guard = {}, threading.Lock()
        code, eigen = run(["pkg-config", "--cflags-only-I", "eigen3"]) if shutil.which("pkg-config") else (1, "")
        folders = [f[2:] for f in eigen.split()] if code == 0 else []
        self.base = [cxx, "-std=c++20", "-O0", "-w"]
        for folder in folders or ["/usr/include/eigen3"]:
            self.base += ["-isystem", folder]
        self.base += ["-I", str(TESTS), f'-DROPE_TEST_CONFIGS="{ROOT}/examples/configs"']
        self.state = hashlib.sha256(run([cxx, "--version"])[1].encode())
        for folder in (INCLUDE, TESTS / "support"):
            for file in sorted(folder.rglob("*.hpp")):
                self.state.update(file.read_bytes())
        probe = scratch / "probe.cpp"
        probe.write_text("#if !__has_include(<catch2/catch_all.hpp>)\n#error 2\n#endif\n", encoding="utf-8")
        self.catch3 = run(self.base + ["-fsyntax-only", str(probe)])[0] == 0

    def once(self, path, make):
        """The file at `path`, made on the first request."""
        with self.guard:
            lock = self.locks.setdefault(path, threading.Lock())
        with lock:
            if not path.exists():
                make(path)
        return path

    def compile(self, command, out):
        """Runs the compiler, which writes `out` whole or not at all."""
        part = out.with_name(f"{out.name}.{os.getpid()}.part")
        code, printed = run(command + ["-o", str(part)])
        if code != 0:
            raise Failure("does not compile:\n" + printed)
        part.rename(out)

    def first_header(self, flags):
        """The headers that every test includes and no mistake changes, precompiled."""
        folder = pathlib.Path(self.precompiled.name) / hashlib.sha256(repr(flags).encode()).hexdigest()[:12]
        folder.mkdir(exist_ok=True)
        first = folder / "first.hpp"

        def make(out):
            first.write_text("#include <Eigen/Core>\n#include <support/catch.hpp>\n", encoding="utf-8")
            self.compile(self.base + flags + ["-x", "c++-header", str(first)], out)

        self.once(folder / "first.hpp.gch", make)
        return first

    def main(self, flags):
        if self.catch3:
            return ["-lCatch2Main", "-lCatch2"]
        key = hashlib.sha256(repr((self.base, flags)).encode()).hexdigest()[:12]

        def make(out):
            source = self.scratch / f"main_{key}.cpp"
            source.write_text("#define CATCH_CONFIG_MAIN\n#include <catch2/catch.hpp>\n", encoding="utf-8")
            self.compile(self.base + flags + ["-c", str(source)], out)

        return [str(self.once(self.scratch / f"main_{key}.o", make))]

    def build(self, mistake, headers, program):
        """Compiles the files of a mistake and links them. `headers` are searched before include/."""
        flags = mistake.get("flags", [])
        compiled = [f for f in flags if not f.startswith("-l")]
        first = self.first_header(compiled)
        objects = []
        for file in [mistake["test"]] + mistake.get("with", []):
            out = program.with_name(f"{program.name}.{os.getpid()}.{file.replace('/', '_')}.o")
            command = self.base + compiled + ["-include", str(first)]
            for folder in headers + [INCLUDE]:
                command += ["-I", str(folder)]
            self.compile(command + ["-c", str(TESTS / file)], out)
            objects.append(str(out))
        self.compile([self.cxx] + objects + self.main(compiled) + flags + ["-pthread"], program)
        for file in objects:
            os.remove(file)

    def passes(self, mistake, program):
        """Whether the case of a mistake passes, and its output."""
        escaped = re.sub(r"([,\[\]\\*~])", r"\\\1", mistake["case"])
        try:
            code, printed = run([str(program), escaped + "*", "--rng-seed", "1"], self.timeout)
        except subprocess.TimeoutExpired:
            raise Failure(f"was not decided within {self.timeout} s") from None
        if code == 0 and "All tests passed" in printed:
            return True, ""
        if code == 0:
            raise Failure(f"no case was run:\n{printed}")
        failed = re.search(r"assertions?: .*", printed)
        return False, f"signal {-code}" if code < 0 else failed.group(0) if failed else f"exit status {code}"

    def refused(self, mistake, headers):
        """Whether a mistake of compile_fail/ fails with the sentence that it expects."""
        file, case = TESTS / mistake["test"], mistake["case"]
        expected = re.search(rf"#ifdef {case}\n *// EXPECT: (.*)", file.read_text(encoding="utf-8")).group(1)
        command = self.base + mistake.get("flags", []) + ["-fsyntax-only", f"-D{case}"]
        for folder in headers + [INCLUDE]:
            command += ["-I", str(folder)]
        code, printed = run(command + [str(file)])
        return code != 0 and re.search(expected, printed) is not None

    def without_a_word(self, mistake, headers):
        """Whether the compiler, with the flags of a mistake, prints nothing for its test."""
        command = [word for word in self.base if word != "-w"] + mistake.get("flags", []) + ["-fsyntax-only"]
        for folder in headers + [INCLUDE]:
            command += ["-I", str(folder)]
        code, printed = run(command + [str(TESTS / mistake["test"])])
        return code == 0 and printed == ""

    def true_program(self, mistake):
        """The test on the headers as they are, compiled once for all mistakes of a file."""
        return self.once(self.scratch / ("true_" + self.state_of(mistake).hexdigest()[:16]),
                         lambda out: self.build(mistake, [], out))

    def passes_on_true_headers(self, mistake):
        if mistake.get("by") == "refusal":
            return self.refused(mistake, [])
        if mistake.get("by") == "warning":
            return self.without_a_word(mistake, [])
        program = self.true_program(mistake)
        if mistake.get("by") == "compile":
            return True
        key = hashlib.sha256(mistake["case"].encode()).hexdigest()[:12]

        def make(out):
            good, seen = self.passes(mistake, program)
            if not good:
                raise Failure(f"fails on the true headers: {seen}")
            out.touch()

        self.once(program.with_name(program.name + "_passed_" + key), make)
        return True

    def state_of(self, mistake):
        """A hash of everything that decides the result of a test of the true headers, except libraries."""
        state = self.state.copy()
        for file in [mistake["test"]] + mistake.get("with", []):
            state.update((TESTS / file).read_bytes())
        state.update(repr((mistake["test"], self.base, mistake.get("flags", []))).encode())
        return state

    def caught(self, mistake):
        """Whether the test notices the bug, and how. A bug that was caught is injected again if something changed."""
        state = self.state_of(mistake)
        state.update(json.dumps(mistake, sort_keys=True).encode())
        known = self.scratch / ("caught_" + state.hexdigest()[:16])
        if known.exists():
            return True, known.read_text(encoding="utf-8")
        good, seen = self.inject(mistake)
        if good:
            known.write_text(seen, encoding="utf-8")
        return good, seen

    def inject(self, mistake):
        if not self.passes_on_true_headers(mistake):
            raise Failure("the test fails on the true headers")
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            place = pathlib.Path(folder)
            text = (INCLUDE / mistake["header"]).read_text(encoding="utf-8")
            injected = place / "include" / mistake["header"]
            injected.parent.mkdir(parents=True)
            injected.write_text(text.replace(mistake["find"], mistake["inject"]), encoding="utf-8")
            if mistake.get("by") == "refusal":
                return not self.refused(mistake, [place / "include"]), "no longer throws"
            if mistake.get("by") == "warning":
                return not self.without_a_word(mistake, [place / "include"]), "the compiler warns or stops"
            try:
                self.build(mistake, [place / "include"], place / "program")
            except Failure as failure:
                if mistake.get("by") == "compile":
                    return True, "no longer compiles"
                raise failure
            if mistake.get("by") == "compile":
                return False, ""
            good, seen = self.passes(mistake, place / "program")
            return not good, seen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--since", metavar="COMMIT")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--cxx", default="clang++" if shutil.which("clang++") else "g++")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--scratch", type=pathlib.Path,
                        default=pathlib.Path(tempfile.gettempdir()) / f"rope_museum_{os.getuid()}")
    parser.add_argument("--timeout", type=float, default=300)
    options = parser.parse_args()

    every = json.loads((HERE / "mistakes.json").read_text(encoding="utf-8"))
    mistakes = [e for e in every if not options.only or any(text in e["name"] for text in options.only)]
    if options.since:
        mistakes = changed_since(options.since, mistakes)
    if options.list:
        print("\n".join(e["name"] for e in mistakes))
        return 0
    if options.table:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), every), encoding="utf-8")
        return 0

    wrong = 0
    if len({e["name"] for e in every}) != len(every):
        wrong += 1
        print("two mistakes have one name")
    sound = []
    for mistake in mistakes:
        try:
            check(mistake)
            sound.append(mistake)
        except Failure as failure:
            wrong += 1
            print(f"{mistake['name']}: {failure}", flush=True)
    if options.check:
        page = PAGE.read_text(encoding="utf-8")
        if page != page_with(page, every):
            wrong += 1
            print("tests/known_mistakes/README.md is not fresh: run tests/known_mistakes/inject.py --table")
        print(f"{len(mistakes)} mistakes, {wrong} of them wrong")
        return 1 if wrong else 0

    options.scratch.mkdir(parents=True, exist_ok=True)
    workshop = Workshop(options.cxx, options.scratch, options.timeout)
    counts = {"caught": 0, "NOT caught": 0, "held by a gate": 0, "left for want of time": 0}
    end = time.monotonic() + 60 * options.minutes

    def judge(mistake):
        if time.monotonic() > end:
            return "left for want of time", ""
        if "gate" in mistake:
            return "held by a gate", mistake["gate"]
        good, seen = workshop.caught(mistake)
        return "caught" if good else "NOT caught", seen

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(judge, e): e for e in sound}
        for done in concurrent.futures.as_completed(running):
            try:
                result, seen = done.result()
                counts[result] += 1
                line = result + (f" ({seen})" if seen else "")
            except Failure as failure:
                wrong += 1
                line = f"not decided: {failure}"
            print(f"{running[done]['name']}: {line}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in counts.items()) + f", {wrong} could not be injected")
    return 1 if wrong or counts["NOT caught"] else 0


if __name__ == "__main__":
    sys.exit(main())
