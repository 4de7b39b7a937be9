"""Compiled passes over the elements of one fragment: inner products of outer gradients, and the merge with its step.

Each pass reads every payload once, a block at a time. Ranges of elements are independent, so they may be computed in
any number of threads with the same bits: the caller adds up what the ranges return in a fixed order. The merge and the
step round as the plain float64 formulas do. Inner products are summed in float32 within a block, in an order that the
processor's vector width decides, and in float64 beyond; in them elements below 1e-22 count as zero.

Payloads are given by their addresses, because a compiled program is for one number of arguments; there are four of
them, or a multiple (`in_fours`). They are contiguous arrays as long as `base`, of the type of `kind`: float32
parameters, or outer gradients as the bits of bfloat16, uint16.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# Compiled functions have the types that they are called with.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

BLOCK = 2048  # elements
WIDTH = 4  # payloads that one loop reads


def _compiled(**more: Any) -> Any:
    def compiled(function: Any) -> Any:
        how: dict[str, Any] = {"nogil": True, "error_model": "numpy"} | more
        try:
            return numba.njit(**how, cache=True)(function)
        except RuntimeError:  # there is no folder to keep it in
            return numba.njit(**how)(function)

    return compiled


_EXACT, _IN_ANY_ORDER = _compiled(), _compiled(fastmath={"reassoc", "contract", "nsz"})


def _bits_to_float(context: Any, bits: Any) -> Any:
    def generate(compiler: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], compiler.get_value_type(types.float32))

    return types.float32(types.uint32), generate


def _address_to_pointer(context: Any, address: Any, kind: Any) -> Any:
    def generate(compiler: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], compiler.get_value_type(signature.return_type))

    return types.CPointer(kind)(types.uint64, kind), generate


_float32_of: Any = intrinsic(_bits_to_float)  # the number with these 32 bits
_pointer: Any = intrinsic(_address_to_pointer)


def _moved(base, value):
    """One element's outer gradient, float32, correctly rounded: from parameters, or from the bits of bfloat16."""


def _moved_far(base, value):
    """The same in float64, exactly."""


@overload(_moved, inline="always")
def _any_moved(base, value):
    if value == types.float32:
        return lambda base, value: base - value
    return lambda base, value: _float32_of(np.uint32(value) << np.uint32(16))


@overload(_moved_far, inline="always")
def _any_moved_far(base, value):
    if value == types.float32:
        return lambda base, value: np.float64(base) - np.float64(value)
    return lambda base, value: np.float64(_float32_of(np.uint32(value) << np.uint32(16)))


@_EXACT
def _part(payload, kind, start, count):
    """Elements of a payload from `start` on."""
    return carray(_pointer(payload, kind), (start + count,))[start:]


@_EXACT
def _four(payloads, i, kind, start, count):
    """The same elements of payloads i to i + 3."""
    return (
        _part(payloads[i], kind, start, count),
        _part(payloads[i + 1], kind, start, count),
        _part(payloads[i + 2], kind, start, count),
        _part(payloads[i + 3], kind, start, count),
    )


@_IN_ANY_ORDER
def _within_four(base, p, q, r, s, found):
    """Add the products of four gradients with themselves and each other to found float64[4, 4], lower triangle."""
    pp = pq = pr = ps = qq = qr = qs = rr = rs = ss = np.float32(0.0)
    for k in range(len(base)):
        a, b = _moved(base[k], p[k]), _moved(base[k], q[k])
        c, d = _moved(base[k], r[k]), _moved(base[k], s[k])
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


@_IN_ANY_ORDER
def _one_with_four(base, a, p, q, r, s, found):
    """Add the products of one gradient with four others to found float64[4]."""
    ap = aq = ar = as_ = np.float32(0.0)
    for k in range(len(base)):
        one = _moved(base[k], a[k])
        ap += one * _moved(base[k], p[k])
        aq += one * _moved(base[k], q[k])
        ar += one * _moved(base[k], r[k])
        as_ += one * _moved(base[k], s[k])
    found[0] += ap
    found[1] += aq
    found[2] += ar
    found[3] += as_


@_IN_ANY_ORDER
def _squares_of_four(base, p, q, r, s, found):
    pp = qq = rr = ss = np.float32(0.0)
    for k in range(len(base)):
        a, b = _moved(base[k], p[k]), _moved(base[k], q[k])
        c, d = _moved(base[k], r[k]), _moved(base[k], s[k])
        pp += a * a
        qq += b * b
        rr += c * c
        ss += d * d
    found[0] += pp
    found[1] += qq
    found[2] += rr
    found[3] += ss


@_EXACT
def squares(base, payloads, kind, starts, stops, found):
    """Add each range's squared norms of all M outer gradients to found float64[ranges, M]."""
    for index in range(len(starts)):
        for start in range(starts[index], stops[index], BLOCK):
            count = min(BLOCK, stops[index] - start)
            block = base[start : start + count]
            for i in range(0, len(payloads), WIDTH):
                p, q, r, s = _four(payloads, i, kind, start, count)
                _squares_of_four(block, p, q, r, s, found[index, i : i + WIDTH])


