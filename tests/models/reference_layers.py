#!/usr/bin/env python3
"""Writes ../recorded/models/transformers_layers.json: the arguments of attention in the layers of Hugging Face transformers.

    python3 tests/models/reference_layers.py SOURCE [model_type ...]    prints the records of the named classes

SOURCE is the folder src of huggingface/transformers; it needs PyTorch (1.13 is enough), and nothing else of the package. The configuration
and modeling files of each class of text run unchanged, in float64. This file has replacements for the rest of the package.
Projections return alternating +1 and -1 for any input: a norm does not change such heads, a rotation does not change their length,
and a factor of queries or keys shows in it. Modules other than rotation and attention (experts, recurrent layers) return their input.
For each call of attention the script stores the arguments: scale, softcap, window of the mask, sinks, whether queries were rotated
before, and how they grow with their position. For each rotation it stores the first two and the last frequencies, their sum, and the
attention factor.

Each class runs with the file that it writes (transformers_classes.json, with at most LAYERS layers), with schedules (SCHEDULES), and
with the probes of probes.json that PROBES names. For a probe only the classes are stored whose records differ from those without the
keys of the probe. The names of the others are in "as_before". laws/reference_layers.test.cpp imports these files and compares.
"""
import contextlib
import copy
import dataclasses
import importlib
import importlib.abc
import importlib.util
import inspect
import json
import math
import os
import pathlib
import re
import sys
import types

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from reference_records import plain as plain_architecture  # noqa: E402

COMMIT = "commit c49429ed1f of 2026-08-16, 5.16.0.dev0"  # the source of the recorded file
RECORDED = "2026-11-25"
RECORDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../recorded/models")
POSITIONS = (0, 4095, 70000)
LAYERS = 12
PROBES = (
    "window", "no window", "window from a layer on", "types of layers", "types of layers without a window",
    "types of layers that slide if asked", "type of the only layer", "scaled rule", "rope_theta",
    "yarn without original_max_position_embeddings", "llama_4_scaling_beta", "query_pre_attn_scalar", "attention_multiplier",
    "key_multiplier", "qk_scale_factor", "attn_logit_softcapping", "attn_temperature_tuning", "attn_scale", "no_rope_layers",
    "no_rope_layer_interval", "layer_rope_theta", "use_bidirectional_attention", "sliding_window_pattern", "full_attention_interval",
    "first_k_dense_replace", "local_attention", "rotary_pct", "rotary_emb_base", "kv_channels", "attention_head_dim",
    "local_rope_theta", "global_rope_theta", "compress_rope_theta")
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 4096}
BASE = {"hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 2, "max_position_embeddings": 8192}
LATENT = {**BASE, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 128, "q_lora_rank": 128}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1 + i / 64 for i in range(64)],
        "long_factor": [1 + i / 4 for i in range(64)]}
