"""How compiled functions are made, and the few operations on bits and addresses that the compiler lacks."""

# mypy: disable-error-code="no-untyped-call"
# The compiler's own library has no types.

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

LOOK_S = 0.05  # between two looks at whether another process compiles
WAIT_S = 60.0  # at most, for another process

# The compiler's cache looks at one file alone, and one file's functions are compiled into another's: a folder for each
# state of them all.
if "NUMBA_CACHE_DIR" not in os.environ:
    _HERE = Path(__file__).parent
    _SOURCES = b"".join(file.read_bytes() for file in sorted(_HERE.glob("*.py")))
    numba.config.CACHE_DIR = str(_HERE / "__pycache__" / sha256(_SOURCES).hexdigest()[:16])  # type: ignore[attr-defined]


def _compiled(**more: Any) -> Any:
    def compiled(function: Any) -> Any:
        how: dict[str, Any] = {"nogil": True, "error_model": "numpy"} | more
        try:
            return numba.njit(**how, cache=True)(function)
        except RuntimeError:  # there is no folder to keep it in
            return numba.njit(**how)(function)

    return compiled


@contextmanager
def one_process(name: str) -> Iterator[None]:
    """Let one process of this machine compile at a time: the others then find in the cache what it made.

    None waits for long: one that holds the others up may be frozen.
    """
    folder = Path(numba.config.CACHE_DIR)  # type: ignore[attr-defined]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f"{name}.lock").open("w")
    except OSError:  # there is no folder to keep it in
        yield
        return
    with file:
        for _ in range(round(WAIT_S / LOOK_S)):
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except OSError:
                time.sleep(LOOK_S)
            else:
                break
        yield


EXACT, IN_ANY_ORDER = _compiled(), _compiled(fastmath={"reassoc", "contract", "nsz"})


def _bits_to_float(context: Any, bits: Any) -> Any:
    def generate(compiler: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], compiler.get_value_type(types.float32))

    return types.float32(types.uint32), generate


def _float_to_bits(context: Any, number: Any) -> Any:
    def generate(compiler: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], compiler.get_value_type(types.uint32))

    return types.uint32(types.float32), generate


def _address_to_pointer(context: Any, address: Any, kind: Any) -> Any:
    def generate(compiler: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], compiler.get_value_type(signature.return_type))

    return types.CPointer(kind)(types.uint64, kind), generate


float32_of: Any = intrinsic(_bits_to_float)  # the number with these 32 bits
bits_of: Any = intrinsic(_float_to_bits)
pointer: Any = intrinsic(_address_to_pointer)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: compiled programs tell the two kinds apart, and one is enough."""
    view = array.view()
    view.setflags(write=False)
    return view
