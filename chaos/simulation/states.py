"""A learner's state on its way to a joiner, at both ends: the shell's part of joining from a peer.

Always answered: by a state, a refusal, or a deadline. Knows nothing of whom to ask; the syncer names the donor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from chaos.simulation import conduct
from chaos.simulation.network import Call, ask
from chaos.simulation.values import Held
from learners.protocol import events_effects
from outer.protocol.messages import Donor, State, StateRequest

if TYPE_CHECKING:
    from chaos.simulation.setting import Setting

CALL_S = 10.0  # deadline for an answer from the syncer
PACK_S = 0.02  # a state, in a thread of its own


class States:
    """Of one unit. `release` gives back the thread in which a state was sought."""

    def __init__(self, setting: Setting, unit: Any, release: Callable[[], None]) -> None:
        self._setting, self._unit, self._release = setting, unit, release
        self._gifts: dict[tuple[str, int], Call] = {}  # by joiner

    def __len__(self) -> int:
        """Joiners that wait for this learner's state."""
        return len(self._gifts)

    def die(self) -> None:
        for call in self._gifts.values():
            call.died()

    # -------------------------------------------------------------- the joiner's end

    def seek(self, effect: events_effects.Recover) -> None:
        """Have a donor named, and get its state."""
        unit = self._unit
        assert unit.server is not None
        named, missed = partial(self._named, effect), partial(self._missed, "", 0)
        links = unit.up, unit.down
        ask(self._setting.network, unit, unit.server, links, unit.server.seek, effect.seek, CALL_S, named, missed)

    def _named(self, effect: events_effects.Recover, answer: tuple[Donor, Any] | None) -> None:
        if answer is None:
            self._missed("", 0, "none")
            return
        (named, donor), unit, network = answer, self._unit, self._setting.network
        who, whom = (unit.name, unit.incarnation), (named.donor, named.donor_incarnation)
        request = StateRequest(named.epoch, *who, *whom, named.syncer_step, effect.deadline_s)
        links = network.link(unit.name, donor.name), network.link(donor.name, unit.name)
        given, missed = partial(self._given, donor), partial(self._missed, named.donor, named.donor_incarnation)
        ask(network, unit, donor, links, donor.states.give, request, effect.deadline_s, given, missed)

    def _given(self, donor: Any, answer: tuple[State, int] | str) -> None:
        """What the donor had said by then has to be in the log before its state is used."""
        if isinstance(answer, str):
            self._missed(donor.name, donor.incarnation, answer)
            return
        unit, (state, upto) = self._unit, answer
        unit.moment("received")
        assert unit.server is not None
        examined, missed = partial(self._examined, donor, state), partial(self._missed, donor.name, donor.incarnation)
        links = unit.up, unit.down
        note = (donor, upto)
        ask(self._setting.network, unit, unit.server, links, unit.server.record, note, CALL_S, examined, missed)

    def _examined(self, donor: Any, state: State, recorded: None) -> None:
        if state.payload.poisoned:
            self._missed(donor.name, donor.incarnation, "non_finite")
        elif self._setting.flips and self._setting.damaged("state_damage"):
            self._missed(donor.name, donor.incarnation, "bad_digest")
        else:
            self._release()
            self._unit.hear(events_effects.StateArrived(state))

    def _missed(self, donor: str, incarnation: int, reason: str) -> None:
        self._release()
        self._unit.hear(events_effects.StateMissed(donor, incarnation, reason))

    # -------------------------------------------------------------- the donor's end

    def give(self, call: Call) -> None:
        """A joiner's question."""
        request = call.message
        key = (request.joiner, request.joiner_incarnation)
        self._gifts[key] = call
        self._unit.moment("giving")
        self._unit.hear(request)
        if self._gifts.get(key) is call:
            self._unit.after(request.deadline_s, self._answer, key, call, "timeout")

    def donate(self, effect: events_effects.Donate) -> None:
        key, unit = (effect.request.joiner, effect.request.joiner_incarnation), self._unit
        if (call := self._gifts.get(key)) is not None:
            conduct.gives(self._setting.truth, unit, effect)
            held = Held(unit.values.contents(), unit.poisoned)
            unit.after(PACK_S, self._pack, key, call, effect, held)

    def decline(self, effect: events_effects.Decline) -> None:
        key = (effect.request.joiner, effect.request.joiner_incarnation)
        if (call := self._gifts.get(key)) is not None:
            self._answer(key, call, effect.reason)

    def _pack(self, key: tuple[str, int], call: Call, effect: events_effects.Donate, held: Held) -> None:
        unit = self._unit
        if unit.exited:
            return
        digest = f"{unit.name}{unit.incarnation}@{effect.step}"
        state = State(
            unit.name,
            unit.incarnation,
            effect.step,
            effect.syncer_step,
            held,
            digest,
            len(held.contents),
            effect.versions,
        )
        unit.hear(events_effects.StateSent(effect.request, effect.step, digest, state.size, effect.versions))
        self._setting.truth.gave(unit.key, effect.step, held.contents)
        self._answer(key, call, (state, len(self._setting.facts[unit.key])))

    def _answer(self, key: tuple[str, int], call: Call, answer: tuple[State, int] | str) -> None:
        if self._gifts.get(key) is call:
            del self._gifts[key]
            call.reply(0.0 if isinstance(answer, str) else float(answer[0].size), answer)