SCHEDULES = [
    {**BASE, "model_type": "llama", "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    {**BASE, "model_type": "llama", "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
    {**BASE, "model_type": "llama", "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor":
                                                        1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 2048}},
    {**BASE, "model_type": "llama", "rope_parameters": YARN},
    {**BASE, "model_type": "llama", "rope_parameters": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.25}},
    {**BASE, "model_type": "llama", "rope_parameters": {**YARN, "truncate": False}},
    {**BASE, "model_type": "llama", "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.5}},
    {**BASE, "model_type": "llama", "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}},
    {**BASE, "model_type": "phi3", "original_max_position_embeddings": 4096, "max_position_embeddings": 131072,
     "rope_parameters": LONG},
    {**BASE, "model_type": "phimoe", "original_max_position_embeddings": 4096, "max_position_embeddings": 131072,
     "rope_parameters": {**LONG, "short_mscale": 1.25, "long_mscale": 1.5, "original_max_position_embeddings": 4096}},
    {**BASE, "model_type": "qwen2", "rope_parameters": {**YARN, "factor": 4.0, "rope_theta": 1000000.0}},
    {**BASE, "model_type": "qwen3", "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
     "rope_theta": 1000000.0},
    {**BASE, "model_type": "hunyuan_v1_dense", "head_dim": 128, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0,
                                                                                   "alpha": 1000.0, "factor": 1.0}},
    {**BASE, "model_type": "gpt_oss", "rope_parameters": {**YARN, "rope_theta": 150000.0, "factor": 32.0, "truncate": False}},
    {**LATENT, "model_type": "deepseek_v2", "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}},
    {**LATENT, "model_type": "deepseek_v3", "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    {**LATENT, "model_type": "deepseek_v3", "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
    {**LATENT, "model_type": "mistral4", "head_dim": 192, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0,
                                                                             "llama_4_scaling_beta": 0.1}},
    {**LATENT, "model_type": "glm4_moe_lite"}, {**LATENT, "model_type": "youtu"}, {**LATENT, "model_type": "axk1"},
    {**LATENT, "model_type": "minicpm3"}, {**LATENT, "model_type": "longcat_flash"},
    {**BASE, "model_type": "olmo3", "num_hidden_layers": 4, "rope_theta": 500000.0, "rope_scaling": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192, "attention_factor": 1.2079441541679836}},
    {**BASE, "model_type": "gemma3_text", "num_hidden_layers": 6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
     "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "query_pre_attn_scalar": 168},
    {**BASE, "model_type": "granitemoehybrid", "num_hidden_layers": 4, "position_embedding_type": "rope", "num_key_value_heads": 8,
     "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"], "attention_multiplier": 0.015625},
]

# ------------------------------------------------------------------------------------------- what stands in


class Anything:
    """A name of the package that is imported, inherited from, called or subscripted, but decides nothing here."""

    def __init__(self, *rest, **keys):
        pass

    def __init_subclass__(cls, **keys):
        pass

    def __class_getitem__(cls, item):
        return cls


class AnyKind(type):
    def __or__(cls, other):
        return cls

    __ror__ = __or__


