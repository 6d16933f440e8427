#!/usr/bin/env python3
"""Records the logits of tiny models of many families, made by the modeling code of Hugging Face transformers itself.

    python3 tests/recorded/record_logits.py SOURCE            writes logits/<family>.json next to this file
    python3 tests/recorded/record_logits.py SOURCE --bites    shows how far each detail moves the logits

SOURCE is the folder src of huggingface/transformers. The recorded files were made from its commit
a59124e27ea9b5a3110495b2c6737c087c8e3bb0 (4.57.0.dev0, October 2025), every file from that commit, on PyTorch 1.13.
Commit d6a6c82680cba9c51decdacac6dd6315ea4a766a (5.0.0.dev0, December 2025; its configurations need one more replacement)
gives the same logits to 12 digits except for olmo3: there YaRN also applies to the layers with a window, which keep the
plain frequencies in 4.57.

The whole forward of each family's own ...ForCausalLM runs: models/<x>/modeling_<x>.py, models/<x>/configuration_<x>.py,
modeling_rope_utils.py and activations.py are executed unchanged, but in float64: torch.float32 and torch.float are
read as torch.float64, and .float() as .double(), so that norms, softmax and angles are float64 too. This file has replacements
for the rest of the package: PreTrainedConfig and PreTrainedModel (attributes; tied embeddings), the two
masks (a key is visible when 0 <= query - key, and < window in a sliding layer), outputs, decorators that do nothing,
logging. Caches, kernels, generation and other implementations of attention are not needed.

Weights have the names and shapes of the released checkpoints. Value i (row-major) of a tensor is computed from
    h = FNV-1a (64 bits) of the tensor's name
    z = the finaliser of splitmix64 of h + (i + 1) * 0x9e3779b97f4a7c15 modulo 2^64
    k = (z >> 57) - 64, an integer in [-64, 63]
and is, all of them exact in bfloat16 and in half,
    k / 2^6                 in embeddings and in the matrix of the logits (names with embed or lm_head)
    k / 2^8                 in matrices that make queries, keys and values
                            (q_proj, k_proj, v_proj, qkv_proj, query_key_value)
    k / 2^9                 in all other matrices
    1 + floor(k / 8) / 2^6  in weights of norms (one-dimensional, norm in the name),
                            but k / 2^9 in those of the Gemma families, which multiply by 1 + weight
    k / 2^9                 in biases
so that logits spread over about 5, and scores by 1 or 2: attention is then neither uniform nor on a single key.
Tied matrices are one tensor, the embedding. Token i is (7919 i + 31 i^2) mod 96.
"""
import argparse
import copy
import importlib
import importlib.abc
import importlib.util
import json
import pathlib
import re
import sys
import types

import numpy
import torch

COMMIT = "a59124e27ea9b5a3110495b2c6737c087c8e3bb0"
VERSION = "4.57.0.dev0, October 2025"  # of the commit; its day was not recorded
TOKENS = 400
POSITIONS = (0, 1, 7, 63, 200, 399)

# ------------------------------------------------------------------------------------------------ the families

# A family has its config.json, with the keys of its released models, and mistakes that a program could make
# with it.

SMALL = dict(hidden_size=64, intermediate_size=96, max_position_embeddings=512, num_attention_heads=4,
             num_hidden_layers=2, num_key_value_heads=2, vocab_size=96, use_cache=True, initializer_range=0.02,
             attention_dropout=0.0, torch_dtype="bfloat16", transformers_version="4.57.0.dev0")
WITHOUT_BIASES = dict(attention_bias=False, bos_token_id=1, eos_token_id=2, hidden_act="silu", rms_norm_eps=1e-05,
                      rope_scaling=None, rope_theta=10000.0, tie_word_embeddings=False)
LLAMA = dict(WITHOUT_BIASES, mlp_bias=False, pretraining_tp=1)
QWEN = dict(bos_token_id=1, eos_token_id=2, hidden_act="silu", rms_norm_eps=1e-06, rope_theta=1000000.0,
            tie_word_embeddings=False, use_sliding_window=False)
GEMMA = dict(attention_bias=False, bos_token_id=2, eos_token_id=1, pad_token_id=0, head_dim=16,
             hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-06, rope_theta=10000.0)
OLMO = dict(WITHOUT_BIASES, bos_token_id=None, pad_token_id=1, rope_theta=500000, rms_norm_eps=1e-06)
LAYER_NORM = dict(bos_token_id=0, eos_token_id=0, layer_norm_eps=1e-05, tie_word_embeddings=False)


