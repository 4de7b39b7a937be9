"""Compiled encoder, decoder and check of the format top-k: of each chunk, the 124 numbers of the largest magnitudes.

A payload is uint8. It begins with the levels, float32[chunks, 2]: the mean magnitude of a chunk's smaller and larger
kept numbers. Then, chunk after chunk: how many numbers are kept in each 256 elements, uint8[16]; their places within
these, rising, uint8[124]; and 2 bits for each, four in a byte, sign and level. Zeros are not kept: where there are
fewer others, the rest is unused. The levels are NaN where a chunk held a number that is not finite.
"""

# mypy: disable-error-code="no-untyped-def,assignment"
# Compiled functions have the types that they are called with.

from __future__ import annotations

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from outer.numeric.compiling import EXACT, bits_of, float32_of, pointer

CHUNK = 4096
PART = 256
PARTS = 16
KEPT = 124  # numbers of a chunk
WIDTH = PARTS + KEPT + KEPT // 4  # bytes of a chunk, without its levels
BINS = 2048
_INFINITY = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(0x80000000)


@EXACT
def _threshold(bits, bins):
    """(magnitude bits, how many of just that are kept) of the smallest that is kept, by three rounds of counting."""
    above, least = 0, np.uint32(0)
    for shift, mask in ((20, 0), (9, 0x7FF00000), (0, 0x7FFFFE00)):
        wide = np.uint32(0x7FF if shift else 0x1FF)
        for k in range(BINS):
            bins[k] = 0
        for k in range(CHUNK):
            if (bits[k] & np.uint32(mask)) == least:
                bins[(bits[k] >> np.uint32(shift)) & wide] += 1
        bin = np.int64(wide)
        while above + bins[bin] < KEPT:
            above += bins[bin]
            bin -= 1
        least = np.uint32(least | np.uint32(np.uint32(bin) << np.uint32(shift)))
    return least, KEPT - above


@EXACT
def encode(delta, levels, payload):
    """Fill levels float32[2 chunks] and the rest of a payload, uint8, zero at first, for delta float32[n]."""
    chunks = (len(delta) + CHUNK - 1) // CHUNK
    bits, bins = np.empty(CHUNK, np.uint32), np.empty(BINS, np.int64)
    chosen = np.empty(KEPT, np.int64)
    for chunk in range(chunks):
        start, stop = chunk * CHUNK, min((chunk + 1) * CHUNK, len(delta))
        body = payload[chunk * WIDTH : (chunk + 1) * WIDTH]
        counts, places, codes = body[:PARTS], body[PARTS : PARTS + KEPT], body[PARTS + KEPT :]
        for k in range(stop - start, CHUNK):
            bits[k] = np.uint32(0)
        finite = True
        for k in range(stop - start):
            bits[k] = bits_of(delta[start + k]) & _MAGNITUDE
            finite &= bits[k] < _INFINITY
        least, equal = _threshold(bits, bins)
        found, total = 0, 0.0
        for k in range(CHUNK):
            if bits[k] < least or bits[k] == 0 or found == KEPT:
                continue
            if bits[k] == least:
                if equal == 0:
                    continue
                equal -= 1
            chosen[found] = k
            counts[k // PART] += np.uint8(1)
            places[found] = np.uint8(k % PART)
            total += np.float64(float32_of(bits[k]))
            found += 1
        middle = total / max(1, found)
        small = large = 0.0
        many = 0
        for i in range(found):
            size = np.float64(float32_of(bits[chosen[i]]))
            if size > middle:
                large += size
                many += 1
                codes[i // 4] |= np.uint8(2) << np.uint8(2 * (i % 4))
            else:
                small += size
            if bits_of(delta[start + chosen[i]]) > _MAGNITUDE:
                codes[i // 4] |= np.uint8(1) << np.uint8(2 * (i % 4))
        levels[2 * chunk] = np.float32(small / max(1, found - many)) if finite else np.float32(np.nan)
        levels[2 * chunk + 1] = np.float32(large / max(1, many)) if finite else np.float32(np.nan)


@EXACT
def decode(address, kind, size, start, count, out):
    """Decode elements from `start` on, of the `size` in the payload at an address; returns where they begin in out.

    `kind`: as in grouped.py, of one format here. out: uint32[count + 2 PART], bits of float32; whole parts go into it.
    """
    chunks = (size + CHUNK - 1) // CHUNK
    levels = carray(pointer(address, np.uint32(0)), (2 * chunks,))
    payload = carray(pointer(address + np.uint64(8 * chunks), np.uint8(0)), (chunks * WIDTH,))
    first, stop = start // PART, (start + count + PART - 1) // PART
    for k in range((stop - first) * PART):
        out[k] = np.uint32(0)
    for chunk in range(first // PARTS, (stop + PARTS - 1) // PARTS):
        body = payload[chunk * WIDTH : (chunk + 1) * WIDTH]
        counts, places, codes = body[:PARTS], body[PARTS : PARTS + KEPT], body[PARTS + KEPT :]
        small, large, i = levels[2 * chunk], levels[2 * chunk + 1], 0
        for part in range(PARTS):
            many, to = np.int64(counts[part]), (chunk * PARTS + part - first) * PART
            if first <= chunk * PARTS + part < stop:
                for j in range(i, i + many):
                    code = (codes[j // 4] >> np.uint8(2 * (j % 4))) & np.uint8(3)
                    level = large if code & np.uint8(2) else small
                    out[to + places[j]] = np.uint32(level ^ _SIGN) if code & np.uint8(1) else level
            i += many
    return start - first * PART


@EXACT
def sound(payload, size):
    """Whether no chunk keeps more numbers than may be, at places that rise and are within `size`."""
    chunks = (size + CHUNK - 1) // CHUNK
    for chunk in range(chunks):
        body = payload[8 * chunks + chunk * WIDTH : 8 * chunks + (chunk + 1) * WIDTH]
        total = 0
        for part in range(PARTS):
            many = np.int64(body[part])
            if total + many > KEPT:
                return False
            for j in range(total + 1, total + many):
                if body[PARTS + j] <= body[PARTS + j - 1]:
                    return False
            total += many
            if many > 0 and chunk * CHUNK + part * PART + np.int64(body[PARTS + total - 1]) >= size:
                return False
    return True
