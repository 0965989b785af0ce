"""Which instances belong to which pool, and under which names requests reach them."""

from __future__ import annotations

import pytest

from extproc.core.scaling.pools import MADE_MOST, belongs, groups, members, names, placed, speed_of
from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.core.speeds.profile import profile_for
from extproc.core.speeds.speed import Speed
from extproc.core.values.instance import Instance, Lifecycle, Role
from tests.core.builders import MODEL, instance


def pool(name: str = "a", **changes: object) -> PoolRules:
    return PoolRules(**({"name": name, "models": (MODEL,), "hardware": "h100_sxm"} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("there", "is_one"),
    [
        (instance(), True),
        (instance(hardware="l40s"), False),
        (instance(tensor_parallel=2), False),
        (instance(models=("other",)), False),
        (instance(models=(MODEL, "alias")), True),
        (instance(models=(MODEL, "adapter"), loras=("adapter",)), True),
        (instance(models=("other", MODEL), loras=(MODEL,)), False),  # an adapter of that name is not the model
        (instance(models=(), loadable=(MODEL,), lifecycle=Lifecycle.LOADING), True),
        (instance(models=("other",), loadable=(MODEL,)), False),  # it serves another now
    ],
)
def test_an_instance_belongs_to_a_pool_by_model_hardware_and_parallelism(there: Instance, *, is_one: bool) -> None:
    """What it could load counts only as long as it serves nothing."""
    assert belongs(pool(), there) is is_one
    assert members(pool(), (there,)) == ((there,) if is_one else ())


def test_a_pool_of_any_hardware_takes_all() -> None:
    """Where the rules say no hardware, none is asked for."""
    assert belongs(pool(hardware=""), instance(hardware="l40s"))


def test_an_instance_is_in_one_pool_the_one_that_says_most() -> None:
    """Pools may overlap; nobody may be counted twice."""
    vague, sharp, wide = pool("vague", hardware=""), pool("sharp"), pool("wide", models=(MODEL, "b"), hardware="")
    plain, both, other = instance("x"), instance("y", models=(MODEL, "b")), instance("z", hardware="l40s")
    stranger = instance("q", models=("none",))
    found = placed((vague, sharp, wide), (plain, both, other, stranger))
    assert found == {"vague": (other,), "sharp": (plain,), "wide": (both,)}


def test_of_pools_alike_the_first_has_all() -> None:
    """Two pools with the same words are told apart by nothing."""
    there = instance()
    assert placed((pool("first"), pool("second")), (there,)) == {"first": (there,), "second": ()}


def test_an_instance_is_held_against_the_pools_of_its_models_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hundreds of pools and thousands of instances a look would take longer than the time between two."""
    held = 0

    def counted(one: PoolRules, there: Instance) -> bool:
        nonlocal held
        held += 1
        return belongs(one, there)

    monkeypatch.setattr("extproc.core.scaling.pools.belongs", counted)
    many = [f"m{number}" for number in range(50)]
    rules = ScalingRules(pools=tuple(pool(name, models=(name,)) for name in many))
    there = tuple(instance(f"{name}-{number}", models=(name,)) for name in many for number in range(4))
    assert all(len(found) == 4 for found in placed(rules.pools, there).values())
    assert names(groups(rules), there) == tuple(frozenset({name}) for name in many)
    assert held == 2 * len(there)


def test_pools_with_the_same_models_are_one_group_whatever_their_order() -> None:
    """They serve the same requests."""
    rules = ScalingRules(
        pools=(pool("a", models=("m", "n")), pool("b", models=("k",)), pool("c", models=("n", "m"), hardware="l40s"))
    )
    assert [(group.models, [each.name for each in group.pools]) for group in groups(rules)] == [
        (("m", "n"), ["a", "c"]),
        (("k",), ["b"]),
    ]


def test_without_rules_pools_are_made_from_what_is_there() -> None:
    """One a kind, adapters aside; what nobody has described does not go to zero."""
    there = (
        instance("x"),
        instance("y", models=(MODEL, "adapter"), loras=("adapter",)),
        instance("z", hardware="l40s"),
        instance("q", models=("big",), tensor_parallel=4, hardware=""),
        instance("none", models=()),
    )
    made = groups(ScalingRules(), there)
    assert [(group.models, [each.name for each in group.pools]) for group in made] == [
        (("big",), ["big/unknown/tp4"]),
        ((MODEL,), [f"{MODEL}/h100_sxm/tp1", f"{MODEL}/l40s/tp1"]),
    ]
    assert {(each.least, each.most) for group in made for each in group.pools} == {(1, MADE_MOST)}
    assert [each.id for each in members(made[1].pools[0], there)] == ["x", "y"]


def test_halves_of_a_model_are_groups_of_their_own() -> None:
    """Where a prompt is computed nobody answers, and the other way round. Whole requests go to a third."""
    there = (
        instance("p", role=Role.PREFILL, kv_domain="d"),
        instance("d", role=Role.DECODE, kv_domain="d"),
        instance("w", kv_domain="d"),
        instance("plain"),
    )
    halves = (pool("p", role=Role.PREFILL), pool("d", role=Role.DECODE))
    assert [(group.role, len(group.pools)) for group in groups(ScalingRules(pools=halves))] == [
        (Role.PREFILL, 1),
        (Role.DECODE, 1),
    ]
    found = placed((*halves, pool("all")), there)
    assert {name: [each.id for each in those] for name, those in found.items()} == {
        "p": ["p"],
        "d": ["d", "w"],
        "all": ["plain"],
    }
    made = groups(ScalingRules(), there)
    name = f"{MODEL}/h100_sxm/tp1"
    assert {(group.role, group.pools[0].name) for group in made} == {
        (Role.BOTH, name),
        (Role.PREFILL, f"{name}/prefill"),
        (Role.DECODE, f"{name}/decode"),
    }


def test_a_half_is_asked_for_under_the_aliases_of_the_other() -> None:
    """Requests are counted by the name under which they came, and reach both."""
    halves = groups(ScalingRules(pools=(pool("p", role=Role.PREFILL), pool("d", role=Role.DECODE))))
    there = instance("d", models=(MODEL, "alias"), role=Role.DECODE, hardware="l40s")
    assert names(halves, (there,)) == (frozenset({MODEL, "alias"}),) * 2


def test_with_rules_what_else_is_there_makes_no_pool() -> None:
    """The operator's word is the whole."""
    assert [group.models for group in groups(ScalingRules(pools=(pool(),)), (instance(models=("big",)),))] == [(MODEL,)]


def test_requests_reach_a_group_by_models_aliases_and_adapters() -> None:
    """Routers count by name; a group without instances still has its own."""
    (group,) = groups(ScalingRules(pools=(pool(),)))
    there = (
        instance(models=(MODEL, "alias", "adapter"), loras=("adapter",)),
        instance(models=("other",)),
    )
    assert names((group,), there) == ({MODEL, "alias", "adapter"},)
    assert names((group,), ()) == ({MODEL},)


def test_a_pool_is_as_fast_as_was_learned_else_as_the_table_says() -> None:
    """The table's times are kernels': an engine's usual overhead comes on top."""
    learned = Speed(profile_for(MODEL, "h100_sxm", 1), decode_scale=1.3)
    assert speed_of(pool(), (), {"a": learned}) is learned
    table = speed_of(pool(hardware=""), (instance(hardware="l40s"),), {"other": learned})
    assert table.prior == profile_for(MODEL, "l40s", 1)
    assert table.decode_step_s(1, 100) > table.prior.decode_step_s(1, 100)
