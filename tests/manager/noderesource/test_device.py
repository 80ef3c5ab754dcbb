"""Resources of GPUs and NICs: sums over healthy devices, and what is taken away again."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels, resources
from koordinator.api.decode import from_builtins
from koordinator.api.device import Device
from koordinator.manager.noderesource import rows

CARD = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["gpu", "rdma"]),
        "health": st.booleans(),
        "resources": st.dictionaries(
            st.sampled_from([resources.GPU_CORE, resources.GPU_MEMORY, "example.com/other"]),
            st.integers(0, 2**40).map(str),
        ),
    }
)


def device_of(cards: list[dict[str, Any]], own: dict[str, str] | None = None) -> Device:
    return from_builtins({"metadata": {"name": "n", "labels": own or {}}, "spec": {"devices": cards}}, Device)


@given(cards=st.lists(CARD, max_size=8))
def test_a_node_gets_exactly_what_its_healthy_gpus_have(cards: list[dict[str, Any]]) -> None:
    target = rows.gpu_target(device_of(cards), publishes_shared=True)

    healthy = [card["resources"] for card in cards if card["type"] == "gpu" and card["health"]]
    if not healthy:
        assert target.amounts == dict.fromkeys(rows.GPU_RESOURCES)
        return
    for name in (resources.GPU_CORE, resources.GPU_MEMORY):
        named = [int(card[name]) for card in healthy if name in card]
        assert target.amounts.get(name) == (sum(named) * 1000 if named else None)
    assert target.amounts[resources.GPU_SHARED] == 100_000 * len(healthy)
    assert "example.com/other" not in target.amounts


def test_cards_of_other_vendors_are_no_koordinator_gpus() -> None:
    cards = [{"type": "gpu", "health": True, "resources": {resources.GPU_CORE: "100"}}]

    target = rows.gpu_target(device_of(cards, {labels.GPU_VENDOR: "huawei"}), publishes_shared=False)

    assert target.amounts == {resources.GPU_CORE: 100_000}
    assert target.labels == {labels.GPU_VENDOR: "huawei"}


def test_absurd_amounts_of_cards_are_summed_like_others() -> None:
    card = {"type": "gpu", "health": True, "resources": {resources.GPU_MEMORY: "9E", "example.com/x": "1e40"}}

    target = rows.gpu_target(device_of([card] * 3), publishes_shared=False)

    assert target.amounts[resources.GPU_MEMORY] == 27 * 10**21
