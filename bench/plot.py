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
COLOURS = ["#0b6e99", "#d9730d", "#2e7d32", "#8e44ad", "#111111", "#c2185b", "#8d6e63"]
LIMIT_COLOURS = ["#777777", "#b0884a"]


class Plot:
    """A rectangle with axes, in a picture of fixed size."""

    def __init__(self, title, note, width=860, height=400, left=74, bottom=60, top=56, right=20):
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

    def curve(self, points, colour, dash=""):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        if not dash:
            self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]

    def write(self, name):
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / name).write_text("\n".join(self.parts) + "\n</svg>\n")


def steps_of(low, high):
    """Some round numbers from `low` to `high`, where to draw lines: logarithmic unless `low` is 0."""
    if low > 0:
        all_steps = [m * 10.0 ** e for e in range(-4, 9) for m in ((1, 2, 5) if high < 1000 * low else (1,))]
        return ([max(step for step in all_steps if step <= low)] + [step for step in all_steps if low < step < high]
                + [min(step for step in all_steps if step >= high)])
    step = next(m * 10.0 ** e for e in range(-4, 9) for m in (1, 2, 5) if high <= 6 * m * 10.0 ** e)
    return [n * step for n in range(math.ceil(high / step - 1e-9) + 1)]


def curves(name, title, note, series, y_label, steps=None, dashed=()):
    """{name: [(tokens, y), ...]}, one line each with its name beside its end; the lines across are at `steps`."""
    plot = Plot(title, note, right=190)
    points = [p for line in series.values() for p in line]
    if not points:
        return
    if steps is None:
        low, high = min(p[1] for p in points), max(p[1] for p in points)
        steps = steps_of(low if high > 8 * low else 0, high)
    low_x, high_x = (math.log2(f(p[0] for p in points)) for f in (min, max))
    scale = math.log10 if steps[0] > 0 else float

    def at(x, y):
        low, high = scale(steps[0]), scale(steps[-1])
        return (plot.x0 + (plot.x1 - plot.x0) * (math.log2(x) - low_x) / max(high_x - low_x, 1e-9),
                plot.y0 + (plot.y1 - plot.y0) * (scale(min(max(y, steps[0]), steps[-1])) - low) / (high - low))

    for step in steps:
        y = at(2 ** low_x, step)[1]
        plot.line(plot.x0, y, plot.x1, y)
        plot.text(plot.x0 - 8, y + 4, f"{step:g}", anchor="end")
    for x in sorted({p[0] for p in points}):
        plot.text(at(x, steps[0])[0], plot.y0 + 16, str(x), anchor="middle")
    plot.text((plot.x0 + plot.x1) / 2, plot.y0 + 34, "tokens", anchor="middle")
    plot.text(18, (plot.y0 + plot.y1) / 2, y_label, anchor="middle", angle=-90)
    ends, colours = [], iter(COLOURS)
    for one, line in series.items():
        colour = LIMIT_COLOURS[one in dashed[1:]] if one in dashed else next(colours)
        plot.curve([at(*p) for p in sorted(line)], colour, "5 4" if one in dashed else "")
        ends.append((at(*max(line))[1] + 4, one, colour))
    below = plot.y1 - 100.0
    for y, one, colour in sorted(ends):  # names that would lie on one another move down
        below = max(y, below + 15)
        plot.text(plot.x1 + 8, below, one, colour=colour, weight="bold" if one.startswith("rope") else "normal")
    plot.write(name)


def load(files):
    """Cases by their names; those of baseline.json, built without -march=native, are called baseline/..."""
    cases, context = {}, {}
    for file in sorted(files, key=lambda file: pathlib.Path(file).stem == "baseline"):
        result = json.loads(pathlib.Path(file).read_text())
        context = result["context"] | context
        for case in result["benchmarks"]:
            if case.get("run_type", "iteration") == "iteration":
                name = case["name"].removesuffix("/manual_time")
                cases[f"baseline/{name}" if pathlib.Path(file).stem == "baseline" else name] = case
    return cases, context


WAYS = {"rotate": "rope", "plain_loop": "a plain loop", "eigen_arrays": "Eigen arrays",
        "complex_product": "complex product (Eigen)", "torch_complex": "complex product (PyTorch)",
        "torch_rotate_half": "rotate_half (PyTorch)"}
