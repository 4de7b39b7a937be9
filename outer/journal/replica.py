"""A store of objects in the memory of another node's process: commits survive the loss of one of the two.

The journal writes to it as to any store; who opens it shuts out whoever wrote before. When it is gone, its writer
begins anew with another one. Knows bytes, not what they mean.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import ray

from outer.journal.object_store import Bytes

ANSWER_S = 10.0


class ReplicaActor:
    """Created detached and named, on another node than the syncer where there is one."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "replica"

    def identify(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "node": ray.get_runtime_context().get_node_id()}

    def create(self, name: str, content: bytes) -> None:
        """Raises FileExistsError, and changes nothing, where there is one."""
        with self._lock:
            if name in self._objects:
                raise FileExistsError(name)
            self._objects[name] = content

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""
        if name not in self._objects:
            raise FileNotFoundError(name)
        return self._objects[name]

    def names(self) -> list[str]:
        return sorted(self._objects)

    def remove(self, name: str) -> None:
        with self._lock:
            self._objects.pop(name, None)


class Replica:
    """The objects that a ReplicaActor holds, to others."""

    retries = False

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __repr__(self) -> str:
        return "the replica"

    def __reduce__(self) -> tuple[type[Replica], tuple[Any]]:
        return Replica, (self._handle,)

    def _ask(self, ref: Any) -> Any:
        """Its answer, or what it raised; OSError where it does not answer."""
        try:
            return ray.get(ref, timeout=ANSWER_S)
        except ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except ray.exceptions.RayError as error:
            raise OSError(f"the replica does not answer: {type(error).__name__}") from error

    def create(self, name: str, parts: Sequence[Bytes]) -> None:
        self._ask(self._handle.create.remote(name, b"".join(parts)))

    def read(self, name: str) -> bytes:
        content: bytes = self._ask(self._handle.read.remote(name))
        return content

    def names(self, prefix: str) -> list[str]:
        every: list[str] = self._ask(self._handle.names.remote())
        return [name for name in every if name.rpartition("/")[0] == prefix]

    def folders(self, prefix: str) -> list[str]:
        every: list[str] = self._ask(self._handle.names.remote())
        inside = (name[len(prefix) + 1 :] for name in every if name.startswith(f"{prefix}/"))
        return sorted({rest.partition("/")[0] for rest in inside if "/" in rest})

    def remove(self, name: str) -> None:
        self._ask(self._handle.remove.remote(name))
