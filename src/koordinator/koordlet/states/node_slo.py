"""The policies of this node: its NodeSLO over the defaults, the last good one.

Source: behaviour/koordlet-observe 7.3.
"""

import asyncio
import logging
import random
from typing import Any, ClassVar, NoReturn

import msgspec

from koordinator.api import decode
from koordinator.api.meta import Object, ObjectReference, Resource
from koordinator.api.slo import NodeSLO, NodeSLOSpec
from koordinator.cluster.informer import Informer
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.states import node_slo_defaults
from koordinator.koordlet.view import Topic

log = logging.getLogger(__name__)

DELETED_S = 60.0
"""A NodeSLO that was deleted and has not come back for so long switches everything off: managers make it anew within
seconds, and protection must not flap meanwhile; who takes it away for good wants the defaults."""
INVALID = "InvalidNodeSLO"


class AnyNodeSLO(Object, frozen=True, kw_only=True):
    """A NodeSLO with a spec of any form, so that a malformed one is seen and told, not skipped."""

    resource: ClassVar[Resource] = NodeSLO.resource

    spec: Any = None


class NodeSLOState:
    """Keeps `view.slo`, which is None while there never was a NodeSLO."""

    name = "NodeSLO"
    is_required = True

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._informer = Informer(
            shared.cluster,
            AnyNodeSLO,
            rng=random.Random(shared.rng.getrandbits(64)),
            field_selector=f"metadata.name={shared.config.node_name}",
        )
        self.synced = self._informer.synced
        self._ending: asyncio.TimerHandle | None = None
        self._informer.add_handler(self._seen, lambda _, found: self._seen(found), self._deleted)

    @property
    def trouble(self) -> str:
        """Return why the API server tells nothing."""
        return "" if self.synced.is_set() else str(self._informer.guard.last_error or "no answer yet")

    async def run(self) -> NoReturn:
        """Follow the NodeSLO."""
        try:
            await self._informer.run()
        finally:
            self._stay()

    def _seen(self, found: AnyNodeSLO) -> None:
        self._stay()
        try:
            spec = decode.from_builtins(found.spec if found.spec is not None else {}, NodeSLOSpec)
            merged = node_slo_defaults.with_defaults(spec)
        except msgspec.ValidationError as error:
            self._refuse(str(error))
            return
        self._use(merged)

    def _use(self, spec: NodeSLOSpec) -> None:
        view = self._shared.view
        if spec != view.slo:
            view.slo = spec
            log.info("policies of the node changed", extra={"node": self._shared.config.node_name})
            view.changed(Topic.NODE_SLO)

    def _refuse(self, problem: str) -> None:
        kept = (
            "the last good one stays in force" if self._shared.view.slo is not None else "there is none yet"
        )
        why, found, field = problem.rpartition(" - at ")
        where = field.strip("`").replace("$", "spec", 1) if found else "spec"
        message = f"NodeSLO {self._shared.config.node_name}: {where}: {why or problem}; {kept}"
        log.warning("policies of the node refused", extra={"problem": message})
        self._shared.events.warning(self._node(), INVALID, message)

    def _deleted(self, _: AnyNodeSLO) -> None:
        self._stay()
        log.warning("NodeSLO deleted: its policies stay in force for a while", extra={"seconds": DELETED_S})
        self._ending = asyncio.get_running_loop().call_later(DELETED_S, self._end)

    def _end(self) -> None:
        self._ending = None
        self._use(node_slo_defaults.with_defaults(NodeSLOSpec()))

    def _stay(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def _node(self) -> ObjectReference:
        node = self._shared.view.node
        name = self._shared.config.node_name
        return ObjectReference(
            api_version="v1", kind="Node", name=name, uid="" if node is None else node.metadata.uid
        )
