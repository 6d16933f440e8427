#!/usr/bin/env python3
"""Which changes of one field of one record of an architecture does no test notice?

    python3 tests/models/record_mutations.py [folder for the build]

In the root of the repository; needs g++, Eigen, Catch2 2 and nlohmann's JSON, as the tests do. One program checks all mutants:
it is built with copies of the tables of records that are not constexpr, changes each field of each record in turn, and asks the
table-driven tests about it: laws/records.test.cpp with its recorded files, laws/probes.test.cpp with plain files and one key more.
What survives, and is written in the table, is asked of the other tests of imports as well, one run a mutant. A field that a record leaves to its default is counted
apart: its change says that an architecture does something that nothing about it mentions.

Exits with 1 if a field that is written in a table can change unnoticed, or what EXPLAINED says of one is not so. Deterministic.
"""
import os
import re
import subprocess
import sys

FORMATS = {  # the struct, its header, its tables
    "hugging_face": ("hugging_face_record", ["hugging_face_records.hpp", "hugging_face_layered_records.hpp",
                                             "hugging_face_hybrid_records.hpp"]),
    "gguf": ("gguf_record", ["gguf_records.hpp"]),
}
DETAIL = "include/rope/models/detail"
OTHER_TESTS = ["hugging_face", "gguf", "describe", "tables", "laws/attention_of_layer", "laws/query_scaling_of_layer",
               "laws/indexer"]
# Why a field of a record cannot mean anything, as a rule over its other fields: (format, fields, when, reason). `record` has the
# text of the fields that the table writes. A change of such a field that a test notices all the same is an error of the rule.
EXPLAINED = [
    ("gguf", None, lambda record: record.get("rotates") == "false", "the file is refused before any other field is read"),
    ("gguf", ("period_layers",), lambda record: "period" not in record, "it says in which models the period holds"),
    ("gguf", ("dense_rotate",), lambda record: "full_rotate" not in record, "all layers that attend fully rotate anyway"),
    ("gguf", ("half_split_sections",), lambda record: "layout" not in record, "the layout is half_split without sections too"),
    ("hugging_face", ("filled_base",), lambda record: record.get("form") not in ("per_type", "compressed"),
     "the base of a dictionary that only these forms fill in"),
    ("hugging_face", ("filled_factor", "other_factor"), lambda record: record.get("form") != "per_type",
     "the share of a dictionary that only this form fills in"),
    ("hugging_face", ("first_full", "full_offset"), lambda record: "full_every" not in record, "there is no pattern of layers"),
    ("hugging_face", ("from_end",), lambda record: "full_every" not in record and "no_rope_every" not in record,
     "there is no pattern of layers"),
    ("hugging_face", ("dense_first",), lambda record: "full_every" not in record and "full_rotate" not in record,
     "neither a pattern of layers nor a rotation begins after the dense ones"),
    ("hugging_face", ("other_type",), lambda record: record.get("others_attend") == "false" and "full_list" not in record
     and "full_every" not in record, "no layer is given that type, and every type but full_type attends to nothing"),
    ("hugging_face", ("turns_word",), lambda record: "turns_if" not in record, "no key is asked for that word"),
    ("hugging_face", ("scale_number",), lambda record: record.get("scale") in (None, "one", "half_head", "inverse_root"),
     "the default of a key that is not asked for"),
]


def explanation(format_, field, record):
    for of_format, fields, when, reason in EXPLAINED:
        if of_format == format_ and (fields is None and field not in ("rotates", "architecture") or fields and field in fields) and when(record):
            return reason
    return None


def fields_of(struct):
    """(type, name) of every member, in order."""
    text = open(f"{DETAIL}/{struct}.hpp").read()
    body = text[text.index(f"struct {struct} {{"):]
    body = re.sub(r"//[^\n]*", "", body[:body.index("\n};")])
    fields = []
    for line in body.split("{", 1)[1].split(";"):
        line = re.sub(r"\{\}", "", " ".join(line.split()))
        if not line:
            continue
        kind, names = line.split(" ", 1)
        for one in re.sub(r'"[^"]*"', "", names).split(","):
            fields.append((kind, one.split("=")[0].strip()))
    return fields


