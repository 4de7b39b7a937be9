"""Compiled passes over the elements of one fragment: inner products of outer gradients, and the merge with its step.

Each pass reads every payload once, a block at a time. Ranges of elements are independent, so they may be computed in
any number of threads with the same bits: the caller adds up what the ranges return in a fixed order. The merge and the
step round as the plain float64 formulas do. Inner products are summed in float32 within a block, in an order that the
processor's vector width decides, and in float64 beyond; in them elements below 1e-22 count as zero.

Payloads are given by their addresses, because a compiled program is for one number of arguments; there are four of
them, or a multiple (`in_fours`). They are contiguous arrays of the type of `kind`. float32 are parameters, and an outer
gradient is the anchor, what the learners grew from, minus these. All others are outer gradients: uint32 the bits of
float32, uint16 those of bfloat16, uint8 a coded format, whose number `kind` is: a block of it is decoded into memory of
this thread and then read from there.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# Compiled functions have the types that they are called with.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import overload
from numpy.typing import NDArray

from outer.numeric import grouped
from outer.numeric.compiling import EXACT, IN_ANY_ORDER, float32_of, pointer, read_only

BLOCK = 2048  # elements
WIDTH = 4  # payloads that one loop reads
ROOM = BLOCK + 2 * grouped.GROUP  # elements of a block that is decoded in whole groups


def _moved(anchor, value):
    """One element's outer gradient, float32, correctly rounded: from parameters, or from the bits of bfloat16."""


def _moved_far(anchor, value):
    """The same in float64, exactly."""


@overload(_moved, inline="always")
def _any_moved(anchor, value):
    if value == types.float32:
        return lambda anchor, value: anchor - value
    if value == types.uint32:
        return lambda anchor, value: float32_of(value)
    return lambda anchor, value: float32_of(np.uint32(value) << np.uint32(16))


@overload(_moved_far, inline="always")
def _any_moved_far(anchor, value):
    if value == types.float32:
        return lambda anchor, value: np.float64(anchor) - np.float64(value)
    if value == types.uint32:
        return lambda anchor, value: np.float64(float32_of(value))
    return lambda anchor, value: np.float64(float32_of(np.uint32(value) << np.uint32(16)))


def _part(address, kind, size, start, count, room):
    """Elements of a payload of `size` from `start` on; coded ones are decoded into room float32[ROOM]."""


@overload(_part)
def _any_part(address, kind, size, start, count, room):
    if kind == types.uint8:
        return _decoded
    return lambda address, kind, size, start, count, room: carray(pointer(address, kind), (start + count,))[start:]


def _decoded(address, kind, size, start, count, room):
    payload = carray(pointer(address, kind), (grouped.elements(kind, size),))
    return grouped.decode(payload, kind, size, start, count, room).view(np.uint32)


@EXACT
def _four(payloads, i, kind, size, start, count, rooms):
    """The same elements of payloads i to i + 3."""
    return (
        _part(payloads[i], kind, size, start, count, rooms[0]),
        _part(payloads[i + 1], kind, size, start, count, rooms[1]),
        _part(payloads[i + 2], kind, size, start, count, rooms[2]),
        _part(payloads[i + 3], kind, size, start, count, rooms[3]),
    )


@EXACT
def _rooms():
    return np.empty((WIDTH + 1, ROOM), np.float32)


@IN_ANY_ORDER
def _within_four(anchor, p, q, r, s, found):
    """Add the products of four gradients with themselves and each other to found float64[4, 4], lower triangle."""
    pp = pq = pr = ps = qq = qr = qs = rr = rs = ss = np.float32(0.0)
    for k in range(len(anchor)):
        a, b = _moved(anchor[k], p[k]), _moved(anchor[k], q[k])
        c, d = _moved(anchor[k], r[k]), _moved(anchor[k], s[k])
        pp += a * a
        pq += a * b
        pr += a * c
        ps += a * d
        qq += b * b
        qr += b * c
        qs += b * d
        rr += c * c
        rs += c * d
        ss += d * d
    found[0, 0] += pp
    found[1, 0] += pq
    found[1, 1] += qq
    found[2, 0] += pr
    found[2, 1] += qr
    found[2, 2] += rr
    found[3, 0] += ps
    found[3, 1] += qs
    found[3, 2] += rs
    found[3, 3] += ss


