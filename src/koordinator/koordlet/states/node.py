"""The Node that we run on. Source: behaviour/koordlet-observe 7.1."""

import asyncio
import logging
import random
from typing import NoReturn

import msgspec

from koordinator.api import quantity, resources
from koordinator.api.core import Node
from koordinator.api.quantity import QuantityError
from koordinator.cluster.informer import Informer
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import Topic

log = logging.getLogger(__name__)

UNITS = {
    resources.BATCH_CPU: "integer",
    resources.BATCH_MEMORY: "byte",
    resources.MID_CPU: "integer",
    resources.MID_MEMORY: "byte",
}
"""Units of the lent resources that are told in metrics, 0 where there is none; CPU counts in thousandths of a core."""
NODE_UNITS = {resources.CPU: "core", resources.MEMORY: "byte"}
"""Of the node itself, so that what is lent can be seen beside it."""


class NodeState:
    """Keeps `view.node`, the last one also after it was deleted; changes of labels and annotations are told."""

    name = "node"
    is_required = True

    def __init__(self, shared: Shared) -> None:
        self.synced = asyncio.Event()
        self._shared = shared
        self._informer = Informer(
            shared.cluster,
            Node,
            rng=random.Random(shared.rng.getrandbits(64)),
            field_selector=f"metadata.name={shared.config.node_name}",
            transform=_without_images,
        )
        self._informer.add_handler(self._seen, lambda _, node: self._seen(node))

    @property
    def trouble(self) -> str:
        """Return why there is no Node."""
        if self.synced.is_set():
            return ""
        if self._informer.synced.is_set():
            return f"there is no Node {self._shared.config.node_name} (NODE_NAME says which is ours)"
        return str(self._informer.guard.last_error or "no answer yet")

    async def run(self) -> NoReturn:
        """Follow the Node."""
        await self._informer.run()

    def _seen(self, node: Node) -> None:
        view = self._shared.view
        old, view.node = view.node, node
        self._tell(node)
        self.synced.set()
        if old is None or _described(old) != _described(node):
            view.changed(Topic.NODE)

    def _tell(self, node: Node) -> None:
        gauge = self._shared.metrics.allocatable
        gauge.reset()
        allocatable = node.status.allocatable
        for name, unit in (UNITS | NODE_UNITS).items():
            raw = allocatable.get(name, 0 if name in UNITS else None)
            if raw is None:
                continue
            try:
                gauge.set(quantity.milli(raw) / 1000 if unit == "core" else quantity.value(raw), name, unit)
            except QuantityError as error:
                log.debug("allocatable not told", extra={"resource": name, "problem": str(error)})


def _described(node: Node) -> tuple[dict[str, str], dict[str, str]]:
    return node.metadata.labels, node.metadata.annotations


def _without_images(node: Node) -> Node:
    """Images fill most of a Node, and nobody here reads them."""
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, images=[]))
