#!/usr/bin/env python3
"""Tables and plots of the rows that the programs of bench/ print.

    bench/plot.py build/shapes/*.json build/native/bench/*.json
    bench/plot.py --check

A row is the time of one case, with the times of other code or of a limit divided by it. The program first prints the rows with
the lowest ratios, for everything that rows are compared with. Then it writes the lowest row of each group into bench/README.md,
the tables of README.md from that page, and the plots into bench/results. Each part changes only if its rows are given. `--check`
compares the tables of README.md with bench/README.md and changes nothing.
"""

import json
import math
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
COLOURS = ["#0b6e99", "#d9730d", "#2e7d32", "#8e44ad", "#111111", "#c2185b", "#8d6e63"]
LIMIT_COLOURS = ["#777777", "#b0884a"]
FLOOR = 0.97  # from this ratio on, rope counts as equally fast. Limits have no such count
LIMITS = {"limit", "an in-place scale", "a copy", "peak multiply-adds", "its panel products alone"}


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
        rotation = f' transform="rotate({angle} {x:.1f} {y:.1f})"' if angle else ""
        text = text.replace("&", "&amp;").replace("<", "&lt;")
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
                          f'fill="{colour}" font-weight="{weight}"{rotation}>{text}</text>')

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
    """Round numbers from `low` to `high`, at which lines are drawn: logarithmic unless `low` is 0."""
    if low > 0:
        all_steps = [m * 10.0 ** e for e in range(-4, 9) for m in ((1, 2, 5) if high < 1000 * low else (1,))]
        return ([max(step for step in all_steps if step <= low)] + [step for step in all_steps if low < step < high]
                + [min(step for step in all_steps if step >= high)])
    step = next(m * 10.0 ** e for e in range(-4, 9) for m in (1, 2, 5) if high <= 6 * m * 10.0 ** e)
    return [n * step for n in range(math.ceil(high / step - 1e-9) + 1)]


def curves(name, title, note, series, y_label, steps=None, dashed=()):
    """Draws one curve for each item of {name: [(tokens, y), ...]}, with its name at its end. Horizontal lines are at `steps`."""
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
    for y, one, colour in sorted(ends):  # names that would overlap move down
        below = max(y, below + 15)
        plot.text(plot.x1 + 8, below, one, colour=colour, weight="bold" if one.startswith("rope") else "normal")
    plot.write(name)


SHARES = [0, 0.2, 0.4, 0.6, 0.8, 1]


class Row:
    """A line that a program prints: the time of a case, and [ratio, low, high] for everything it is compared with."""

    def __init__(self, line, context, prefix):
        self.name, self.ns, self.beside = line["name"], line["ns"], line["beside"]
        on_two = self.name.endswith("/2 threads") and "two threads" not in line["group"]
        self.group = prefix + line["group"] + (", two threads" if on_two else "")
        self.scratch = line.get("scratch_KiB", 0)
        self.build = f"{context['compiler']} {re.search('-O.', context['flags'])[0]}"

    def ratio(self, yardstick):
        return self.beside[yardstick][0]

    def text(self, yardstick):
        ratio, low, high = self.beside[yardstick]
        return f"{ratio:.2f}" + (f" (noisy, {low:.2f} to {high:.2f})" if high > 1.1 * low else "")


def load(files):
    """Returns the rows in the order of the files, and the machine and build of the first file."""
    rows, context = [], {}
    for file in files:
        lines = [json.loads(line) for line in pathlib.Path(file).read_text(encoding="utf-8").splitlines()]
        context = context or lines[0]
        prefix = "without -march: " if pathlib.Path(file).stem == "baseline" else ""
        rows += [Row(line, lines[0], prefix) for line in lines[1:]]
    return rows, context


def pairs_of(rows):
    """Returns {(group, yardstick): rows}, in the order of the rows. A yardstick is what a row is compared with."""
    pairs = {}
    for row in rows:
        for yardstick in row.beside:
            pairs.setdefault((row.group, yardstick), []).append(row)
    return pairs


def print_worst(rows):
    yardsticks = {}
    for row in rows:
        for yardstick in row.beside:
            yardsticks.setdefault(yardstick, []).append(row)
    for yardstick, compared in yardsticks.items():
        compared.sort(key=lambda row: row.ratio(yardstick))
        below = "" if yardstick in LIMITS else f", {sum(row.ratio(yardstick) < FLOOR for row in compared)} below {FLOOR}"
        print(f"\nspeed compared with {yardstick}: {len(compared)} rows{below}; the worst:")
        for row in compared[:8]:
            print(f"  {row.text(yardstick):34} {row.ns:12.4g} ns  {row.build:14} {row.name}")


def worst(rows, yardstick):
    return min(rows, key=lambda row: row.ratio(yardstick))


