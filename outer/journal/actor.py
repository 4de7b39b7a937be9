"""The replica as a Ray actor: a store of objects in the memory of another node's process.

Commits written to it survive the loss of one of the two nodes. The journal uses it as any other store: opening it
fences earlier writers. When the replica dies, the writer starts again with a new one.
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
    """Created detached and named, on another node than the syncer's if there is one."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "replica"

    def identify(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "node": ray.get_runtime_context().get_node_id()}

    def create(self, name: str, content: bytes) -> None:
        """Store a new object. Raises FileExistsError, and changes nothing, when the name is taken."""
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
    """The client of a ReplicaActor, as a store of objects."""

    retries = False

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __repr__(self) -> str:
        return "the replica"

    def __reduce__(self) -> tuple[type[Replica], tuple[Any]]:
        return Replica, (self._handle,)

    def _ask(self, ref: Any) -> Any:
        """The replica's answer, or the exception it raised. Raises OSError when it does not answer."""
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
