"""Who of a node's batch pods and YARN containers goes first, and which ids are trusted."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import copilot
from koordinator.api.errors import ProtocolError
from koordinator.yarn import eviction
from koordinator.yarn.eviction import EvictionCandidate, ReleaseMode

amounts = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 5), max_size=2)
candidates = st.lists(
    st.builds(
        EvictionCandidate,
        kind=st.sampled_from(["pod", "yarn"]),
        id=st.integers(1, 99).map(lambda n: f"container_1_1_1_{n}"),
        priority=st.sampled_from([1, 5000]),
        opportunistic=st.booleans(),
        used=amounts,
        requested=amounts,
        age_seconds=st.none() | st.integers(0, 3),
        state=st.sampled_from(["RUNNING", "KILLING"]),
    ),
    max_size=8,
    unique_by=lambda each: each.id,
)
targets = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(-1, 12), min_size=1)


@given(each=candidates, seed=st.integers(0, 99))
def test_the_order_does_not_depend_on_the_order_of_the_list(each: list[EvictionCandidate], seed: int) -> None:
    shuffled = random.Random(seed).sample(each, len(each))
    assert eviction.order(shuffled, "memory") == eviction.order(each, "memory")


@given(each=candidates, wanted=targets, mode=st.sampled_from(ReleaseMode))
def test_targets_are_met_or_everyone_who_helps_is_taken(
    each: list[EvictionCandidate], wanted: dict[str, int], mode: ReleaseMode
) -> None:
    chosen = eviction.select(each, "memory", wanted, mode)

    assert not any(victim.is_final for victim in chosen.victims)
    for name, missing in chosen.shortfall.items():
        assert missing == max(wanted[name] - chosen.released[name], 0)
        left = [one for one in each if not one.is_final and one not in chosen.victims]
        assert missing == 0 or not any(
            one.requested.get(name, 0)
            if (name, mode) == ("cpu", ReleaseMode.SATISFACTION)
            else one.consumption(name)
            for one in left
        )


@given(each=candidates, wanted=targets)
def test_without_the_last_victim_something_would_be_missing(
    each: list[EvictionCandidate], wanted: dict[str, int]
) -> None:
    chosen = eviction.select(each, "memory", wanted)
    if chosen.victims:
        without = [one for one in each if one != chosen.victims[-1]]
        assert any(eviction.select(without, "memory", wanted).shortfall.values()) or chosen.victims != (
            eviction.select(without, "memory", wanted).victims
        )


@pytest.mark.parametrize(
    "text",
    [
        "container_1_1_1_1\n",
        "container_1_1_1",
        "xcontainer_1_1_1_1",
        "container_١_1_1_1",
        "../container_1_1_1_1",
    ],
)
def test_what_is_not_entirely_an_id_is_no_id(text: str) -> None:
    assert not copilot.is_yarn_id(text)


@pytest.mark.parametrize(
    "body", [[], {"containers": {"container": [{"id": 3}]}}, {"containers": {"container": ["x"]}}]
)
def test_an_answer_of_another_shape_is_an_error(body: object) -> None:
    with pytest.raises(ProtocolError, match="NodeManager"):
        eviction.parse(body)


def test_no_containers_come_as_null_or_empty_text() -> None:
    assert eviction.parse({"containers": None}) == eviction.parse({"containers": ""}) == []
