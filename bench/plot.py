#!/usr/bin/env python3
"""Plots of benchmark results, and the speed tables of bench/README.md and README.md.

    bench/plot.py build/native/bench/rotate.json build/native/bench/table.json ...

Reads what Google Benchmark wrote, writes bench/results/*.svg and the part of both pages between their two
"speed" comments: every row in bench/README.md, the most asked for in README.md. Where all results are given, also
bench/results/speed_N_floats.md and targets_N_floats.md for processors with N floats in a packet: the same rows, which
stay where another processor is measured next, and what was asked beside what is measured.
Names of cases: what/layout/type/order/batch x tokens x heads x head_dim/threads.
"""

import json
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
COLOURS = ["#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#7a6a4f", "#337ea9", "#999999"]


class Plot:
    """A rectangle with axes, in a picture of fixed size."""

    def __init__(self, title, note, width=860, height=460, left=74, bottom=96, top=56, right=20):
        self.width, self.height = width, height
        self.x0, self.x1 = left, width - right
        self.y0, self.y1 = height - bottom, top
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="system-ui, sans-serif" font-size="12" fill="#333">',
            f'<rect width="{width}" height="{height}" fill="white"/>']
        self.text(left, 22, title, size=15, weight="bold")
        self.text(left, 40, note, colour="#777")

    def text(self, x, y, text, size=12, anchor="start", colour="#333", weight="normal", angle=None):
        turn = f' transform="rotate({angle} {x:.1f} {y:.1f})"' if angle else ""
        text = text.replace("&", "&amp;").replace("<", "&lt;")
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
                          f'fill="{colour}" font-weight="{weight}"{turn}>{text}</text>')

    def line(self, x0, y0, x1, y1, colour="#ddd", width=1, dash=""):
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" '
                          f'stroke="{colour}" stroke-width="{width}"{dashes}/>')

    def box(self, x, y, width, height, colour):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
                          f'fill="{colour}"/>')

    def curve(self, points, colour, dash=""):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        if not dash:
            self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]

    def write(self, name):
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / name).write_text("\n".join(self.parts) + "\n</svg>\n")


def bars(name, title, note, groups, series, value, target=None):
    """One group of bars per shape, one bar per series; value(group, series) is a share of the limit or None."""
    plot = Plot(title, note)
    for tenth in range(0, 11, 2):
        y = plot.y0 + (plot.y1 - plot.y0) * tenth / 11
        plot.line(plot.x0, y, plot.x1, y, "#bbb" if tenth == 10 else "#eee")
        plot.text(plot.x0 - 8, y + 4, f"{tenth / 10:.1f}", anchor="end")
    plot.text(18, (plot.y0 + plot.y1) / 2, "share of the limit", anchor="middle", angle=-90)
    step = (plot.x1 - plot.x0) / len(groups)
    width = 0.8 * step / len(series)
    for g, group in enumerate(groups):
        for s, one in enumerate(series):
            share = value(group, one)
            if share is None:
                continue
            height = (plot.y0 - plot.y1) * min(share, 1.1) / 1.1
            x = plot.x0 + g * step + 0.1 * step + s * width
            plot.box(x, plot.y0 - height, width - 1, height, COLOURS[s])
            plot.text(x + width / 2, plot.y0 - height - 3, f"{share:.2f}", size=8, anchor="middle")
        plot.text(plot.x0 + (g + 0.5) * step, plot.y0 + 16, group, anchor="middle")
    legend(plot, series)
    plot.write(name)


def legend(plot, names, dashes=None):
    x, y = plot.x0, plot.height - 40
    for i, one in enumerate(names):
        length = 34 + 7 * len(one)
        if x + length > plot.x1:
            x, y = plot.x0, y + 18
        plot.line(x, y - 4, x + 16, y - 4, COLOURS[i % len(COLOURS)], 3, (dashes or {}).get(one, ""))
        plot.text(x + 21, y, one)
        x += length


