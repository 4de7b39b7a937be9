"""Compiled passes over the elements of one fragment: inner products of outer gradients, and the merge with its step.

Each pass reads every payload once, a block at a time. Ranges of elements are independent, so they may be computed in
any number of threads with the same bits: the caller adds up what the ranges return in a fixed order. The merge and the
step round as the plain float64 formulas do, but for `sums`, which keeps float32. Inner products are summed in float32
within a block, in an order that the processor's vector width decides, and in float64 beyond; in them elements below
1e-22 count as zero.

Payloads are given by their addresses, because a compiled program is for one number of arguments; there are four of
them, or a multiple (`in_fours`). They are contiguous arrays of the type of `kind`. float32 are parameters, and an outer
gradient is the anchor, what the learners grew from, minus these. All others are outer gradients: uint32 the bits of
float32, uint16 those of bfloat16, uint8 a coded format, which the number `kind` names: a block of it is decoded into
memory of this thread and then read from there.
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

BLOCK = 8192  # elements: memory is read fast in long runs alone, and sixteen payloads' blocks fit in a core's cache
DECODED = 2048  # elements of a block of coded payloads
SUMMED = 2048  # elements whose products are summed in float32
WIDTH = 4  # payloads that one loop reads
ROOM = DECODED + 2 * grouped.GROUP  # elements of a block that is decoded in whole groups


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


def _block(kind):
    """Elements of a block of payloads of this kind."""


@overload(_block)
def _any_block(kind):
    elements = DECODED if kind == types.uint8 else BLOCK
    return lambda kind: elements


def _four(payloads, i, kind, size, start, count, rooms):
    """The elements from `start` on of payloads i to i + 3, of `size`; coded ones are decoded into rooms."""


@overload(_four)
def _any_four(payloads, i, kind, size, start, count, rooms):
    if kind == types.uint8:
        return _four_decoded

    def four(payloads, i, kind, size, start, count, rooms):
        p, q = carray(pointer(payloads[i], kind), (size,)), carray(pointer(payloads[i + 1], kind), (size,))
        r, s = carray(pointer(payloads[i + 2], kind), (size,)), carray(pointer(payloads[i + 3], kind), (size,))
        stop = start + count
        return p[start:stop], q[start:stop], r[start:stop], s[start:stop]

    return four


def _four_decoded(payloads, i, kind, size, start, count, rooms):
    first = 0
    for k in range(WIDTH):
        first = grouped.decode(payloads[i + k], kind, size, start, count, rooms[k])
    stop = first + count
    return rooms[0, first:stop], rooms[1, first:stop], rooms[2, first:stop], rooms[3, first:stop]


def _one(address, kind, size, start, count, room):
    """The same of one payload."""


@overload(_one)
def _any_one(address, kind, size, start, count, room):
    if kind == types.uint8:
        return _one_decoded
    return lambda address, kind, size, start, count, room: carray(pointer(address, kind), (size,))[
        start : start + count
    ]


def _one_decoded(address, kind, size, start, count, room):
    first = grouped.decode(address, kind, size, start, count, room)
    return room[first : first + count]


@EXACT
def _rooms():
    return np.empty((WIDTH + 1, ROOM), np.uint32)


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
    rooms, size = _rooms(), _block(kind)
    for index in range(len(starts)):
        for start in range(starts[index], stops[index], size):
            count = min(size, stops[index] - start)
            block = anchor[start : start + count]
            for i in range(0, len(payloads), WIDTH):
                p, q, r, s = _four(payloads, i, kind, len(anchor), start, count, rooms)
                for k in range(0, count, SUMMED):
                    to = min(k + SUMMED, count)
                    _squares_of_four(block[k:to], p[k:to], q[k:to], r[k:to], s[k:to], found[index, i : i + WIDTH])


@EXACT
def inner_products(anchor, payloads, kind, starts, stops, found):
    """Add each range's inner products of all M outer gradients to found float64[ranges, M, M], lower triangle."""
    rooms, size = _rooms(), _block(kind)
    for index in range(len(starts)):
        for start in range(starts[index], stops[index], size):
            count = min(size, stops[index] - start)
            block = anchor[start : start + count]
            for i in range(0, len(payloads), WIDTH):
                p, q, r, s = _four(payloads, i, kind, len(anchor), start, count, rooms)
                here = found[index, i : i + WIDTH, i : i + WIDTH]
                for k in range(0, count, SUMMED):
                    to = min(k + SUMMED, count)
                    _within_four(block[k:to], p[k:to], q[k:to], r[k:to], s[k:to], here)
                for j in range(i + WIDTH, len(payloads)):
                    one = _one(payloads[j], kind, len(anchor), start, count, rooms[WIDTH])
                    row = found[index, j, i : i + WIDTH]
                    for k in range(0, count, SUMMED):
                        to = min(k + SUMMED, count)
                        _one_with_four(block[k:to], one[k:to], p[k:to], q[k:to], r[k:to], s[k:to], row)


