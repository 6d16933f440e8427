"""rope from Python: ctypes and numpy, without a copy. Run: rope_c.py LIBRARY

As a program, compares rotation and attention with numpy in double.
"""

import ctypes
import sys

import numpy as np


class Heads(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p)] + [(name, ctypes.c_int64) for name in ("batch", "tokens", "heads", "head_dim")]


def heads(x, written=False):
    """A view of a float32 array [batch, tokens, heads, head_dim] in C order. The array must outlive the call."""
    if x.dtype != np.float32 or x.ndim != 4 or not x.flags.c_contiguous:
        raise ValueError(f"x must be float32, of rank 4 and C-contiguous, got {x.dtype}, {x.ndim} and {x.strides}")
    if written and not x.flags.writeable:
        raise ValueError("x must be writeable, because it is rotated in place, got a read-only array")
    return Heads(x.ctypes.data, *x.shape)


class Rope:
    """The functions of the shared library, for one table."""

    def __init__(self, library, rotary_dim, base, positions, layout="half_split"):
        self.c = ctypes.CDLL(library)
        self.c.rope_c_table_new.restype = ctypes.c_void_p
        self.c.rope_c_table_new.argtypes = [ctypes.c_int64, ctypes.c_double, ctypes.c_int64, ctypes.c_int64]
        self.c.rope_c_table_free.argtypes = [ctypes.c_void_p]
        for name in ("rope_c_rotate", "rope_c_unrotate"):
            getattr(self.c, name).argtypes = [Heads, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
        self.c.rope_c_attention.argtypes = [Heads] * 4
        self.c.rope_c_error.restype = ctypes.c_char_p
        self.layout = {"interleaved": 0, "half_split": 1}[layout]
        self.table = self.c.rope_c_table_new(rotary_dim, base, 0, positions)
        if not self.table:
            raise ValueError(self.c.rope_c_error().decode())

    def __del__(self):
        if getattr(self, "table", None):
            self.c.rope_c_table_free(self.table)

    def _call(self, function, *arguments):
        if function(*arguments):
            raise ValueError(self.c.rope_c_error().decode())

    def rotate(self, x, start=0):
        self._call(self.c.rope_c_rotate, heads(x, written=True), self.table, start, self.layout)

    def unrotate(self, x, start=0):
        self._call(self.c.rope_c_unrotate, heads(x, written=True), self.table, start, self.layout)

    def attention(self, q, k, v):
        out = np.empty(q.shape[:3] + v.shape[3:], np.float32)
        self._call(self.c.rope_c_attention, heads(q), heads(k), heads(v), heads(out))
        return out


def rotated(x, start, layout):
    """The rotation by its formula, in double."""
    pairs = x.shape[3] // 2
    angle = (start + np.arange(x.shape[1]))[:, None, None] * 10000.0 ** (-np.arange(pairs) / pairs)
    x = x.astype(np.float64)
    first = np.s_[..., 0::2] if layout == "interleaved" else np.s_[..., :pairs]
    second = np.s_[..., 1::2] if layout == "interleaved" else np.s_[..., pairs:]
    y = np.empty_like(x)
    y[first] = x[first] * np.cos(angle) - x[second] * np.sin(angle)
    y[second] = x[second] * np.cos(angle) + x[first] * np.sin(angle)
    return y


def attended(q, k, v):
    group = q.shape[2] // k.shape[2]
    scores = np.einsum("bihd,bjhd->bhij", q, np.repeat(k, group, 2)) / np.sqrt(q.shape[3])
    hidden = np.arange(k.shape[1]) > np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
    weights = np.exp(np.where(hidden, -np.inf, scores))
    return np.einsum("bhij,bjhd->bihd", weights / weights.sum(3, keepdims=True), np.repeat(v, group, 2))


def main(library):
    random = np.random.default_rng(1)
    for layout in ("half_split", "interleaved"):
        rope = Rope(library, rotary_dim=64, base=10000.0, positions=4096, layout=layout)
        q = random.uniform(-1, 1, (2, 12, 4, 64)).astype(np.float32)
        k = random.uniform(-1, 1, (2, 12, 2, 64)).astype(np.float32)
        v = random.uniform(-1, 1, (2, 12, 2, 64)).astype(np.float32)
        q0, k0 = q.copy(), k.copy()
        rope.rotate(q, start=7)
        rope.rotate(k, start=7)
        out = rope.attention(q, k, v)

        # 2.75 and 140 units of rounding of float: tests/README.md, and scores of 64 products.
        unit = 2.0 ** -24
        assert np.abs(q - rotated(q0, 7, layout)).max() <= 2.75 * unit * np.sqrt(2), layout
        assert np.abs(out - attended(rotated(q0, 0, layout), rotated(k0, 0, layout), v)).max() <= 140 * unit, layout
        rope.unrotate(q, start=7)
        assert np.abs(q - q0).max() <= 8 * unit, layout
        try:
            rope.rotate(q, start=4090)
        except ValueError as failed:
            assert "4101" in str(failed), failed
        else:
            raise AssertionError("a position beyond the table was not rejected")
        q.flags.writeable = False
        try:
            rope.rotate(q)
        except ValueError as failed:
            assert "read-only" in str(failed), failed
        else:
            raise AssertionError("a read-only array was rotated")
    print("rotation and attention from Python are those of numpy")


if __name__ == "__main__":
    main(sys.argv[1])