def curves(name, title, note, series, x_label, y_label, dashes=None):
    """series: {name: [(x, y), ...]}, both axes logarithmic."""
    plot = Plot(title, note, bottom=110)
    points = [p for line in series.values() for p in line]
    if not points:
        return
    low_x, high_x = (math.log2(f(p[0] for p in points)) for f in (min, max))
    low_y, high_y = math.floor(math.log10(min(p[1] for p in points))), math.ceil(math.log10(max(p[1] for p in points)))

    def at(x, y):
        return (plot.x0 + (plot.x1 - plot.x0) * (math.log2(x) - low_x) / max(high_x - low_x, 1e-9),
                plot.y0 + (plot.y1 - plot.y0) * (math.log10(y) - low_y) / max(high_y - low_y, 1))

    for exponent in range(low_y, high_y + 1):
        y = at(2 ** low_x, 10 ** exponent)[1]
        plot.line(plot.x0, y, plot.x1, y)
        plot.text(plot.x0 - 8, y + 4, f"{10 ** exponent:g}", anchor="end")
    for x in sorted({p[0] for p in points}):
        plot.line(at(x, 10 ** low_y)[0], plot.y0, at(x, 10 ** low_y)[0], plot.y1, "#eee")
        plot.text(at(x, 10 ** low_y)[0], plot.y0 + 16, str(x), anchor="middle")
    plot.text((plot.x0 + plot.x1) / 2, plot.y0 + 34, x_label, anchor="middle")
    plot.text(18, (plot.y0 + plot.y1) / 2, y_label, anchor="middle", angle=-90)
    for i, (one, line) in enumerate(series.items()):
        plot.curve([at(*p) for p in sorted(line)], COLOURS[i % len(COLOURS)], (dashes or {}).get(one, ""))
    legend(plot, list(series), dashes)
    plot.write(name)


def load(files):
    cases, context = {}, {}
    for file in files:
        result = json.loads(pathlib.Path(file).read_text())
        context = result["context"] | context
        for case in result["benchmarks"]:
            if case.get("run_type", "iteration") == "iteration":
                cases[case["name"].removesuffix("/manual_time")] = case
    return cases, context


def tokens_of(name):
    return int(name.split("/")[4].split("x")[1])


def rotation(cases, note):
    shapes = ["1x1x32x128", "1x64x32x128", "1x512x32x128", "1x4096x32x128", "8x128x12x64"]
    for layout in ("half_split", "interleaved"):
        bars(f"rotate_{layout}.svg", f"rotate<{layout}> in place, one thread",
             "beside x *= a on the same bytes; " + note, shapes, ["float", "double", "bfloat16", "half"],
             lambda shape, kind, layout=layout: cases.get(f"rotate/{layout}/{kind}/bshd/{shape}/1 thread", {})
             .get("share"))
    series, limit = {}, {}
    for name, case in cases.items():
        what, layout, kind, order, *_ = name.split("/") + [""] * 4
        if kind != "float" or order != "bshd" or not re.search(r"/1x\d+x32x128/1 thread$", name):
            continue
        if what.startswith("rotate_"):
            continue
        label = f"rope {layout}" if what == "rotate" else f"{what} {layout}"
        series.setdefault(label.replace("_", " "), []).append((tokens_of(name), case["us"]))
        if what == "rotate" and layout == "half_split":
            limit[tokens_of(name)] = case["us"] * case["share"]
    series["x *= a"] = sorted(limit.items())
    if limit:
        curves("rotate_tokens.svg", "One layer's queries, (1, tokens, 32, 128) float, one thread", note, series,
               "tokens", "microseconds", {"x *= a": "5 4"})


def attention(cases, note):
    names = {"plain": "rope attention", "rotated": "rope attention with rotation", "eigen_products": "Eigen products",
             "torch": "PyTorch, unfused"}
    series = {}
    for name, case in cases.items():
        what, kind, shape, *_ = name.split("/") + [""] * 3
        if what == "tokens":
            tokens = int(shape.split("x")[0])
            series.setdefault(names[kind], []).append((tokens, case["ms"]))
            if kind == "plain":
                series.setdefault("peak multiply-adds on the visible half", []).append(
                    (tokens, case["ms"] * case["share"]))
    curves("attention_tokens.svg", "Causal attention, 4 query heads on 1 key head of 128, float, one thread", note,
           series, "tokens", "milliseconds", {"peak multiply-adds on the visible half": "5 4"})
    memory = {}
    for name, case in cases.items():
        if name.startswith("tokens/rotated/") and case.get("scratch_KiB"):
            tokens = int(name.split("/")[2].split("x")[0])
            for one, kib in (("scratch of rope attention with rotation", case["scratch_KiB"]),
                             ("its keys and values", tokens * 2 * 128 * 4 / 1024),
                             ("scores of one head, tokens x tokens", tokens * tokens * 4 / 1024)):
                memory.setdefault(one, []).append((tokens, kib))
    curves("attention_memory.svg", "Memory of causal attention, 4 query heads on 1 key head of 128, float, one thread",
           note, memory, "tokens", "KiB", {"its keys and values": "5 4", "scores of one head, tokens x tokens": "5 4"})


