"""How: the merge is compared with a walk through every permutation, as the rules are written."""

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.annotations.placement import NUMATopologyPolicy
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import (
    Exclusivity,
    Hints,
    NUMATopologyHint,
    admit,
    best_hint,
    mask_text,
)
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import NUMAStatus

ALL = 0b111


def walk_everything(
    all_nodes: int, lists: Sequence[Sequence[NUMATopologyHint]], exclusivity: Exclusivity
) -> NUMATopologyHint:
    best = NUMATopologyHint(all_nodes, is_preferred=False)
    for permutation in itertools.product(*lists):
        masks = [hint.numa_nodes for hint in permutation if hint.numa_nodes is not None]
        shared = all_nodes
        for mask in masks:
            shared &= mask
        if not shared:
            continue
        is_preferred = all(hint.is_preferred for hint in permutation) and len(set(masks)) <= 1
        is_preferred = is_preferred and exclusivity.allows(shared)
        is_unsatisfied = any(hint.is_unsatisfied for hint in permutation)
        widest = max((mask.bit_count() for mask in masks), default=shared.bit_count())
        is_unsatisfied = is_unsatisfied or widest != shared.bit_count()
        score = sum(hint.score for hint in permutation if hint.numa_nodes == shared)
        new = NUMATopologyHint(shared, is_preferred, score, is_unsatisfied)
        assert best.numa_nodes is not None
        old_key, new_key = (best.numa_nodes.bit_count(), best.numa_nodes), (shared.bit_count(), shared)
        if new.is_preferred != best.is_preferred:
            best = new if new.is_preferred else best
        elif new_key < old_key or (new_key[0] == old_key[0] and score > best.score):
            best = new
    return best


hints = st.builds(
    NUMATopologyHint,
    st.none() | st.integers(1, ALL),
    st.booleans(),
    st.sampled_from((0, 0, 25, 50)),
    st.booleans(),
)
exclusivities = st.builds(
    Exclusivity,
    st.sampled_from(("", "Preferred", "Required")),
    st.fixed_dictionaries({numa: st.sampled_from(NUMAStatus) for numa in range(3)}),
)


@given(st.lists(st.lists(hints, max_size=6), max_size=3), exclusivities)
@settings(max_examples=400)
def test_the_search_finds_what_a_walk_through_all_permutations_finds(
    lists: list[list[NUMATopologyHint]], exclusivity: Exclusivity
) -> None:
    assert best_hint(ALL, lists, exclusivity) == walk_everything(ALL, lists, exclusivity)


def test_eight_numa_nodes_and_three_resources_are_merged_without_walking_through_millions_of_permutations() -> (
    None
):
    every = [
        NUMATopologyHint(mask, mask.bit_count() == 2, mask % 7)
        for mask in range(1, 256)
        if mask.bit_count() > 1
    ]
    crossed = [NUMATopologyHint(mask, False, mask % 5) for mask in range(1, 256)]
    started = time.perf_counter()

    admission = admit(
        NUMATopologyPolicy.BEST_EFFORT, 255, [{"cpu": every, "memory": crossed}, {"gpu": every}]
    )

    assert admission.hint.numa_nodes is not None
    assert time.perf_counter() - started < 10  # a walk takes minutes, the search some 0.1 s


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (0b1, "01"),
        (0b10, "10"),
        (0b11, "11"),
        (0b100, "100"),
        (0b101, "0101"),
        (0b1000, "1000"),
        (None, "<nil>"),
    ],
)
def test_masks_are_written_as_users_know_them(mask: int | None, text: str) -> None:
    assert mask_text(mask) == text


def test_a_required_exclusive_pod_is_refused_beside_a_shared_one() -> None:
    offered = {"cpu": [NUMATopologyHint(0b01)]}
    beside = Exclusivity(True, {0: NUMAStatus.SHARED})

    refused = admit(NUMATopologyPolicy.SINGLE_NUMA_NODE, 0b11, [offered], beside)
    unaligned = admit(NUMATopologyPolicy.BEST_EFFORT, 0b11, [offered], beside)

    assert refused.status.reasons == ("Unaligned NUMA Hint cause cpu prefer [01] among [01]",)
    assert unaligned.status.is_success and not unaligned.hint.is_preferred


@pytest.mark.parametrize(
    ("policy", "providers", "hint"),
    [
        pytest.param(
            "Restricted",
            [{"cpu": []}],
            NUMATopologyHint(0b11, is_preferred=False),
            id="impossible, restricted",
        ),
        pytest.param(
            "SingleNUMANode",
            [{"cpu": []}],
            NUMATopologyHint(None, is_preferred=False),
            id="impossible, single",
        ),
        pytest.param(
            "SingleNUMANode",
            [{"cpu": [NUMATopologyHint(0b1, score=7)]}, {}],
            NUMATopologyHint(0b1, score=7),
            id="one of two",
        ),
        pytest.param(
            "SingleNUMANode",
            [{"cpu": [NUMATopologyHint(0b11, score=7)]}],
            NUMATopologyHint(None, False),
            id="unaligned",
        ),
        pytest.param(
            "BestEffort",
            [{"cpu": [NUMATopologyHint(0b11, True, 7, True)]}],
            NUMATopologyHint(0b11, is_preferred=False),
            id="impossible, best effort",
        ),
    ],
)
def test_the_numa_nodes_told_of_a_pod_admitted_or_not(
    policy: str, providers: list[Hints], hint: NUMATopologyHint
) -> None:
    assert admit(NUMATopologyPolicy(policy), 0b11, providers).hint == hint


def test_a_machine_with_one_numa_node_names_none_under_single() -> None:
    found = admit(NUMATopologyPolicy.SINGLE_NUMA_NODE, 0b1, [{"cpu": [NUMATopologyHint(0b1, score=7)]}])
    assert found.status.is_success and found.hint == NUMATopologyHint(None)
