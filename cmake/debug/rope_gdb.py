# SPDX-License-Identifier: MIT
"""Pretty-printers of rope for gdb: views of heads, frequencies, tables, caches and models.

    (gdb) source <prefix>/share/rope/debug/rope_gdb.py
    (gdb) print q
    $1 = head_view<float> [batch 1, tokens 2, heads 4, head_dim 64] = {[0, 0, 0] = {0.5, ...}, ...}

The line `source ...` in ~/.gdbinit loads them at every start. They read memory and call no function of the
program, so they work on a core file and with optimised code.
"""

import re
import struct

import gdb
import gdb.printing


def number(value):
    """A channel, as gdb prints numbers. The 16-bit types of Eigen are structures around their bits."""
    kind = value.type.unqualified().strip_typedefs()
    if kind.code != gdb.TYPE_CODE_STRUCT:
        return value
    is_bfloat16 = str(kind).endswith("bfloat16")
    bits = int(value["value" if is_bfloat16 else "x"]) & 0xFFFF
    if is_bfloat16:
        return gdb.Value(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    return gdb.Value(struct.unpack("<e", struct.pack("<H", bits))[0])


def array(pointer, count):
    """`count` channels as an array, or a text where the memory holds 16-bit channels."""
    count = int(count)
    if count <= 0:
        return "{}"
    kind = pointer.type.target().unqualified().strip_typedefs()
    if kind.code == gdb.TYPE_CODE_STRUCT:
        limit = gdb.parameter("print elements") or count
        shown = ", ".join("%g" % float(number(pointer[i])) for i in range(min(count, limit)))
        return "{" + shown + ("..." if count > limit else "") + "}"
    return pointer.dereference().cast(kind.array(count - 1))


def begin_and_size(vector):
    """The elements of a std::vector of libstdc++ or libc++."""
    names = [field.name for field in vector.type.strip_typedefs().fields()]
    if "__begin_" in names:
        begin, end = vector["__begin_"], vector["__end_"]
    else:
        begin, end = vector["_M_impl"]["_M_start"], vector["_M_impl"]["_M_finish"]
    return begin, int(end - begin)


def items(vector):
    begin, size = begin_and_size(vector)
    return [begin[i] for i in range(size)]


def text(string):
    """The characters of a std::string of libstdc++, whose own printer need not be loaded."""
    try:
        return string["_M_dataplus"]["_M_p"].string()
    except gdb.error:  # of another library: as its printer shows it
        return string.format_string().strip('"')


def enumerator(value):
    return str(value).rsplit("::", 1)[-1]


def name_of(value):
    """The name of a type without namespaces: head_view<float>."""
    name = str(value.type.unqualified().strip_typedefs())
    return re.sub(r"\b(rope|v\d+_\w+|Eigen|std)::", "", name)


def extents(view):
    return "[batch %d, tokens %d, heads %d, head_dim %d]" % (
        view["batch"], view["tokens"], view["heads"], view["head_dim"])


class head_view:
    """A view: its extents, its strides where they are not those of contiguous heads, and every head."""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        v = self.value
        strides = [int(v[name]) for name in ("batch_stride", "token_stride", "head_stride")]
        dense = [int(v["tokens"]) * int(v["heads"]) * int(v["head_dim"]), int(v["heads"]) * int(v["head_dim"]),
                 int(v["head_dim"])]
        text = name_of(v) + " " + extents(v)
        return text if strides == dense else text + " with strides [%d, %d, %d]" % tuple(strides)

    def children(self):
        v = self.value
        for b in range(int(v["batch"])):
            for t in range(int(v["tokens"])):
                for h in range(int(v["heads"])):
                    head = v["data"] + (b * v["batch_stride"] + t * v["token_stride"] + h * v["head_stride"])
                    yield "[%d, %d, %d]" % (b, t, h), array(head, v["head_dim"])


class number_array:
    """Numbers in column-major order."""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        return "%s [%d, %d]" % (name_of(self.value), self.value["numbers_"]["rows"], self.value["numbers_"]["columns"])

    def children(self):
        numbers = self.value["numbers_"]
        for column in range(int(numbers["columns"])):
            yield "[column %d]" % column, array(numbers["data"] + column * numbers["rows"], numbers["rows"])


class frequencies:
    """inv_freq of every pair, one array for each axis."""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        inv_freq = self.value["inv_freq_"]["numbers_"]
        axes = int(inv_freq["columns"])
        return "frequencies of %d pairs on %d %s, attention_factor %g" % (
            inv_freq["rows"], axes, "axis" if axes == 1 else "axes", float(self.value["attention_factor_"]))

    def children(self):
        inv_freq = self.value["inv_freq_"]["numbers_"]
        for axis in range(int(inv_freq["columns"])):
            yield "[axis %d]" % axis, array(inv_freq["data"] + axis * inv_freq["rows"], inv_freq["rows"])


class frequency_table:
    """The positions of a table, then cos and sin of every position."""

    def __init__(self, value):
        self.value = value

    def shape(self):
        entries = self.value["entries_"]["numbers_"]
        return int(self.value["first_"]), int(entries["columns"]), int(entries["rows"]) // 2

    def to_string(self):
        first, rows, pairs = self.shape()
        return "%s of positions [%d, %d), %d pairs, made from %s, attention_factor %g" % (
            name_of(self.value), first, first + rows, pairs, enumerator(self.value["source_"]),
            float(self.value["frequencies_"]["attention_factor_"]))

    def children(self):
        first, rows, pairs = self.shape()
        for r in range(rows):
            row = self.value["entries_"]["numbers_"]["data"] + r * 2 * pairs
            yield "cos(%d)" % (first + r), array(row, pairs)
            yield "sin(%d)" % (first + r), array(row + pairs, pairs)


class placed_table:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        return "at_channel(%d) of " % self.value["first_channel_"] + frequency_table(
            self.value["table_"].dereference()).to_string()


class cache:
    """A cache: its extents, the size of each row, and the memory of keys and values."""

    def __init__(self, value):
        self.value = value
        self.tokens = value["tokens_"]
        self.memory = self.tokens["memory_"]

    def extent(self, name):
        return int(self.memory[name]["value_"])

    def used(self):
        """How many slots of each row have been written: tokens, or in a ring the slots that were ever used."""
        records = self.tokens["rows_"]["records_"]["numbers_"]
        return [records["data"][b]["used"] for b in range(int(records["rows"]))]

    def to_string(self):
        return "%s [batch %d, slots %d, heads %d, head_dim %d], used {%s}, keys %s" % (
            name_of(self.value), self.extent("batch_"), self.extent("slots_"), self.extent("heads_"),
            self.extent("head_dim_"), ", ".join(str(int(used)) for used in self.used()),
            enumerator(self.tokens["storage_"]))

    def children(self):
        """The used slots of [batch, heads, slots, dim]. Those of a latent_cache have the latents among the keys."""
        slots, heads = self.extent("slots_"), self.extent("heads_")
        for name, dim in (("keys", self.extent("head_dim_")), ("values", self.extent("value_dim_"))):
            channels = self.memory[name + "_"]["channels"]["numbers_"]
            begin, size = channels["data"], int(channels["rows"])
            for b, used in enumerate(self.used() if size else []):
                for h in range(heads):
                    for s in range(int(used)):
                        yield "%s[%d, %d, %d]" % (name, b, h, s), array(begin + ((b * heads + h) * slots + s) * dim, dim)


class page_view:
    """The extents of the pool of pages."""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        keys = self.value["memory_"]["keys"]
        return "%s of %d pages of %d tokens, heads %d, head_dim %d, %d blocks a sequence, keys %s" % (
            name_of(self.value), keys["batch"], keys["tokens"], keys["heads"], keys["head_dim"],
            self.value["blocks_of_a_sequence_"], enumerator(self.value["storage_"]))


class layer_group:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        g = self.value
        first, pairs = int(g["first_channel"]), int(g["frequencies"]["inv_freq_"]["numbers_"]["rows"])
        name = text(g["layer_type"])
        return "%s%s, channels [%d, %d) of %d, %s, base %g" % (
            name + ": " if name else "", enumerator(g["layout"]), first, first + 2 * pairs, g["head_dim"],
            text(g["rule"]), float(g["base"]))


class model_rope:
    """What a model file says of its rotation, and its groups of layers."""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        layers = self.value["layers_"]
        groups = begin_and_size(self.value["groups_"])[1]
        result = 'model_rope "%s" from %s, %d %s' % (
            text(self.value["architecture"]), text(self.value["source"]), groups, "group" if groups == 1 else "groups")
        types, without = begin_and_size(layers["types"])[1], begin_and_size(layers["without_rope"])[1]
        return result + (", %d layers" % types if types else "") + (", %d without rotation" % without if without else "")

    def children(self):
        for i, group in enumerate(items(self.value["groups_"])):
            yield "[group %d]" % i, group


def printers():
    """Of types in `rope` and its inline namespace, whose name begins with v and a digit."""
    collection = gdb.printing.RegexpCollectionPrettyPrinter("rope")
    for name, printer in (("head_view<.*>", head_view), ("number_array<.*>", number_array), ("frequencies", frequencies),
                          ("frequency_table<.*>", frequency_table), ("placed_table<.*>", placed_table),
                          ("(kv|latent|ring)_cache<.*>", cache), ("page_view<.*>", page_view),
                          ("layer_group", layer_group), ("model_rope", model_rope)):
        collection.add_printer(name, r"^rope::(v\d+_\w+::)?" + name + "$", printer)
    return collection


gdb.printing.register_pretty_printer(gdb.current_objfile(), printers(), replace=True)