SHARES = [0, 0.2, 0.4, 0.6, 0.8, 1]


def rotation(cases, note):
    for layout in ("half_split", "interleaved"):
        shares, times = {}, {}
        for name, case in cases.items():
            found = re.fullmatch(rf"(\w+)/{layout}/float/bshd/1x(\d+)x32x128/1 thread", name)
            if not found or found[1] not in WAYS or "share" not in case:
                continue
            tokens = int(found[2])
            shares.setdefault(WAYS[found[1]], []).append((tokens, case["share"]))
            times.setdefault(WAYS[found[1]], []).append((tokens, case["us"] / tokens))
            if found[1] == "rotate":
                times.setdefault("x *= a", []).append((tokens, case["us"] * case["share"] / tokens))
        what = f"{layout}: 32 heads of 128 floats, one thread"
        curves(f"rotate_{layout}.svg", "Speed of rotation, " + what, "share of the speed of x *= a on the same bytes; " + note,
               shares, "share of the limit", SHARES)
        curves(f"rotate_time_{layout}.svg", "Time of rotation, " + what, note, times, "microseconds per token",
               dashed=["x *= a"])


def attention(cases, note):
    names = {"plain": "rope", "rotated": "rope, with rotation", "eigen_products": "Eigen products", "torch": "PyTorch, unfused"}
    limit = "peak multiply-adds"
    shares, times, memory = {}, {}, {}
    for name, case in cases.items():
        found = re.fullmatch(r"tokens/(\w+)/(\d+)x\d+x4\+1x128/1 thread", name)
        if not found or "share" not in case:
            continue
        kind, tokens = names[found[1]], int(found[2])
        shares.setdefault(kind, []).append((tokens, case["share"]))
        times.setdefault(kind, []).append((tokens, case["ms"] / tokens * 1000))
        if kind == "rope":
            times.setdefault(limit, []).append((tokens, case["ms"] * case["share"] / tokens * 1000))
        if found[1] == "rotated" and case.get("scratch_KiB"):
            for one, size in (("rope, scratch", case["scratch_KiB"] * 1024), ("keys and values", tokens * 2 * 128 * 4),
                              ("scores of one head", tokens * tokens * 4)):
                memory.setdefault(one, []).append((tokens, size / 2 ** 20))
    what = "causal attention, 4 query heads on 1 key head of 128 floats, one thread"
    curves("attention.svg", "Speed of " + what, "share of peak multiply-adds, of which the visible half counts; " + note, shares,
           "share of the limit", SHARES)
    curves("attention_time.svg", "Time of " + what, note, times, "microseconds per token", dashed=[limit])
    curves("attention_memory.svg", "Memory of " + what, note, memory, "MiB",
           dashed=["keys and values", "scores of one head"])


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
            ("attention, causal prefill (1, 2048, 32 + 8 heads, 128), of peak multiply-adds; its backward pass",
             "; ".join(share(cases, f"{what}/2048x2048x32+8x128/1 thread") for what in ("prefill", "backward"))),
            ("low rows: head-major (8, 12, 128, 64); head_dim 100 in L2; bfloat16 in L1; decoding, 1024 keys",
             "; ".join([" / ".join(share(cases, f"rotate/{layout}/{shape}/1 thread") for layout in ("half_split", "interleaved"))
                        for shape in ("float/bhsd/8x128x12x64", "float/bshd/1x16x32x100", "bfloat16/bshd/1x1x32x128")]
                       + [share(cases, "decode/bhsd/1x1024x32+8x128/1 thread")])),
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
                ("decoding, 1 query, 1024 keys in cache order", "a plain read of K and V",
                 "decode/bhsd/1x1024x32+8x128/1 thread"),
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
    cases = cases | {f"beside_loop/{layout}": {"share": cases[rope]["share"] / cases[loop]["share"]}
                     for layout in ("half_split", "interleaved")
                     for rope, loop in [[f"{what}/{layout}/float/bshd/1x4096x32x128/1 thread"
                                         for what in ("rotate", "plain_loop")]]
                     if "share" in cases.get(rope, ()) and "share" in cases.get(loop, ())}

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
              rotation(f"1x{tokens}x32x{head_dim}[{first}+{count}]"), (0.8, 0.8))
             for tokens, head_dim, first, count in ((8, 256, 0, 16), (16, 192, 128, 64), (16, 80, 0, 32))]
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
    for kind, asked in (("float", 0.8), ("bfloat16", 0.5), ("half", 0.25)):
        rows.append((f"built without -march, prefill (1, 4096, 32, 128) of {kind}, from memory",
                     ["baseline/" + name for name in rotation("1x4096x32x128", kind)], (asked, asked)))
    threads = [("16 + 1 heads, 32768 keys", "1x32768x16+1x128"), ("128 + 1 heads, 4096 keys", "1x4096x128+1x128"),
               ("16 new tokens, 4096 keys", "16x4096x32+8x128"), ("32 + 8 heads, 1000 keys", "1x1000x32+8x128")]
    rows += [(f"attention on two threads, times as fast as on one: {label}", [f"two_threads/{name}/2 threads"], (1.8,))
             for label, name in threads]
    rows.append(("the same: 16 rows of 1000 keys in a cache, of which one has 999",
                 ["two_threads_uneven/1x1000x32+8x128/2 threads"], (1.8,)))
    rows.append(("prefill (1, 4096, 32, 128), times as fast as a plain loop over the same table",
                 ["beside_loop/half_split", "beside_loop/interleaved"], (1.0, 1.0)))
    rows.append(("prefill of bfloat16, products in bfloat16 beside float", ["products_in_bfloat16/2048x2048x32+8x128/1 thread"],
                 (1.5,)))
    lines = ["# Speed beside what was asked", "",
             "Rotation is of floats, half_split / interleaved, one thread, share of the speed of `x *= a` where nothing else is "
             "said. [What is below, and why](../README.md#what-is-below-and-why).", "", "| what | measured | asked |",
             "|---|---|---|"]
    for label, names, asked in rows:
        found = " / ".join(share(cases, name) for name in names)
        wanted = asked if len(set(asked)) > 1 else asked[:1]
        lines.append(f"| {label} | {found} | {' / '.join(f'{one:.2f}' for one in wanted)} |")
    lines += ["", "| how many times as long | measured | asked, at most |", "|---|---|---|"]
    for label, names, most in times(cases):
        lines.append(f"| {label} | {' / '.join(time(cases, name) for name in names)} | {most} |")
    return "\n".join(lines + ["", machine(context), ""])


