"""The admission handlers that are switched on, by URL path (behaviour/manager 12).

`/warn-unready` tells whoever creates an object that nothing acts on yet; it refuses nothing.
"""

import functools
from collections.abc import Callable, Mapping

import msgspec

from koordinator.api import unready
from koordinator.manager.parts import ManagerContext
from koordinator.manager.webhooks import table
from koordinator.manager.webhooks.config_validating import (
    ConfigMapValidatingHandler,
    NodeValidatingHandler,
    TidalPoolValidatingHandler,
)
from koordinator.manager.webhooks.node_status import NodeStatusHandler
from koordinator.manager.webhooks.pod_mutating import PodMutatingHandler, ReservationMutatingHandler
from koordinator.manager.webhooks.pod_validating import PodBindingHandler, PodValidatingHandler
from koordinator.manager.webhooks.profile_cache import ProfileCache
from koordinator.manager.webhooks.quota_admission import DEBUG_PATH, Quotas
from koordinator.manager.webhooks.review import (
    ALLOWED,
    MUTATE,
    VALIDATE,
    AdmissionRequest,
    AdmissionVerdict,
    Handler,
    Page,
    Steps,
    timed,
)


class _Builders:
    """The makers of each handler; what several of them share is made once, when the first asks."""

    def __init__(self, shared: ManagerContext) -> None:
        self._shared = shared

    @functools.cached_property
    def quotas(self) -> Quotas:
        return Quotas(self._shared)

    @functools.cached_property
    def profiles(self) -> ProfileCache:
        return ProfileCache(self._shared)

    def pages(self) -> Mapping[str, Page]:
        """About what some handler uses."""
        return {DEBUG_PATH: self.quotas.debug_json} if "quotas" in vars(self) else {}

    def by_path(self) -> Mapping[str, Callable[[], Handler]]:
        return {
            table.MUTATE_POD: self._pod_mutating,
            table.MUTATE_RESERVATION: lambda: ReservationMutatingHandler(self._shared, self.profiles),
            table.MUTATE_NODE_STATUS: lambda: self._timed(NodeStatusHandler(), MUTATE, "node"),
            table.MUTATE_QUOTA: lambda: self._timed(self.quotas.mutating, MUTATE, "elasticquota"),
            table.VALIDATE_POD: lambda: PodValidatingHandler(self._shared, self.quotas.pods),
            table.VALIDATE_POD_BINDING: lambda: self._timed(PodBindingHandler(self._shared), VALIDATE, "pod"),
            table.VALIDATE_QUOTA: lambda: self._timed(self.quotas.validating, VALIDATE, "elasticquota"),
            table.VALIDATE_NODE: lambda: self._timed(NodeValidatingHandler(self._shared), VALIDATE, "node"),
            table.VALIDATE_CONFIG_MAP: lambda: self._timed(
                ConfigMapValidatingHandler(self._shared), VALIDATE, "configmap"
            ),
            table.VALIDATE_TIDAL_POOL: lambda: self._timed(
                TidalPoolValidatingHandler(), VALIDATE, "tidalpool"
            ),
            table.WARN_UNREADY: lambda: warn,
        }

    def _timed(self, handler: Handler, webhook_type: str, object_type: str) -> Handler:
        """Return a handler that is one step, under the name of its class without `Handler`; others time their steps."""
        plugin = type(handler).__name__.removesuffix("Handler")
        return timed(handler, Steps(self._shared.metrics, webhook_type, object_type), plugin)

    def _pod_mutating(self) -> Handler:
        quotas = self.quotas.pods if self._shared.gates.is_on("MultiQuotaTree") else None
        return PodMutatingHandler(self._shared, self.profiles, quotas)


class AdmissionHandlers(msgspec.Struct, frozen=True):
    """The handlers by path (POST), and documents for people by path (GET)."""

    handlers: Mapping[str, Handler]
    pages: Mapping[str, Page]


def admission(shared: ManagerContext) -> AdmissionHandlers:
    """Return one handler per path; a path is left out when a feature gate of its webhook is off."""
    builders = _Builders(shared)
    by_path, gates = builders.by_path(), shared.gates
    handlers = {
        path: by_path[path]()
        for path, needed in table.GATES_BY_PATH.items()
        if all(gates.is_on(gate) for gate in needed)
    }
    return AdmissionHandlers(handlers, builders.pages())


_WARNINGS: Mapping[tuple[str, str], str] = {
    (view.resource.group, view.resource.plural): unready.kind_warning(view) for view in unready.KINDS
}


async def warn(request: AdmissionRequest) -> AdmissionVerdict:
    """Allowed, with a warning at creation."""
    asked = request.resource
    warning = _WARNINGS.get((asked.group, asked.resource))
    if warning is None or request.operation != "CREATE" or request.sub_resource:
        return ALLOWED
    return AdmissionVerdict(warnings=(warning,))