class Output(types.SimpleNamespace):
    def __getattr__(self, name):  # what was not given
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Nothing:
    """Whose functions do nothing: a logger, or what fills weights."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *rest, **keys: None


class Mask:
    """The keys visible to a layer; every operation returns it unchanged."""

    shape = (1, 1, 1, 1)

    def __init__(self, kind, reach):
        self.kind, self.reach = kind, reach

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *rest, **keys: self

    def __getitem__(self, item):
        return self

    def __radd__(self, other):  # by a class that adds it to the scores itself
        if Calls.seen and Calls.seen[-1][3] is None:
            Calls.seen[-1] = (*Calls.seen[-1][:3], self, *Calls.seen[-1][4:])
        return other

    __add__ = __mul__ = __rmul__ = __radd__


def mask_maker(kind, key=None):
    def make(config=None, *rest, **keys):
        both = keys.get("or_mask_function") is not None or getattr(config, "is_causal", True) is False
        both = both and kind not in ("both", "sides")
        if keys.get("and_mask_function") is not None:  # a function about which nothing else is known
            return Mask("other", None)
        return Mask(("both_" if both else "") + kind, getattr(config, key) if key else None)
    return make


class Model(torch.nn.Module):
    """Replaces PreTrainedModel."""

    dtype, device, is_gradient_checkpointing = torch.float64, torch.device("cpu"), False

    def __init__(self, config, *rest, **keys):
        super().__init__()
        self.config = config

    def __init_subclass__(cls, **keys):
        pass

    @classmethod
    def _from_config(cls, config, **keys):
        return cls(config)

    def post_init(self):
        pass

    warn_if_padding_and_no_attention_mask = get_input_embeddings = post_init


class Layer(torch.nn.Module):
    """Replaces GradientCheckpointingLayer."""
    gradient_checkpointing = False


def signs(*shape):
    """+1 and -1 alternating along the last axis."""
    return (1.0 - 2.0 * (torch.arange(shape[-1]) % 2)).double().expand(*shape).clone()


class Linear(torch.nn.Module):
    def __init__(self, in_features, out_features, bias=True, **keys):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = torch.zeros(1, 1).expand(out_features, in_features)
        self.bias = torch.zeros(1).expand(out_features) if bias else None

    def forward(self, x, *rest, **keys):
        return signs(*x.shape[:-1], self.out_features)


class Embedding(torch.nn.Module):
    def __init__(self, count, width, padding_idx=None, **keys):
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.padding_idx = count, width, padding_idx
        self.weight = torch.zeros(1, 1).expand(count, width)

    def forward(self, ids):
        return signs(*ids.shape, self.embedding_dim)


class Itself(torch.nn.Module):
    """Returns its argument: a norm of signs, an activation."""
    weight, bias = torch.ones(1), torch.zeros(1)
    normalized_shape, eps = (), 1e-6

    def __init__(self, *rest, **keys):
        super().__init__()

    def forward(self, x=None, *rest, **keys):
        return x if x is not None else next(iter(keys.values()), None)


class Through(torch.nn.Module):
    """Replaces everything except rotation and attention; returns a pair if `pair`, or if it is None as its own forward does."""

    def __init__(self, pair, replaced):
        super().__init__()
        if pair is None:
            last = re.findall(r"^ +return (.*)", inspect.getsource(type(replaced).forward), re.M)
            pair = bool(last) and "," in re.sub(r"\([^()]*\)", "", last[-1])
        self.pair = pair

    def forward(self, x=None, *rest, **keys):
        x = x if isinstance(x, torch.Tensor) else next(one for one in (*rest, *keys.values()) if isinstance(one, torch.Tensor))
        return (x, None) if self.pair else x


class Activations(dict):
    def __missing__(self, name):
        return Itself()


class Cache:
    """Of no token; keeps none."""

    def __init__(self, *rest, **keys):
        pass

    def update(self, keys, values, *rest, **more):
        return keys, values

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *rest, **keys: 0


class Configurations:
    """Replaces CONFIG_MAPPING."""

    def __getitem__(self, model_type):
        return configuration_class(model_type)

    def __contains__(self, model_type):
        return model_type in CLASSES


class Auto:
    """Replaces AutoModel: parts of a model other than text."""

    @staticmethod
    def from_config(*rest, **keys):
        return Itself()

    from_pretrained = from_config

    @staticmethod
    def for_model(*rest, **keys):  # the configuration of a codec
        return types.SimpleNamespace(frame_size=1920, codebook_size=2048)


class Calls:
    """The arguments of attention, in order."""
    seen, rotated = [], 0

    @classmethod
    def attention(cls, module, query, key, value, attention_mask=None, *rest, **keys):
        cls.seen.append((module, query, key, attention_mask, cls.rotated > 0, keys))
        cls.rotated = 0
        batch, heads, tokens, _ = query.shape
        return torch.zeros(batch, tokens, heads, value.shape[-1]), None

    @classmethod
    def of_torch(cls, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **keys):
        mask = Mask("causal", None) if is_causal and attn_mask is None else attn_mask
        return cls.attention(None, query, key, value, mask, scaling=scale)[0].transpose(1, 2)

    @classmethod
    def scores(cls, given, query, key, beta=1.0, alpha=1.0):
        """The scores of one sentence, heads along the first axis; replaces torch.baddbmm."""
        cls.attention(None, query[None], key[None].transpose(-1, -2), query[None], scaling=alpha)
        return given


class AttentionFunctions(dict):
    def get_interface(self, *rest, **keys):
        return Calls.attention

    def __missing__(self, name):
        return Calls.attention


def plain(function=None, *rest, **keys):
    """Replaces a decorator, with or without arguments."""
    return function if callable(function) else plain


def field(*rest, **keys):
    """Replaces interval(min=, max=)(default=)."""
    return lambda **more: dataclasses.field(**more)


STAND_INS = {
    "ACT2CLS": Activations(), "ACT2FN": Activations(), "ALL_ATTENTION_FUNCTIONS": AttentionFunctions(),
    "AttentionInterface": AttentionFunctions, "AutoConfig": Auto, "AutoModel": Auto, "AutoModelForCausalLM": Auto,
    "CONFIG_MAPPING": Configurations(), "CONFIG_MAPPING_NAMES": {}, "GradientCheckpointingLayer": Layer, "PreTrainedModel": Model,
    "GenerationConfig": type("GenerationConfig", (), {"_get_default_generation_params": staticmethod(dict)}),
    "PushToHubMixin": type("PushToHubMixin", (), {"push_to_hub": plain}),
    "copy_func": lambda function: types.FunctionType(function.__code__, function.__globals__),
    "create_bidirectional_mask": mask_maker("both"),
    "create_bidirectional_sliding_window_mask": mask_maker("sides", "sliding_window"),
    "create_causal_mask": mask_maker("causal"), "create_recurrent_attention_mask": lambda *rest, **keys: None,
    "DynamicCache": Cache,
    "split_attention_implementation": lambda name: (None, name),
    "create_chunked_causal_mask": mask_maker("chunked", "attention_chunk_size"),
    "create_sliding_window_causal_mask": mask_maker("sliding", "sliding_window"),
    "dataclass_transform": lambda **keys: (lambda cls: cls),
    "initialization": Nothing(), "interval": field, "is_torch_available": lambda: True,
    "logging": types.SimpleNamespace(get_logger=lambda *rest: Nothing()),
    "maybe_autocast": lambda *rest, **keys: contextlib.nullcontext(),
    "strict": lambda function=None, **keys: function if function is not None else (lambda cls: cls),
    "use_kernelized_func": lambda *rest, **keys: (lambda cls: cls),
}


def stand_in(name):
    if name in STAND_INS:
        return STAND_INS[name]
    if name.startswith("__"):
        raise AttributeError(name)
    if name.startswith("is_"):
        return lambda *rest, **keys: False
    if name.endswith("Output") or "OutputWith" in name:
        return Output
    return plain if name[0].islower() or name[0] == "_" else AnyKind(name, (Anything,), {})


class Package(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports transformers: the files that are executed from their source, stand-ins for all others."""

    EXECUTED = re.compile(r"transformers\.(modeling_rope_utils|configuration_utils|integrations\.heterogeneity\.configuration_utils|"
                          r"models\.(?!auto\.)\w+\.(modeling|configuration)_\w+)")
    OTHERS = ("huggingface_hub", "safetensors", "tokenizers", "typing_extensions", "packaging")

    def __init__(self, source):
        self.source = pathlib.Path(source)

    def find_spec(self, name, path=None, target=None):
        root = name.split(".")[0]
        if root == "transformers" or root in self.OTHERS:
            return importlib.util.spec_from_loader(name, self, is_package=not self.EXECUTED.fullmatch(name))

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__name__
        if not self.EXECUTED.fullmatch(name):
            if name == "transformers.integrations.heterogeneity":
                module.HeterogeneousConfigMixin = importlib.import_module(name + ".configuration_utils").HeterogeneousConfigMixin
            if name == "transformers":
                module.__version__ = "0"
            module.__getattr__ = stand_in
            return
        file = self.source / (name.replace(".", "/") + ".py")
        text = re.sub(r"\btorch\.float(32)?\b", "torch.float64", file.read_text())
        text = re.sub(r"\.float\(\)", ".double()", text)
        module.BlockMask = Anything
        exec(compile(text, str(file), "exec"), module.__dict__)
        for key, value in list(vars(module).items()):
            if inspect.isfunction(value) and re.search(r"apply\w*rotary|rotary_pos_emb", key):
                setattr(module, key, counted(value))


