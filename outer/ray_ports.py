"""The ports of a shell, over Ray."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray

from outer.ports import Gone, Here, NoAnswer, Peer, Raised, Unreachable

OFTEN = ray.method(enable_task_events=False)  # Ray's control store would keep a row of every call


class Put(NamedTuple):
    """A large answer, in the object store."""

    value: Any  # an ObjectRef


async def put(threads: Executor, answer: Any) -> Put:
    """The answer for RayPeer.ask. Ray would store it in the thread in which it starts an actor's other calls."""
    return Put(await asyncio.get_running_loop().run_in_executor(threads, ray.put, answer))


@dataclass(frozen=True)
class RayPeer:
    """A process that is a Ray actor. `name`: the actor's; empty: nobody finds it by that."""

    handle: Any
    name: str = ""

    async def ask(self, method: str, *arguments: Any) -> Any:
        with answering():
            answer = await getattr(self.handle, method).remote(*arguments)
            return await answer.value if isinstance(answer, Put) else answer

    def tell(self, method: str, *arguments: Any) -> None:
        getattr(self.handle, method).remote(*arguments)


def find(name: str, namespace: str | None = None) -> RayPeer | None:
    """The actor of this name; None: there is none."""
    try:
        return RayPeer(ray.get_actor(name, namespace), name)
    except ValueError:  # Ray's word for it
        return None


@contextmanager
def answering() -> Iterator[None]:
    """Ray's errors as those of the ports; their message is the name of Ray's."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise Raised(type(error).__name__) from error
    except ray.exceptions.ActorUnavailableError as error:
        raise Unreachable(type(error).__name__) from error
    except ray.exceptions.RayActorError as error:
        raise Gone(type(error).__name__) from error
    except ray.exceptions.RayError as error:
        raise NoAnswer(type(error).__name__) from error


def here(shard: Callable[..., Peer] | None = None) -> Here:
    """This process, which is a Ray actor."""
    context = ray.get_runtime_context()
    node = context.get_node_id()
    region = context.get_node_labels().get("region", "")
    me = RayPeer(context.current_actor, context.get_actor_name() or "")
    return Here(me, lambda: os._exit(0), region, {"pid": os.getpid(), "node": node}, shard=shard)
