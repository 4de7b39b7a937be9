"""Who repeats a tape's learners, and what is said between them and who merges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.replay.incarnation import Key, Read
from orchestrator.replay.schedule import Stretch
from orchestrator.replay.tally import ReplayTally


@dataclass(frozen=True)
class AdoptedValue:
    """A version of a fragment, float32[n], that will be adopted here so many times."""

    fragment: int
    version: int
    theta: NDArray[np.float32]
    adoptions: int


@dataclass(frozen=True)
class PeerState:
    """A donor's state for a joiner that is computed elsewhere."""

    joiner: Key
    arrays: list[NDArray[Any]]


@dataclass(frozen=True)
class Finish:
    """Nothing more will be asked."""


@dataclass(frozen=True)
class Sent:
    """A contribution, which a commit needs."""

    key: Key
    read: Read
    payload: NDArray[Any]
    digest: str


@dataclass(frozen=True)
class News:
    """The comparisons since the last message."""

    tally: ReplayTally
    finished: bool = False


@dataclass(frozen=True)
class Failure:
    """Why a process could not go on."""

    problems: tuple[Mapping[str, Any], ...] = ()
    tape: str = ""


ToLearners = Stretch | AdoptedValue | PeerState | Finish
FromLearners = Sent | PeerState | News


class Crew(ABC):
    """Repeats learners, in groups. Messages to a group are performed in order."""

    groups: Mapping[str, int]  # the group of each learner

    @abstractmethod
    def tell(self, group: int, message: ToLearners) -> None: ...

    @abstractmethod
    def hear(self) -> FromLearners:
        """The next message. Raises TapeError, InputError, and RuntimeError for a group that has ended."""

    def group_of(self, key: Key) -> int:
        return self.groups[key[0]]