def counted(function):
    def counting(*rest, **keys):
        Calls.rotated += 1
        return function(*rest, **keys)
    return counting


def prepare(source):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.nn.Linear, torch.nn.Embedding = Linear, Embedding
    torch.nn.LayerNorm = torch.nn.RMSNorm = torch.nn.MultiheadAttention = Itself
    torch.nn.functional.layer_norm = lambda x, *rest, **keys: x
    torch.nn.functional.scaled_dot_product_attention, torch.baddbmm = Calls.of_torch, Calls.scores
    concatenated = torch.cat
    torch.cat = lambda parts, *rest, **keys: parts[0] if isinstance(parts[0], Mask) else concatenated(parts, *rest, **keys)
    torch.empty = torch.zeros  # otherwise uninitialised memory
    torch.nn.Buffer = lambda tensor, persistent=True: tensor
    register = torch.nn.Module.register_buffer

    def again(module, name, tensor, persistent=True):  # a buffer may be set as an attribute before
        vars(module).pop(name, None)
        register(module, name, tensor, persistent)
    torch.nn.Module.register_buffer = again
    torch.compile = plain
    torch.compiler = types.SimpleNamespace(is_compiling=lambda: False, disable=plain)
    for name in dir(torch.nn.init):
        if name.endswith("_") and not name.startswith("_"):
            setattr(torch.nn.init, name, lambda tensor, *rest, **keys: tensor)
    for name in ("empty", "zeros", "ones", "randn", "rand"):  # weights of many experts take no memory
        def small(*shape, real=getattr(torch, name), **keys):
            sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
            if all(isinstance(size, int) for size in sizes) and math.prod(sizes) > 1 << 15:
                return real(*[1] * len(sizes), **keys).expand(*sizes)
            return real(*shape, **keys)
        setattr(torch, name, small)
    sys.meta_path.insert(0, Package(source))