@IN_ANY_ORDER
def _one_with_four(anchor, a, p, q, r, s, found):
    """Add the products of one gradient with four others to found float64[4]."""
    ap = aq = ar = as_ = np.float32(0.0)
    for k in range(len(anchor)):
        one = _moved(anchor[k], a[k])
        ap += one * _moved(anchor[k], p[k])
        aq += one * _moved(anchor[k], q[k])
        ar += one * _moved(anchor[k], r[k])
        as_ += one * _moved(anchor[k], s[k])
    found[0] += ap
    found[1] += aq
    found[2] += ar
    found[3] += as_


@IN_ANY_ORDER
def _squares_of_four(anchor, p, q, r, s, found):
    pp = qq = rr = ss = np.float32(0.0)
    for k in range(len(anchor)):
        a, b = _moved(anchor[k], p[k]), _moved(anchor[k], q[k])
        c, d = _moved(anchor[k], r[k]), _moved(anchor[k], s[k])
        pp += a * a
        qq += b * b
        rr += c * c
        ss += d * d
    found[0] += pp
    found[1] += qq
    found[2] += rr
    found[3] += ss


@EXACT
def squares(anchor, payloads, kind, starts, stops, found):
    """Add each range's squared norms of all M outer gradients to found float64[ranges, M]."""
    rooms = _rooms()
    for index in range(len(starts)):
        for start in range(starts[index], stops[index], BLOCK):
            count = min(BLOCK, stops[index] - start)
            block = anchor[start : start + count]
            for i in range(0, len(payloads), WIDTH):
                p, q, r, s = _four(payloads, i, kind, len(anchor), start, count, rooms)
                _squares_of_four(block, p, q, r, s, found[index, i : i + WIDTH])


@EXACT
def inner_products(anchor, payloads, kind, starts, stops, found):
    """Add each range's inner products of all M outer gradients to found float64[ranges, M, M], lower triangle."""
    rooms = _rooms()
    for index in range(len(starts)):
        for start in range(starts[index], stops[index], BLOCK):
            count = min(BLOCK, stops[index] - start)
            block = anchor[start : start + count]
            for i in range(0, len(payloads), WIDTH):
                p, q, r, s = _four(payloads, i, kind, len(anchor), start, count, rooms)
                here = found[index, i : i + WIDTH, i : i + WIDTH]
                _within_four(block, p, q, r, s, here)
                for j in range(i + WIDTH, len(payloads)):
                    one = _part(payloads[j], kind, len(anchor), start, count, rooms[WIDTH])
                    _one_with_four(block, one, p, q, r, s, found[index, j, i : i + WIDTH])


@EXACT
def _add_four(anchor, p, q, r, s, shares, total):
    a, b, c, d = shares[0], shares[1], shares[2], shares[3]
    for k in range(len(anchor)):
        total[k] = (
            total[k]
            + a * _moved_far(anchor[k], p[k])
            + b * _moved_far(anchor[k], q[k])
            + c * _moved_far(anchor[k], r[k])
            + d * _moved_far(anchor[k], s[k])
        )


@EXACT
def _sum(anchor, payloads, kind, start, stop, shares, rooms, total):
    """A block of the merged outer gradient, the sum of shares[m] times gradient m in the order of m, float64."""
    count, block = stop - start, anchor[start:stop]
    total[:] = 0.0
    for i in range(0, len(payloads), WIDTH):
        p, q, r, s = _four(payloads, i, kind, len(anchor), start, count, rooms)
        _add_four(block, p, q, r, s, shares[i : i + WIDTH], total)


@IN_ANY_ORDER
def _square(values):
    total = 0.0
    for k in range(len(values)):
        total += values[k] * values[k]
    return total