def share(cases, name):
    """– where the case was not run, or its limit was refused."""
    return f"{cases[name]['share']:.2f}" if "share" in cases.get(name, ()) else "–"


def machine(context):
    cpu = f"{context.get('cpu', 'unknown processor')}, {context['num_cpus']} cores"
    build = f"{context.get('compiler', '')} {context.get('flags', '')}, Eigen {context.get('eigen', '')}"
    return f"{cpu}; {build}; {context['date'][:10]}."


def short_table(cases, context):
    both = [share(cases, f"rotate/{layout}/float/bshd/{shape}/1 thread") + " " + layout
            for shape in ("1x4096x32x128", "1x1x32x128") for layout in ("half_split", "interleaved")]
    rows = [("rotation, prefill (1, 4096, 32, 128), of `x *= a`", ", ".join(both[:2])),
            ("rotation, decode (1, 1, 32, 128) in L1, of `x *= a`", ", ".join(both[2:])),
            ("attention, causal prefill (1, 2048, 32 + 8 heads, 128), of peak multiply-adds",
             share(cases, "prefill/2048x2048x32+8x128/1 thread")),
            ("its backward pass", share(cases, "backward/2048x2048x32+8x128/1 thread")),
            ("decoding, 1 query, 16384 keys, of a plain read of K and V",
             share(cases, "decode/bhsd/1x16384x32+8x128/1 thread"))]
    lines = ["| share of the limit, float | |", "|---|---|"] + [f"| {label} | {value} |" for label, value in rows]
    return "\n".join(lines + ["", machine(context) + " [All rows and plots](bench/README.md)."])


