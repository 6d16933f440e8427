#!/usr/bin/env python3
"""Records what LlamaAttention of Hugging Face transformers makes of the vectors of demo.cpp, for demo.cpp to compare with.

    python3 examples/record_attention.py > examples/recorded_attention.hpp

Needs PyTorch and a transformers of 2024 whose attention modules own their rotary embedding. The numbers checked in were
made by LlamaRotaryEmbedding and LlamaAttention of commit 002272831fba584eb30dca9729c1be456836960a, taken out of the
package, on PyTorch 1.13 in float64; their angles and their softmax are float32 all the same.
"""
import pathlib
import types

import numpy
import torch
from transformers.models.llama.modeling_llama import LlamaAttention

HEADS, KV_HEADS, HEAD_DIM, BASE = 32, 8, 128, 500000.0
TOKENS = 1024
RECORDED_TOKENS, RECORDED_CHANNELS = (0, 1, 100, 1023), (0, 63, 64, 127)


def embed(text, heads, seed):
    """embed() of demo.cpp: a vector of uniform values in [-1, 1) per byte, from the Mersenne twister of that seed."""
    bits = numpy.frombuffer(numpy.random.RandomState(seed).bytes(4 * 256 * heads * HEAD_DIM), dtype="<i4")
    dictionary = bits.astype(numpy.float32) * numpy.float32(2.0**-31)
    return dictionary.reshape(256, heads * HEAD_DIM)[list(text)].astype(numpy.float64)


class Columns(torch.nn.Module):
    """In the place of a projection: q, k and v stand side by side in the hidden states."""

    def __init__(self, first, count):
        super().__init__()
        self.first, self.count = first, count

    def forward(self, hidden):
        return hidden[..., self.first : self.first + self.count]


text = (pathlib.Path(__file__).parent / "alice.txt").read_bytes()[:TOKENS]
hidden = numpy.concatenate([embed(text, HEADS, 1), embed(text, KV_HEADS, 2), embed(text, KV_HEADS, 3)], axis=1)
config = types.SimpleNamespace(
    hidden_size=HEADS * HEAD_DIM, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, rope_theta=BASE,
    max_position_embeddings=8192, rope_scaling=None, attention_dropout=0.0, attention_bias=False, pretraining_tp=1)
attention = LlamaAttention(config, layer_idx=0).eval()
attention.q_proj = Columns(0, HEADS * HEAD_DIM)
attention.k_proj = Columns(HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM)
attention.v_proj = Columns((HEADS + KV_HEADS) * HEAD_DIM, KV_HEADS * HEAD_DIM)
attention.o_proj = torch.nn.Identity()
mask = torch.full((1, 1, TOKENS, TOKENS), float("-inf"), dtype=torch.float64).triu(1)
with torch.no_grad():
    out = attention(torch.from_numpy(hidden)[None], attention_mask=mask, position_ids=torch.arange(TOKENS)[None])[0]
out = out.reshape(TOKENS, HEADS, HEAD_DIM).numpy()

print(f"""// SPDX-License-Identifier: MIT
#ifndef ROPE_EXAMPLES_RECORDED_ATTENTION_HPP
#define ROPE_EXAMPLES_RECORDED_ATTENTION_HPP

/// Outputs of LlamaAttention of Hugging Face transformers for the vectors of demo.cpp, {HEADS} query heads and {KV_HEADS} key
/// heads of {HEAD_DIM} channels, base {BASE:g}. Written by record_attention.py, which says with which versions.

namespace recorded {{

inline constexpr int text_tokens = {TOKENS};  // of alice.txt that were attended to
inline constexpr int tokens[] = {{{", ".join(map(str, RECORDED_TOKENS))}}};
inline constexpr int channels[] = {{{", ".join(map(str, RECORDED_CHANNELS))}}};

/// [tokens, heads, channels]
inline constexpr double outputs[{len(RECORDED_TOKENS)}][{HEADS}][{len(RECORDED_CHANNELS)}] = {{""")
for token in RECORDED_TOKENS:
    print("    {")
    for head in range(HEADS):
        print("        {" + ", ".join(f"{out[token, head, c]:.9e}" for c in RECORDED_CHANNELS) + "},")
    print("    },")
print("""};

}  // namespace recorded

#endif  // ROPE_EXAMPLES_RECORDED_ATTENTION_HPP""")
