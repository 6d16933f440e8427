#!/usr/bin/env python3
"""Compares the sources of Hugging Face transformers and llama.cpp with the recorded answers of each architecture.

    python3 tests/models/reference_records.py transformers/src/transformers/models
    python3 tests/models/reference_records.py llama.cpp/src

Reads the sources as text, so that neither PyTorch nor a compiler is needed. If `import transformers` works, the folder may be
omitted. From transformers it reads the layout (rotate_half and the like), the default base, head_dim and partial_rotary_factor of
each model folder. From llama.cpp it reads the rope type of each architecture and the keys that its loader reads, and compares the
keys with probes.json. Every recorded file of an architecture must agree. For one without a record it prints a line for
recorded/models/*.json, with the answers that it found. Exits with 1 if one disagrees.

How the stored records were made: the rotation of each class of transformers of 2026-08-19 was applied to unit vectors at two
positions in float64, and bases and scales were read from its configuration and attention classes. For llama.cpp, src/models/*.cpp
of 2026-08-22 were read. Records of 2026-11-22 (layouts, layers, windows and scales of families that had none) follow notes taken
from those sources, and those of models with their own code follow their "source". This script was run on 2026-11-25 on
transformers c49429ed1f of 2026-08-16 and llama.cpp 7077abbe1 of 2026-08-17, in which dots3note and granite_swa have no loader. The
remaining differences from transformers are not errors of records: classes that complete dictionaries themselves (laguna, mellum,
mimo_v2_flash, zaya), and files with several classes, where the text model has another one (voxtral_realtime, pe_audio and the like,
qwen3_omni_moe_talker). reference_layers.py runs the classes and reads no text.
"""
import importlib.util
import json
import os
import re
import sys

RECORDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../recorded/models")
DETAIL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../include/rope/models/detail")


def plain(name):
    """A name in the spelling of plain_architecture of the importer."""
    for end in ("For", "Model"):
        if name.find(end) > 0:
            name = name[:name.find(end)]
    name = name.replace("_", "").replace("-", "").lower()
    for suffix in ("textmodel", "text"):
        if name.endswith(suffix) and len(name) > len(suffix):
            return name[:-len(suffix)]
    return name


def known(tables):
    names = []
    for table in tables:
        with open(f"{DETAIL}/{table}.hpp") as file:
            text = file.read()
            for of_record in re.findall(r'\{\.names = ((?:"[^"]*"\s*)+)', text):
                names += " ".join(re.findall(r'"([^"]*)"', of_record)).split()
    return names


def family_of(folder):
    """{model_type: answers} of a folder of transformers."""
    name = os.path.basename(folder)
    texts = {}
    for kind in ("configuration", "modeling"):
        path = f"{folder}/{kind}_{name}.py"
        if not os.path.exists(path):
            return {}
        with open(path) as file:
            texts[kind] = file.read()
    functions = re.findall(r"def (?:rotate_half|rotate_every_two)\w*\(.*?\n(?=\S)", texts["modeling"], re.S)
    # A model of text and images has one for each; the function for text has a name of its own.
    function = next((t for t in functions if re.match(r"def rotate_half_(llm|text)", t)), functions[0] if functions else None)
    found = {}
    if function:
        alternate = "::2" in function
        # DeepSeek and GPT-J: other functions that split the even and odd channels
        alternate |= "apply_rotary_pos_emb_interleave" in texts["modeling"] or "view_as_complex" in texts["modeling"]
        found["layout"] = "interleaved" if alternate else "half_split"
    elif "view_as_complex" in texts["modeling"]:
        found["layout"] = "interleaved"
    share = re.search(r'setdefault\("partial_rotary_factor", ([\d.]+)\)|partial_rotary_factor: float[^=\n]*= ([\d.]+)|'
                      r'pop\("rotary_pct", ([\d.]+)\)', texts["configuration"])
    if share:
        found["share"] = float(share.group(1) or share.group(2) or share.group(3))
    bases = set(re.findall(r"default_theta = (?:\{\"global\": )?([\d_.]+)", texts["configuration"]))
    if len(bases) < 2:  # otherwise of several towers; 10000 is the default of the base class of configurations
        found["base"] = float(bases.pop() if bases else 10000)
    head_dim = re.search(r"\bhead_dim: (?:Optional\[)?int(?:\])?(?: \| None)? = (\d+)", texts["configuration"])
    if head_dim:
        found["head_dim"] = int(head_dim.group(1))
    types = re.findall(r'^    model_type = "([^"]*)"', texts["configuration"], re.M)
    texts_only = [t for t in types if t.endswith("_text")] or types[:1]
    return {plain(t): dict(found, model_type=t) for t in texts_only}