@_EXACT
def inner_products(base, payloads, kind, starts, stops, found):
    """Add each range's inner products of all M outer gradients to found float64[ranges, M, M], lower triangle."""
    for index in range(len(starts)):
        for start in range(starts[index], stops[index], BLOCK):
            count = min(BLOCK, stops[index] - start)
            block = base[start : start + count]
            for i in range(0, len(payloads), WIDTH):
                p, q, r, s = _four(payloads, i, kind, start, count)
                here = found[index, i : i + WIDTH, i : i + WIDTH]
                _within_four(block, p, q, r, s, here)
                for j in range(i + WIDTH, len(payloads)):
                    one = _part(payloads[j], kind, start, count)
                    _one_with_four(block, one, p, q, r, s, found[index, j, i : i + WIDTH])


@_EXACT
def _add_four(base, p, q, r, s, shares, total):
    a, b, c, d = shares[0], shares[1], shares[2], shares[3]
    for k in range(len(base)):
        total[k] = (
            total[k]
            + a * _moved_far(base[k], p[k])
            + b * _moved_far(base[k], q[k])
            + c * _moved_far(base[k], r[k])
            + d * _moved_far(base[k], s[k])
        )


@_EXACT
def _sum(base, payloads, kind, start, shares, total):
    """A block of the merged outer gradient, the sum of shares[m] times gradient m in the order of m, float64."""
    count = len(base)
    total[:] = 0.0
    for i in range(0, len(payloads), WIDTH):
        p, q, r, s = _four(payloads, i, kind, start, count)
        _add_four(base, p, q, r, s, shares[i : i + WIDTH], total)


@_IN_ANY_ORDER
def _square(values):
    total = 0.0
    for k in range(len(values)):
        total += values[k] * values[k]
    return total


@_EXACT
def squares_of_sums(base, payloads, kind, starts, stops, shares, found):
    """Each range's squared norm of the sum of shares[range, m] times gradient m, in found float64[ranges]."""
    sums = np.empty(BLOCK, np.float64)
    for index in range(len(starts)):
        for start in range(starts[index], stops[index], BLOCK):
            stop = min(start + BLOCK, stops[index])
            total = sums[: stop - start]
            _sum(base[start:stop], payloads, kind, start, shares[index], total)
            found[index] += _square(total)


@_EXACT
def merged_gradient(base, payloads, kind, starts, stops, shares, gradient):
    """The same sums themselves, in gradient float64[n]."""
    for index in range(len(starts)):
        for start in range(starts[index], stops[index], BLOCK):
            stop = min(start + BLOCK, stops[index])
            _sum(base[start:stop], payloads, kind, start, shares[index], gradient[start:stop])


@_EXACT
def _nesterov(base, gradient, velocity, lr, momentum, nesterov, new_velocity, theta):
    ahead = momentum if nesterov else 1.0
    now = 1.0 if nesterov else 0.0
    for k in range(len(base)):
        speed = gradient[k] + momentum * np.float64(velocity[k])
        new_velocity[k] = np.float32(speed)
        theta[k] = np.float32(np.float64(base[k]) - lr * (now * gradient[k] + ahead * speed))


@_IN_ANY_ORDER
def _zero_or_nan(values):
    """0 if all are finite, else NaN."""
    total = np.float32(0.0)
    for k in range(len(values)):
        total += values[k] * np.float32(0.0)
    return total


@_EXACT
def sgd(
    base, payloads, kind, starts, stops, shares, shift, found, velocity, new_velocity, theta, lr, momentum, nesterov
):
    """Merge and step of SGD with momentum: fills theta and new_velocity, and found float64[ranges, 2].

    found: each range's squared norm of the merged outer gradient, and 0 if theta is finite, else NaN. The velocity of
    element k is at k - shift[range].
    """
    sums = np.empty(BLOCK, np.float64)
    for index in range(len(starts)):
        before = shift[index]
        for start in range(starts[index], stops[index], BLOCK):
            stop = min(start + BLOCK, stops[index])
            block, total = base[start:stop], sums[: stop - start]
            _sum(block, payloads, kind, start, shares[index], total)
            old, new = velocity[start - before : stop - before], new_velocity[start - before : stop - before]
            _nesterov(block, total, old, lr, momentum, nesterov, new, theta[start:stop])
            found[index, 0] += _square(total)
            found[index, 1] += _zero_or_nan(theta[start:stop])


def in_fours(payloads: Sequence[NDArray[Any]]) -> tuple[NDArray[np.uint64], Any]:
    """(addresses, kind) of contiguous payloads, the first repeated up to a multiple of four; those get no share."""
    padded = [*payloads, *[payloads[0]] * (-len(payloads) % WIDTH)]
    return np.array([payload.ctypes.data for payload in padded], np.uint64), payloads[0].dtype.type(0)


def warm_up(kind: Any) -> None:
    """Compile everything for payloads of this type, or load it from the compiler's cache."""
    base, one = read_only(np.zeros(1, np.float32)), np.zeros(1, np.int64)
    pieces = base, *in_fours([np.zeros(1, kind)]), one, one + 1
    shares, zeros = np.zeros((1, WIDTH)), np.zeros(1)
    inner_products(*pieces, np.zeros((1, WIDTH, WIDTH)))
    squares(*pieces, shares)
    squares_of_sums(*pieces, shares, zeros)
    merged_gradient(*pieces, shares, zeros)
    sgd(*pieces, shares, one, np.zeros((1, 2)), base, np.zeros(1, np.float32), np.zeros(1, np.float32), 0.5, 0.5, True)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: compiled programs tell the two kinds apart, and one is enough."""
    view = array.view()
    view.setflags(write=False)
    return view