@EXACT
def squares_of_sums(anchor, payloads, kind, starts, stops, shares, found):
    """Each range's squared norm of the sum of shares[range, m] times gradient m, in found float64[ranges]."""
    sums, rooms = np.empty(BLOCK, np.float64), _rooms()
    for index in range(len(starts)):
        for start in range(starts[index], stops[index], BLOCK):
            stop = min(start + BLOCK, stops[index])
            total = sums[: stop - start]
            _sum(anchor, payloads, kind, start, stop, shares[index], rooms, total)
            found[index] += _square(total)


@EXACT
def merged_gradient(anchor, payloads, kind, starts, stops, shares, gradient):
    """The same sums themselves, in gradient float64[n]."""
    rooms = _rooms()
    for index in range(len(starts)):
        for start in range(starts[index], stops[index], BLOCK):
            stop = min(start + BLOCK, stops[index])
            _sum(anchor, payloads, kind, start, stop, shares[index], rooms, gradient[start:stop])


@EXACT
def _nesterov(base, gradient, velocity, lr, momentum, nesterov, new_velocity, theta):
    ahead = momentum if nesterov else 1.0
    now = 1.0 if nesterov else 0.0
    for k in range(len(base)):
        speed = gradient[k] + momentum * np.float64(velocity[k])
        new_velocity[k] = np.float32(speed)
        theta[k] = np.float32(np.float64(base[k]) - lr * (now * gradient[k] + ahead * speed))


@IN_ANY_ORDER
def _zero_or_nan(values):
    """0 if all are finite, else NaN."""
    total = np.float32(0.0)
    for k in range(len(values)):
        total += values[k] * np.float32(0.0)
    return total


@EXACT
def sgd(
    anchor,
    payloads,
    kind,
    starts,
    stops,
    shares,
    shift,
    found,
    base,
    velocity,
    new_velocity,
    theta,
    lr,
    momentum,
    nesterov,
):
    """Merge, and step of SGD with momentum from base: fills theta and new_velocity, and found float64[ranges, 2].

    found: each range's squared norm of the merged outer gradient, and 0 if theta is finite, else NaN. The velocity of
    element k is at k - shift[range].
    """
    sums, rooms = np.empty(BLOCK, np.float64), _rooms()
    for index in range(len(starts)):
        before = shift[index]
        for start in range(starts[index], stops[index], BLOCK):
            stop = min(start + BLOCK, stops[index])
            block, total = base[start:stop], sums[: stop - start]
            _sum(anchor, payloads, kind, start, stop, shares[index], rooms, total)
            old, new = velocity[start - before : stop - before], new_velocity[start - before : stop - before]
            _nesterov(block, total, old, lr, momentum, nesterov, new, theta[start:stop])
            found[index, 0] += _square(total)
            found[index, 1] += _zero_or_nan(theta[start:stop])


def in_fours(payloads: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """Addresses of contiguous payloads, the first repeated up to a multiple of four; those get no share."""
    padded = [*payloads, *[payloads[0]] * (-len(payloads) % WIDTH)]
    return np.array([payload.ctypes.data for payload in padded], np.uint64)


def warm_up(payload: NDArray[Any], kind: Any) -> None:
    """Compile everything for payloads of this kind, or load it from the compiler's cache. `payload`: of one number."""
    anchor, one = read_only(np.zeros(1, np.float32)), np.zeros(1, np.int64)
    pieces = anchor, in_fours([payload]), kind, one, one + 1
    shares, zeros = np.zeros((1, WIDTH)), np.zeros(1)
    inner_products(*pieces, np.zeros((1, WIDTH, WIDTH)))
    squares(*pieces, shares)
    squares_of_sums(*pieces, shares, zeros)
    merged_gradient(*pieces, shares, zeros)
    filled = np.zeros(1, np.float32), np.zeros(1, np.float32)
    sgd(*pieces, shares, one, np.zeros((1, 2)), anchor, anchor, *filled, 0.5, 0.5, True)
