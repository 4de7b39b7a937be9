"""What `[fleet]` adds to a plan: links between regions, losses, cost, rates. A run reads none of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from orchestrator.planner.make import make
from orchestrator.planner.plan import Plan, PlanContext, as_json
from orchestrator.planner.sizing.costs import cost
from orchestrator.planner.sizing.fault_tolerance import FaultOutcome, expected
from orchestrator.planner.sizing.model_sizes import Shapes
from orchestrator.planner.sizing.nodes import from_text
from orchestrator.planner.sizing.traffic import LinkLoad
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import Problem
from orchestrator.recipe.toml_text import InputError, dump, validate
from outer.protocol.fragments import Fragment, Tensor

LINK = {"between": ["west", "east"], "gbit_s": 2e-6, "latency_ms": 250.0}  # 2000 bits a second
FLEET: dict[str, Any] = {"step_s": 2.0, "links": [LINK]}
# 3 learners beside the syncer, 2 over the link; 4 fragments of 100, 100, 100 and 50 elements: 1400 bytes.
TWO_REGIONS: dict[str, Any] = {
    "name": "two-regions",
    "sync": {"P": 4, "H": 24, "tau": 2, "quorum": 2, "codec": "bf16"},
    "pools": [{"name": "a", "learners": 3, "region": "west"}, {"name": "b", "learners": 2, "region": "east"}],
    "budget": {"syncer_steps": 4800},
    "run": {"metrics": False},
    "fleet": FLEET,
}
NODES = ["CPU=100,region=west", "CPU=100,region=east"]


def recipe(**sections: Any) -> Recipe:
    raw = TWO_REGIONS | {
        name: TWO_REGIONS[name] | value if isinstance(TWO_REGIONS.get(name), dict) else value
        for name, value in sections.items()
    }
    return Recipe.model_validate(raw)


def shapes() -> Shapes:
    fragments = tuple(Fragment(i, (Tensor(f"t{i}", (size,), "float32"),)) for i, size in enumerate((100, 100, 100, 50)))
    return Shapes(fragments, 1400, 2800, (400, 400, 400, 200), {"a": 1000, "b": 500, "c": 500})


def planned(wanted: Recipe, of: Shapes | None = None, nodes: list[str] = NODES, **context: Any) -> Plan:
    there = {"source": "declared", "store": "/shared/run", "shared_store": True, "forecast": False} | context
    return make(wanted, of or shapes(), PlanContext(from_text(nodes), **there))


# ------------------------------------------------------------------ the section


def test_a_run_reads_none_of_the_section_and_its_hash_does_not_know_it() -> None:
    with_it, without = recipe(), Recipe.model_validate({k: v for k, v in TWO_REGIONS.items() if k != "fleet"})
    assert with_it.fleet != without.fleet
    assert with_it.config_hash == without.config_hash
    assert dump(with_it) == dump(without)
    assert "fleet" not in with_it.canonical()


def test_names_that_are_not_in_the_recipe_are_refused_all_at_once_with_the_nearest() -> None:
    links = [LINK, {"between": ["west", "eats"], "gbit_s": 1}, {"between": ["west", "west"], "gbit_s": 1}]
    links.append({"between": ["east", "west"], "gbit_s": 1})
    pools = [{"name": "a"}, {"name": "aa"}, {"name": "a"}]
    wanted = recipe(fleet={"links": links, "pools": pools})
    with pytest.raises(InputError) as refused:
        validate(wanted)
    told = {problem.field: problem for problem in refused.value.problems}
    assert sorted(told) == [
        "fleet.links.1.between.1",
        "fleet.links.2.between",
        "fleet.links.3.between",
        "fleet.pools.1.name",
        "fleet.pools.2.name",
    ]
    assert told["fleet.links.1.between.1"].fix == 'did you mean "east"?'
    assert "declared twice" in told["fleet.links.3.between"].message


# ------------------------------------------------------------------ links


def test_the_load_of_a_link_is_what_one_computes_by_hand() -> None:
    (load,) = planned(recipe()).loads
    assert (load.ends, load.field, load.learners) == ("east - west", "fleet.links east - west", 2)
    assert load.up_bits == pytest.approx(8 * 2 * 700 / 24 / 2.0)
    assert load.down_bits == pytest.approx(8 * 1400 / 24 / 2.0), "once for both learners"
    assert load.share == pytest.approx(8 * 1400 / 48 / 2000)
    crosses = 8 * (2 * 200 + 400) / 2000, 0.25  # seconds: of payloads, of a trip
    assert load.exchange_steps == pytest.approx((crosses[0] + 6 * crosses[1]) / 2.0 + 2)
    assert load.update_steps == pytest.approx((crosses[0] + 4 * crosses[1]) / 2.0 + 1)
    assert load.open_steps == pytest.approx((8 * 2 * 200 / 2000 + 2 * 0.25) / 2.0 + 1)
    assert load.joining_s == pytest.approx(8 * 4200 / 2000 + 0.25)
    assert load.day_bytes == pytest.approx((2 * 700 + 1400) / 24 * 43_200) and load.day_price is None
    (priced,) = planned(recipe(fleet=FLEET | {"links": [LINK | {"price_per_gb": 50.0}]})).loads
    assert priced.day_price == pytest.approx(50.0 * load.day_bytes / 1e9)


def loads_of(**fleet: Any) -> tuple[LinkLoad, ...]:
    return planned(recipe(fleet=fleet)).loads


def test_the_syncers_region_is_the_recipes_or_else_where_it_is_placed() -> None:
    assert loads_of()[0].ends == "east - west"
    assert loads_of(syncer_region="east")[0].ends == "west - east"


def test_a_link_that_cannot_carry_the_mean_breaks_a_limit_and_its_fix_mends_it() -> None:
    narrow, patient = FLEET | {"links": [LINK | {"gbit_s": 0.2e-6}]}, {"read_timeout_s": 30.0}
    (limit,) = planned(recipe(fleet=narrow, sync=patient)).limits
    assert limit.field == "fleet.links east - west"
    assert "set sync.H to at least 35" in limit.fix
    mended = recipe(fleet=narrow, sync={"H": 35, "tau": 0} | patient)
    assert not planned(mended).limits
    assert planned(mended).loads[0].share == pytest.approx(0.8, abs=0.02)


def test_a_fragment_that_cannot_cross_by_its_deadline_breaks_a_limit() -> None:
    """200 bytes up and 400 down over 80 bit/s take 20.5 and 40.5 s, latency there and back included."""
    wanted = recipe(fleet=FLEET | {"links": [LINK | {"gbit_s": 8e-8}]}, sync={"H": 240, "transfer_s": 40.0})
    reads, transfers = planned(wanted).limits
    assert (reads.field, transfers.field) == ("sync.read_timeout_s", "sync.transfer_s")
    assert "20.5 s" in reads.message and "above 41" in reads.fix and "40.5 s" in transfers.message


def test_doubtful_links_are_warned_of() -> None:
    def warned(**sections: Any) -> list[str]:
        return [warning.field for warning in planned(recipe(**sections)).warnings]

    assert warned(fleet={"links": [LINK | {"gbit_s": 1.5e-6}]}) == ["sync.tau"]  # 5.3 s and a wait, of 4.0 s
    assert warned(fleet={"links": [LINK | {"gbit_s": 1e-5}]}) == []
    assert warned(
        sync={"tau": 0, "read_timeout_s": 9.0, "transfer_s": 200.0}, fleet={"links": [LINK | {"gbit_s": 0.25e-6}]}
    ) == ["fleet.links east - west"]
    south = [*TWO_REGIONS["pools"], {"name": "c", "region": "west"}, {"name": "d", "learners": 2, "region": "south"}]
    wide = {"links": [LINK | {"gbit_s": 1e-5}]}
    of = replace(shapes(), step_tokens=dict.fromkeys("abcd", 1000))
    plan = planned(recipe(pools=south, fleet=wide), of, [*NODES, "CPU=100,region=south"])
    assert "fleet.links south - west" in [warning.field for warning in plan.warnings]
    assert warned(fleet={"links": []}) == []  # nothing declared, nothing missed


# ------------------------------------------------------------------ rounds

FAR = ("b", "c", "d")


def over(*latencies_ms: float, mbit_s: float = 50.0, size: int = 75_000, forecast: bool = True, **sync: Any) -> Plan:
    """A learner in each of four regions, with 24 fragments of 0.3 MB in steps of 0.13 s; the syncer is in region a."""
    links = [
        {"between": ["a", name], "gbit_s": mbit_s / 1e3, "latency_ms": ms}
        for name, ms in zip(FAR, latencies_ms, strict=True)
    ]
    wanted = Recipe.model_validate(
        {
            "name": "four-regions",
            "sync": {"P": 24, "H": 24, "tau": 8, "quorum": "all", "read_timeout_s": 20.0} | sync,
            "pools": [{"name": name, "region": name} for name in ("a", *FAR)],
            "budget": {"syncer_steps": 200},
            "fleet": {"step_s": 0.13, "syncer_region": "a", "mtbf_hours": 1e9, "links": links},
        }
    )
    count = wanted.sync.fragments or 0
    fragments = tuple(Fragment(i, (Tensor(f"t{i}", (size,), "float32"),)) for i in range(count))
    model = 4 * size * count
    of = Shapes(fragments, model, 2 * model, (4 * size,) * count, dict.fromkeys(("a", *FAR), 100))
    return planned(wanted, of, [f"CPU=100,region={name}" for name in ("a", *FAR)], forecast=forecast)


@pytest.mark.parametrize(
    ("latencies_ms", "sync", "asked"),
    [
        ((60.0,) * 3, {}, 24),
        ((300.0,) * 3, {"tau": 2}, 24),
        ((600.0,) * 3, {}, 31),
        ((450.0,) * 3, {"P": 4, "size": 450_000}, 29),
        ((300.0, 450.0, 700.0), {}, 36),
        ((300.0, 450.0, 700.0), {"quorum": 3}, 25),  # two of the three far ones are enough
        ((300.0, 450.0, 700.0), {"quorum": 2}, 24),
        ((100.0,) * 3, {"P": 6, "H": 6, "tau": 2}, 7),
    ],
)
def test_the_inner_steps_of_a_round_are_those_of_a_virtual_run(
    latencies_ms: tuple[float, ...], sync: dict[str, Any], asked: int
) -> None:
    plan = over(*latencies_ms, **sync)
    assert plan.round_steps is not None and plan.forecast is not None
    assert plan.round_steps == pytest.approx(asked, abs=1.0)
    assert plan.forecast.round_steps == pytest.approx(plan.round_steps, rel=0.1)
    refused = [limit for limit in plan.limits if limit.field == "sync.H"]
    assert bool(refused) == (plan.round_steps > plan.recipe.sync.round_steps)
    if refused:
        steps = int(refused[0].fix.removeprefix("set sync.H to ").split()[0])
        mended = over(*latencies_ms, forecast=False, **sync | {"H": steps})
        assert not [limit for limit in mended.limits if limit.field == "sync.H"], "its fix mends it"


def test_an_exchange_older_than_tau_is_warned_of_and_who_misses_rounds_too() -> None:
    def told(*latencies_ms: float, **sync: Any) -> dict[str, str]:
        return {each.field: each.fix for each in over(*latencies_ms, forecast=False, **sync).warnings}

    assert not {"sync.tau", "sync.H"} & told(60.0, 60.0, 60.0, tau=4).keys()
    assert told(60.0, 60.0, 60.0, tau=2)["sync.tau"].startswith("set sync.tau to 4 or more: the exchange takes 6 steps")
    assert told(60.0, 60.0, 700.0, tau=4, quorum=3)["sync.H"].startswith("set sync.H to 36 or more")


def test_tcp_fills_a_long_link_in_part_and_more_learners_fill_more_of_it() -> None:
    far = LINK | {"gbit_s": 1.0, "latency_ms": 40.0}
    (load,) = planned(recipe(fleet=FLEET | {"links": [far]})).loads
    assert (load.link_bits, load.declared_bits) == (2 * 8 * 4e6 / 0.08, 1e9)
    near = planned(recipe(fleet=FLEET | {"links": [far | {"latency_ms": 10.0}]})).loads[0]
    assert near.link_bits == near.declared_bits == 1e9
    narrow = over(110.0, 40.0, 40.0, mbit_s=500.0, size=4_700_000, forecast=False, H=48)
    assert (
        "TCP fills 0.145 of 0.5 Gbit/s" in next(one for one in narrow.limits if one.field.startswith("fleet")).message
    )


def test_memory_counts_the_steps_that_an_exchange_keeps_open_and_no_more_than_a_round() -> None:
    def payloads(*latencies_ms: float, **sync: Any) -> int:
        parts = over(*latencies_ms, forecast=False, **sync).memory["syncer"].parts
        return next(part.bytes for part in parts if part.what == "payloads of the open steps") // (4 * 4 * 75_000)

    assert payloads(1.0, 1.0, 1.0) == 8, "tau"
    assert [payloads(600.0, 1.0, 1.0, tau=tau) for tau in (2, 8)] == [11, 11], "2 trips, 0.05 s, and a step"
    assert payloads(600.0, 1.0, 1.0, H=48) == 6, "every second step has a fragment"
    assert payloads(6000.0, 1.0, 1.0) == 23
    assert payloads(6000.0, 1.0, 1.0, overlap="strict") == 8


def test_a_peers_state_that_comes_too_late_is_warned_of() -> None:
    # 1400 bytes of parameters and 2800 of inner state are 33,600 bits; 60 s are the deadline.
    def warnings(gbit_s: float, **sync: Any) -> tuple[Problem, ...]:
        link = LINK | {"gbit_s": gbit_s, "latency_ms": 0.0}
        wanted = recipe(fleet={"links": [link], "step_s": None}, sync={"read_timeout_s": 60} | sync)
        return planned(wanted).warnings

    (warning,) = warnings(5.5e-7)
    assert warning.field == "sync.transfer_s"
    assert "a peer's state of 4.1 KiB takes 61.1 s over east - west" in warning.message
    assert warnings(5.7e-7) == warnings(5.5e-7, recover="syncer") == ()


# ------------------------------------------------------------------ cost


def test_cost_by_hand() -> None:
    pools = [{"name": "a", "price_per_hour": 30.0}, {"name": "b", "price_per_hour": 10.0}]
    wanted = recipe(fleet={"pools": pools})
    told = cost(wanted, {"a": 1000, "b": 500}, 2.0, 7_000_000, goodput=0.8)
    assert told.per_hour == 3 * 30.0 + 2 * 10.0
    assert told.tokens_per_hour == pytest.approx(0.8 * 3600 * (3 * 1000 + 2 * 500) / 2.0)
    assert told.per_billion_tokens == pytest.approx(1e9 * 110 / 5_760_000)
    assert told.run_cost == pytest.approx(110 * 7_000_000 / 5_760_000)
    slow = recipe(pools=[{"name": "a", "slowdown": 4.0}], fleet={})
    assert cost(slow, {"a": 1000}, 2.0, 100).tokens_per_hour == pytest.approx(3600 * 1000 / 2.0 / 4.0, rel=1e-3)
    free = cost(wanted, {"a": 1000, "b": 500}, 2.0, 7_000_000)
    there = 8766.0 / (8766.0 + 663.0 / 3600.0)
    assert free.goodput == pytest.approx(there)
    told = cost(recipe(fleet={"pools": pools[:1]}), {"a": 1, "b": 1}, 2.0, 100)
    assert (told.per_hour, told.per_billion_tokens, told.unpriced) == (None, None, ("b",)), "no price is made up"
    assert cost(recipe(), {"a": 1, "b": 1}, None, 100).tokens_per_hour is None


def test_a_run_that_is_forecast_to_its_end_is_counted_so_and_a_longer_one_by_mean_times() -> None:
    failing = FLEET | {"mtbf_hours": 1.0, "links": []}
    plan = planned(recipe(fleet=failing, budget={"syncer_steps": 1200}), forecast=True)
    assert plan.forecast is not None and plan.forecast.whole and 0.5 < plan.forecast.committed < 0.95
    assert (plan.cost.goodput, plan.cost.goodput_is_given) == (plan.forecast.committed, True)
    assert as_json(plan, [])["forecast"]["goodput"] == plan.forecast.goodput
    longer = planned(recipe(fleet=failing, budget={"syncer_steps": 480_000}), forecast=True)
    assert longer.forecast is not None and not longer.forecast.whole
    there = 3600.0 / (3600.0 + 663.0)
    assert (longer.cost.goodput, longer.cost.goodput_is_given) == (pytest.approx(there), False)
    assert planned(recipe()).forecast is None, "none was asked for"


# ------------------------------------------------------------------ faults


def test_losses_by_hand() -> None:
    pools = [{"name": "a", "chips": 8}, {"name": "b", "mtbf_hours": 3.0}]
    fleet = {"mtbf_hours": 8000.0, "detect_s": 100.0, "replace_s": 3400.0, "start_s": 100.0, "pools": pools}
    told = expected(recipe(fleet=fleet))
    assert told.unit_mtbf_hours == {"a": 1000.0, "b": 3.0}
    assert told.losses_per_day == pytest.approx(3 * 24 / 1000 + 2 * 24 / 3)
    west, east = 1000 / 1001, 3 / 4
    assert told.alive_mean == pytest.approx(3 * west + 2 * east)
    lives = [(sum(who), [p if up else 1 - p for up, p in zip(who, [west] * 3 + [east] * 2, strict=True)])
             for who in product((0, 1), repeat=5)]  # fmt: skip
    below = 0.0
    for count, shares in lives:
        probability = 1.0
        for share in shares:
            probability *= share
        below += probability if count < 2 else 0.0
    assert told.below_quorum == pytest.approx(below)


def row(plan: Plan, start: str) -> FaultOutcome:
    return next(one for one in plan.fault_outcomes if one.lost.startswith(start))


def test_who_may_be_lost_follows_from_m_k_pools_and_regions() -> None:
    plan = planned(recipe())
    assert row(plan, "any 3 of 5").stopped_s == 0.0
    assert row(plan, "4 learners or more").stopped_s == 663.0
    assert row(plan, "pool a").stopped_s == row(plan, "region east").stopped_s == 0.0
    assert row(plan, "region west").stopped_s is None, "the syncer is there"
    strict = planned(recipe(sync={"quorum": 3}))
    assert row(strict, "pool a").stopped_s == 663.0, "only 2 remain"
    assert row(planned(recipe(sync={"quorum": "all"})), "any learner").stopped_s == 663.0


def test_what_the_syncer_takes_with_it_follows_from_durability_and_store() -> None:
    assert row(planned(recipe()), "the syncer's node").stopped_s == pytest.approx(2.8, abs=0.01)
    assert row(planned(recipe(), shared_store=False), "the syncer's node, with the journal's disk").stopped_s is None
    on_s3 = recipe(durability={"store": "s3://bucket/run"})
    assert row(planned(on_s3, shared_store=False), "the syncer's node").stopped_s == pytest.approx(2.8, abs=0.01)
    assert row(planned(on_s3), "the store").stopped_s is None and row(planned(on_s3), "everything").stopped_s == 663.0
    rare = planned(recipe(durability={"mode": "checkpoint", "every_s": 90}))
    assert row(rare, "everything").stopped_s == 663.0 and row(rare, "the store").stopped_s == 0.0
    never = planned(recipe(durability={"mode": "checkpoint", "every_s": 0}))
    assert row(never, "everything").stopped_s is None
