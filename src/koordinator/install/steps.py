"""Bringing an installation to a cluster, and taking it away again, one object after the other.

Objects of a Helm release are left to it, as long as the release is there. Helm marks what it brings with annotations,
and keeps a record of each release as a Secret (or a ConfigMap, with HELM_DRIVER=configmap) with labels. An object that
a release leaves behind when it goes (`helm.sh/resource-policy: keep`) still bears the annotations, but nobody upgrades
it any more.

`Api` carries whole objects, as an installer handles them: read, applied on the server, deleted. Components write
patches of typed views; an installer carries objects that it does not look into.
"""

import asyncio
import contextlib
import enum
import functools
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import msgspec

from koordinator.api import defaults, kinds
from koordinator.api.core import ConfigMap, Secret
from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.protocol import PatchType
from koordinator.cluster.transport import HttpRequest, Transport
from koordinator.install import objects, predecessor, rbac
from koordinator.install.objects import SELECTOR, key
from koordinator.install.values import EVERYTHING, Values
from koordinator.install.workloads import APP_LABEL
from koordinator.manager.webhooks import configuration

Json = dict[str, Any]

FIELD_MANAGER = "koordinator-install"
_SERVICE_MONITOR = Resource(
    group="monitoring.coreos.com", version="v1", kind="ServiceMonitor", plural="servicemonitors"
)


def resource_of(kind: str, group: str) -> Resource:
    """Return where objects of a kind live; those that an installation can have."""
    if (group, kind) == (_SERVICE_MONITOR.group, _SERVICE_MONITOR.kind):
        return _SERVICE_MONITOR
    found = kinds.by_kind(group, kind)
    assert found is not None, (group, kind)
    return found


def resource_of_body(body: Json) -> Resource:
    """Return the same of an object."""
    return resource_of(body["kind"], body["apiVersion"].rpartition("/")[0])