ABSENT = object()  # a key that the released files do not have


def config(model_type, architecture, common={}, **keys):
    merged = {**SMALL, **common, **keys, "model_type": model_type, "architectures": [architecture]}
    return {key: merged[key] for key in sorted(merged) if merged[key] is not ABSENT}


FAMILIES = {
    "llama_2": (config("llama", "LlamaForCausalLM", LLAMA, num_key_value_heads=4), [{"rope_theta": 11000.0}]),
    "llama_3": (
        config("llama", "LlamaForCausalLM", LLAMA, head_dim=16, rope_theta=500000.0, tie_word_embeddings=True,
               rope_scaling={"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                             "original_max_position_embeddings": 64, "rope_type": "llama3"}),
        [{"rope_scaling": None},
         {"rope_scaling": {"factor": 8.0, "high_freq_factor": 8.0, "low_freq_factor": 1.0,
                           "original_max_position_embeddings": 64, "rope_type": "llama3"}}]),
    "llama_linear": (
        config("llama", "LlamaForCausalLM", LLAMA, rope_scaling={"factor": 4.0, "type": "linear"}),
        [{"rope_scaling": None}]),
    "llama_dynamic": (
        config("llama", "LlamaForCausalLM", LLAMA, max_position_embeddings=64,
               rope_scaling={"factor": 4.0, "type": "dynamic"}),
        [{"rope_scaling": None}, {"max_position_embeddings": 65}]),
    "llama_yarn": (
        config("llama", "LlamaForCausalLM", LLAMA, rope_scaling={
            "factor": 8.0, "original_max_position_embeddings": 64, "rope_type": "yarn"}),
        [{"rope_scaling": None},
         {"rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 512, "rope_type": "yarn"}},
         {"rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 64, "rope_type": "yarn",
                           "attention_factor": 1.0}},
         {"rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 64, "rope_type": "yarn",
                           "truncate": False}}]),
    "mistral": (
        config("mistral", "MistralForCausalLM", bos_token_id=1, eos_token_id=2, hidden_act="silu", rms_norm_eps=1e-05,
               rope_theta=10000.0, tie_word_embeddings=False, sliding_window=24),
        [{"sliding_window": 23}, {"sliding_window": 25}, {"sliding_window": None}]),
    "qwen2": (
        config("qwen2", "Qwen2ForCausalLM", QWEN, sliding_window=24, max_window_layers=1),
        [{"use_sliding_window": True}, {"rope_theta": 10000.0}]),
    "qwen3": (
        config("qwen3", "Qwen3ForCausalLM", QWEN, attention_bias=False, head_dim=32, rope_scaling=None,
               sliding_window=None, max_window_layers=2),
        [{"rms_norm_eps": 1e-2}]),
    "gemma": (
        config("gemma", "GemmaForCausalLM", GEMMA, hidden_activation=ABSENT, hidden_act="gelu_pytorch_tanh",
               head_dim=32, num_key_value_heads=1, rope_scaling=None),
        [{"hidden_act": "gelu"}]),
    "gemma2": (
        config("gemma2", "Gemma2ForCausalLM", GEMMA, hidden_act="gelu_pytorch_tanh", query_pre_attn_scalar=24,
               attn_logit_softcapping=2.0, final_logit_softcapping=10.0, sliding_window=24, num_hidden_layers=4,
               cache_implementation="hybrid"),
        [{"query_pre_attn_scalar": 16}, {"attn_logit_softcapping": None}, {"final_logit_softcapping": None},
         {"sliding_window": 25}, {"sliding_window": 512}, {"hidden_activation": "gelu"},
         {"layer_types": 2 * ["full_attention", "sliding_attention"]}]),
    "gemma3": (
        config("gemma3_text", "Gemma3ForCausalLM", GEMMA, rope_theta=1000000, rope_local_base_freq=10000,
               rope_scaling={"factor": 8.0, "rope_type": "linear"}, query_pre_attn_scalar=24,
               attn_logit_softcapping=None, final_logit_softcapping=None, sliding_window=24,
               sliding_window_pattern=3, num_hidden_layers=4, cache_implementation="hybrid"),
        [{"query_pre_attn_scalar": 16}, {"rope_scaling": None}, {"rope_local_base_freq": 1000000},
         {"rope_theta": 10000}, {"sliding_window": 25}, {"sliding_window_pattern": 2}]),
    "smollm3": (
        config("smollm3", "SmolLM3ForCausalLM", LLAMA, tie_word_embeddings=ABSENT, rope_theta=5000000.0,
               rms_norm_eps=1e-06, pretraining_tp=2, num_hidden_layers=4,
               no_rope_layers=[1, 1, 1, 0], no_rope_layer_interval=4, layer_types=4 * ["full_attention"],
               max_window_layers=28, use_sliding_window=False, sliding_window=None, pad_token_id=4, use_cache=False),
        [{"no_rope_layers": [1, 1, 1, 1]}, {"no_rope_layers": [0, 0, 0, 1]}, {"no_rope_layers": [1, 1, 0, 1]}]),
    "olmo": (
        config("olmo", "OlmoForCausalLM", OLMO, rms_norm_eps=ABSENT, rope_theta=10000.0,
               clip_qkv=1.5, num_key_value_heads=4),
        [{"clip_qkv": None}]),
    "olmo2": (config("olmo2", "Olmo2ForCausalLM", OLMO, use_cache=False), [{"rope_theta": 10000.0}]),
    "olmo3": (
        config("olmo3", "Olmo3ForCausalLM", OLMO, sliding_window=24, num_hidden_layers=4, use_cache=False,
               layer_types=3 * ["sliding_attention"] + ["full_attention"],
               rope_scaling={"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0,
                             "factor": 8.0, "original_max_position_embeddings": 64, "rope_type": "yarn"}),
        [{"rope_scaling": None}, {"sliding_window": 25}, {"layer_types": 2 * ["sliding_attention", "full_attention"]},
         {"layer_types": 4 * ["full_attention"]}]),
    "phi": (
        config("phi", "PhiForCausalLM", LAYER_NORM, num_key_value_heads=4, hidden_act="gelu_new", embd_pdrop=0.0,
               resid_pdrop=0.0, partial_rotary_factor=0.5, qk_layernorm=False, rope_scaling=None, rope_theta=10000.0),
        [{"partial_rotary_factor": 1.0}, {"hidden_act": "gelu"}]),
    "phi3": (
        config("phi3", "Phi3ForCausalLM", WITHOUT_BIASES, embd_pdrop=0.0, resid_pdrop=0.0, pad_token_id=2,
               original_max_position_embeddings=32,
               partial_rotary_factor=0.75, sliding_window=262144,
               rope_scaling={"long_factor": [1.0, 1.25, 2.5, 5.0, 9.0, 16.0],
                             "short_factor": [1.0, 1.0625, 1.125, 1.25, 1.5, 1.75], "type": "longrope"}),
        [{"original_max_position_embeddings": 512}, {"original_max_position_embeddings": 64}, {"sliding_window": 24}]),
    "gpt_neox": (
        config("gpt_neox", "GPTNeoXForCausalLM", LAYER_NORM, num_key_value_heads=ABSENT, hidden_act="gelu",
               rotary_emb_base=10000, rotary_pct=0.25, use_parallel_residual=True),
        [{"rotary_pct": 0.5}, {"rotary_emb_base": 1000}, {"use_parallel_residual": False}, {"hidden_act": "gelu_new"}]),
    "granite": (
        config("granite", "GraniteForCausalLM", WITHOUT_BIASES, mlp_bias=False, tie_word_embeddings=True,
               attention_multiplier=0.125, embedding_multiplier=3.0, logits_scaling=8.0, residual_multiplier=0.5),
        [{"attention_multiplier": 0.25}, {"embedding_multiplier": 1.0}, {"logits_scaling": 1.0},
         {"residual_multiplier": 1.0}]),
    "cohere": (
        config("cohere", "CohereForCausalLM", attention_bias=False, bos_token_id=5, eos_token_id=2, pad_token_id=0,
               hidden_act="silu", layer_norm_eps=1e-05, logit_scale=0.0625, rope_theta=10000.0, use_qk_norm=False),
        [{"logit_scale": 1.0}]),
    "cohere2": (
        config("cohere2", "Cohere2ForCausalLM", attention_bias=False, bos_token_id=5, eos_token_id=2, pad_token_id=0,
               head_dim=16, hidden_act="silu", layer_norm_eps=1e-05, logit_scale=0.25, rope_theta=50000,
               rope_scaling=None, sliding_window=24, num_hidden_layers=4, cache_implementation="hybrid",
               layer_types=3 * ["sliding_attention"] + ["full_attention"]),
        [{"sliding_window": 25}, {"layer_types": 4 * ["sliding_attention"]}]),
    "stablelm": (
        config("stablelm", "StableLmForCausalLM", LAYER_NORM, hidden_act="silu", hidden_dropout=0.0,
               partial_rotary_factor=0.25, qk_layernorm=False, rope_scaling=None, rope_theta=10000,
               use_parallel_residual=False, use_qkv_bias=True),
        [{"partial_rotary_factor": 0.5}, {"use_parallel_residual": True}]),
    "starcoder2": (
        config("starcoder2", "Starcoder2ForCausalLM", bos_token_id=0, eos_token_id=0, hidden_act="gelu_pytorch_tanh",
               embedding_dropout=0.0, residual_dropout=0.0, mlp_type="default", norm_type="layer_norm",
               norm_epsilon=1e-05, rope_theta=10000.0, sliding_window=24, use_bias=True),
        [{"sliding_window": 25}, {"sliding_window": None}, {"hidden_act": "gelu"}]),
    "glm4": (
        config("glm4", "Glm4ForCausalLM", attention_bias=True, eos_token_id=[1, 2, 3], pad_token_id=1, head_dim=16,
               hidden_act="silu", partial_rotary_factor=0.5, rms_norm_eps=1e-05, rope_theta=10000.0,
               tie_word_embeddings=False),
        [{"partial_rotary_factor": 1.0}, {"rope_theta": 1000.0}]),
}

# ------------------------------------------------------------------------------------------- what stands in


class Anything:
    """A name of the package that is imported, inherited from or subscripted, but never used here."""

    def __init_subclass__(cls, **keys):
        pass

    def __class_getitem__(cls, item):
        return cls


class Output(types.SimpleNamespace):
    def __getattr__(self, name):  # not passed
        return None


class Logger:
    def __getattr__(self, name):
        return lambda message, *rest, **keys: print("transformers:", message, file=sys.stderr)


class Config:
    """Replaces PreTrainedConfig."""

    def __init__(self, **keys):
        defaults = dict(tie_word_embeddings=True, pad_token_id=None, output_attentions=False,
                        output_hidden_states=False, _attn_implementation="eager")
        for key, value in {**defaults, **keys}.items():
            setattr(self, key, value)


class Model(torch.nn.Module):
    """Replaces PreTrainedModel."""

    def __init__(self, config):
        super().__init__()
        self.config = config

    def post_init(self):
        pass


def plain(function=None, *rest, **keys):
    """Replaces a decorator, with or without arguments."""
    return function if callable(function) else plain


def mask(visible):
    return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float64).min)[None, None]