def table_of_builds(rows):
    """The row with the lowest ratio of each group, in a column for each build."""
    builds = sorted({row.build for row in rows})
    lines = ["| rows | compared with | " + " | ".join(builds) + " |", "|---|---|" + "---|" * len(builds)]
    for (group, yardstick), compared in pairs_of(rows).items():
        cells = []
        for build in builds:
            of_build = [row for row in compared if row.build == build]
            if not of_build:
                cells.append("–")
                continue
            lowest = worst(of_build, yardstick)
            reached = sum(row.ratio(yardstick) >= FLOOR for row in of_build)
            cells.append(f"{lowest.text(yardstick)} {lowest.name.split('/', 1)[1]}"
                         + ("" if yardstick in LIMITS else f"; {reached} of {len(of_build)}"))
        lines.append(f"| {group} | {yardstick} | " + " | ".join(cells) + " |")
    return lines


def table_of_fixed_costs(rows):
    builds = sorted({row.build for row in rows})
    lines = ["| fixed costs, ns: rope, a plain loop | " + " | ".join(builds) + " |", "|---|" + "---|" * len(builds)]
    for name in ("half_split/1x1x64", "half_split/1x8x64", "interleaved/1x1x64", "interleaved/1x8x64", "one_key/1x1x1+1x64"):
        of_build = {row.build: row for row in rows if row.name == name}
        lines.append(f"| {name} | " + " | ".join(
            f"{of_build[build].ns:.0f}, {of_build[build].ns * of_build[build].ratio('a plain loop'):.0f}"
            if build in of_build else "–" for build in builds) + " |")
    return lines


def table_of_groups(rows):
    lines = ["| rows | compared with | worst | row | median, rows |", "|---|---|---|---|---|"]
    for (group, yardstick), compared in pairs_of(rows).items():
        lowest = worst(compared, yardstick)
        median = statistics.median(row.ratio(yardstick) for row in compared)
        lines.append(f"| {group} | {yardstick} | {lowest.text(yardstick)} | {lowest.name} | {median:.2f}, {len(compared)} |")
    return lines


def cells_of(page, heading, labels):
    """Returns {labels: cells} of the table of a page that begins with `heading`. The first `labels` cells of a row are its labels."""
    table = page.split(heading, 1)[1].split("\n\n", 1)[0]
    rows = {}
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line[1:-1].split("|")]
        if tuple(cells[:labels]) in rows:
            sys.exit(f"bench/README.md has two rows {cells[:labels]}")
        rows[tuple(cells[:labels])] = cells[labels:]
    return rows


def reached(rows, groups, yardstick):
    """The lowest ratio of some groups in all builds, and the number of rows that reach FLOOR, as two cells."""
    lowest, good, all_rows = math.inf, 0, 0
    for cell in (cell for group in groups for cell in rows[group, yardstick]):
        ratio, counts = re.match(r"[0-9.]+", cell)[0], re.search(r"; ([0-9]+) of ([0-9]+)$", cell)
        lowest, good, all_rows = min(lowest, float(ratio)), good + int(counts[1]), all_rows + int(counts[2])
    return f"{lowest:.2f} | {good} of {all_rows}"


def short_table(page):
    """The table of README.md, from the tables of bench/README.md: ratios to other code, and shares of the limit."""
    shapes = cells_of(page, "| rows | compared with | c", 2)
    groups = cells_of(page, "| rows | compared with | worst |", 2)
    peers = cells_of(page, "| time divided by the time of rope |", 1)
    torch = cells_of(page, "| PyTorch 1.13.1 |", 1)

    def peer(label, library, place=None):
        times = peers[label,][library].split(" / ")
        return " to ".join((min(times, key=float), max(times, key=float))) if place is None else times[place]

    rotation, decoding, prefill = "rotation, half_split", "decoding from floats", "prefill of floats"
    queries = [group for group, yardstick in shapes if group.startswith("one query") and yardstick.startswith("two Eigen")]
    products = groups["prefill", "Eigen products"]
    least, of_products = float(re.match(r"[0-9.]+", products[0])[0]), products[2].split(", ")[1]
    if least < FLOOR:
        sys.exit("README.md: a row of prefill is slower than Eigen products, so count the rows that are not")
    def shares(share, of_torch):
        return f"{groups[share][0]} | {torch[of_torch,][0]}"

    lines = ["| floats, one thread | plain C++, lowest ratio of all shapes | plain C++, shapes where rope is as fast (0.97 or more) | ggml | "
             "ONNX Runtime | rope, share of the limit | PyTorch, share of the limit |",
             "|---|---|---|---|---|---|---|"]
    for what, tokens, place in (("one token", "1 token", 0), ("512 tokens", "512 tokens", 1), ("4096 tokens", "4096 tokens", 2)):
        plain = reached(shapes, [f"half_split, {tokens}", f"interleaved, {tokens}"], "a plain loop")
        share = shares(("rotation of float", "an in-place scale"), "rotation, half_split, 4096 tokens") if place == 2 else " |"
        lines.append(f"| rotation of {what} | {plain} | {peer(rotation, 0, place)} | {peer(rotation, 2, place)} | {share} |")
    lines.append(f"| attention, prefill | {least} | {of_products} of {of_products} | {peer(prefill, 0)} | {peer(prefill, 2)} | "
                 f"{shares(('prefill', 'peak multiply-adds'), 'prefill (1, 1024, 8, 64)')} |")
    lines.append(f"| attention, decoding | {reached(shapes, queries, 'two Eigen products and a softmax')} | {peer(decoding, 0)} | "
                 f"{peer(decoding, 2)} | {shares(('decoding, keys in the order of activations', 'limit'), 'decoding, 4096 keys')} |")
    lines.append("| error of cos and sin at position 99991, base 500000: 3e-8 in rope | 2.5e-3 with float32 angles | | float32 angles | "
                 "takes your table | | 2.5e-3 |")
    return lines


