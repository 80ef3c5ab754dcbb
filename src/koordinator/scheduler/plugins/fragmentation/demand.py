"""Read the amounts that a pod asks of a node with GPUs, and the models of cards that it takes."""

from collections.abc import Callable, Sequence

import msgspec

from koordinator.api import labels, node_affinity, resource_vector, resources
from koordinator.api.annotations.device import DeviceType
from koordinator.api.core import Pod
from koordinator.scheduler.plugins.device_share import request
from koordinator.scheduler.plugins.device_share.request import WHOLE
from koordinator.scheduler.table.pod_info import PodInfo


class Shape(msgspec.Struct, frozen=True, order=True):
    """The amounts of a pod: milli-cores, bytes, cards, and percent of each card (100: a whole one)."""

    cpu_milli: int
    memory_bytes: int
    cards: int
    percent: int

    @property
    def gpu_percent(self) -> int:
        """Return percent over all cards."""
        return self.cards * self.percent


Models = tuple[str, ...] | None
"""Models of cards, ascending; None takes any."""


class PodDemand(msgspec.Struct, frozen=True):
    """A kind of pods: the amounts, and the models that will do."""

    shape: Shape
    models: Models = None


def shape_of(pod: PodInfo, names: Sequence[str], card_memory_bytes: Callable[[], int]) -> Shape:
    """Return what a pod asks for; without cards when it asks for none, or in a form that DeviceShare refuses.

    `names` are the resources by column. A request for GPU memory in bytes counts as percent of a card with
    `card_memory_bytes()`.
    """
    amounts = dict(pod.requests)
    asked = request.parse({names[column]: amount for column, amount in pod.requests})
    cards, percent = 0, 0
    gpus = asked.by_type.get(DeviceType.GPU)
    if gpus and request.is_owned(gpus):
        each = request.per_gpu(gpus)
        share = max(each.amounts.get(name, 0) for name in (resources.GPU_CORE, resources.GPU_MEMORY_RATIO))
        if memory_bytes := each.amounts.get(resources.GPU_MEMORY, 0):
            share = max(share, -(-WHOLE * memory_bytes // max(card_memory_bytes(), 1)))
        cards, percent = each.count, min(max(share, 1), WHOLE)
    cpu_milli = amounts.get(resource_vector.CPU_COLUMN, 0)
    return Shape(cpu_milli, amounts.get(resource_vector.MEMORY_COLUMN, 0), cards, percent)


def models_of(pod: Pod) -> Models:
    """Return the models that the node selector and the required node affinity name; what else they say is left out."""
    spec = pod.spec
    by_selector = spec.node_selector.get(labels.GPU_MODEL)
    if by_selector is not None:
        return (by_selector,)
    required = node_affinity.required(spec)
    if required is None:
        return None
    found: set[str] = set()
    for term in required.node_selector_terms:
        of_model = (each for each in term.match_expressions if each.key == labels.GPU_MODEL)
        named = [each.values for each in of_model if each.operator == "In"]
        if not named:
            return None  # one way in that asks for no model
        found |= set(named[0]).intersection(*named[1:])
    return tuple(sorted(found))