def causal_mask(config, input_embeds, **keys):
    distance = torch.arange(input_embeds.shape[1])
    distance = distance[:, None] - distance[None, :]
    return mask(distance >= 0)


def sliding_mask(config, input_embeds, **keys):
    distance = torch.arange(input_embeds.shape[1])
    distance = distance[:, None] - distance[None, :]
    return mask((distance >= 0) & (distance < config.sliding_window))


def stand_in(name):
    if name in STAND_INS:
        return STAND_INS[name]
    if name.startswith("is_"):
        return lambda *rest: False
    if name.endswith(("Output", "OutputWithPast")):
        return Output
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (Anything,), {})


STAND_INS = {
    "ALL_ATTENTION_FUNCTIONS": {},
    "GradientCheckpointingLayer": torch.nn.Module,
    "PreTrainedConfig": Config,
    "PreTrainedModel": Model,
    "auto_docstring": plain,
    "can_return_tuple": plain,
    "check_model_inputs": plain,
    "create_causal_mask": causal_mask,
    "create_sliding_window_causal_mask": sliding_mask,
    "is_torch_available": lambda: True,
    "layer_type_validation": lambda *rest, **keys: None,
    "logging": types.SimpleNamespace(get_logger=lambda *rest: Logger()),
    "use_kernel_forward_from_hub": plain,
}