# ------------------------------------------------------------------------------------------------ the classes

OTHER_PARTS = re.compile(r"(MLP|Mlp|MoE|Moe|SparseMoeBlock|MoeBlock|MoEBlock|Experts?|FeedForward|FFN|FeedForwardBlock|Mixer2?|DeltaNet|"
                         r"ShortConv|MambaLayer|RecurrentBlock|LightningAttention|Router|Gate|SharedExpert\w*)$")
OTHER_MODELS = {  # {model_type: its models, if no annotation names them}
    "nomic_bert": ["NomicBertModel"], "deepseek_ocr2_encoder": ["DeepseekOcr2VisionEncoder"],
    "t5_gemma_module": ["T5GemmaDecoder"]}
WORKED = {}  # {model_type: how its model was called}
CLASSES = {}  # {model_type: (folder, name of the configuration class)}


def find_classes(source):
    for folder in sorted(os.listdir(f"{source}/transformers/models")):
        file = f"{source}/transformers/models/{folder}/configuration_{folder}.py"
        if os.path.exists(file):
            with open(file) as opened:
                for name, body in re.findall(r"^class (\w+)\(.*?\):\n(.*?)(?=^\S|\Z)", opened.read(), re.S | re.M):
                    kind = re.search(r'^    model_type = "([^"]*)"', body, re.M)
                    if kind:
                        CLASSES.setdefault(kind.group(1), (folder, name))


def configuration_class(model_type):
    folder, name = CLASSES[model_type]
    return getattr(importlib.import_module(f"transformers.models.{folder}.configuration_{folder}"), name)


def models_of(model_type):
    """The classes of models with that configuration, the smallest part first."""
    folder, config_name = CLASSES[model_type]
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    found = []
    for name, value in vars(module).items():
        if not (inspect.isclass(value) and issubclass(value, Model)) or name.endswith("PreTrainedModel") or value is Model:
            continue
        wanted = inspect.signature(value.__init__).parameters.get("config")
        wanted = wanted.annotation if wanted is not None else None
        if wanted in (None, inspect.Parameter.empty):
            wanted = next((vars(base)["__annotations__"]["config"] for base in value.__mro__
                           if "config" in vars(base).get("__annotations__", {})), None)
        if getattr(wanted, "__name__", wanted) == config_name:
            found.append((not name.endswith(("Model", "Decoder", "Encoder")), len(name), name, value))
    found = found or [(0, 0, "", getattr(module, name)) for name in OTHER_MODELS.get(model_type, ())]
    return [one[-1] for one in sorted(found, key=lambda one: one[:3])]


