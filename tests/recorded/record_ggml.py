#!/usr/bin/env python3
"""Records the results of the rotation of ggml, by its own C code, compiled unchanged.

    python3 tests/recorded/record_ggml.py SOURCE     writes ggml_schedules.json, ggml_tables.json, ggml_layouts.json here

SOURCE is a clone of ggml-org/ggml, whose HEAD is recorded. These parts of src/ggml-cpu/ops.cpp and src/ggml.c are compiled:
rope_yarn_ramp, rope_yarn, ggml_rope_cache_init, ggml_mrope_cache_init, rotate_pairs, ggml_compute_forward_rope_flt and
ggml_rope_yarn_corr_dims. Schedules and tables are computed by this text in double (float as double, 0.1f as 0.1, cosf as
cos): in float its angles have errors of about 1e-5. Layouts are computed by the unchanged text, in float.

Needs python3 and a C++ compiler (CXX, otherwise c++).
"""
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

SHELL = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#define GGML_ASSERT(x) do { if (!(x)) { std::fprintf(stderr, "%s\n", #x); std::abort(); } } while (0)
#define GGML_ABORT(x) std::abort()
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define CACHE_LINE_SIZE_F32 16
enum { GGML_ROPE_TYPE_NORMAL = 0, GGML_ROPE_TYPE_NEOX = 2, GGML_ROPE_TYPE_MROPE = 8, GGML_ROPE_TYPE_VISION = 24,
       GGML_ROPE_TYPE_IMROPE = 40 };
enum ggml_type { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_I32 };
struct ggml_tensor {
  ggml_type type;
  int64_t ne[4];
  size_t nb[4];
  int32_t op_params[16];
  ggml_tensor* src[3];
  void* data;
};
struct ggml_compute_params { int ith, nth; void* wdata; };
static int64_t ggml_nrows(const ggml_tensor* t) { return t->ne[1] * t->ne[2] * t->ne[3]; }
template <class T> struct type_conversion_table;
template <> struct type_conversion_table<float> {
  static float to_f32(float x) { return x; }
  static float from_f32(float x) { return x; }
};
#define GGML_TENSOR_UNARY_OP_LOCALS \
  const int64_t ne0 = dst->ne[0], ne1 = dst->ne[1], ne2 = dst->ne[2], ne3 = dst->ne[3]; \
  const size_t nb00 = src0->nb[0], nb01 = src0->nb[1], nb02 = src0->nb[2], nb03 = src0->nb[3]; \
  const size_t nb0 = dst->nb[0], nb1 = dst->nb[1], nb2 = dst->nb[2], nb3 = dst->nb[3];