def time(cases, name):
    """The time of a case over that of what it is timed beside."""
    return f"{1 / cases[name]['share']:.2f}" if cases.get(name, {}).get("share") else "–"


def times(cases):
    """What was asked of calls that should take as long as others."""
    def heads(first, last):
        steps = [f"one_more_head/1x4096x{heads}+1x128/1 thread" for heads in range(first, last + 1)]
        return min(steps, key=lambda name: cases.get(name, {}).get("share", math.inf))

    prompt, step = "1024x1024x8+2x128/1 thread", "8+2x64/1 thread"
    rows = [("rotation with a table of doubles, beside floats: (1, 512, 32, 128) of float / bfloat16 / half, " + layout,
             [f"rotate_double_table/{layout}/{kind}/bshd/1x512x32x128/1 thread" for kind in ("float", "bfloat16", "half")],
             "1.00") for layout in ("half_split", "interleaved")]
    rows += [("one more query head on a key head, 4096 keys: 12 to 13", [heads(13, 13)], "1.15"),
             ("the largest of such steps: to 2 / to 3 / to 4 to 7 / to 8 to 20 heads",
              [heads(2, 2), heads(3, 3), heads(4, 7), heads(8, 20)], "1.15"),
             ("a causal mask, beside the causal rule", [f"mask/causal/{prompt}"], "1.20"),
             ("a block-diagonal mask, beside the same sequences by offsets", [f"mask/block_diagonal/{prompt}"], "1.20")]
    for name, label in (("sinks", "4 sinks"), ("gap", "a gap in the positions of cached tokens (924 keys)"),
                        ("gap_in_the_callers_list", "a gap in a list of the caller's (924 keys)")):
        rows.append((f"a step with a window of 1024 in 65536 / 1048576 cached tokens, beside one in 4096: {label}",
                     [f"window_of_1024/{name}/1x{keys}x{step}" for keys in (1 << 16, 1 << 20)], "1.20"))
    return rows


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
