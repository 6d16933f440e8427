#!/usr/bin/env python3
"""The name of each architecture of Hugging Face in llama.cpp, and whether its conversion permutes the rows of queries and keys.

    python3 tests/models/reference_names.py llama.cpp "llama.cpp, commit COMMIT of DATE"

Reads conversion/*.py and gguf-py/gguf/constants.py of a checkout as text and writes recorded/models/names.json. A model whose rows
are permuted is half_split in one format and interleaved in the other. Converters of vision and sound are skipped.
"""
import ast
import json
import os
import re
import sys

from reference_records import RECORDS, plain


def names_of_architectures(checkout):
    """The general.architecture of every MODEL_ARCH."""
    text = open(os.path.join(checkout, "gguf-py/gguf/constants.py")).read()
    begin = text.index("MODEL_ARCH_NAMES")
    return dict(re.findall(r'MODEL_ARCH\.(\w+):\s*"([^"]+)"', text[begin:text.index("}", begin)]))


class Converters:
    """The classes of conversion/*.py: the names for which each is registered, its values, its methods and its bases."""

    def __init__(self, checkout):
        self.classes = {}
        folder = os.path.join(checkout, "conversion")
        for name in sorted(os.listdir(folder)):
            if name.endswith(".py"):
                for node in ast.walk(ast.parse(open(os.path.join(folder, name)).read())):
                    if isinstance(node, ast.ClassDef):
                        self.classes[node.name] = node

    def registered(self, name):
        return [argument.value for call in self.classes[name].decorator_list
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("ModelBase.register")
                for argument in call.args if isinstance(argument, ast.Constant)]

    def bases(self, name):
        return [base for base in (ast.unparse(b).split(".")[-1] for b in self.classes[name].bases) if base in self.classes]

    def value(self, name, key):
        """The value of a name in the class, or in the first base that has it, as text."""
        for node in self.classes[name].body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and target.id == key and node.value is not None:
                return ast.unparse(node.value)
        for base in self.bases(name):
            found = self.value(base, key)
            if found is not None:
                return found
        return None

    def permutes(self, name):
        """Whether modify_tensors, in the class or in the functions of its bases that it calls, reverses the permutation of rows."""
        for node in self.classes[name].body:
            if isinstance(node, ast.FunctionDef) and node.name == "modify_tensors":
                text = ast.unparse(node)
                if re.search(r"(\w+Model|self)\.permute\(|_reverse_hf_permute\w*\(", text):
                    return True
                # super() means the base, and the name of a class means that class.
                named = [c for c in re.findall(r"(\w+)\.modify_tensors\(", text) if c in self.classes]
                asked = named + (self.bases(name) if "super()" in text else [])
                if "self.impl." in text:  # a class inside, of the same architecture
                    asked += [inner.name for inner in self.classes[name].body if isinstance(inner, ast.ClassDef)
                              and self.value(inner.name, "model_arch") == self.value(name, "model_arch")]
                return any(self.permutes(c) for c in asked if c != name)
        return any(self.permutes(base) for base in self.bases(name))


def main():
    checkout, source = sys.argv[1:]
    names, converters, found = names_of_architectures(checkout), Converters(checkout), {}
    for name in converters.classes:
        architecture = names.get((converters.value(name, "model_arch") or "").split(".")[-1])
        if not architecture or architecture == "clip":
            continue
        permutes = converters.permutes(name) and converters.value(name, "undo_permute") != "False"
        for registered in converters.registered(name):
            entry = {"gguf": architecture, "permutes": permutes}
            known = found.setdefault(plain(registered), [])
            if entry not in known:
                known.append(entry)
    with open(os.path.join(RECORDS, "names.json"), "w") as file:
        file.write('{\n  "source": %s,\n  "names": {\n' % json.dumps(
            source + ": what conversion/*.py registers each class of a config for; names as plain_architecture spells them"))
        file.write(",\n".join("    %s: %s" % (json.dumps(key), json.dumps(found[key])) for key in sorted(found)))
        file.write("\n  }\n}\n")


if __name__ == "__main__":
    main()
