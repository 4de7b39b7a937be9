"""Compiled passes over the elements of one fragment: inner products of outer gradients, and the merge with its step.

Each pass reads every payload once, a block at a time, and keeps what it derives in the processor's caches. Ranges of
elements are independent, so they may be computed in any number of threads with the same bits: the caller adds up what
the ranges return in a fixed order. The merge and the step round as the plain float64 formulas do; inner products are
summed in float32 within a block, in an order that the processor's vector width decides, and in float64 beyond; in them
elements below 1e-22 count as zero.

Payloads are given by their addresses, because a compiled program is for one number of arguments. They are contiguous
arrays as long as `base`: float32 parameters, or outer gradients as the bits of bfloat16 (`half`).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import carray, types
from numba.extending import intrinsic
from numpy.typing import NDArray

BLOCK = 512  # elements

_HOW: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}
_EXACT = numba.njit(**_HOW)
_IN_ANY_ORDER = numba.njit(**_HOW, fastmath={"reassoc", "contract", "nsz"})


def _pointer_to(kind: Any) -> Any:
    def pointer(context: Any, address: Any) -> Any:
        def generate(compiler: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], compiler.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.uint64), generate

    return intrinsic(pointer)


_floats, _bits = _pointer_to(types.float32), _pointer_to(types.uint16)


@intrinsic
def _float32_of(context: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def generate(compiler: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], compiler.get_value_type(types.float32))

    return types.float32(types.uint32), generate


@_EXACT
def _gradient(base, payload, start, half, row):  # type: ignore[no-untyped-def]
    """A block of one outer gradient, float32, correctly rounded."""
    count = len(row)
    if half:
        bits = carray(_bits(payload + np.uint64(2 * start)), (count,))
        for k in range(count):
            row[k] = _float32_of(np.uint32(bits[k]) << np.uint32(16))
    else:
        theta = carray(_floats(payload + np.uint64(4 * start)), (count,))
        for k in range(count):
            row[k] = base[k] - theta[k]


@_IN_ANY_ORDER
def _dot(a, b):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    for k in range(len(a)):
        total += a[k] * b[k]
    return np.float64(total)


@_IN_ANY_ORDER
def _dots(a, b, c, d, e):  # type: ignore[no-untyped-def]
    """a with each of the other four, in one pass."""
    with_b = with_c = with_d = with_e = np.float32(0.0)
    for k in range(len(a)):
        with_b += a[k] * b[k]
        with_c += a[k] * c[k]
        with_d += a[k] * d[k]
        with_e += a[k] * e[k]
    return np.float64(with_b), np.float64(with_c), np.float64(with_d), np.float64(with_e)


@_IN_ANY_ORDER
def _square(a):  # type: ignore[no-untyped-def]
    total = 0.0
    for k in range(len(a)):
        total += a[k] * a[k]
    return total


@_EXACT
def inner_products(base, payloads, half, starts, stops, crossed, found):  # type: ignore[no-untyped-def]
    """Add each range's inner products of all M outer gradients to found float64[ranges, M, M], below the diagonal too.

    Without `crossed` only the squared norms, on the diagonal.
    """
    count = len(payloads)
    rows = np.empty((count, BLOCK), np.float32)
    for index in range(len(starts)):
        products = found[index]
        for start in range(starts[index], stops[index], BLOCK):
            size = min(BLOCK, stops[index] - start)
            block = base[start : start + size]
            for i in range(count):
                _gradient(block, payloads[i], start, half, rows[i, :size])
            for i in range(count):
                row, j = rows[i, :size], 0
                if crossed:
                    while j + 4 <= i:
                        four = _dots(row, rows[j, :size], rows[j + 1, :size], rows[j + 2, :size], rows[j + 3, :size])
                        products[i, j] += four[0]
                        products[i, j + 1] += four[1]
                        products[i, j + 2] += four[2]
                        products[i, j + 3] += four[3]
                        j += 4
                    while j < i:
                        products[i, j] += _dot(row, rows[j, :size])
                        j += 1
                products[i, i] += _dot(row, row)


@_EXACT
def _add_one(base, payload, start, half, share, total):  # type: ignore[no-untyped-def]
    count = len(total)
    if half:
        bits = carray(_bits(payload + np.uint64(2 * start)), (count,))
        for k in range(count):
            total[k] += share * np.float64(_float32_of(np.uint32(bits[k]) << np.uint32(16)))
    else:
        theta = carray(_floats(payload + np.uint64(4 * start)), (count,))
        for k in range(count):
            total[k] += share * (np.float64(base[k]) - np.float64(theta[k]))


@_EXACT
def _add_four(base, payloads, i, start, shares, total):  # type: ignore[no-untyped-def]
    """Payloads i to i + 3, float32, added in this order."""
    count = len(total)
    p = carray(_floats(payloads[i] + np.uint64(4 * start)), (count,))
    q = carray(_floats(payloads[i + 1] + np.uint64(4 * start)), (count,))
    r = carray(_floats(payloads[i + 2] + np.uint64(4 * start)), (count,))
    s = carray(_floats(payloads[i + 3] + np.uint64(4 * start)), (count,))
    a, b, c, d = shares[i], shares[i + 1], shares[i + 2], shares[i + 3]
    for k in range(count):
        wide = np.float64(base[k])
        total[k] = (
            total[k]
            + a * (wide - np.float64(p[k]))
            + b * (wide - np.float64(q[k]))
            + c * (wide - np.float64(r[k]))
            + d * (wide - np.float64(s[k]))
        )


@_EXACT
def _sum(base, payloads, half, start, shares, total):  # type: ignore[no-untyped-def]
    """A block of the merged outer gradient, the sum of shares[m] times gradient m in the order of m, float64."""
    total[:] = 0.0
    i = 0
    if not half:
        while i + 4 <= len(payloads):
            _add_four(base, payloads, i, start, shares, total)
            i += 4
    while i < len(payloads):
        _add_one(base, payloads[i], start, half, shares[i], total)
        i += 1


@_EXACT
def squares_of_sums(base, payloads, half, starts, stops, shares, found):  # type: ignore[no-untyped-def]
    """Each range's squared norm of the sum of shares[range, m] times gradient m, in found float64[ranges]."""
    sums = np.empty(BLOCK, np.float64)
    for index in range(len(starts)):
        for start in range(starts[index], stops[index], BLOCK):
            size = min(BLOCK, stops[index] - start)
            _sum(base[start : start + size], payloads, half, start, shares[index], sums[:size])
            found[index] += _square(sums[:size])