class Package(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports transformers: the files that are executed from their source, stand-ins for all others."""

    EXECUTED = re.compile(r"transformers\.(modeling_rope_utils|activations|models\.\w+\.(modeling|configuration)_\w+)")

    def __init__(self, source):
        self.source = pathlib.Path(source)

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "transformers":
            return importlib.util.spec_from_loader(name, self, is_package=not self.EXECUTED.fullmatch(name))

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        if not self.EXECUTED.fullmatch(module.__name__):
            module.__getattr__ = stand_in
            return
        file = self.source / (module.__name__.replace(".", "/") + ".py")
        text = re.sub(r"\btorch\.float(32)?\b", "torch.float64", file.read_text())
        text = re.sub(r"\.float\(\)", ".double()", text)
        exec(compile(text, str(file), "exec"), module.__dict__)


# ------------------------------------------------------------------------------------------------ the weights


def integers(name, count):
    """k of the values of a tensor."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    z = numpy.uint64(h) + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    z = z ^ (z >> numpy.uint64(31))
    return (z >> numpy.uint64(57)).astype(numpy.int64) - 64


def values(name, shape, norms_add_one):
    k = integers(name, int(numpy.prod(shape)))
    if len(shape) == 1 and "norm" in name and name.endswith(".weight") and not norms_add_one:
        numbers = 1 + (k >> 3) / 64
    elif len(shape) == 1:
        numbers = k / 512
    elif "embed" in name or "lm_head" in name:
        numbers = k / 64
    elif re.search(r"\.(q_proj|k_proj|v_proj|qkv_proj|query_key_value)\.", name):
        numbers = k / 256
    else:
        numbers = k / 512
    return torch.from_numpy(numbers.reshape(shape))


# ------------------------------------------------------------------------------------------------- the models


class Tiny:
    """A model of a config.json, with its weights."""

    def __init__(self, config):
        family = config["model_type"].removesuffix("_text")
        self.module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        head = getattr(self.module, config["architectures"][0])
        config_class = next(value for name, value in vars(self.module).items()
                            if name.endswith("Config") and getattr(value, "model_type", None) == config["model_type"])
        keys = {key: value for key, value in copy.deepcopy(config).items() if key != "model_type"}
        self.model = head(config_class(**keys)).eval()
        tensors = self.model.state_dict()
        if self.model.config.tie_word_embeddings:
            self.model.lm_head.weight = self.model.model.embed_tokens.weight
            del tensors["lm_head.weight"]
        for name, tensor in tensors.items():
            tensor.copy_(values(name, tensor.shape, family.startswith("gemma")))
        self.shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}

    def logits(self, left_out=None):
        """At POSITIONS. Queries and keys are not rotated in the rotation of that number."""
        tokens = torch.tensor([[(7919 * i + 31 * i * i) % 96 for i in range(TOKENS)]])
        rotation, self.rotations = self.module.apply_rotary_pos_emb, 0

        def all_but_one(q, k, *rest, **keys):
            self.rotations += 1
            return (q, k) if self.rotations - 1 == left_out else rotation(q, k, *rest, **keys)

        self.module.apply_rotary_pos_emb = all_but_one
        with torch.no_grad():
            out = self.model(input_ids=tokens, use_cache=False).logits[0]
        self.module.apply_rotary_pos_emb = rotation
        assert out.dtype == torch.float64 and out.shape == (TOKENS, 96) and bool(out.isfinite().all())
        return out[list(POSITIONS)]