class Api:
    """Calls of `transport`. All raise ApiError."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """Return the object, None when there is none (or no such kind)."""
        try:
            return await self._send("GET", resource.path(namespace, name))
        except errors.NotFound:
            return None

    async def apply(self, resource: Resource, body: Json, *, force: bool) -> Json:
        """Server-side apply. Raises: Conflict for fields that others changed, unless `force`."""
        metadata = body["metadata"]
        params = {"fieldManager": FIELD_MANAGER, "force": str(force).lower(), "fieldValidation": "Strict"}
        path = resource.path(metadata.get("namespace", ""), metadata["name"])
        return await self._send("PATCH", path, params, body, PatchType.APPLY.value)

    async def labelled(self, resource: Resource, selector: str) -> list[Json]:
        """Objects with these labels in all namespaces; none when there is no such kind."""
        try:
            found = await self._send("GET", resource.path(), {"labelSelector": selector})
        except errors.NotFound:
            return []
        return list(found.get("items") or [])

    async def delete(self, resource: Resource, namespace: str, name: str) -> bool:
        """Delete an object, and what belongs to it in the background; return whether it was there."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        try:
            await self._send("DELETE", resource.path(namespace, name), {}, body)
        except errors.NotFound:
            return False
        return True

    async def _send(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        # All of these may be sent twice: applying and deleting again changes nothing.
        call = HttpRequest(
            method=method,
            path=path,
            params=params or {},
            body=None if body is None else msgspec.json.encode(body),
            content_type=content_type,
            repeatable=True,
        )
        data = await self._transport.send(call)
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise errors.InternalError(f"{method} {path}: the answer is no JSON object: {error}") from error


ESTABLISH_S_MAX = 60.0
"""API servers take about a second to serve a new CustomResourceDefinition."""
POLL_S = 0.2
LASTING_KINDS = ("CustomResourceDefinition", "Namespace", "PriorityClass")
"""Kinds that objects of users live in or refer to: removed only when asked for."""


NAME, NAMESPACE = "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"


class Releases:
    """The releases that objects name; each is looked up once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[tuple[str, str], bool] = {}

    async def owner(self, body: Json | None) -> str:
        """Return the name of the release that an object belongs to; empty for none, or one that is gone.

        Raises: ApiError.
        """
        annotations = (body or {}).get("metadata", {}).get("annotations") or {}
        name, namespace = str(annotations.get(NAME, "")), str(annotations.get(NAMESPACE, ""))
        if not name:
            return ""
        if (name, namespace) not in self._known:
            self._known[name, namespace] = await self._exists(name, namespace)
        return name if self._known[name, namespace] else ""

    async def _exists(self, name: str, namespace: str) -> bool:
        # `helm uninstall --keep-history` leaves a record of this status.
        selector = f"owner=helm,name={name},status!=uninstalled"
        for kind in (Secret, ConfigMap):
            records = await self._api.labelled(kind.resource, selector)
            if any(each["metadata"].get("namespace") == namespace for each in records):
                return True
        return False


class ApplyOutcome(enum.Enum):
    """The fate of an object."""

    CREATED = "created"
    CHANGED = "configured"
    UNCHANGED = "unchanged"
    KEPT = "kept"
    LEFT_OVER = "left over"
    DELETED = "deleted"
    FAILED = "failed"


class ApplyStep(msgspec.Struct, frozen=True):
    """One object, what became of it, and why where that is not plain."""

    name: str
    outcome: ApplyOutcome
    why: str = ""


async def apply(
    api: Api,
    values: Values,
    *,
    force: bool = False,
    prune: bool = False,
    establish_s_max: float = ESTABLISH_S_MAX,
) -> AsyncIterator[ApplyStep]:
    """Make the cluster hold the objects of these values; done twice, the second time changes nothing.

    Fields that others changed stay theirs (FAILED, or KEPT for slo-controller-config, which is theirs to edit)
    unless `force`. A part with a failure is the last one. Objects of an earlier installation that these values
    do not have are LEFT_OVER, or DELETED with `prune`.

    Nothing is applied while components of the Go project are in the way of ours (FAILED, with what to do).

    Raises: ApiError when the API server does not answer, or does not know us.
    """
    legacy_objects = predecessor.in_the_way(predecessor.legacy_objects(await _candidates(api)), values)
    if legacy_objects:
        for legacy in legacy_objects:
            name = key(
                {"kind": legacy.kind, "metadata": {"namespace": legacy.namespace, "name": legacy.name}}
            )
            yield ApplyStep(name, ApplyOutcome.FAILED, legacy.why)
        return
    parts = objects.parts(values)
    releases = Releases(api)
    for part in parts:
        failed = False
        for body in part.objects:
            step = await _apply(api, releases, body, force)
            failed |= step.outcome is ApplyOutcome.FAILED
            yield step
        if part.name == "crds" and not failed:
            async for step in _establish(api, part.objects, establish_s_max):
                failed = True
                yield step
        if failed:
            return
    wanted = {key(body) for part in parts for body in part.objects}
    for body in await _ours(api):
        if key(body) in wanted or body["kind"] in LASTING_KINDS:
            continue
        if prune:
            yield await _delete(api, releases, body)
        else:
            yield ApplyStep(
                key(body), ApplyOutcome.LEFT_OVER, "no longer part of these values; --prune deletes it"
            )


async def remove(api: Api, *, everything: bool = False, dry_run: bool = False) -> AsyncIterator[ApplyStep]:
    """Take away what `apply` brought and what the components made for themselves.

    Everything that objects of users live in or refer to stays unless `everything`: CRDs with all their objects, the
    namespace, the priority classes. With `dry_run` DELETED means: would be.

    Raises: ApiError when what is there cannot be read.
    """
    found = await _ours(api)
    releases = Releases(api)
    namespaces = sorted({name for body in found if (name := body["metadata"].get("namespace"))})
    # What the API server would call, or what would make pods anew, goes first.
    found.reverse()
    found.sort(key=lambda body: _removal_rank(body["kind"]))
    if everything and not dry_run:
        crds = (body["spec"] for body in found if body["kind"] == "CustomResourceDefinition")
        await asyncio.gather(*(_open_storage(api, spec) for spec in crds))
    for body in found:
        if body["kind"] in LASTING_KINDS and not everything:
            yield ApplyStep(
                key(body), ApplyOutcome.KEPT, "objects of yours may need it; --everything deletes it"
            )
        elif dry_run and not await releases.owner(body):
            yield ApplyStep(key(body), ApplyOutcome.DELETED)
        else:
            yield await _delete(api, releases, body)
    for namespace in namespaces:
        for kind, group, name in _made_by_components():
            resource = resource_of(kind, group)
            if await api.get(resource, namespace, name) is not None:
                body = {"kind": kind, "apiVersion": resource.api_version}
                body["metadata"] = {"namespace": namespace, "name": name}
                yield (
                    ApplyStep(key(body), ApplyOutcome.DELETED)
                    if dry_run
                    else await _delete(api, releases, body)
                )


def _made_by_components() -> Iterator[tuple[str, str, str]]:
    """Yield (kind, group, name) of what components make for themselves in the namespace of the installation."""
    yield "Secret", "", configuration.SECRET_NAME
    for rule in itertools.chain.from_iterable(rbac.rules().values()):
        if "leases" in rule.resources and rule.names:
            yield "Lease", "coordination.k8s.io", rule.names[0]


async def _apply(api: Api, releases: Releases, body: Json, force: bool) -> ApplyStep:
    resource, name = resource_of_body(body), key(body)
    metadata = body["metadata"]
    try:
        before = await api.get(resource, metadata.get("namespace", ""), metadata["name"])
        if release := await releases.owner(before):
            return ApplyStep(
                name, ApplyOutcome.FAILED, f"it belongs to the Helm release {release}: use helm upgrade"
            )
        # Whatever else wrote their annotation is a manager that kept what it found there, perhaps the reference's.
        forced = force or body["kind"].endswith("WebhookConfiguration")
        after = await api.apply(resource, body, force=forced)
    except errors.Conflict as error:
        is_theirs = metadata["name"] == defaults.SLO_CONFIG_NAME
        outcome = ApplyOutcome.KEPT if is_theirs else ApplyOutcome.FAILED
        return ApplyStep(name, outcome, f"{_conflict(error)}; --force-conflicts overwrites it")
    except (errors.ConnectionFailed, errors.Unauthorized):
        raise  # so would all others
    except errors.ApiError as error:
        return ApplyStep(name, ApplyOutcome.FAILED, _what_to_do(error, body))
    if before is None:
        return ApplyStep(name, ApplyOutcome.CREATED)
    same = before["metadata"].get("resourceVersion") == after["metadata"].get("resourceVersion")
    return ApplyStep(name, ApplyOutcome.UNCHANGED if same else ApplyOutcome.CHANGED)


async def _establish(api: Api, crds: Iterable[Json], seconds_max: float) -> AsyncIterator[ApplyStep]:
    """Wait until the API server serves them; a step for each that it does not."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds_max
    for body in crds:
        resource = resource_of_body(body)
        while not _is_established(await api.get(resource, "", body["metadata"]["name"])):
            if loop.time() > end_s:
                why = f"not served within {seconds_max:.0f} s; its status.conditions say why"
                yield ApplyStep(key(body), ApplyOutcome.FAILED, why)
                break
            await asyncio.sleep(POLL_S)


def _is_established(crd: Json | None) -> bool:
    conditions = ((crd or {}).get("status") or {}).get("conditions") or []
    return any(one.get("type") == "Established" and one.get("status") == "True" for one in conditions)


async def _candidates(api: Api) -> list[Json]:
    """Return what may be the Go project's: workloads with the label of components, and all webhook configurations."""
    found = []
    for names, group, selector in (
        (predecessor.WORKLOAD_KINDS, "apps", APP_LABEL),
        (predecessor.CONFIGURATION_KINDS, "admissionregistration.k8s.io", ""),
    ):
        for kind in names:
            there = await api.labelled(resource_of(kind, group), selector)
            found += [{**body, "kind": kind} for body in there]
    return found


async def _ours(api: Api) -> list[Json]:
    """Return what installations brought, in the order in which it was applied.

    Only names that an installation can have: users may give our label to objects of theirs.
    """
    found: list[Json] = []
    for resource, known in _names().items():
        if resource.kind == "CustomResourceDefinition":
            crds = [await api.get(resource, "", name) for name in known]
            there = [body for body in crds if body is not None]
        else:
            there = await api.labelled(resource, SELECTOR)
            # The namespace can have any name.
            there = [b for b in there if b["metadata"]["name"] in known or resource.kind == "Namespace"]
        found += [{**body, "apiVersion": resource.api_version, "kind": resource.kind} for body in there]
    return found


@functools.cache
def _names() -> dict[Resource, list[str]]:
    """Return names of all objects that an installation can have, in the order in which they are applied."""
    names: dict[Resource, list[str]] = {}
    for body in objects.objects(EVERYTHING):
        names.setdefault(resource_of_body(body), []).append(body["metadata"]["name"])
    return names


def _removal_rank(kind: str) -> int:
    if kind.endswith("WebhookConfiguration"):
        return 0
    ranks = {
        "Deployment": 1,
        "DaemonSet": 1,
        "PriorityClass": 3,
        "CustomResourceDefinition": 4,
        "Namespace": 5,
    }
    return ranks.get(kind, 2)


async def _open_storage(api: Api, spec: Json) -> None:
    """Wait until the API server lists the objects of a CRD.

    It opens their storage when somebody asks first. A CRD that is deleted before that is finalized only after minutes
    at times: the finalizer itself is told to ask later, and its next try fails by a conflict with its own report of
    that (kube-apiserver 1.35, until its informer resyncs).
    """
    for version in spec["versions"]:
        if version["served"]:
            names = spec["names"]
            kind = Resource(
                group=spec["group"], version=version["name"], kind=names["kind"], plural=names["plural"]
            )
            # A selector: lists without one are answered before the storage is open.
            with contextlib.suppress(errors.ApiError):  # deleting tells what is wrong
                await api.labelled(kind, SELECTOR)


async def _delete(api: Api, releases: Releases, body: Json) -> ApplyStep:
    resource, metadata = resource_of_body(body), body["metadata"]
    try:
        if release := await releases.owner(body):
            why = f"it belongs to the Helm release {release}: use helm uninstall"
            return ApplyStep(key(body), ApplyOutcome.FAILED, why)
        await api.delete(resource, metadata.get("namespace", ""), metadata["name"])
    except errors.ApiError as error:
        return ApplyStep(key(body), ApplyOutcome.FAILED, error.message)
    return ApplyStep(key(body), ApplyOutcome.DELETED)


def _conflict(error: errors.Conflict) -> str:
    causes = error.details.causes if error.details is not None else []
    if not causes:
        return error.message
    return "; ".join(f"{cause.field} was set by others ({cause.message})" for cause in causes)


def _what_to_do(error: errors.ApiError, body: Json) -> str:
    if isinstance(error, errors.Forbidden):
        return f"{error.message}: installing needs the rights of cluster-admin"
    if isinstance(error, errors.NotFound):
        if body["kind"] == "ServiceMonitor":
            return "the cluster has no ServiceMonitors: install the Prometheus operator, or leave " + (
                "metrics.serviceMonitor.enabled off"
            )
        namespace = body["metadata"].get("namespace", "")
        return f"{error.message}: is there a namespace {namespace}? installation.createNamespace makes it"
    return error.message
