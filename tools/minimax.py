#!/usr/bin/env python3
"""Coefficients of the polynomials in kimi-kernels/src/reference/real.rs.

    pip install mpmath && python tools/minimax.py

Each function is reduced to a small interval first; what is approximated here is the smooth remainder, by a
Chebyshev fit at 60 digits (within a few per cent of minimax), rounded to float32. The printed error is that of
the fit before rounding, relative to the whole function.
"""
from mpmath import mp, mpf, exp, tanh, atanh, log, sqrt, chebyfit, polyval, linspace
import struct

mp.dps = 60


def f32(x):
    return struct.unpack("<f", struct.pack("<f", float(x)))[0]


def show(name, remainder, interval, count, whole, rebuild):
    coefficients, _ = chebyfit(remainder, interval, count, error=True)
    points = linspace(interval[0], interval[1], 4001)
    worst = max(abs(rebuild(x, polyval(coefficients, x)) / whole(x) - 1) for x in points if x != 0)
    print(f"{name}: relative error of the fit 2^{float(log(worst, 2)):.1f}")
    for c in coefficients:
        print(f"    {f32(c)!r},   # {struct.unpack('<I', struct.pack('<f', float(c)))[0]:#010x}")


half = log(2) / 2 * mpf("1.0001")
tiny = mpf(10) ** -20
# exp(r) = 1 + r + r^2 p(r) on |r| <= ln 2 / 2
show("exp", lambda r: (exp(r) - 1 - r) / r ** 2 if abs(r) > tiny else mpf(1) / 2, [-half, half], 6, exp,
     lambda r, p: 1 + r + r * r * p)
# tanh(x) = x + x z p(z), z = x^2, on 0 <= x <= 0.625
show("tanh", lambda z: (tanh(sqrt(z)) / sqrt(z) - 1) / z if z > tiny else mpf(-1) / 3, [mpf(0), mpf("0.625") ** 2], 6,
     lambda z: tanh(sqrt(z)), lambda z, p: sqrt(z) * (1 + z * p))
# ln(1 + y) = 2 s + 2 s z p(z), s = y / (2 + y), z = s^2, on 0 <= s <= 1/3
show("atanh", lambda z: (atanh(sqrt(z)) / sqrt(z) - 1) / z if z > tiny else mpf(1) / 3, [mpf(0), mpf(1) / 9], 5,
     lambda z: atanh(sqrt(z)), lambda z, p: sqrt(z) * (1 + z * p))
