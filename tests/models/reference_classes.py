#!/usr/bin/env python3
"""Writes ../recorded/models/transformers_classes.json: the files that the configuration classes of Hugging Face transformers write.

    python3 tests/models/reference_classes.py [file to write]

Needs an installed transformers, or its folder src in PYTHONPATH; PyTorch is not needed. Of every class that the library can
choose by model_type, and that has rope_parameters once it is made without arguments, it stores the file that the class writes,
without the keys that have nothing to do with attention, and the values of the class for its rotation: the base, the rule and
the share of the channels, per layer type if the dictionary is nested, and the type of every layer. Which two channels form a
pair, and the scale of scores, is in the modeling files: see reference_records.py and recorded/models/hugging_face.json.

laws/reference_classes.test.cpp imports each of these files and compares. Deterministic: nothing depends on time or machine.
"""
import json
import math
import os
import re
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # classes that look for files of other libraries find none
COMMIT = "commit decba1d2ea of 2026-08-19"  # what the file checked in was made of
RECORDED = "2026-11-23"
HERE = os.path.dirname(os.path.abspath(__file__))
# Keys that neither rotation nor attention depends on: tokens, weights, experts, training, generation, other
# modalities.
OTHER = re.compile(
    r"vocab|token|dropout|eps$|epsilon|_act$|activation|initializer|_std$|_id$|_ids$|dtype|bias|cache|tie_|architectures|"
    r"transformers_version|expert|router|moe|mlp|intermediate|ffn|aux|loss|norm_|_norm|norm$|labels|label2id|id2label|problem|"
    r"return_|output_|chunk_size|pretraining_tp|mamba|ssm|conv|lora_rank|generation|prefix$|jitter|gating|routed|topk|n_group|"
    r"tokenizer|is_encoder|is_decoder|add_cross|cross_attention|finetuning|torchscript|pruned|quant|image|video|audio|vision|"
    r"codebook|codec|_name|reg_|seed|engram|hc_|mtp|sparsity|altup|laurel|embedding_size|embed_scale|hidden_act|linear_|"
    r"classifier|timestep|horizon|quantile|patch|mel|depth_decoder|sampling|frame|upsampl|downsampl|ratios$|residual|"
    r"logits_scal|embedding_multiplier|residual_multiplier|lm_head|key_query|block_types$|expand")


def plain(value):
    """Without what JSON has no word for."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def file_of(config):
    """config.json as the class writes it, but for keys of other things."""
    kept = {}
    for key, value in config.to_diff_dict().items():
        if key == "model_type" or not OTHER.search(key):
            kept[key] = plain(value)
    kept["model_type"] = config.model_type
    return kept


def rotation_of(dictionary, config):
    """Base, rule and share of one rope dictionary."""
    share = dictionary.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
    found = {"base": dictionary.get("rope_theta"), "rule": dictionary.get("rope_type", "default")}
    if share is not None:
        found["share"] = share
    return found


def answers_of(config):
    parameters = config.rope_parameters
    types = getattr(config, "layer_types", None)
    expect = {}
    nested = {str(name): one for name, one in parameters.items() if isinstance(one, dict)}
    if nested:  # values next to them have no effect; null: layers of that type do not rotate
        expect["groups"] = {name: rotation_of(one, config) for name, one in nested.items()}
    else:
        expect["all"] = rotation_of(parameters, config)
    if types and all(isinstance(one, str) for one in types):
        expect["layers"] = list(types)
    return expect


def main():
    try:
        import transformers
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
    except ImportError as error:
        print(f"transformers cannot be imported ({error}).\nInstall it, or put its folder src in PYTHONPATH; "
              "the stored records need neither.", file=sys.stderr)
        return 2
    records, without, failed = [], [], []
    for model_type in sorted(CONFIG_MAPPING_NAMES):
        try:
            made = CONFIG_MAPPING[model_type]
            if "text_config" in (getattr(made, "sub_configs", None) or {}):
                continue  # its text_config has a model_type of its own
            config = made()
        except Exception as error:  # a class that cannot be made without arguments, or needs another library
            failed.append(f"{model_type}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            continue
        if not getattr(config, "rope_parameters", None):
            without.append(model_type)
            continue
        kind = "text" if getattr(config, "vocab_size", None) else "other"
        written, expect = file_of(config), answers_of(config)
        if expect.get("layers") == written.get("layer_types"):
            expect.pop("layers", None)  # the file says them
        records.append({"config": written, "kind": kind, "expect": expect})
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "../recorded/models", "transformers_classes.json")
    with open(out, "w") as file:
        file.write('{\n  "source": "Hugging Face transformers %s, %s: configuration classes made without arguments, '
                   'by reference_classes.py",\n  "date": "%s",\n' % (transformers.__version__, COMMIT, RECORDED))
        file.write('  "records": [\n')
        file.write(",\n".join("    " + json.dumps(one, allow_nan=False) for one in records))
        file.write("\n  ]\n}\n")
    text = sum(1 for one in records if one["kind"] == "text")
    print(f"{len(records)} classes with rope_parameters, {text} of them of text; {len(without)} without; {len(failed)} not made")
    for one in failed:
        print("not made:", one)
    return 0


if __name__ == "__main__":
    sys.exit(main())
