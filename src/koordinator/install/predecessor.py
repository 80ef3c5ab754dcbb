"""Find what an installation of the original Koordinator (the Go project) left and what must go before ours comes.
Pure.

Its workloads carry the label `koord-app`, as ours do, and partly the same names (behaviour/api 14.1); ours say
besides what they are part of. Two agents on a node would undo each other's limits; two managers, each other's
webhooks.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from koordinator.install.objects import PART_OF, PART_OF_VALUE
from koordinator.install.rbac import DESCHEDULER, KOORDLET, MANAGER, SCHEDULER
from koordinator.install.values import Values
from koordinator.install.workloads import APP_LABEL, DEVICE_DAEMON
from koordinator.manager.webhooks import configuration

Json = dict[str, Any]

COMPONENTS = (MANAGER, SCHEDULER, KOORDLET, DEVICE_DAEMON, DESCHEDULER)
WORKLOAD_KINDS = ("Deployment", "DaemonSet")
CONFIGURATION_KINDS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
WEBHOOK_SUFFIX = ".koordinator.sh"
DOCUMENT = "docs/switch-from-go.md"

_WHY = {
    MANAGER: "two managers undo each other's webhooks and certificates",
    SCHEDULER: "two schedulers of one name and lease would take turns",
    KOORDLET: "two agents on a node undo each other's limits",
    DEVICE_DAEMON: "two daemons would write the same files",
    DESCHEDULER: "two deschedulers of one lease would take turns",
}


class LegacyObject(msgspec.Struct, frozen=True):
    """An object of the Go project; `component` is the one of ours that takes its place."""

    kind: str
    namespace: str
    name: str
    component: str
    release: str = ""
    """Release of Helm, which would bring it back."""

    @property
    def removal(self) -> str:
        """Return the command that takes it away, without what objects of users live in (CRDs)."""
        where = f" -n {self.namespace}" if self.namespace else ""
        return f"kubectl{where} delete {self.kind.lower()} {self.name}"

    @property
    def why(self) -> str:
        """Return what is wrong with keeping it, what to do, and where to read on."""
        reason = _WHY.get(self.component, "") if self.kind in WORKLOAD_KINDS else _REFUSES
        message = f"it is the Go project's: {reason}. Take it away first: {self.removal} ({DOCUMENT})"
        if self.release:
            message += (
                f"; never `helm uninstall {self.release}`, which may take the CRDs with all their objects"
            )
        return message


_REFUSES = "its webhooks refuse objects once nobody answers behind them"


def component_of(name: str, labels: Mapping[str, str]) -> str:
    """Return which component of the Go project a workload is; empty for ours and for others."""
    if labels.get(PART_OF) == PART_OF_VALUE:
        return ""
    app = labels.get(APP_LABEL, name)
    return app if app in COMPONENTS else ""


def is_of_go(name: str, labels: Mapping[str, str], webhooks: Iterable[str]) -> bool:
    """Return whether a webhook configuration is the Go project's under a name that our manager does not take over."""
    if labels.get(PART_OF) == PART_OF_VALUE or name in configuration.NAMES:
        return False
    return any(webhook.endswith(WEBHOOK_SUFFIX) for webhook in webhooks)


def legacy_objects(bodies: Iterable[Json]) -> Iterator[LegacyObject]:
    """Yield the legacy objects among these workloads and webhook configurations, which are JSON with their `kind`."""
    for body in bodies:
        metadata, kind = body["metadata"], body["kind"]
        labels = metadata.get("labels") or {}
        release = str((metadata.get("annotations") or {}).get("meta.helm.sh/release-name", ""))
        component = ""
        if kind in WORKLOAD_KINDS:
            component = component_of(metadata["name"], labels)
        elif is_of_go(
            metadata["name"], labels, (each.get("name", "") for each in body.get("webhooks") or [])
        ):
            component = MANAGER
        if component:
            yield LegacyObject(kind, metadata.get("namespace", ""), metadata["name"], component, release)


def in_the_way(found: Iterable[LegacyObject], values: Values) -> list[LegacyObject]:
    """Return the legacy objects whose place the values give to ours."""
    taken = {
        MANAGER: values.manager.enabled,
        SCHEDULER: values.scheduler.enabled,
        KOORDLET: values.koordlet.enabled,
        DEVICE_DAEMON: values.device_daemon.enabled,
        DESCHEDULER: values.descheduler.enabled,
    }
    return [legacy for legacy in found if taken.get(legacy.component, False)]
