"""A cluster as it was read once: what all checks look at."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec

from koordinator.api import labels, slo_config, unready
from koordinator.api.admission import MutatingWebhookConfiguration, ValidatingWebhookConfiguration, Webhook
from koordinator.api.apps import DaemonSet, Deployment
from koordinator.api.core import ConfigMap, Namespace, Node, Pod, Secret, Service
from koordinator.api.device import Device
from koordinator.api.groups import ClusterColocationProfile, ElasticQuotaProfile, Lease, PriorityClass
from koordinator.api.meta import Object, Resource
from koordinator.api.network_topology import ClusterNetworkTopology
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.reservation import Reservation
from koordinator.api.sigs import ElasticQuota, PodGroup
from koordinator.api.slo import NodeSLO
from koordinator.api.slo_config import ColocationConfig
from koordinator.api.tidal_pool import TidalPool
from koordinator.clock import parse_rfc3339_or
from koordinator.doctor.inquiries import AccessAnswer, AdmissionTest, Handshake
from koordinator.doctor.installation import Installation
from koordinator.install.predecessor import WEBHOOK_SUFFIX
from koordinator.manager.config import colocation_config
from koordinator.manager.config.colocation_config import ColocationState

T = TypeVar("T", bound=Object)


class RawDefinition(Object, frozen=True, kw_only=True):
    """A CustomResourceDefinition with its schemas, as the server has it."""

    resource: ClassVar[Resource] = Resource(
        group="apiextensions.k8s.io",
        version="v1",
        kind="CustomResourceDefinition",
        plural="customresourcedefinitions",
        namespaced=False,
    )

    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


IN_NAMESPACE: tuple[type[Object], ...] = (ConfigMap, Service, Deployment, DaemonSet, Lease)
"""Kinds of which only the objects in the components' namespace are read."""
IN_CLUSTER: tuple[type[Object], ...] = (
    Node,
    Namespace,
    Pod,
    PriorityClass,
    RawDefinition,
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
    NodeMetric,
    NodeSLO,
    ClusterColocationProfile,
    ElasticQuota,
    ElasticQuotaProfile,
    PodGroup,
    ClusterNetworkTopology,
    Device,
    NodeResourceTopology,
    Reservation,
    PodMigrationJob,
    TidalPool,
    *unready.KINDS,
)
KINDS = (*IN_CLUSTER, *IN_NAMESPACE)
"""Kinds that are listed. Of Secrets, only the one with the certificates of the webhooks is read."""
NOT_SERVED = "the API server does not serve this kind"
"""The gap of a kind whose CRD is missing."""


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """Objects of a kind; `gap` tells why they could not be read, empty when they were.

    `unreadable` are the keys of objects that exist, but do not fit the view.
    """

    items: Sequence[T] = ()
    gap: str = ""
    unreadable: tuple[str, ...] = ()


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Everything that checks may look at.

    `server_version` is the API server's `gitVersion`, empty when unknown. The answers that only a running cluster
    has (`admission`, `handshakes`, `access`) are None where nobody asked it. `local_gates` are the feature gates of
    the manager inside of `koordinator up`.
    """

    now_s: float
    namespace: str
    is_live: bool = True
    server_version: str = ""
    local_gates: str | None = None
    listings: Mapping[type[Object], Listing[Any]] = {}
    admission: AdmissionTest | None = None
    handshakes: Mapping[str, Handshake] | None = None
    access: Sequence[AccessAnswer] | None = None

    def of(self, view: type[T]) -> Sequence[T]:
        """Return the objects of a kind, none when they could not be read."""
        return self._listing(view).items

    def knows(self, view: type[Object]) -> bool:
        """Return whether the objects of a kind could be read."""
        return not self._listing(view).gap

    def gap(self, view: type[Object]) -> str:
        """Return why the objects of a kind could not be read."""
        return self._listing(view).gap

    def unreadable(self, view: type[Object]) -> Sequence[str]:
        """Keys of objects that do not fit the view."""
        return self._listing(view).unreadable

    def _listing(self, view: type[Object]) -> Listing[Any]:
        return self.listings.get(view, Listing(gap="not read"))

    def find(self, view: type[T], name: str, namespace: str = "") -> T | None:
        """Return the object of that name, None when there is none (or nobody knows)."""
        if view not in self._indexes:
            self._indexes[view] = {obj.key: obj for obj in self.of(view)}
        return self._indexes[view].get(f"{namespace}/{name}" if namespace else name)

    @functools.cached_property
    def _indexes(self) -> dict[type[Object], dict[str, Any]]:
        return {}

    @functools.cached_property
    def installation(self) -> Installation:
        """Return how the components run here, and with which flags."""
        return Installation.of(
            self.namespace,
            self.server_version,
            self.of(Deployment),
            self.of(DaemonSet),
            self.of(Pod),
            self.local_gates,
        )

    @functools.cached_property
    def nodes(self) -> Sequence[Node]:
        """Nodes that can be co-located: virtual ones have no agent and are left out."""
        return [node for node in self.of(Node) if node.metadata.labels.get("type") != "virtual-kubelet"]

    @functools.cached_property
    def slo_config(self) -> ConfigMap | None:
        """Return the manager's ConfigMap."""
        flags = self.installation.manager_flags
        name = flags.get("slo-config-name", slo_config.CONFIG_NAME)
        return self.find(ConfigMap, name, flags.get("config-namespace", self.namespace))

    @functools.cached_property
    def slo_data(self) -> Mapping[str, str]:
        """Return what the manager's ConfigMap says; nothing when there is none."""
        return self.slo_config.data if self.slo_config is not None else {}

    @functools.cached_property
    def colocation(self) -> ColocationConfig | None:
        """Return the part of it that says what nodes lend; None when it is not understood: the manager then goes on
        with one that it has seen before, and nobody else knows which."""
        outcome = colocation_config.sync(ColocationState(), self.slo_data or None)
        return None if outcome.problem else outcome.state.config

    @functools.cached_property
    def webhooks(self) -> Sequence[tuple[Object, Webhook]]:
        """Our webhooks with the configuration that each is in."""
        configurations: Sequence[MutatingWebhookConfiguration | ValidatingWebhookConfiguration] = [
            *self.of(MutatingWebhookConfiguration),
            *self.of(ValidatingWebhookConfiguration),
        ]
        return [
            (configuration, webhook)
            for configuration in configurations
            for webhook in configuration.webhooks
            if webhook.name.endswith(WEBHOOK_SUFFIX)
        ]

    @functools.cached_property
    def webhook_paths(self) -> frozenset[str]:
        """URL paths of the webhooks that are configured."""
        return frozenset(path_of(webhook) for _, webhook in self.webhooks)

    @property
    def webhook_secret(self) -> Secret | None:
        """Return the certificates of the webhooks."""
        return next(iter(self.of(Secret)), None)

    @functools.cached_property
    def namespace_labels(self) -> dict[str, Mapping[str, str]]:
        """Labels of namespaces by name, with the one that the API server adds."""
        return {
            each.metadata.name: {"kubernetes.io/metadata.name": each.metadata.name, **each.metadata.labels}
            for each in self.of(Namespace)
        }

    def is_watched(self, namespace: str) -> bool:
        """Return whether the pod webhooks, as shipped, look at pods of the namespace."""
        return labels.NAMESPACE_CONTROL_PLANE not in self.namespace_labels.get(namespace, {})

    def age_s(self, obj: Object) -> float:
        """Seconds since the object was created, 0 when that is unknown."""
        created_s = parse_rfc3339_or(obj.metadata.creation_timestamp, self.now_s)
        return max(self.now_s - created_s, 0.0)


def path_of(webhook: Webhook) -> str:
    """Return the URL path at which a webhook is asked."""
    client = webhook.client_config
    if client.url:
        return urlsplit(client.url).path
    return (client.service.path or "") if client.service is not None else ""
