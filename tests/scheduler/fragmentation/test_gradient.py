"""The gradient against its definition, written down node by node, pod by pod and card by card."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.scheduler.plugins.fragmentation import gradient, target
from koordinator.scheduler.plugins.fragmentation.card_values import card_values
from koordinator.scheduler.plugins.fragmentation.demand import PodDemand, Shape
from koordinator.scheduler.plugins.fragmentation.gradient import CARD_VALUE_WEIGHT, COPIES_WEIGHT, Nodes
from koordinator.scheduler.plugins.fragmentation.target import Target

MODELS = ("A10", "T4")
Node = tuple[int, int, str, tuple[int, ...]]
"""Milli-cores, bytes, model, free percent of each card."""

cpus = st.integers(0, 9).map(lambda cores: 1_000 * cores)
memories = st.integers(1, 9).map(lambda gib: gib << 30)
shapes = st.one_of(
    st.builds(Shape, cpus, memories, st.just(1), st.integers(1, 99)),
    st.builds(Shape, cpus, memories, st.sampled_from((1, 2, 4)), st.just(100)),
)
demands = st.builds(PodDemand, shapes, st.sampled_from((None, ("A10",), ("T4",), MODELS)))
workloads = st.dictionaries(demands, st.integers(1, 9), min_size=1, max_size=8).map(
    lambda counts: {demand: count / sum(counts.values()) for demand, count in counts.items()}
)
cards = st.one_of(st.just(100), st.integers(0, 100))
nodes = st.tuples(
    st.integers(0, 40).map(lambda cores: 1_000 * cores),
    st.integers(0, 40).map(lambda gib: gib << 30),
    st.sampled_from(MODELS),
    st.lists(cards, min_size=4, max_size=4).map(tuple),
)


def usable(shares: Mapping[PodDemand, float], node: Node) -> float:
    """Return the GPU that an average pod of those that take the node's model can use."""
    cpu, memory, model, free = node
    takers = {d: share for d, share in shares.items() if d.models is None or model in d.models}
    total = 0.0
    for demand, share in takers.items():
        shape = demand.shape
        reach = min(amount / wanted if wanted else np.inf
                    for amount, wanted in ((cpu, shape.cpu_milli), (memory, shape.memory_bytes)))  # fmt: skip
        whole = sum(each == 100 for each in free)
        if shape.percent < 100:
            fit = even = sum(each for each in free if each >= shape.percent)
            copies = sum(each // shape.percent for each in free)
        else:
            copies = whole // shape.cards
            fit, even = 100 * whole * (copies > 0), 100 * copies * shape.cards
        if reach >= 1 and copies:
            part = COPIES_WEIGHT * even * min(1, reach / copies)
            total += share * ((1 - COPIES_WEIGHT) * fit + part)
    return total / (sum(takers.values()) or 1)


def read(made: Target, given_nodes: Sequence[Node]) -> tuple[Nodes, np.ndarray]:
    free = np.array([node[3] for node in given_nodes], np.uint8).T
    cpu, memory = (np.array([node[i] for node in given_nodes]) for i in (0, 1))
    model = np.array([MODELS.index(node[2]) for node in given_nodes])
    return gradient.nodes_of(made, cpu, memory, model, free), free


@given(workloads, st.lists(nodes, min_size=1, max_size=4))
def test_what_the_target_can_use_is_what_its_pods_can_use(
    shares: Mapping[PodDemand, float], given_nodes: list[Node]
) -> None:
    made = target.target_of(shares, MODELS)
    found = gradient.usable(made, read(made, given_nodes)[0])

    assert found == pytest.approx([usable(shares, node) for node in given_nodes], abs=0.05, rel=1e-3)


@given(workloads, st.lists(nodes, min_size=1, max_size=4), shapes)
def test_a_pod_costs_what_becomes_useless_and_what_its_parts_of_cards_are_worth(
    shares: Mapping[PodDemand, float], given_nodes: list[Node], shape: Shape
) -> None:
    made = target.target_of(shares, MODELS)
    now, free = read(made, given_nodes)
    taking, before = gradient.taking_of(made, shape), gradient.usable(made, now)
    known = np.where(np.arange(before.size) % 2, before, np.nan).astype(np.float32)
    found, completed = gradient.costs(made, taking, now, free, known, np.arange(0, before.size, 2))
    assert completed == pytest.approx(before)
    chosen = gradient.choose_cards(taking.card_costs, free, 1)[0]

    for index, (cpu, memory, model, cards_now) in enumerate(given_nodes):
        after = list(cards_now)
        if shape.percent == 100:
            whole = [slot for slot, each in enumerate(after) if each == 100][: shape.cards]
            taken = whole if len(whole) == shape.cards else []
        else:
            taken = [int(chosen[index])] if max(after) >= shape.percent else []
        if not taken or cpu < shape.cpu_milli or memory < shape.memory_bytes:
            continue
        for slot in taken:
            after[slot] -= shape.percent
        worth = sum(made.card_value[before] - made.card_value[left]
                    for before, left in zip(cards_now, after, strict=True))  # fmt: skip
        left_over: Node = (cpu - shape.cpu_milli, memory - shape.memory_bytes, model, tuple(after))
        lost = usable(shares, (cpu, memory, model, cards_now)) - usable(shares, left_over)
        expected = lost - shape.gpu_percent
        if shape.percent < 100:
            expected += 100 * CARD_VALUE_WEIGHT * worth
        assert found[index] == pytest.approx(expected, abs=0.2, rel=1e-3)


@given(st.dictionaries(st.integers(1, 99), st.integers(1, 50), min_size=1, max_size=12))
def test_values_of_parts_never_exceed_a_card_and_pay_for_filling_all_cards(weights: dict[int, int]) -> None:
    values = card_values(weights)
    generator = np.random.default_rng(1)

    assert (np.diff(values) >= 0).all() and values[0] == 0 and values[100] == 1
    for _ in range(20):
        room, worth = 100, 0.0
        for size in generator.permutation(sorted(weights)).tolist():
            if size <= room:
                room, worth = room - size, worth + values[size]
        assert worth <= 1 + 1e-6
    # The dual of the fewest cards: at least the sum of all sizes, at most a card per pod.
    cards_needed = sum(count * values[size] for size, count in weights.items())
    assert sum(size * count for size, count in weights.items()) / 100 - 1e-6 <= cards_needed
    assert cards_needed <= sum(weights.values()) + 1e-6


def test_pods_that_fill_a_card_together_are_worth_their_parts_and_a_lone_one_the_card() -> None:
    values = card_values({81: 100, 19: 20, 50: 10})

    assert values[81] == pytest.approx(1) and values[19] == pytest.approx(0)
    assert values[50] == pytest.approx(0.5)
    assert card_values({81: 20, 19: 100})[19] == pytest.approx(0.2)