"""

TABLE = r"""
// One token: mode pairs base freq_scale ext_factor original_context beta_fast beta_slow s0 s1 s2 s3 p0 p1 p2 p3 divisors...
int main(int count, char** arguments) {
  std::vector<double> a;
  for (int i = 1; i < count; ++i) a.push_back(std::atof(arguments[i]));
  const int mode = int(a[0]), pairs = int(a[1]);
  double corr_dims[2];
  ggml_rope_yarn_corr_dims(2 * pairs, int(a[5]), a[2], a[6], a[7], corr_dims);
  int sections[4] = {int(a[8]), int(a[9]), int(a[10]), int(a[11])};
  const double* divisors = a.size() > 16 ? a.data() + 16 : nullptr;
  std::vector<double> cache(4 * pairs);
  const double scale = std::pow(a[2], -2.0 / (2 * pairs));
  const bool vision = mode == GGML_ROPE_TYPE_VISION;
  if (mode & GGML_ROPE_TYPE_MROPE)
    ggml_mrope_cache_init(a[12], a[13], a[14], a[15], sections, mode == GGML_ROPE_TYPE_IMROPE, vision, a[3], divisors, corr_dims,
                          vision ? 4 * pairs : 2 * pairs, a[4], 1, cache.data(), 1, scale);
  else
    ggml_rope_cache_init(a[12], a[3], divisors, corr_dims, 2 * pairs, a[4], 1, cache.data(), 1, scale);
  for (int i = 0; i < (vision ? 2 : 1) * pairs; ++i) std::printf("%.17g %.17g\n", cache[2 * i], cache[2 * i + 1]);
}
"""

LAYOUT = r"""
// Two tokens of two heads: mode head_dim n_dims n_offs base s0 s1 s2 s3, then the positions p[axis][token].
int main(int, char** arguments) {
  const auto number = [&](int i) { return std::atoi(arguments[i]); };
  const int mode = number(1), head_dim = number(2), multi = mode & GGML_ROPE_TYPE_MROPE ? 4 : 1;
  std::vector<float> x(4 * head_dim), y(4 * head_dim), work(head_dim + CACHE_LINE_SIZE_F32);
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(int(i % 17) - 8) / 4;
  std::vector<int32_t> pos;
  for (int i = 0; i < 2 * multi; ++i) pos.push_back(number(10 + i));
  ggml_tensor a = {}, b = {}, t = {};
  a.type = GGML_TYPE_F32, a.data = x.data();
  const int64_t ne[4] = {head_dim, 2, 2, 1};
  size_t stride = sizeof(float);
  for (int i = 0; i < 4; ++i) a.ne[i] = ne[i], a.nb[i] = stride, stride *= ne[i];
  t = a, t.data = y.data();
  b.type = GGML_TYPE_I32, b.data = pos.data();
  t.src[0] = &a, t.src[1] = &b;
  const float values[] = {float(std::atof(arguments[5])), 1, 0, 1, 32, 1};
  t.op_params[1] = number(3), t.op_params[2] = mode, t.op_params[4] = 4096;
  std::memcpy(t.op_params + 5, values, sizeof values);
  for (int i = 0; i < 4; ++i) t.op_params[11 + i] = number(6 + i);
  t.op_params[15] = number(4);
  const ggml_compute_params params = {0, 1, work.data()};
  ggml_compute_forward_rope_flt<float>(&params, &t, true);
  for (const float v : y) std::printf("%.9g\n", v);
}
"""

MODES = {"NORMAL": 0, "NEOX": 2, "MROPE": 8, "VISION": 24, "IMROPE": 40}


def cut(text, first, last):
    """The text from the line that begins with `first` to the line before the one that begins with `last`."""
    begin = text.index("\n" + first) + 1
    return text[begin:text.index("\n" + last, begin) + 1]


def in_double(text):
    text = re.sub(r"(\d\.\d*|\d*\.\d+)f\b", r"\1", text)
    text = re.sub(r"\b(cos|sin|log|pow|floor|ceil)f\b", r"std::\1", text)
    return re.sub(r"\bfloat\b", "double", text)


def build(folder, name, text):
    source, program = folder / (name + ".cpp"), folder / name
    source.write_text(text, encoding="utf-8")
    subprocess.run([os.environ.get("CXX", "c++"), "-std=c++17", "-O0", "-w", str(source), "-o", str(program)], check=True)
    return program


def numbers(program, *arguments):
    output = subprocess.run([str(program), *map(repr_number, arguments)], check=True, stdout=subprocess.PIPE).stdout
    return [float(word) for word in output.split()]


def repr_number(value):
    return repr(value) if isinstance(value, float) else str(value)


def main():
    git = ["git", "-C", sys.argv[1]]
    commit, date = subprocess.run(git + ["log", "-1", "--format=%H %cs"], check=True, stdout=subprocess.PIPE,
                                  text=True).stdout.split()

    def text_of(path):
        return subprocess.run(git + ["show", "HEAD:" + path], check=True, stdout=subprocess.PIPE, text=True).stdout

    version = ".".join(re.findall(r"GGML_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text_of("CMakeLists.txt"))[:3])
    ops, core = text_of("src/ggml-cpu/ops.cpp"), text_of("src/ggml.c")
    formulas = cut(core, "static float ggml_rope_yarn_corr_dim(", "// ggml_rope_back") + \
        cut(ops, "static float rope_yarn_ramp(", "template<typename T>\nstatic void rotate_pairs(")
    passes = cut(ops, "template<typename T>\nstatic void rotate_pairs(", "void ggml_compute_forward_rope(")

    schedules, tables, layouts = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        table = build(folder, "table", SHELL + in_double(formulas) + TABLE)
        layout = build(folder, "layout", SHELL + formulas + passes + LAYOUT)

        def row(mode, pairs, base, position, sections=(0, 0, 0, 0), scale=1.0, extrapolation=0, context=4096, fast=32,
                slow=1, divisors=()):
            found = numbers(table, MODES[mode], pairs, float(base), float(scale), extrapolation, context, fast, slow, *sections,
                            *position, *divisors)
            return {"cos": found[::2], "sin": found[1::2]}

        # At position 1 an angle is its frequency.
        for name, pairs, base in (("Llama 2", 64, 1e4), ("Llama 3", 64, 5e5), ("Qwen2.5", 64, 1e6), ("of 16", 8, 1e4)):
            schedules.append({"name": name, "pairs": pairs, "base": base, **row("NORMAL", pairs, base, (1, 0, 0, 0))})
        schedules.append({"name": "linear 4", "pairs": 64, "base": 1e4, "linear": 4,
                          **row("NORMAL", 64, 1e4, (1, 0, 0, 0), scale=1 / 4)})
        for name, pairs, base, factor, context, fast, slow in (
                ("Qwen2.5 YaRN 4", 64, 1e6, 4, 32768, 32, 1), ("YaRN 16", 64, 1e4, 16, 4096, 32, 1),
                ("YaRN 40 of 64", 32, 1e4, 40, 4096, 32, 1), ("YaRN 8, other bounds", 32, 5e5, 8, 8192, 16, 2)):
            schedules.append({"name": name, "pairs": pairs, "base": base,
                              "yarn": {"factor": factor, "original_max_position": context, "beta_fast": fast, "beta_slow": slow},
                              **row("NORMAL", pairs, base, (1, 0, 0, 0), scale=1 / factor, extrapolation=1, context=context,
                                    fast=fast, slow=slow)})
        divisors = [1.0 + i * i / 16 for i in range(32)]
        schedules.append({"name": "divisors", "pairs": 32, "base": 5e5, "divisors": divisors,
                          **row("NORMAL", 32, 5e5, (1, 0, 0, 0), divisors=divisors)})

        for position in (0, 1, 7, 100, 4095, 131071):
            tables.append({"mode": "NORMAL", "pairs": 64, "base": 5e5, "position": [position],
                           **row("NORMAL", 64, 5e5, (position, 0, 0, 0))})
        for mode, pairs, base, sections, position in (
                ("MROPE", 64, 1e6, (16, 24, 24, 0), (5, 6, 9, 0)), ("MROPE", 64, 1e6, (16, 24, 24, 0), (100, 1000, 33, 0)),
                ("MROPE", 8, 1e4, (2, 1, 3, 2), (5, 6, 9, 4)), ("IMROPE", 64, 5e6, (24, 20, 20, 0), (5, 6, 9, 11)),
                ("IMROPE", 32, 1e7, (11, 11, 10, 0), (70, 3, 8, 0)), ("IMROPE", 8, 1e4, (2, 3, 2, 1), (5, 6, 9, 4)),
                ("VISION", 32, 1e4, (32, 32, 0, 0), (12, 30, 0, 0)), ("VISION", 4, 1e4, (4, 4, 0, 0), (3, 50, 0, 0))):
            tables.append({"mode": mode, "pairs": pairs, "base": base, "sections": sections, "position": position,
                           **row(mode, pairs, base, position, sections)})

        for mode, head_dim, n_dims, n_offs, sections, positions in (
                ("NORMAL", 8, 8, 0, (0, 0, 0, 0), (3, 17)), ("NEOX", 8, 8, 0, (0, 0, 0, 0), (3, 17)),
                ("NORMAL", 16, 8, 0, (0, 0, 0, 0), (3, 17)), ("NEOX", 16, 8, 0, (0, 0, 0, 0), (3, 17)),
                ("NORMAL", 16, 8, 8, (0, 0, 0, 0), (3, 17)), ("NEOX", 16, 8, 4, (0, 0, 0, 0), (3, 17)),
                ("MROPE", 16, 16, 0, (2, 3, 3, 0), (3, 17, 5, 2, 9, 1, 0, 0)),
                ("MROPE", 20, 16, 0, (2, 3, 3, 0), (3, 17, 5, 2, 9, 1, 0, 0)),
                ("IMROPE", 16, 16, 0, (3, 3, 2, 0), (3, 17, 5, 2, 9, 1, 0, 0)),
                ("VISION", 16, 8, 0, (4, 4, 0, 0), (3, 17, 5, 2, 3, 17, 5, 2))):
            found = numbers(layout, MODES[mode], head_dim, n_dims, n_offs, 10000, *sections, *positions)
            layouts.append({"mode": mode, "head_dim": head_dim, "n_dims": n_dims, "n_offs": n_offs, "base": 10000,
                            "sections": sections, "positions": positions, "out": found})

    for name, records in (("schedules", schedules), ("tables", tables), ("layouts", layouts)):
        lines = [f'"source": "ggml-org/ggml {version}, commit {commit} of {date}: src/ggml-cpu/ops.cpp and src/ggml.c, by '
                 f'record_ggml.py"', f'"date": "{datetime.date.today()}"',
                 '"records": [\n' + ",\n".join(json.dumps(record) for record in records) + "\n]"]
        (HERE / f"ggml_{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        print(f"{len(records)} {name}")


if __name__ == "__main__":
    main()