def record(family):
    config = FAMILIES[family][0]
    tiny = Tiny(config)
    source = (f"huggingface/transformers, commit {COMMIT} ({VERSION}): "
              f"src/transformers/models/{tiny.module.__name__.split('.')[2]}, modeling_rope_utils.py, activations.py; "
              "in float64, with stand-ins for the rest of the package in tests/recorded/record_logits.py")
    rows = [json.dumps([float(f"{x:.12g}") for x in row.tolist()]) for row in tiny.logits()]
    head = {"source": source, "date": "2026-11-22", "config": config, "tensors": tiny.shapes, "positions": POSITIONS}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    lines.append('"logits": [\n' + ",\n".join(rows) + "\n]")
    (pathlib.Path(__file__).parent / "logits" / f"{family}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def show_bites(family):
    """The effect of a mistake on the last logits, in units of their standard deviation."""
    config, changes = FAMILIES[family]
    tiny = Tiny(config)
    right = tiny.logits()
    spread = right[-1].std().item()
    print(f"{family}: logits in [{right.min():.3g}, {right.max():.3g}], deviation {spread:.3g}")

    def show(what, wrong):
        print(f"    {(wrong - right)[-1].abs().max().item() / spread:10.6f}  {what}")

    for rotation in range(tiny.rotations):
        show(f"rotation {rotation} left out", tiny.logits(left_out=rotation))
    for change in changes:
        show(json.dumps(change), Tiny({**config, **change}).logits())


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("source", help="the folder src of huggingface/transformers")
parser.add_argument("--bites", action="store_true", help="show how far mistakes move the logits; writes nothing")
parser.add_argument("families", nargs="*", help="all, when none is named")
arguments = parser.parse_intermixed_args()
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
sys.meta_path.insert(0, Package(arguments.source))
for family in arguments.families or FAMILIES:
    (show_bites if arguments.bites else record)(family)
