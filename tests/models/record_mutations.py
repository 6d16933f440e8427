#!/usr/bin/env python3
"""Which changes of one field of one record of an architecture does no test notice?

    python3 tests/models/record_mutations.py [folder for the build [list of mutants]]

In the root of the repository; needs g++, Eigen, Catch2 2 and nlohmann's JSON, as the tests do. One program checks all mutants:
it is built with copies of the tables of records that are not constexpr, changes one field of one record after another, and asks the
table-driven tests about it: laws/records.test.cpp with its recorded files, laws/probes.test.cpp with plain files and one
additional key. For a field with named values every other value is tried, for another field one. Changes of a field that a record
leaves at its default are counted separately: they claim something about an architecture that its record does not mention. A change
that breaks a rule of its format is noticed by laws/record_rules.test.cpp.

The list has a line "format architecture field" for each change to test. Without a list all are tested. Unnoticed changes are written
to `unnoticed` in the folder, which can be the list of the next run: a run over all changes takes minutes, and most are noticed.

Exits with 1 if a field can change unnoticed. Deterministic.
"""
import os
import re
import subprocess
import sys

FORMATS = {  # the struct, its tables
    "hugging_face": ("hugging_face_record", ["hugging_face_records.hpp", "hugging_face_layered_records.hpp"]),
    "gguf": ("gguf_record", ["gguf_records.hpp"]),
}
DETAIL = "include/rope/models/detail"


def declarations():
    """The headers that declare the fields of records."""
    return open(f"{DETAIL}/record_fields.hpp").read() + open(f"{DETAIL}/gguf_records.hpp").read()


def fields_of(struct):
    """(type, name) of every member, in order. A member with parts has one of each part, such as scale.key."""
    text = declarations()
    body = text[text.index(f"struct {struct} {{"):]
    body = re.sub(r"//[^\n]*", "", body[:body.index("\n};")])
    fields = []
    for line in body.split("{", 1)[1].split(";"):
        line = re.sub(r"\{\}", "", " ".join(line.split()))
        if not line:
            continue
        kind, names = line.split(" ", 1)
        for one in re.sub(r'"[^"]*"', "", names).split(","):
            name = one.split("=")[0].strip()
            if f"struct {kind} {{" in text:
                fields += [(of_part, f"{name}.{part}") for of_part, part in fields_of(kind)]
            else:
                fields.append((kind, name))
    return fields


def enums():
    text = declarations() + open("include/rope/rotation/layout.hpp").read() + open("include/rope/models/layer_group.hpp").read()
    text = re.sub(r"//[^\n]*", "", text)
    return {name: len([v for v in body.split(",") if v.strip()]) for name, body in re.findall(r"enum class (\w+) \{([^}]*)\}", text)}


def main():
    if any(argument.startswith("-") for argument in sys.argv[1:]):
        sys.exit(__doc__)
    out = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/record_mutations")
    os.makedirs(f"{out}/rope/models/detail", exist_ok=True)
    source = ["// written by tests/models/record_mutations.py\n"]
    for name, count in enums().items():
        source.append(f"constexpr int count_of(rope::{name if name in ('layout_kind', 'mrope_order') else 'detail::' + name}) {{ return {count}; }}\n")
    for format_, (struct, tables) in FORMATS.items():
        for table in tables:
            text = open(f"{DETAIL}/{table}").read()
            assert "static constexpr" in text
            with open(f"{out}/rope/models/detail/{table}", "w") as file:
                file.write(text.replace("static constexpr", "static"))
        source.append(f"template <class F> void each_field(rope::detail::{struct}& record, const F& with) {{\n")
        for _, field in fields_of(struct):
            source.append(f'  with("{field}", record.{field});\n')
        source.append("}\n")
        source.append(f"const std::map<std::string, std::set<std::string>> written_{format_} = {{\n")
        for table in tables:
            text = open(f"{DETAIL}/{table}").read()
            for body in re.findall(r'\{(\.names = (?:[^{}"]|"[^"]*"|\{[^}]*\})*)\}', text):
                bare = re.sub(r'"[^"]*"', '""', body)
                name = re.search(r'\.names = "([^" ]*)', body).group(1)
                written = set(re.findall(r"\.(\w+) =", bare))
                names = ", ".join(f'"{field}"' for _, field in fields_of(struct) if field.split(".")[0] in written)
                source.append(f'    {{"{name}", {{{names}}}}},\n')
        source.append("};\n")
    with open(f"{out}/record_fields.inc", "w") as file:
        file.write("".join(source))

    flags = ["-std=c++20", "-O1", f"-I{out}", "-Iinclude", "-Itests", "-isystem", "/usr/include/eigen3",
             f'-DROPE_TEST_CONFIGS="{os.getcwd()}/examples/configs"']
    compiler = os.environ.get("CXX", "g++").split()
    program = f"{out}/record_mutations"
    subprocess.run(compiler + flags + ["tests/models/record_mutations.cpp", "-o", program, "-lCatch2WithMain", "-lmpfr", "-lgmp",
                                       "-pthread"], check=True)

    listed = dict(os.environ, ROPE_MUTANTS=os.path.abspath(sys.argv[2])) if len(sys.argv) > 2 else None
    asked = subprocess.run([program, "[.mutants]"], check=True, stdout=subprocess.PIPE, text=True, env=listed).stdout
    mutants = [line.split()[1:] for line in asked.splitlines() if line.startswith("mutant ")]
    left, count = {}, {}
    for format_, architecture, field, how, what in mutants:
        count[how, what] = count.get((how, what), 0) + 1
        if what == "survives":
            left.setdefault((format_, field), []).append(architecture)
    for how, words in (("written", "written"), ("default", "left out")):
        of = {what: count.get((how, what), 0) for what in ("survives", "forbidden", "killed")}
        print(f"{sum(of.values())} changes of fields that are {words}: {of['survives']} unnoticed, {of['forbidden']} forbidden by a rule")
    with open(f"{out}/unnoticed", "w") as file:
        file.writelines(f"{format_} {one} {field}\n" for (format_, field), of in sorted(left.items()) for one in of)
    for (format_, field), architectures in sorted(left.items()):
        print(f"  {format_} {field}: {len(architectures)}, such as {', '.join(architectures[:4])}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