def long_table(cases, context):
    prefix = "rotate/{}/{}/bshd/{}/{}"
    rows = [("prefill (1, 4096, 32, 128) float", "float", "1x4096x32x128", "1 thread"),
            ("the same, two threads", "float", "1x4096x32x128", "2 threads"),
            ("prefill (1, 512, 32, 128) float, in cache", "float", "1x512x32x128", "1 thread"),
            ("decode (1, 1, 32, 128) float, in L1", "float", "1x1x32x128", "1 thread"),
            ("(8, 128, 12, 64) float", "float", "8x128x12x64", "1 thread"),
            ("prefill, head_dim 256, float", "float", "1x4096x32x256", "1 thread"),
            ("prefill bfloat16", "bfloat16", "1x4096x32x128", "1 thread"),
            ("prefill half", "half", "1x4096x32x128", "1 thread"),
            ("prefill float, 16 bytes behind a line", "float", "1x4096x32x128@16", "1 thread"),
            ("decode float, 16 bytes behind a line, in L1", "float", "1x1x32x128@16", "1 thread"),
            ("decode float, 4 bytes behind a line, in L1", "float", "1x1x32x128@4", "1 thread"),
            ("head_dim 72 float, in L2", "float", "1x16x32x72", "1 thread"),
            ("head_dim 100 float, in L2", "float", "1x16x32x100", "1 thread"),
            ("head_dim 112 float, 16 bytes behind a line, in L2", "float", "1x16x32x112@16", "1 thread"),
            ("one head (1, 4096, 1, 128) float, of scaling it and reading the table", "float", "1x4096x1x128", "1 thread"),
            ("decode bfloat16, in L1", "bfloat16", "1x1x32x128", "1 thread"),
            ("decode half, in L1", "half", "1x1x32x128", "1 thread")]
    lines = ["| rotation, share of the limit | half_split | interleaved |", "|---|---|---|"]
    for label, *key in rows:
        lines.append("| " + " | ".join([label] + [share(cases, prefix.format(layout, *key))
                                                  for layout in ("half_split", "interleaved")]) + " |")
    lines.append("| (8, 12, 128, 64) float, head by head | " + " | ".join(
        share(cases, f"rotate/{layout}/float/bhsd/8x128x12x64/1 thread")
        for layout in ("half_split", "interleaved")) + " |")
    lines.append("| out of place, share of a copy | " + " | ".join(
        share(cases, f"rotate_out_of_place/{layout}/float/bshd/1x4096x32x128/1 thread")
        for layout in ("half_split", "interleaved")) + " |")
    for what, label in (("plain_loop", "a plain loop over the same table"), ("eigen_arrays", "Eigen array expressions"),
                        ("complex_product", "complex product (Eigen)"), ("torch_complex", "complex product (PyTorch)"),
                        ("torch_rotate_half", "rotate_half (PyTorch)")):
        row = [share(cases, f"{what}/{layout}/float/bshd/1x4096x32x128/1 thread")
               for layout in ("half_split", "interleaved")]
        if set(row) != {"–"}:
            lines.append(f"| {label}, prefill float | " + " | ".join(row) + " |")
    if "prefill/2048x2048x32+8x128/1 thread" in cases:
        rows = [("attention, causal prefill (1, 2048, 32 + 8 heads, 128)", "peak multiply-adds, visible half",
                 "prefill/2048x2048x32+8x128/1 thread"),
                ("the same, two threads", "peak multiply-adds of two threads", "prefill/2048x2048x32+8x128/2 threads"),
                ("the same as Eigen products", "peak multiply-adds, visible half",
                 "eigen_products/2048x2048x32+8x128/1 thread"),
                ("its backward pass", "peak multiply-adds, visible half", "backward/2048x2048x32+8x128/1 thread"),
                ("the same, two threads", "peak multiply-adds of two threads", "backward/2048x2048x32+8x128/2 threads"),
                ("decoding, 1 query, 4096 keys in cache order", "a plain read of K and V",
                 "decode/bhsd/1x4096x32+8x128/1 thread"),
                ("decoding, 1 query, 16384 keys in cache order", "a plain read of K and V",
                 "decode/bhsd/1x16384x32+8x128/1 thread"),
                ("the same, two threads", "a plain read by two threads", "decode/bhsd/1x16384x32+8x128/2 threads"),
                ("decoding, 16384 keys in the order of activations", "a plain read of K and V",
                 "decode/bshd/1x16384x32+8x128/1 thread"),
                ("decoding, 16384 keys in a bfloat16 cache", "a plain read of its bytes",
                 "decode/kv_cache_bfloat16/1x16384x32+8x128/1 thread"),
                ("prefill of bfloat16, products in bfloat16", "the same, products in float",
                 "products_in_bfloat16/2048x2048x32+8x128/1 thread"),
                ("decoding, 16384 keys of bfloat16, products in bfloat16", "the same, products in float",
                 "products_in_bfloat16/1x16384x32+8x128/1 thread"),
                ("prefill with rotation inside", "the same without rotation",
                 "rotation_inside/2048x2048x32+8x128/1 thread"),
                ("prefill with a mask [queries, keys]", "the same without", "option/mask/1024x1024x8+2x128/1 thread"),
                ("prefill with a bias [heads, queries, keys]", "the same without",
                 "option/bias/1024x1024x8+2x128/1 thread")]
        lines += ["", "| attention, float | beside | share |", "|---|---|---|"]
        lines += [f"| {label} | {limit} | {share(cases, name)} |" for label, limit, name in rows]
    if "pages/1x16384x32+8x128/1 thread" in cases:
        rows = [("rotation of the last 64 of 192 channels inside of prefill", "the same without rotation",
                 "window/1024x1024x16+16x192"),
                ("rotation by (time, height, width) inside of prefill", "the same without rotation",
                 "axes/1024x1024x16+4x128"),
                ("decoding, 4096 keys in pages of 16", "the same keys in one piece", "pages/1x4096x32+8x128"),
                ("decoding, 16384 keys in pages of 16", "the same keys in one piece", "pages/1x16384x32+8x128"),
                ("decoding, 16384 keys of int8", "the same keys of bfloat16", "int8_beside_bfloat16/1x16384x32+8x128"),
                ("256 tokens after 3840 of int8, products of integers", "the same, products in float",
                 "int8_products_beside_int8/256x4096x32+8x128"),
                ("latents (MLA), 128 heads, 4096 keys", "peak multiply-adds", "latents/1x4096x128+1x576"),
                ("8 steps of 4096 keys and a chunk of 256 in one call", "both alone",
                 "mixed_batch/8x4096_and_256x32+8x128")]
        lines += ["", "| serving | beside | times as fast, one thread | two threads |", "|---|---|---|---|"]
        lines += [f"| {label} | {limit} | {share(cases, name + '/1 thread')} | {share(cases, name + '/2 threads')} |"
                  for label, limit, name in rows]
    if "table/float/range" in cases:
        lines += ["", "| building a table of 4096 x 64, beside `cos` and `sin` of an angle of its type | times as fast |",
                  "|---|---|"]
        lines += [f"| {label} | {share(cases, 'table/' + key)} |" for label, key in (
            ("float, positions in a row", "float/range"), ("float, scattered positions", "float/scattered positions"),
            ("double, positions in a row", "double/range"))]
    lines += ["", f"{machine(context)} The limit is `x *= a` on the same bytes, timed in turn with the case."]
    return "\n".join(lines)