def check_transformers(models):
    reference = {}
    for folder in sorted(os.listdir(models)):
        if os.path.isdir(f"{models}/{folder}"):
            reference.update(family_of(f"{models}/{folder}"))
    with open(f"{RECORDS}/hugging_face.json") as file:
        stored = json.load(file)["records"]
    agree, wrong, seen = 0, 0, set()
    for record in stored:
        config = record["config"]
        text = config.get("text_config", config)
        name = plain(text.get("model_type", config["model_type"]))
        seen.add(name)
        of, expect = reference.get(name), record["expect"]
        if not of:
            continue
        pairs = []
        if "layout" in of and "layout" in expect and "rope_interleave" not in text:
            pairs.append(("layout", of["layout"], expect["layout"]))
        if "head_dim" in of and "head_dim" in expect and "head_dim" not in text and "qk_rope_head_dim" not in text:
            pairs.append(("head_dim", of["head_dim"], expect["head_dim"]))
        if "base" in of and "base" in expect and not re.search("theta|rotary_emb_base|rope_ratio", json.dumps(config)):
            pairs.append(("base", of["base"], expect["base"]))
        for key, theirs, ours in pairs:
            agree += theirs == ours
            wrong += theirs != ours
            if theirs != ours:
                print(f"{name}: {key} is {theirs} in transformers and {ours} in the record {json.dumps(config)[:80]}")
    for name in known(["hugging_face_records", "hugging_face_layered_records"]):
        if name in seen or "layout" not in reference.get(name, {}):
            continue
        of = reference[name]
        width = of.get("head_dim", 128)
        expect = {"layout": of["layout"], "head_dim": width, "first_channel": 0, "rotary_dim": int(width * of.get("share", 1)),
                  "base": of.get("base")}
        config = {"model_type": of["model_type"], "hidden_size": 1024, "num_attention_heads": 8}
        print("    " + json.dumps({"config": config, "expect": expect}) + ",")
    print(f"{len(reference)} families of transformers; {agree} recorded answers agree, {wrong} do not")
    return wrong


def text_of(path):
    with open(path) as file:
        return file.read()


# Keys that the loader of llama.cpp reads for architectures whose rotation and attention do not use them, and
# why.
READ_FOR_ANOTHER_PURPOSE = {
    "leading_dense_block_count": "says which layers have experts",
    "attention.temperature_length": "grok reads it, and its graph does not use it",
    "rope.scaling.alpha": "read for every architecture; hunyuan-vl.cpp alone uses it",
    "embedding_length of 46 layers": "read for every architecture", "embedding_length of 62 layers": "read for every architecture",
    "one layer": "read for every architecture", "forty layers": "read for every architecture",
}


def loaders_of(source):
    """{architecture: text of what its class reads in load_arch_hparams}"""
    names = dict(re.findall(r'\{\s*(LLM_ARCH_\w+),\s*"([^"]+)"\s*\}', text_of(f"{source}/llama-arch.cpp")))
    makers, cases = {}, []
    for case, made in re.findall(r"case (LLM_ARCH_\w+):|return new (llama_model_\w+)", text_of(f"{source}/llama-model.cpp")):
        if case:
            cases.append(case)
            continue
        makers.update({names.get(one, one): made for one in cases})
        cases = []
    parents = dict(re.findall(r"struct (llama_model_\w+)\s*:\s*public (llama_model_\w+)", text_of(f"{source}/models/models.h")))
    bodies = {}
    for name in sorted(os.listdir(f"{source}/models")):
        if name.endswith(".cpp"):
            bodies.update(re.findall(r"^void (llama_model_\w+)::load_arch_hparams\(.*?\) \{\n(.*?)^\}",
                                     text_of(f"{source}/models/{name}"), re.S | re.M))
    loaders = {}
    for architecture, made in makers.items():
        text = ""
        while made:
            called = re.search(r"(llama_model_\w+)::load_arch_hparams\(ml\)", bodies.get(made, ""))
            text += bodies.get(made, "")
            made = called.group(1) if called else None if made in bodies else parents.get(made)
        loaders[architecture] = text
    return loaders


