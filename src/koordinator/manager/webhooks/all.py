"""The admission handlers that are switched on, by URL path (spec 02 §12)."""

from collections.abc import Callable, Mapping

from koordinator.manager.parts import Shared
from koordinator.manager.webhooks import table
from koordinator.manager.webhooks.config_validating import ConfigMapValidatingHandler
from koordinator.manager.webhooks.node_status import NodeStatusHandler
from koordinator.manager.webhooks.node_validating import NodeValidatingHandler
from koordinator.manager.webhooks.pod_binding import BindingRules, PodBindingHandler
from koordinator.manager.webhooks.pod_mutating import PodMutatingHandler
from koordinator.manager.webhooks.pod_validating import PodChecks, PodValidatingHandler
from koordinator.manager.webhooks.quotas import Quotas
from koordinator.manager.webhooks.reservation_mutating import ReservationMutatingHandler
from koordinator.manager.webhooks.review import Handler


class _Builders:
    """How each handler is made; what several of them share is made once, when the first asks."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._quotas: Quotas | None = None

    def quotas(self) -> Quotas:
        if self._quotas is None:
            self._quotas = Quotas(self._shared)
        return self._quotas

    def by_path(self) -> Mapping[str, Callable[[], Handler]]:
        return {
            table.MUTATE_POD: lambda: PodMutatingHandler(self._shared),
            table.MUTATE_RESERVATION: self._reservation_mutating,
            table.MUTATE_NODE_STATUS: NodeStatusHandler,
            table.MUTATE_QUOTA: lambda: self.quotas().mutating,
            table.VALIDATE_POD: self._pod_validating,
            table.VALIDATE_POD_BINDING: self._pod_binding,
            table.VALIDATE_QUOTA: lambda: self.quotas().validating,
            table.VALIDATE_NODE: lambda: NodeValidatingHandler(self._shared),
            table.VALIDATE_CONFIG_MAP: lambda: ConfigMapValidatingHandler(self._shared),
        }

    def _reservation_mutating(self) -> Handler:
        return ReservationMutatingHandler(self._shared.factory, self._shared.rng)

    def _pod_validating(self) -> Handler:
        shared, where = self._shared, self._shared.options.enhanced_validator
        return PodValidatingHandler(
            shared.factory,
            self.quotas().topology,
            PodChecks.of(shared.gates),
            evaluate_quota=self.quotas().pods.evaluate,
            rules_namespace=where.config_namespace,
            rules_name=where.config_name,
        )

    def _pod_binding(self) -> Handler:
        options = self._shared.options.binding_admission
        rules = BindingRules(
            user_names=options.user_names,
            namespaces=options.namespaces,
            exclude_namespaces=options.exclude_namespaces,
            bypass_labels=options.bypass_labels,
            bypass_annotations=options.bypass_annotations,
            dry_run=options.dry_run,
        )
        return PodBindingHandler(self._shared.factory, rules)


def handlers(shared: Shared) -> Mapping[str, Handler]:
    """One handler per path; a path is left out when a feature gate of its webhook is off."""
    builders = _Builders(shared).by_path()
    gates = shared.gates
    return {
        path: builders[path]()
        for path, needed in table.GATES_BY_PATH.items()
        if all(gates.is_on(gate) for gate in needed)
    }