def targets(cases, context):
    """What was asked of speed, a row each: the shares measured, the share asked for, and the limit."""
    def rotation(shape, kind="float", order="bshd"):
        return [f"rotate/{layout}/{kind}/{order}/{shape}/1 thread" for layout in ("half_split", "interleaved")]

    rows = [("16 bytes behind a line, in L1", rotation("1x1x32x128@16"), (0.75, 0.65)),
            ("16 bytes behind a line, from memory", rotation("1x4096x32x128@16"), (0.92, 0.92)),
            ("4 bytes behind a line, in L1", rotation("1x1x32x128@4"), (0.68, 0.59)),
            ("4 bytes behind a line, from memory", rotation("1x4096x32x128@4"), (0.83, 0.83)),
            ("decode (1, 1, 32, 128), in L1", rotation("1x1x32x128"), (0.85, 0.80))]
    rows += [(f"head_dim {head_dim}, in L2", rotation(f"1x16x32x{head_dim}"), (asked, asked))
             for head_dim, asked in ((72, 0.8), (80, 0.8), (96, 0.8), (100, 0.6), (112, 0.8))]
    rows += [(f"{count} of {head_dim} channels from {first} on, of the lines that they touch",
              rotation(f"1x16x32x{head_dim}[{first}+{count}]"), (0.8, 0.8))
             for head_dim, first, count in ((256, 0, 16), (192, 128, 64), (80, 0, 32))]
    rows += [("head-major (8, 12, 128, 64)", rotation("8x128x12x64", order="bhsd"), (0.85, 0.85)),
             ("head-major (1, 32, 2048, 128)", rotation("1x2048x32x128", order="bhsd"), (0.85, 0.85)),
             ("one head (1, 4096, 1, 128), of scaling it and reading the table", rotation("1x4096x1x128"), (0.9, 0.9)),
             ("table of doubles, beside `cos` and `sin` of doubles", ["table/double/range"], (1.0,)),
             ("prefill attention (1, 1024, 8, 64), of peak multiply-adds", ["prefill/1024x1024x8+8x64/1 thread"], (0.72,)),
             ("prefill attention (1, 2048, 32 + 8, 128), of peak multiply-adds",
              ["prefill/2048x2048x32+8x128/1 thread"], (0.82,))]
    for cache, name, asked in (("bhsd", "float", (0.75, 0.75, 0.85)), ("kv_cache_bfloat16", "bfloat16", (0.6, 0.6, 0.85)),
                               ("kv_cache_half", "half", (0.6, 0.6, 0.85))):
        rows.append((f"decoding from {name}, 512 / 4096 / 16384 keys, of a plain read",
                     [f"decode/{cache}/1x{keys}x32+8x128/1 thread" for keys in (512, 4096, 16384)], asked))
    rows.append(("prefill of bfloat16, products in bfloat16 beside float", ["products_in_bfloat16/2048x2048x32+8x128/1 thread"],
                 (1.5,)))
    lines = ["# Speed beside what was asked", "",
             "Rotation is of floats, half_split / interleaved, one thread, share of the speed of `x *= a` where nothing else is "
             "said. [What is below with AVX-512, and why](../README.md#what-is-below-and-why).", "", "| what | measured | asked |",
             "|---|---|---|"]
    for label, names, asked in rows:
        found = " / ".join(share(cases, name) for name in names)
        wanted = asked if len(set(asked)) > 1 else asked[:1]
        lines.append(f"| {label} | {found} | {' / '.join(f'{one:.2f}' for one in wanted)} |")
    return "\n".join(lines + ["", machine(context), ""])


def main(files):
    cases, context = load(files)
    note = f"{context.get('cpu', '')}, {context.get('flags', '')}, {context['date'][:10]}"
    rotation(cases, note)
    attention(cases, note)
    begin, end = "<!-- speed: written by bench/plot.py -->\n", "<!-- /speed -->"
    for page, table in ((ROOT / "README.md", short_table), (ROOT / "bench" / "README.md", long_table)):
        text = page.read_text()
        before, rest = text.split(begin, 1)
        page.write_text(before + begin + table(cases, context) + "\n" + end + rest.split(end, 1)[1])
    if "prefill/2048x2048x32+8x128/1 thread" in cases and "table/double/range" in cases:
        width = context.get("floats_in_a_packet", "some")
        (RESULTS / f"targets_{width}_floats.md").write_text(targets(cases, context))
        (RESULTS / f"speed_{width}_floats.md").write_text(
            f"# Speed with {width} floats in a packet\n\n{long_table(cases, context)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