def shortened(keys):
    """The file with at most LAYERS layers, and lists with one value per layer shortened to them."""
    count = keys.get("num_hidden_layers")
    if not isinstance(count, int) or count <= LAYERS or keys.get("per_layer_config"):
        return keys
    return {**{key: value[:LAYERS] if isinstance(value, list) and len(value) == count else value
               for key, value in keys.items()}, "num_hidden_layers": LAYERS}


def additions(keys):
    """Arguments that some classes require; {} first."""
    yield {}
    heads, width = keys.get("num_attention_heads"), keys.get("hidden_size")
    count = keys.get("num_hidden_layers")
    more = {"n_routed_experts": 8, "dropout_rate": 0.0, "num_key_value_heads": heads, "n_shared_experts": 1, "num_experts": 4,
            "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
            "cross_attention_hidden_size": width}
    if keys["model_type"] == "bamba":
        more["attn_layer_indices"] = [1, 3]
    if keys["model_type"] == "lfm2_moe":
        more["layer_types"] = ["conv", "full_attention"] * (count // 2)
    if keys["model_type"] == "granitemoehybrid":
        more["layer_types"] = ["linear_attention", "full_attention"] * (count // 2)
    if keys["model_type"] == "deepseek_ocr2_text":
        more["mlp_layer_types"] = ["dense"] * count
    if keys["model_type"] == "chameleon":
        more["vocabulary_map"] = {"<image>": 8711}
    if keys["model_type"] == "dbrx":
        more["attn_config"] = {**keys["attn_config"], "rope_theta": 10000.0, "clip_qkv": 8.0}
    more = {key: value for key, value in more.items()
            if value is not None and (keys.get(key) is None or key in ("attn_config", "layer_types"))}
    yield more
    if not heads or not width:
        return
    if not keys.get("head_dim"):
        yield {**more, "head_dim": width // heads}
        yield {**more, "head_dim": 128}
    rope = keys.get("rope_parameters")
    if rope and "rope_theta" in rope:
        half = int((keys.get("head_dim") or width // heads) * rope.get("partial_rotary_factor", 1.0)) // 2
        third = half // 3
        sections = {"rope_parameters": {**rope, "mrope_section": [half - 2 * third, third, third]}}
        yield sections
        yield {**more, **sections} if keys.get("head_dim") else {**more, **sections, "head_dim": width // heads}


def answers(keys):
    """({keys that were added}, the arguments of attention in the layers of that file)"""
    problems = []
    ways = [(embedded, pair, "eager", which) for which in (0, 1) for embedded in (True, False) for pair in (None, False, True)]
    ways += [(embedded, None, "sdpa", 0) for embedded in (True, False)]
    for more in additions(keys):
        for positions in (POSITIONS, (0, 5, 9)):
            for way in WORKED.get(keys["model_type"], ways):
                try:
                    found = answers_of({**keys, **more}, positions, *way)
                    WORKED[keys["model_type"]] = [way]
                    return more, found
                except Exception as error:
                    problems.append(f"{type(error).__name__}: {str(error)[:120]}")
    raise RuntimeError(max(set(problems), key=problems.count))


def answers_of(keys, positions, embedded, pair, implementation, which):
    keys = copy.deepcopy(keys)
    model_type = keys.pop("model_type")
    keys = {key: [float(one) for one in value] if isinstance(value, list) and "inf" in value else value for key, value in keys.items()}
    config = configuration_class(model_type)(**keys)
    config._attn_implementation = config._attn_implementation_internal = implementation
    models = models_of(model_type)
    if which >= len(models):
        raise RuntimeError("no class of models has this configuration")
    model = models[which](config).eval()
    for parent in list(model.modules()):
        if isinstance(parent, Linear):  # also where a class multiplies by the weights itself
            parent.forward = types.MethodType(Linear.forward, parent)
        for name, child in list(parent.named_children()):
            if OTHER_PARTS.search(type(child).__name__):
                setattr(parent, name, Through(pair, child))
        if hasattr(parent, "prepare_dynamic_mask"):  # of values, in addition to the mask
            parent.prepare_dynamic_mask = lambda *rest, **keys: next(one for one in (*rest, *keys.values()) if isinstance(one, Mask))
    tables = tables_of(model)
    layers = sum(1 for one in model.modules() if type(one).__name__.endswith("Attention") and hasattr(one, "layer_idx"))
    ids, hidden = torch.zeros(1, len(positions), dtype=torch.long), signs(1, len(positions), config.hidden_size)
    given = {"position_ids": torch.tensor([positions])}
    given.update({"inputs_embeds": hidden} if embedded else {"input_ids": ids, "hidden_states": hidden})
    given.update({"encoder_hidden_states": hidden, "patch_embeds": hidden, "patch_ids": ids, "num_patches": 1,
                  "t_cond": hidden[0, :1]})
    if model_type == "dia_decoder":
        given["input_ids"] = torch.zeros(1, len(positions), config.num_channels, dtype=torch.long)
    allowed = {*inspect.signature(model.forward).parameters, *(["t_cond"] if model_type == "voxtral_realtime_text" else [])}
    Calls.seen, Calls.rotated = [], 0
    try:
        with torch.no_grad():
            model(**{key: value for key, value in given.items() if key in allowed}, use_cache=False)
    except Exception:
        if len(Calls.seen) != layers or layers == 0:  # otherwise the failure comes after the layers
            raise
    if not Calls.seen:
        raise RuntimeError("attention is not called")
    return summary(Calls.seen, tables, positions)


def tables_of(model):
    """{layer type: (inv_freq, attention factor)}; "" if there is one for all."""
    found = {}
    for module in model.modules():
        for name, value in [*vars(module).items(), *module.named_buffers(recurse=False)]:
            if name.endswith("inv_freq") and "original" not in name and isinstance(value, torch.Tensor):
                kind = name[:-len("inv_freq")].rstrip("_")
                m = getattr(module, f"{kind}_attention_scaling" if kind else "attention_scaling", 1.0)
                if value.dim() == 2:  # a row for each axis, with all pairs, or with its own pairs and 0 for the others
                    value = value[0] if bool((value == value[:1]).all()) else value.sum(0)
                found.setdefault(kind, []).append((value.double().tolist(), float(m)))
    return {kind: each[0] for kind, each in found.items() if all(one == each[0] for one in each)}


def rounded(x):
    return float(f"{float(x):.5g}")


def summary(seen, tables, positions):
    """Without the common answers: see `common` in laws/reference_layers.test.cpp."""
    rows = {}
    for number, (module, query, key, mask, rotated, keys) in enumerate(one for one in seen if "Cross" not in type(one[0]).__name__):
        layer = getattr(module, "layer_idx", None)
        layer = number if layer is None else layer
        if layer in rows:  # a second call of the same layer
            continue
        q, k = (x[0].pow(2).mean(-1).sqrt()[0] for x in (query, key))
        rows[layer] = {
            "mask": mask.kind if isinstance(mask, Mask) else "none", "window": (mask.reach if isinstance(mask, Mask) else None) or 0,
            "turns": rotated, "scale": keys.get("scaling"), "softcap": keys.get("softcap") or 0, "sinks": keys.get("s_aux") is not None,
            "head_dim": query.shape[-1], "q": rounded(q[0]), "k": rounded(k[0]), "grows": [rounded(x / q[0]) if q[0] > 0 else 1.0 for x in q[1:]]}
    common = {"mask": "causal", "window": 0, "turns": True, "softcap": 0, "sinks": False, "q": 1.0, "k": 1.0,
              "grows": [1.0] * (len(positions) - 1)}
    found = {"layers": list(rows)}
    for name in next(iter(rows.values())):
        values = [row[name] for row in rows.values()]
        if any(value != common.get(name) for value in values):
            found[name] = values[0] if all(value == values[0] for value in values) and name != "grows" else values
    if positions != POSITIONS:
        found["positions"] = list(positions[1:])
    found["tables"] = {kind: {"inv_freq": freqs[:2] + freqs[-1:], "pairs": len(freqs), "sum": sum(freqs), "m": m}
                       for kind, (freqs, m) in tables.items()}
    return found


# ------------------------------------------------------------------------------------------------ the questions


def merged(a, b):
    """The JSON merge patch `b` of `a`."""
    a = copy.deepcopy(a)
    for key, value in b.items():
        if value is None:
            a.pop(key, None)
        elif isinstance(value, dict):
            a[key] = merged(a.get(key) if isinstance(a.get(key), dict) else {}, value)
        else:
            a[key] = copy.deepcopy(value)
    return a


def asked(keys):
    """A record, or None and the reason."""
    try:
        more, found = answers(keys)
        json.dumps(found, allow_nan=False)  # raises where a number is not finite
    except Exception as error:
        return None, f"{keys['model_type']}: {error}"
    return {"config": {**keys, **more}, "found": found}, None


def probe_records(probe, of_format, model_types):
    """The classes whose answers the keys of a probe change, and the names of the others."""
    changed, same = [], []
    for name, model_type in sorted(model_types.items()):
        before = {**merged(merged(of_format["base"], of_format["needs"].get(name, {})), probe.get("with", {})), "model_type": model_type}
        before = merged(before, probe.get("with_of", {}).get(name, {}))
        after = {**merged(before, probe.get("add", {})), **dict.fromkeys(probe.get("null", []))}
        record, _ = asked(after)
        if record is None:
            continue
        first, _ = asked(before)
        if first is not None and first["found"] == record["found"]:
            same.append(model_type)
        else:
            changed.append(record)
    return {"probe": probe["name"], "as_before": same, "records": changed}


def dumped(records, indent):
    return ",\n".join(indent + json.dumps(one, allow_nan=False) for one in records)


def main():
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    prepare(sys.argv[1])
    find_classes(sys.argv[1])
    with open(f"{RECORDS}/transformers_classes.json") as file:
        written = [shortened(one["config"]) for one in json.load(file)["records"] if one["kind"] == "text"]
    if len(sys.argv) > 2:
        for keys in written + SCHEDULES:
            if keys["model_type"] in sys.argv[2:]:
                record, reason = asked(keys)
                print(json.dumps(record) if record else reason)
        return 0
    records, failed = [], []
    for keys in written + SCHEDULES:
        record, reason = asked(keys)
        records.append(record) if record else failed.append(reason)
    with open(f"{RECORDS}/probes.json") as file:
        of_format = json.load(file)["hugging_face"]
    model_types = {plain_architecture(one["config"]["model_type"]): one["config"]["model_type"] for one in records}
    probes = [probe_records(probe, of_format, model_types) for probe in of_format["probes"] if probe["name"] in PROBES]
    with open(f"{RECORDS}/transformers_layers.json", "w") as file:
        file.write('{\n  "source": "Hugging Face transformers, %s: configuration and modeling classes run in float64 by '
                   'reference_layers.py",\n  "date": "%s",\n' % (COMMIT, RECORDED))
        file.write('  "records": [\n' + dumped(records, "    ") + "\n  ],\n  \"probes\": [\n")
        for number, one in enumerate(probes):
            file.write('    {"probe": %s, "as_before": %s, "records": [\n' % (json.dumps(one["probe"]), json.dumps(one["as_before"])))
            file.write(dumped(one["records"], "      ") + ("\n    ]},\n" if number + 1 < len(probes) else "\n    ]}\n"))
        file.write("  ]\n}\n")
    print(f"{len(records)} files of {len(model_types)} classes and {sum(len(one['records']) for one in probes)} probes recorded; "
          f"{len(failed)} did not run")
    for reason in failed:
        print("not run:", reason)
    return 0


if __name__ == "__main__":
    sys.exit(main())
