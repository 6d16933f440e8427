# SPDX-License-Identifier: MIT
"""Run by gdb on rope_debug_objects: prints every object of expected.txt, and evaluates every expression of rope.natvis on the
objects whose type it names."""

import os
import pathlib
import re
import xml.etree.ElementTree

import gdb

HERE = pathlib.Path(__file__).resolve().parent
PRINTERS = pathlib.Path(os.environ["ROPE_DEBUG_FOLDER"])
NAMESPACE = "{http://schemas.microsoft.com/vstudio/debugger/natvis/2010}"
wrong = []


def stop_with_objects():
    for setting in ("debuginfod enabled off", "print elements 200", "width 0", "pagination off", "confirm off"):
        try:
            gdb.execute("set " + setting)
        except gdb.error:
            pass  # an older gdb
    gdb.execute("source %s" % (PRINTERS / "rope_gdb.py"))
    gdb.execute("break stop_here", to_string=True)
    try:
        gdb.execute("run", to_string=True)
    except gdb.error as error:
        print("not run: needs a system where gdb may trace a process (%s)" % error)
        return False
    gdb.execute("up", to_string=True)
    return True


def printed_as_expected():
    for line in (HERE / "expected.txt").read_text().splitlines():
        name, expected = line.split(" = ", 1)
        got = gdb.execute("output %s" % name, to_string=True).strip()
        if got != expected:
            wrong.append("%s is printed as\n    %s\nand should be\n    %s" % (name, got, expected))


def members(kind):
    for field in kind.strip_typedefs().fields():
        if field.is_base_class:
            yield from members(field.type)
        elif field.name:
            yield field.name


def evaluate(expression, name, names):
    """A name is a member of the object, unless it follows a dot; formats after a comma are those of Visual Studio."""
    text = re.sub(r",\[[^\[\]]*\]$", "", expression).replace("$i", "0")
    text = re.sub(r"(?<![\w.>])([A-Za-z_]\w*)", lambda m: "%s.%s" % (name, m[1]) if m[1] in names else m[1], text)
    try:
        gdb.parse_and_eval(text).fetch_lazy()
    except gdb.error as error:
        wrong.append("natvis: `%s` of %s: %s" % (expression, name, error))


def natvis_evaluates():
    tried, types = set(), xml.etree.ElementTree.parse(PRINTERS / "rope.natvis").getroot().findall(NAMESPACE + "Type")
    for kind in types:
        pattern = re.escape(kind.get("Name")).replace(r"\*", ".*").replace("rope::", r"rope::(v\d+_\w+::)?")
        for line in (HERE / "expected.txt").read_text().splitlines():
            name = line.split(" = ", 1)[0]
            value = gdb.parse_and_eval(name)
            if not re.fullmatch(pattern, str(value.type.unqualified().strip_typedefs())):
                continue
            tried.add(kind.get("Name"))
            names = set(members(value.type))
            for element in kind.iter():
                text = (element.text or "").strip()
                tag = element.tag.replace(NAMESPACE, "")
                if tag == "DisplayString":
                    for expression in re.findall(r"\{([^{}]*)\}", text):
                        evaluate(expression, "(%s)" % name, names)
                elif text:
                    evaluate(text, "(%s)" % name, names)
    for kind in types:
        if kind.get("Name") not in tried:
            wrong.append("natvis: expected.txt has no object of the type " + kind.get("Name"))


if stop_with_objects():
    printed_as_expected()
    natvis_evaluates()
    print("\n".join(wrong) if wrong else "all objects are printed as expected")
    gdb.execute("kill", to_string=True)