@EXACT
def _add_four(anchor, p, q, r, s, shares, first, total):
    """Add four gradients by their shares to total, or to 0 if they are the first."""
    a, b, c, d = shares[0], shares[1], shares[2], shares[3]
    for k in range(len(anchor)):
        total[k] = (
            (0.0 if first else total[k])
            + a * _moved_far(anchor[k], p[k])
            + b * _moved_far(anchor[k], q[k])
            + c * _moved_far(anchor[k], r[k])
            + d * _moved_far(anchor[k], s[k])
        )


@EXACT
def _sum(anchor, payloads, kind, start, stop, shares, rooms, total):
    """A block of the merged outer gradient, the sum of shares[m] times gradient m in the order of m, float64."""
    count, block = stop - start, anchor[start:stop]
    for i in range(0, len(payloads), WIDTH):
        p, q, r, s = _four(payloads, i, kind, len(anchor), start, count, rooms)
        _add_four(block, p, q, r, s, shares[i : i + WIDTH], i == 0, total)


@IN_ANY_ORDER
def _square(values):
    total = 0.0
    for k in range(len(values)):
        total += values[k] * values[k]
    return total


@EXACT
def _keep(values, kept):
    for k in range(len(values)):
        kept[k] = np.float32(values[k])


@EXACT
def sums(anchor, payloads, kind, starts, stops, shares, found, kept):
    """Each range's sum of shares[range, m] times gradient m: its squared norm in found float64[ranges].

    The sums themselves go into kept float32[n], if that has elements.
    """
    size = _block(kind)
    total, rooms = np.empty(size, np.float64), _rooms()
    for index in range(len(starts)):
        for start in range(starts[index], stops[index], size):
            stop = min(start + size, stops[index])
            here = total[: stop - start]
            _sum(anchor, payloads, kind, start, stop, shares[index], rooms, here)
            found[index] += _square(here)
            if len(kept) > 0:
                _keep(here, kept[start:stop])


@EXACT
def merged_gradient(anchor, payloads, kind, starts, stops, shares, gradient):
    """The same sums in float64, in gradient float64[n]."""
    rooms, size = _rooms(), _block(kind)
    for index in range(len(starts)):
        for start in range(starts[index], stops[index], size):
            stop = min(start + size, stops[index])
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
    size = _block(kind)
    sums, rooms = np.empty(size, np.float64), _rooms()
    for index in range(len(starts)):
        before = shift[index]
        for start in range(starts[index], stops[index], size):
            stop = min(start + size, stops[index])
            total = sums[: stop - start]
            _sum(anchor, payloads, kind, start, stop, shares[index], rooms, total)
            old, new = velocity[start - before : stop - before], new_velocity[start - before : stop - before]
            _nesterov(base[start:stop], total, old, lr, momentum, nesterov, new, theta[start:stop])
            found[index, 0] += _square(total)
            found[index, 1] += _zero_or_nan(theta[start:stop])


@EXACT
def _times(values, scale, total):
    for k in range(len(values)):
        total[k] = scale * np.float64(values[k])


@EXACT
def sgd_of_sums(starts, stops, scale, shift, found, base, velocity, new_velocity, theta, lr, momentum, nesterov):
    """The same step where the merged outer gradient is scale[range] times what theta holds: a sum that was kept."""
    sums = np.empty(DECODED, np.float64)
    for index in range(len(starts)):
        before = shift[index]
        for start in range(starts[index], stops[index], DECODED):
            stop = min(start + DECODED, stops[index])
            total, new = sums[: stop - start], theta[start:stop]
            _times(new, scale[index], total)
            old, moved = velocity[start - before : stop - before], new_velocity[start - before : stop - before]
            _nesterov(base[start:stop], total, old, lr, momentum, nesterov, moved, new)
            found[index, 0] += _square(total)
            found[index, 1] += _zero_or_nan(new)


def in_fours(payloads: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """Addresses of contiguous payloads, the first repeated up to a multiple of four; those get no share."""
    padded = [*payloads, *[payloads[0]] * (-len(payloads) % WIDTH)]
    return np.array([payload.ctypes.data for payload in padded], np.uint64)


def warm_up(payload: NDArray[Any], kind: Any, few: bool) -> None:
    """Compile for payloads of this kind, or load from the compiler's cache. `payload`: of one number.

    `few`: what SGD of few gradients needs; else all the rest.
    """
    anchor, one = read_only(np.zeros(1, np.float32)), np.zeros(1, np.int64)
    pieces = anchor, in_fours([payload]), kind, one, one + 1
    shares, zeros, filled = np.zeros((1, WIDTH)), np.zeros(1), (np.zeros(1, np.float32), np.zeros(1, np.float32))
    settings = one, np.zeros((1, 2)), anchor, anchor, *filled, 0.5, 0.5, True
    if few:
        inner_products(*pieces, np.zeros((1, WIDTH, WIDTH)))
        sgd(*pieces, shares, *settings)
        return
    merged_gradient(*pieces, shares, zeros)
    squares(*pieces, shares)
    sums(*pieces, shares, zeros, filled[0])
    sgd_of_sums(one, one + 1, zeros, *settings)
