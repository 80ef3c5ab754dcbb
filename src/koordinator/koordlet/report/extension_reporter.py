"""Write what parts of the agent say of the node (`view.extensions`) to its NodeMetric as soon as it changes.

Nothing is sent while nothing changes. A write that failed is tried again, later and later, and the next report
of usage carries it anyway.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from koordinator.api.node_metric import NodeMetric
from koordinator.cluster import errors
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.report.outage import Outage

INTERVAL_S = 1.0
WRITE_S_MAX = 10.0


class ExtensionReporter:
    """Writes `status.extensions` of this node's NodeMetric when it changes."""

    name = "nodemetric extensions"
    informers = ()
    interval_s = INTERVAL_S

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._written: Mapping[str, Any] = {}
        self._outage = Outage(f"extensions of NodeMetric {shared.config.node_name}")

    async def run(self) -> None:
        """Write what is new."""
        view, now_s = self._shared.view, self._shared.clock.now()
        wanted = view.extensions
        if wanted is self._written or view.metric_spec is None or not self._outage.is_due(now_s):
            return
        gone = dict.fromkeys(self._written.keys() - wanted.keys())
        patch = {"status": {"extensions": {**gone, **wanted}}}  # other extensions stay
        try:
            async with asyncio.timeout(WRITE_S_MAX):
                await self._shared.cluster.patch(
                    NodeMetric,
                    self._shared.config.node_name,
                    patch,
                    subresource="status",
                )
        except (errors.ApiError, TimeoutError) as error:
            self._outage.failed(error, now_s)
            return
        self._written = wanted
        self._outage.ended()