def check_keys_of_llama_cpp(source, known_architectures):
    """Which architectures read a key, by the source and by the probes."""
    keys = dict(re.findall(r'\{\s*(LLM_KV_\w+),\s*"%s([^"]+)"\s*\}', text_of(f"{source}/llama-arch.cpp")))
    read = {name: {keys.get(key) for key in re.findall(r"\bLLM_KV_\w+", text)} for name, text in loaders_of(source).items()}
    with open(f"{RECORDS}/probes.json") as file:
        probes = json.load(file)["gguf"]["probes"]
    agree, wrong = 0, 0
    for probe in probes:
        key = next(iter(probe.get("add", {})), "")
        if "expect" in probe or len(probe.get("add", {})) != 1 or not key.startswith("."):
            continue
        theirs = {name for name in known_architectures & set(read) if key in read[name]}
        ours = {name for exception in probe.get("but_for", []) for name in exception["of"]} & set(read)
        agree += len(known_architectures & set(read)) - len(theirs ^ ours)
        reason = READ_FOR_ANOTHER_PURPOSE.get(probe["name"])
        if theirs != ours:
            print(f"{probe['name']}: llama.cpp reads it for {sorted(theirs - ours)} more and not for {sorted(ours - theirs)}; "
                  f"{reason or 'NOT EXPLAINED'}")
        wrong += theirs != ours and not reason
    print(f"{len(read)} loaders of llama.cpp; {agree} times a key is read as the probes say, {wrong} probes disagree")
    return wrong


def check_llama_cpp(source):
    names = dict(re.findall(r'\{\s*(LLM_ARCH_\w+),\s*"([^"]+)"\s*\}', text_of(f"{source}/llama-arch.cpp")))
    text = text_of(f"{source}/llama-model.cpp")
    body = text[text.index("llama_model_rope_type(const"):]
    body = body[:body.index("\n}")]
    reference, cases = {}, []
    for case, kind in re.findall(r"case (LLM_ARCH_\w+):|return (?:[^;]*\? )?LLAMA_ROPE_TYPE_(\w+)", body):
        if case:
            cases.append(case)
            continue
        for one in cases:
            reference[names.get(one, one)] = kind
        cases = []
    layouts = {"NORM": "interleaved", "NEOX": "half_split", "MROPE": "half_split", "IMROPE": "half_split"}
    with open(f"{RECORDS}/gguf.json") as file:
        stored = json.load(file)
    agree, wrong, seen = 0, 0, set()
    for record in stored["records"] + stored["refused"]:
        name = record["metadata"]["general.architecture"]
        seen.add(name)
        expect = record.get("expect", {}).get("layout")
        # The switch says NORM, and the graph rotates NEOX.
        if name not in reference or not expect or name in ("deepseek2-ocr", "glm4"):
            continue
        theirs = layouts.get(reference[name])
        agree += theirs == expect
        wrong += theirs != expect
        if theirs != expect:
            print(f"{name}: {reference[name]} in llama.cpp and {expect} in the record")
    for name in known(["gguf_records", "gguf_importer"]):
        if name not in seen:
            print(f"{name}: no record; {reference.get(name, 'not in the switch')} in llama.cpp")
    print(f"{len(reference)} architectures of llama.cpp; {agree} recorded layouts agree, {wrong} do not")
    importing = {record["metadata"]["general.architecture"] for record in stored["records"]}
    return wrong + check_keys_of_llama_cpp(source, importing)


def main():
    if len(sys.argv) == 2:
        check = check_llama_cpp if os.path.exists(f"{sys.argv[1]}/llama-arch.cpp") else check_transformers
        return 1 if check(sys.argv[1]) else 0
    installed = importlib.util.find_spec("transformers")
    if not installed:
        print(__doc__)
        return 2
    return 1 if check_transformers(os.path.join(os.path.dirname(installed.origin), "models")) else 0


if __name__ == "__main__":
    sys.exit(main())
