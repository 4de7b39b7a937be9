"""What the syncer says and does, in the order in which it is to be performed. Knows no reason for any of it."""

from __future__ import annotations

from outer.facts import SyncerFact
from outer.members import Member, Members
from outer.signals import Append, Effect, Merge, Publish, Say, Send, ToLearner


class Outgoing:
    """Effects until they are taken. What the members have to say comes before what follows from it."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._effects: list[Effect] = []

    def say(self, fact: SyncerFact) -> None:
        self._collect()
        self._effects.append(Say(fact))

    def send(self, member: Member, message: ToLearner) -> None:
        self._collect()
        self._effects.append(Send(member.name, member.incarnation, message))

    def do(self, effect: Merge | Append | Publish) -> None:
        self._effects.append(effect)

    def take(self) -> list[Effect]:
        self._collect()
        effects, self._effects = self._effects, []
        return effects

    def _collect(self) -> None:
        self._effects.extend(Say(fact) for fact in self._members.take_facts())