def enums():
    text = "".join(open(f"{DETAIL}/{name}").read() for name in ("hugging_face_record.hpp", "gguf_record.hpp", "indexer.hpp"))
    text += open("include/rope/rotation/layout.hpp").read()
    text = re.sub(r"//[^\n]*", "", text)
    return {name: len([v for v in body.split(",") if v.strip()]) for name, body in re.findall(r"enum class (\w+) \{([^}]*)\}", text)}




def main():
    out = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/record_mutations")
    os.makedirs(f"{out}/rope/models/detail", exist_ok=True)
    source = ["// written by tests/models/record_mutations.py\n"]
    records = {}  # by format and architecture, the text of each field that is written
    for name, count in enums().items():
        source.append(f"constexpr int count_of(rope::{name if name == 'layout_kind' else 'detail::' + name}) {{ return {count}; }}\n")
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
            for body in re.findall(r'\{(\.architecture = (?:[^}"]|"[^"]*")*)\}', text):
                bare = re.sub(r'"[^"]*"', '""', body)
                name = re.search(r'\.architecture = "([^"]*)"', body).group(1)
                records[format_, name] = dict(re.findall(r"\.(\w+) = ([^,}]*)", body))
                names = ", ".join(f'"{field}"' for field in re.findall(r"\.(\w+) =", bare))
                source.append(f'    {{"{name}", {{{names}}}}},\n')
        source.append("};\n")
    with open(f"{out}/record_fields.inc", "w") as file:
        file.write("".join(source))

    flags = ["-std=c++20", "-O0", f"-I{out}", "-Iinclude", "-Itests", "-isystem", "/usr/include/eigen3",
             f'-DROPE_TEST_CONFIGS="{os.getcwd()}/examples/configs"']
    compiler = os.environ.get("CXX", "g++").split()
    objects = []
    for name in ["record_mutations.cpp"] + [f"{test}.test.cpp" for test in OTHER_TESTS]:
        objects.append(f"{out}/{name.replace('/', '_')}.o")
        subprocess.run(compiler + flags + ["-c", f"tests/models/{name}", "-o", objects[-1]], check=True)
    program = f"{out}/record_mutations"
    subprocess.run(compiler + objects + ["-lCatch2WithMain", "-lmpfr", "-lgmp", "-pthread", "-o", program], check=True)

    asked = subprocess.run([program, "[.mutants]"], check=True, stdout=subprocess.PIPE, text=True).stdout
    mutants = [line.split()[1:] for line in asked.splitlines() if line.startswith("mutant ")]
    unnoticed, left, explained, untrue = [], {}, {}, []
    for format_, architecture, field, how, what in mutants:
        reason = explanation(format_, field, records[format_, architecture])
        if what == "killed":
            if reason is not None:
                untrue.append(f"{format_} {architecture} {field}: {reason}")
            continue
        if reason is not None:
            explained[format_, reason] = explained.get((format_, reason), 0) + 1
            continue
        if how == "default":
            left.setdefault((format_, field), []).append(architecture)
            continue
        mutant = " ".join((format_, architecture, field))
        if subprocess.run([program, "~[.mutants]"], env=dict(os.environ, ROPE_MUTANT=mutant), stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode != 0:
            continue
        print("survives:", mutant)
        unnoticed.append(mutant)
    count = {how: sum(1 for m in mutants if m[3] == how) for how in ("written", "default")}
    print(f"{count['written']} changes of fields that are written: {len(unnoticed)} unnoticed")
    print(f"{count['default']} changes of fields that are left out: {sum(map(len, left.values()))} unnoticed")
    print(f"{sum(explained.values())} changes of either kind that cannot mean anything:")
    for (format_, reason), number in sorted(explained.items()):
        print(f"  {format_}: {number}, {reason}")
    for one in untrue:
        print("is noticed, and yet explained:", one)
    for (format_, field), architectures in sorted(left.items()):
        print(f"  {format_} {field}: {len(architectures)}, such as {', '.join(architectures[:4])}")
    return 1 if unnoticed or untrue else 0


if __name__ == "__main__":
    sys.exit(main())
