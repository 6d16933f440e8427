#!/usr/bin/env python3
"""The coefficients of the sines and cosines in include/rope/tables, by the exchange algorithm of Remez.

    tests/oracle/sine_cosine.py            prints them, and the largest relative error of each polynomial
    tests/oracle/sine_cosine.py --check    also fails unless the headers have them

Polynomials in z = x^2 for |x| <= pi / 4, the first coefficients of which are those of Taylor:

    sin x / x ~ 1 + a_1 z + a_2 z^2 + ...                cos x ~ 1 + b_1 z + ...           (table_rows.hpp)
    sin x / x ~ 1 - s_1 h^2 + s_2 h^4 - ...              h = x / 2, in units of 2^-64      (phase.hpp)
    cos x     ~ 1 - 2 h^2 + 2 c_1 h^4 - 2 c_2 h^6 + ...

Needs mpmath.
"""
import pathlib
import sys

from mpmath import mp, mpf

mp.prec = 240
END = (mp.pi / 4) ** 2  # of z
HEADERS = pathlib.Path(__file__).parents[2] / "include/rope/tables"


def sine(z):
    return mp.sin(mp.sqrt(z)) / mp.sqrt(z)


def cosine(z):
    return mp.cos(mp.sqrt(z))


def error(function, coefficients, z):
    return mp.polyval(coefficients[::-1], z) / function(z) - 1


def minimax(function, given, count):
    """The given coefficients and `count` more, whose relative error has count + 1 equal extremes."""
    points = [END * (1 - mp.cos(mp.pi * (k + 1) / (count + 1))) / 2 for k in range(count + 1)]
    for _ in range(8):
        rows = mp.matrix(count + 1, count + 1)
        right = mp.matrix(count + 1, 1)
        for k, z in enumerate(points):
            for power in range(count):
                rows[k, power] = z ** (power + len(given))
            rows[k, count] = (-1) ** k * function(z)
            right[k] = function(z) - mp.polyval(given[::-1], z)
        coefficients = given + list(mp.lu_solve(rows, right))[:count]
        extremes = []  # of every run of one sign
        for z in [END * k / 2000 for k in range(1, 2001)]:
            e = error(function, coefficients, z)
            if extremes and (e > 0) == (extremes[-1][0] > 0):
                extremes[-1] = max(extremes[-1], (e, z), key=lambda pair: abs(pair[0]))
            else:
                extremes.append((e, z))
        points = [z for _, z in extremes[-(count + 1):]]
    return coefficients


def to_double(c, k):
    return mpf(float(c)), float(c).hex()


def of_sine(c, k):
    integer = int(mp.nint(abs(c) * 4**k * mpf(2) ** 64))
    return mp.sign(c) * integer * mpf(2) ** -64 / 4**k, f"0x{integer:016x}u"


def of_cosine(c, k):
    integer = int(mp.nint(abs(c) * 4**k / 2 * mpf(2) ** 64))
    return mp.sign(c) * integer * mpf(2) ** -64 / 4**k * 2, f"0x{integer:016x}u"


def main():
    one, half = mpf(1), mpf(1) / 2
    for header, name, function, given, count, rounded in (
            ("detail/table_rows.hpp", "sine", sine, [one], 4, to_double),
            ("detail/table_rows.hpp", "cosine", cosine, [one], 5, to_double),
            ("phase.hpp", "sine", sine, [one], 7, of_sine),
            ("phase.hpp", "cosine", cosine, [one, -half], 7, of_cosine)):
        coefficients = minimax(function, given, count)
        texts = []
        for k in range(len(given), len(coefficients)):
            coefficients[k], text = rounded(coefficients[k], k)
            texts.append(text)
        worst = max(abs(error(function, coefficients, END * k / 5000)) for k in range(1, 5001))
        print(f"{header}: {name}, relative error below 2^{float(mp.log(worst, 2)):.2f}")
        print("   ", "\n    ".join(texts))
        lacking = [text for text in texts if text not in (HEADERS / header).read_text()]
        if "--check" in sys.argv and lacking:
            sys.exit(f"{header} lacks {lacking} of its {name}")


main()
