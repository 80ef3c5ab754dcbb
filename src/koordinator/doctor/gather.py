"""Reading a cluster, or a dump of one, once: each kind with one list, all else with a few requests.

An object that is missing or may not be read becomes a gap, which is reported to checks and users. Only an API server
that does not answer at all is an error.
"""

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from koordinator.api.admission import Webhook
from koordinator.api.core import Namespace, Node, Pod, Secret
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.clock import parse_rfc3339_or
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster
from koordinator.doctor import inquiries
from koordinator.doctor.snapshot import IN_NAMESPACE, KINDS, NOT_SERVED, ClusterSnapshot, Listing

T = TypeVar("T", bound=Object)

LISTS_AT_ONCE = 4  # a page of a large list is some MiB; more at once would only press the API server
LIST_TIMEOUT_S = 120.0  # 300,000 pods take about a minute

Progress = Callable[[str], None]
"""Called with a description of the current step, to show progress."""


def _silent(_: str) -> None:
    return


async def from_cluster(
    cluster: Cluster,
    namespace: str,
    *,
    local_gates: str | None = None,
    tries_admission: bool = True,
    asks_permissions: bool = True,
    progress: Progress = _silent,
) -> ClusterSnapshot:
    """Everything that checks look at; `namespace` is that of the components.

    `local_gates` is what the kubeconfig of a `koordinator up` says of its manager. With `tries_admission` two
    pods are sent for trial (`dryRun`), which stores nothing; with `asks_permissions` there is a
    SubjectAccessReview for each permission that components need.

    Raises: ApiError when the API server cannot be reached or does not know us.
    """
    progress("reading the API server's version")
    version = await _version(cluster)
    slots = asyncio.Semaphore(LISTS_AT_ONCE)

    async def read(view: type[Object]) -> Listing[Any]:
        async with slots:
            progress(f"reading {view.resource.plural}")
            return await _list(cluster, view, namespace if view in IN_NAMESPACE else "")

    listings = dict(zip(KINDS, await asyncio.gather(*map(read, KINDS)), strict=True))
    found = ClusterSnapshot(
        now_s=cluster.clock.now(),
        namespace=namespace,
        server_version=version,
        local_gates=local_gates,
        listings=listings,
    )
    listings[Secret] = await _list(
        cluster, Secret, namespace, f"metadata.name={found.installation.webhook_secret_name}"
    )
    progress("testing the webhooks")
    handshakes = await inquiries.shake_all(_targets(found.webhooks))
    trial_namespace = _trial_namespace(found) if tries_admission else ""
    tried = await inquiries.try_admission(cluster, trial_namespace) if trial_namespace else None
    answers = None
    if asks_permissions:
        progress("checking the components' permissions")
        answers = await inquiries.review_access(cluster, namespace, found.installation.workloads.values())
    return msgspec.structs.replace(
        found, now_s=cluster.clock.now(), admission=tried, handshakes=handshakes, access=answers
    )


class Objects(Protocol):
    """Objects from files, such as a dump."""

    def views(self, view: type[T]) -> list[T]:
        """Return all objects of a kind. Raises: KoordinatorError when one does not fit."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Objects per kind."""
        ...


def from_objects(objects: Objects, namespace: str) -> ClusterSnapshot:
    """Return a snapshot of a dump; time stands at the newest moment that it mentions.

    A kind of which the dump has no object counts as not read, since nobody can tell.

    Raises: KoordinatorError.
    """
    kinds = objects.counts()
    listings: dict[type[Object], Listing[Any]] = {}
    for view in KINDS:
        items = objects.views(view)
        if view in IN_NAMESPACE:
            items = [item for item in items if item.metadata.namespace == namespace]
        gap = "" if view.resource.kind in kinds else "not in the dump"
        listings[view] = Listing(items, gap)
    listings[Secret] = Listing(gap="not checked in dumps")
    return ClusterSnapshot(now_s=_newest_s(listings), namespace=namespace, is_live=False, listings=listings)


def ca_of(webhook: Webhook) -> bytes:
    """Return the PEM certificates that the API server trusts for a webhook; empty when there are none."""
    try:
        return base64.b64decode(webhook.client_config.ca_bundle or "", validate=True)
    except (binascii.Error, ValueError):
        return b""


def _targets(found: Iterable[tuple[Object, Webhook]]) -> list[tuple[str, bytes]]:
    return [(each.client_config.url, ca_of(each)) for _, each in found if each.client_config.url]


async def _version(cluster: Cluster) -> str:
    try:
        return str((await cluster.request("GET", "/version")).get("gitVersion", ""))
    except errors.Forbidden:
        return ""  # open to everybody by default, but some administrators close it


async def _list(cluster: Cluster, view: type[T], namespace: str, selector: str = "") -> Listing[T]:
    try:
        async with asyncio.timeout(LIST_TIMEOUT_S):
            page = await cluster.list(view, namespace, field_selector=selector)
    except TimeoutError:
        return Listing(gap=f"no answer within {LIST_TIMEOUT_S:g} s")
    except errors.NotFound:
        return Listing(gap=NOT_SERVED)
    except errors.ConnectionFailed:
        raise
    except errors.ApiError as error:
        return Listing(gap=str(error))
    unreadable = tuple("/".join(part for part in key if part) for key in page.unreadable)
    return Listing(page.items, unreadable=unreadable)


def _trial_namespace(found: ClusterSnapshot) -> str:
    """Return a namespace whose pods the webhooks look at, empty when there is none."""
    names = [each.metadata.name for each in found.of(Namespace) if each.status.phase != "Terminating"]
    watched = [name for name in names if found.is_watched(name) and not name.startswith("kube-")]
    return "default" if "default" in watched else next(iter(sorted(watched)), "")


def _newest_s(listings: Mapping[type[Object], Listing[Any]]) -> float:
    """Return the newest time in reports, heartbeats and creations; 0 when there is none."""
    texts: list[str | None] = [each.status.update_time for each in listings[NodeMetric].items]
    for node in listings[Node].items:
        texts += [condition.last_heartbeat_time for condition in node.status.conditions]
    for pod in listings[Pod].items:
        texts += [condition.last_transition_time for condition in pod.status.conditions]
    for listing in listings.values():
        texts += [each.metadata.creation_timestamp for each in listing.items]
    return max((found for text in texts if (found := parse_rfc3339_or(text, None)) is not None), default=0.0)
