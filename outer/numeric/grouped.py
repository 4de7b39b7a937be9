"""Compiled encoders and decoders of the formats that give a group of elements one scale: int8, fp4.

A payload is uint8: first the scales, float32[groups], then the codes, group after group. Codes of 4 bits fill whole
groups, element k of a group in the low half of byte k and element k + 64 in the high half of the same byte. A scale is
NaN where a group held a number that is not finite.

Rounding is up or down at random, so that the mean is right. The random number of an element is a hash of the seed and
of the element's place: the same seed makes the same payload again.
"""

# mypy: disable-error-code="no-untyped-def"
# Compiled functions have the types that they are called with.

from __future__ import annotations

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from outer.numeric.compiling import EXACT, bits_of, float32_of, pointer

GROUP = 128  # elements that share a scale
HALF = 64
INT8, FP4 = 0, 1  # the formats, as numbers
_INFINITY = np.uint32(0x7F800000)  # bits; those of NaN are above
_SIGN = np.uint32(0x80000000)
_TINY = np.float32(1.1754944e-38)  # smaller scales have no exact inverse: the group is zero
_LEAST = np.float32(2.0**-6)  # the smallest number but 0 of fp4, where the largest is 1
_UNIT = np.float32(2.0**-24)


@EXACT
def _drawn(index, low, high):
    """32 random bits for an element: a hash of its place and the two halves of the seed."""
    x = np.uint32(np.uint32(np.uint32(index) * np.uint32(0x9E3779B9)) ^ low)
    x = np.uint32(np.uint32(x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32(x ^ high)
    x = np.uint32(np.uint32(x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@EXACT
def _largest(delta):
    """The bits of the largest magnitude; from those of infinity on, something is not finite."""
    largest = np.uint32(0)
    for k in range(len(delta)):
        largest = max(largest, np.uint32(bits_of(delta[k]) & np.uint32(0x7FFFFFFF)))
    return largest


@EXACT
def _whole(delta, first, levels, inverse, low, high, codes):
    """Codes of a group as whole numbers from -levels to levels, in two's complement."""
    top = np.float32(levels)
    for k in range(len(delta)):
        ahead = np.float32(_drawn(first + k, low, high) >> np.uint32(8)) * _UNIT
        code = np.floor(delta[k] * inverse + ahead)
        codes[k] = np.uint8(np.int32(min(max(code, -top), top)))


@EXACT
def _powers(delta, first, inverse, low, high, codes):
    """Codes of a group as sign (8) and exponent: 0 for 0, e for 2**(e - 7)."""
    for k in range(len(delta)):
        bits, drawn = bits_of(delta[k]), _drawn(first + k, low, high)
        size = float32_of(np.uint32(bits & ~_SIGN)) * inverse
        up = np.uint32(bits_of(size) + (drawn & np.uint32(0x7FFFFF)))  # carries into the exponent at random
        power = min(np.int32(up >> np.uint32(23)) - np.int32(120), np.int32(7))
        little = np.int32(1) if size > np.float32(drawn >> np.uint32(8)) * (_UNIT * _LEAST) else np.int32(0)
        code = power if size >= _LEAST else little
        codes[k] = np.uint8(code | np.int32((bits >> np.uint32(28)) & np.uint32(8)))


@EXACT
def encode(delta, form, low, high, scales, packed):
    """Fill scales float32[groups] and packed uint8, the codes, with delta float32[n] in one of the formats."""
    groups, codes = (len(delta) + GROUP - 1) // GROUP, np.empty(GROUP, np.uint8)
    levels = 127 if form == INT8 else 1
    for group in range(groups):
        start, stop = group * GROUP, min((group + 1) * GROUP, len(delta))
        largest = _largest(delta[start:stop])
        scale = float32_of(largest) / np.float32(levels)
        sound = largest < _INFINITY and scale >= _TINY
        if not sound:
            scale = np.float32(0.0) if largest < _INFINITY else np.float32(np.nan)
        scales[group] = scale
        for k in range(GROUP):
            codes[k] = np.uint8(0)
        if sound and form == FP4:
            _powers(delta[start:stop], start, np.float32(1.0) / scale, low, high, codes)
        elif sound:
            _whole(delta[start:stop], start, levels, np.float32(1.0) / scale, low, high, codes)
        if form == INT8:
            for k in range(stop - start):
                packed[start + k] = codes[k]
        else:
            half = packed[group * HALF : (group + 1) * HALF]
            for k in range(HALF):
                half[k] = (codes[k] & np.uint8(15)) | np.uint8(codes[k + HALF] << np.uint8(4))


@EXACT
def _number(code):
    """The number of a code of 4 bits, in units of its group's scale."""
    power = np.uint32(code & np.uint8(7))
    size = float32_of(np.uint32((power + np.uint32(120)) << np.uint32(23)))
    size = size if power > np.uint32(0) else np.float32(0.0)
    return -size if code & np.uint8(8) else size


@EXACT
def _unpack(half, scale, out):
    for k in range(HALF):
        out[k] = bits_of(_number(half[k] & np.uint8(15)) * scale)
    for k in range(HALF):
        out[k + HALF] = bits_of(_number(half[k] >> np.uint8(4)) * scale)


@EXACT
def decode(address, form, size, start, count, out):
    """Decode elements from `start` on, of the `size` in the payload at an address; returns where they begin in out.

    out: uint32[count + 2 GROUP], bits of float32; whole groups go into it.
    """
    groups, first = (size + GROUP - 1) // GROUP, start // GROUP
    scales = carray(pointer(address, np.float32(0)), (groups,))
    length = size if form == INT8 else groups * HALF
    packed = carray(pointer(address + np.uint64(4 * groups), np.uint8(0)), (length,))
    for group in range(first, (start + count + GROUP - 1) // GROUP):
        here, scale = out[(group - first) * GROUP : (group - first + 1) * GROUP], scales[group]
        if form == INT8:
            codes = packed[group * GROUP : min((group + 1) * GROUP, size)]
            for k in range(len(codes)):
                here[k] = bits_of(np.float32(np.int8(codes[k])) * scale)
        else:
            _unpack(packed[group * HALF : (group + 1) * HALF], scale, here)
    return start - first * GROUP