@_EXACT
def merged_gradient(base, payloads, half, starts, stops, shares, gradient):  # type: ignore[no-untyped-def]
    """The same sums themselves, in gradient float64[n]."""
    for index in range(len(starts)):
        for start in range(starts[index], stops[index], BLOCK):
            stop = min(start + BLOCK, stops[index])
            _sum(base[start:stop], payloads, half, start, shares[index], gradient[start:stop])


@_EXACT
def _nesterov(base, gradient, velocity, lr, momentum, nesterov, new_velocity, theta):  # type: ignore[no-untyped-def]
    for k in range(len(base)):
        speed = gradient[k] + momentum * np.float64(velocity[k])
        new_velocity[k] = np.float32(speed)
        update = gradient[k] + momentum * speed if nesterov else speed
        theta[k] = np.float32(np.float64(base[k]) - lr * update)


@_EXACT
def sgd(  # type: ignore[no-untyped-def]
    base, payloads, half, starts, stops, shares, shift, found, velocity, new_velocity, theta, lr, momentum, nesterov
):
    """Merge and step of SGD with momentum: fills theta and new_velocity, and found float64[ranges].

    found: each range's squared norm of the merged outer gradient. The velocity of element k is at k - shift[range].
    """
    sums = np.empty(BLOCK, np.float64)
    for index in range(len(starts)):
        before = shift[index]
        for start in range(starts[index], stops[index], BLOCK):
            stop = min(start + BLOCK, stops[index])
            block, total = base[start:stop], sums[: stop - start]
            _sum(block, payloads, half, start, shares[index], total)
            _nesterov(
                block,
                total,
                velocity[start - before : stop - before],
                lr,
                momentum,
                nesterov,
                new_velocity[start - before : stop - before],
                theta[start:stop],
            )
            found[index] += _square(total)


@_EXACT
def all_finite(bits, exponent):  # type: ignore[no-untyped-def]
    """Whether no element of an unsigned array has all bits of `exponent` set, as infinities and NaN have."""
    for start in range(0, len(bits), BLOCK):
        bad = 0
        for value in bits[start : start + BLOCK]:
            bad += (value & exponent) == exponent
        if bad:
            return False
    return True


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: compiled programs tell the two kinds apart, and one is enough."""
    view = array.view()
    view.setflags(write=False)
    return view