def machine(context, flags):
    return (f"{context['cpu']}, {context['cores']} cores, {context['floats_in_a_packet']} floats in a packet; {flags}, "
            f"Eigen {context['eigen']}; {context['date']}.")


def replace_part(page, part, lines):
    """Replaces the lines between two comments of a page."""
    begin, end = f"<!-- {part}: written by bench/plot.py -->\n", f"<!-- /{part} -->"
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(begin, 1)
    page.write_text(before + begin + "\n".join(lines) + "\n" + end + rest.split(end, 1)[1], encoding="utf-8")


def plot_rotation(rows, note):
    for layout in ("half_split", "interleaved"):
        shares = {}
        for row in rows:
            found = re.fullmatch(rf"{layout}/(\d+)x32x128", row.name)
            if not found:
                continue
            tokens, share = int(found[1]), row.ratio("limit")
            shares.setdefault("rope", []).append((tokens, share))
            for yardstick in sorted(set(row.beside) - {"limit"}, reverse=True):
                shares.setdefault(yardstick, []).append((tokens, share / row.ratio(yardstick)))
        curves(f"rotate_{layout}.svg", f"Speed of rotation, {layout}: 32 heads of 128 floats, one thread",
               "share of the speed of x *= a on the same bytes; " + note, shares, "share of the limit", SHARES)


def plot_attention(rows, note):
    shares, memory = {}, {}
    for row in rows:
        found = re.fullmatch(r"tokens/(\d+)x\d+x4\+1x128/1 thread", row.name)
        if not found:
            continue
        tokens, share = int(found[1]), row.ratio("peak multiply-adds")
        shares.setdefault("rope", []).append((tokens, share))
        shares.setdefault("rope, with rotation", []).append((tokens, share / row.ratio("the same with rotation inside")))
        shares.setdefault("Eigen products", []).append((tokens, share / row.ratio("Eigen products")))
        for one, size in (("rope, scratch", row.scratch * 1024), ("keys and values", tokens * 2 * 128 * 4),
                          ("scores of one head", tokens * tokens * 4)):
            memory.setdefault(one, []).append((tokens, size / 2 ** 20))
    what = "causal attention, 4 query heads on 1 key head of 128 floats, one thread"
    curves("attention.svg", "Speed of " + what, "share of peak multiply-adds (only visible pairs of tokens count); " + note,
           shares, "share of the limit", SHARES)
    curves("attention_memory.svg", "Memory of " + what, note, memory, "MiB", dashed=["keys and values", "scores of one head"])


def main(files):
    shapes, of_shapes = load([file for file in files if "shapes" in pathlib.Path(file).name])
    others, of_others = load([file for file in files if "shapes" not in pathlib.Path(file).name])
    print_worst(shapes + others)
    page = ROOT / "bench" / "README.md"
    if shapes:
        where = machine(of_shapes, "-march=native")
        replace_part(page, "shapes", table_of_builds(shapes) + [""] + table_of_fixed_costs(shapes) + ["", where])
        plot_rotation([row for row in shapes if row.build == shapes[0].build], f"{where} {shapes[0].build}")
    if others:
        where = machine(of_others, f"{of_others['compiler']} {of_others['flags']}")
        replace_part(page, "groups", table_of_groups(others) + ["", where])
        plot_attention(others, where)
    replace_part(ROOT / "README.md", "speed", short_table(page.read_text(encoding="utf-8")))


def check():
    """Fails unless the tables of README.md follow from bench/README.md."""
    page, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("bench/README.md", "README.md"))
    table = "\n".join(short_table(page))
    if f"<!-- speed: written by bench/plot.py -->\n{table}\n<!-- /speed -->" not in readme:
        sys.exit("README.md: the table of speed must be the following one, made from bench/README.md:\n\n" + table)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--check":
        check()
    else:
        main(sys.argv[1:])
