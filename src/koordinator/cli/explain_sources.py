"""Fetch explanations from a running scheduler and its API server, or from a dump."""

import asyncio
import contextlib
import random
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import click
import msgspec

from koordinator.api.affinity import LabelSelector
from koordinator.api.apps import DaemonSet, Deployment, Job, ReplicaSet, StatefulSet
from koordinator.api.core import Event, Pod
from koordinator.api.label_selector import Predicate, compile_selector
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.api.pod_labels import is_terminated
from koordinator.api.reservation import Reservation
from koordinator.api.sigs import PodGroup
from koordinator.cli.explain import SCHEDULER_URL
from koordinator.cluster import connect, errors, transport
from koordinator.cluster.config import ClientConfig
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.protocol import Cluster
from koordinator.local import selectors
from koordinator.scheduler.config.default_plugins import read_config
from koordinator.scheduler.explain.answer import EventLine, GangAnswer, PodAnswer, ReservationAnswer
from koordinator.scheduler.explain.decide import PodQuestion, explain
from koordinator.scheduler.explain.gang_group import gang_keys
from koordinator.scheduler.explain.gangs import explain_gang
from koordinator.scheduler.explain.reservations import explain_reservation
from koordinator.scheduler.explain.survey import finish
from koordinator.scheduler.serve.explain_service import condition_lines, names_alike
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.simulate import dump as dumps

ANSWER_TIMEOUT_S = 30.0

WORKLOAD_VIEWS: dict[str, type[Object]] = {
    "deployment": Deployment,
    "replicaset": ReplicaSet,
    "statefulset": StatefulSet,
    "daemonset": DaemonSet,
    "job": Job,
}
JOB_UID = "batch.kubernetes.io/controller-uid"

A = TypeVar("A", PodAnswer, GangAnswer, ReservationAnswer)


def node_metrics(node: str, kubeconfig: str) -> Sequence[NodeMetric]:
    """Return the NodeMetric of a node, or all of them when no node is named. Raises: KoordinatorError."""

    async def read() -> Sequence[NodeMetric]:
        client = connect.load(kubeconfig_file=kubeconfig)
        async with KubeCluster(client, rng=random.Random(0), component="koordinator") as cluster:
            return [await cluster.get(NodeMetric, node)] if node else (await cluster.list(NodeMetric)).items

    return asyncio.run(read())


class ExplainArgs(msgspec.Struct, frozen=True, kw_only=True):
    """The command line, parsed."""

    name: str
    namespace: str
    nodes: tuple[str, ...] | None
    best: int
    seed: int
    pod: str = ""
    """The only pod (`namespace/name`) to tell about, for a reservation."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


# Offline


def pod_from_dump(ask: ExplainArgs, files: Sequence[str], config_file: Path | None) -> PodAnswer:
    """Return the answer for a pod in a dump. A dump of a cluster whose pods name `default-scheduler` is answered with
    the same profile under that name, unless a configuration says otherwise. Raises: KoordinatorError, OSError."""
    dump = dumps.read(files)
    found = dumps.snapshot(dump, read_config(config_file), seed=ask.seed)
    wanted = found.pods.get(ask.key)
    if wanted is None:
        raise unknown("pod", ask.key, list(found.pods))
    engine = found.engine
    for each in ask.nodes or ():
        if engine.table.row_of(each) is None:
            raise unknown("node", each, [engine.table.name_of(row) for row in engine.table.rows.tolist()])
    found.engine.refresh(found.now_s)
    answer = explain(
        engine, PodInfo.of(wanted, engine.table.registry), PodQuestion(nodes=ask.nodes, best=ask.best)
    )
    about = [each for each in found.events if _is_about(each, "Pod", wanted)]
    return msgspec.structs.replace(
        answer,
        conditions=condition_lines(wanted),
        events=event_lines(about),
        gang=answer.gang and _with_phases(answer.gang, {each.key: each for each in dump.views(PodGroup)}),
    )


def gang_from_dump(ask: ExplainArgs, files: Sequence[str], config_file: Path | None) -> GangAnswer:
    """Return the answer for a gang of a dump. Raises: KoordinatorError, OSError."""
    dump = dumps.read(files)
    found = dumps.snapshot(dump, read_config(config_file), seed=ask.seed)
    found.engine.refresh(found.now_s)
    answer = explain_gang(found.engine, ask.key)
    if answer is None:
        raise unknown("gang", ask.key, gang_keys(found.engine))
    groups = {each.key: each for each in dump.views(PodGroup)}
    group = groups.get(ask.key)
    about = [each for each in found.events if group is not None and _is_about(each, "PodGroup", group)]
    return msgspec.structs.replace(_with_phases(answer, groups), events=event_lines(about))


def reservation_from_dump(
    ask: ExplainArgs, files: Sequence[str], config_file: Path | None
) -> ReservationAnswer:
    """Return the answer for a Reservation of a dump. Raises: KoordinatorError, OSError, click.ClickException."""
    dump = dumps.read(files)
    found = dumps.snapshot(dump, read_config(config_file), seed=ask.seed)
    there = {each.metadata.name: each for each in dump.views(Reservation)}
    wanted = there.get(ask.name)
    if wanted is None:
        raise unknown("reservation", ask.name, list(there))
    if ask.pod and ask.pod not in found.pods:
        raise unknown("pod", ask.pod, list(found.pods))
    found.engine.refresh(found.now_s)
    answer = finish(explain_reservation(found.engine, wanted, list(found.pods.values()), ask.pod))
    about = [each for each in found.events if _is_about(each, "Reservation", wanted)]
    return msgspec.structs.replace(answer, events=event_lines(about))


class PodsWanted(msgspec.Struct, frozen=True, kw_only=True):
    """The pods asked about: those of a workload (`kind` and `name`), or those with labels."""

    namespace: str
    all_namespaces: bool = False
    kind: str = ""
    name: str = ""
    selector: str = ""
    pending: bool = False
    limit: int


class PodsFound(msgspec.Struct, frozen=True):
    """Answers for the first pods, and how many pods there are."""

    answers: list[PodAnswer]
    count: int


def pods_from_dump(
    wanted: PodsWanted, files: Sequence[str], config_file: Path | None, seed: int
) -> PodsFound:
    """Return the answers for pods of a dump. Raises: KoordinatorError, OSError, click.ClickException."""
    dump = dumps.read(files)
    found = dumps.snapshot(dump, read_config(config_file), seed=seed)
    namespace = "" if wanted.all_namespaces else wanted.namespace or "default"
    matches = _labelled(wanted.selector)
    if wanted.kind:
        there = {each.key: each for each in dump.views(WORKLOAD_VIEWS[wanted.kind])}
        owner = there.get(f"{namespace}/{wanted.name}")
        if owner is None:
            raise unknown(wanted.kind, f"{namespace}/{wanted.name}", list(there))
        matches = _selector_of(owner)
    pods = [each for each in found.pods.values() if namespace in ("", each.metadata.namespace)]
    chosen = _chosen(wanted, pods, matches)
    found.engine.refresh(found.now_s)
    question = PodQuestion(nodes=(), best=0)
    registry = found.engine.table.registry
    answers = [explain(found.engine, PodInfo.of(each, registry), question) for each in chosen[: wanted.limit]]
    return PodsFound(answers, len(chosen))


def _labelled(selector: str) -> Predicate:
    """Return the predicate of a `--selector` on labels."""
    return selectors.labels(selector) or (lambda _: True)


def _chosen(wanted: PodsWanted, pods: Sequence[Pod], matches: Predicate) -> list[Pod]:
    """Return pods that run or wait, the oldest first."""
    alive = (each for each in pods if not is_terminated(each))
    chosen = [each for each in alive if matches(each.metadata.labels or {})]
    if wanted.pending:
        chosen = [each for each in chosen if not each.spec.node_name]
    return sorted(chosen, key=lambda each: (each.metadata.creation_timestamp or "", each.key))


def _selector_of(owner: Object) -> Predicate:
    """Return the predicate by which a workload chooses pods; a Job has a selector once its controller has seen it."""
    selector: LabelSelector | None = owner.spec.selector  # type: ignore[attr-defined]
    return compile_selector(selector or LabelSelector(match_labels={JOB_UID: owner.metadata.uid}))


def _with_phases(answer: GangAnswer, groups: Mapping[str, PodGroup]) -> GangAnswer:
    """Add to the answer what PodGroups say of themselves."""
    lines = [
        msgspec.structs.replace(line, phase=groups[line.gang].status.phase) if line.gang in groups else line
        for line in answer.gangs
    ]
    return msgspec.structs.replace(answer, gangs=lines)


def unknown(kind: str, wanted: str, known: Sequence[str]) -> click.ClickException:
    """Return the error for a mistyped name, with the names that a person may have meant."""
    alike = ", ".join(names_alike(wanted, known))
    return click.ClickException(f"no {kind} is called {wanted}{f'; there are {alike}' if alike else ''}")


def _is_about(event: Event, kind: str, wanted: Object) -> bool:
    about, meta = event.involved_object, wanted.metadata
    is_named = (about.kind, about.namespace, about.name) == (kind, meta.namespace, meta.name)
    return is_named and (not about.uid or not meta.uid or about.uid == meta.uid)


def event_lines(events: Sequence[Event]) -> list[EventLine]:
    """Oldest first."""
    lines = [
        EventLine(
            time=(each.series.last_observed_time if each.series else None)
            or each.last_timestamp
            or each.event_time
            or each.metadata.creation_timestamp
            or "",
            type=each.type,
            reason=each.reason,
            message=each.message,
            count=max(each.count, each.series.count if each.series else 0, 1),
        )
        for each in events
    ]
    return sorted(lines, key=lambda line: line.time)


# Live


async def pod_from_cluster(ask: ExplainArgs, kubeconfig_file: str, scheduler_url: str) -> PodAnswer:
    """Return the answer of the running scheduler, with the pod's events. Raises: KoordinatorError,
    click.ClickException."""
    client = connect.load(kubeconfig_file=kubeconfig_file)
    ask = msgspec.structs.replace(ask, namespace=ask.namespace or client.namespace)
    async with KubeCluster(client, rng=random.Random(0), component="koordinator") as cluster:
        try:
            wanted = await cluster.get(Pod, ask.name, ask.namespace)
        except errors.NotFound as error:
            pods = await cluster.list(Pod)
            raise unknown("pod", ask.key, [each.key for each in pods.items]) from error
        events = await _events(cluster, "Pod", ask)
        params = {"best": str(ask.best), "nodes": "*" if ask.nodes is None else ",".join(ask.nodes)}
        answer = await _ask_scheduler(client, scheduler_url, ask.key, params, PodAnswer)
        gang = answer.gang and _with_phases(answer.gang, await _pod_groups(cluster, answer.gang))
    about = [each for each in events if _is_about(each, "Pod", wanted)]
    return msgspec.structs.replace(answer, events=event_lines(about), gang=gang)


async def gang_from_cluster(ask: ExplainArgs, kubeconfig_file: str, scheduler_url: str) -> GangAnswer:
    """Return the answer of the running scheduler, with the phases and events of PodGroups. Raises: KoordinatorError,
    click.ClickException."""
    client = connect.load(kubeconfig_file=kubeconfig_file)
    ask = msgspec.structs.replace(ask, namespace=ask.namespace or client.namespace)
    answer = await _ask_scheduler(client, scheduler_url, f"gangs/{ask.key}", {}, GangAnswer)
    async with KubeCluster(client, rng=random.Random(0), component="koordinator") as cluster:
        groups = await _pod_groups(cluster, answer)
        events = await _events(cluster, "PodGroup", ask) if ask.key in groups else []
    about = [each for each in events if _is_about(each, "PodGroup", groups[ask.key])]
    return msgspec.structs.replace(_with_phases(answer, groups), events=event_lines(about))


async def reservation_from_cluster(
    ask: ExplainArgs, kubeconfig_file: str, scheduler_url: str
) -> ReservationAnswer:
    """Return the answer of the running scheduler, with the Reservation's events. Raises: KoordinatorError,
    click.ClickException."""
    client = connect.load(kubeconfig_file=kubeconfig_file)
    params = {"pod": ask.pod} if ask.pod else {}
    path = f"cluster/reservations/{ask.name}"
    answer = await _ask_scheduler(client, scheduler_url, path, params, ReservationAnswer)
    async with KubeCluster(client, rng=random.Random(0), component="koordinator") as cluster:
        events = await _events(cluster, "Reservation", ask)
    about = [each for each in events if each.involved_object.uid in ("", answer.uid)]
    return msgspec.structs.replace(answer, events=event_lines(about))


async def pods_from_cluster(wanted: PodsWanted, kubeconfig_file: str, scheduler_url: str) -> PodsFound:
    """Return the answers of the running scheduler. Raises: KoordinatorError, click.ClickException."""
    client = connect.load(kubeconfig_file=kubeconfig_file)
    namespace = "" if wanted.all_namespaces else wanted.namespace or client.namespace
    async with KubeCluster(client, rng=random.Random(0), component="koordinator") as cluster:
        matches = _labelled(wanted.selector)
        if wanted.kind:
            try:
                owner = await cluster.get(WORKLOAD_VIEWS[wanted.kind], wanted.name, namespace)
            except errors.NotFound as error:
                there = await cluster.list(WORKLOAD_VIEWS[wanted.kind], namespace)
                raise unknown(
                    wanted.kind, wanted.name, [each.metadata.name for each in there.items]
                ) from error
            matches = _selector_of(owner)
        chosen = _chosen(wanted, (await cluster.list(Pod, namespace)).items, matches)
    params = {"best": "0", "nodes": ""}
    answers = [
        await _ask_scheduler(client, scheduler_url, each.key, params, PodAnswer)
        for each in chosen[: wanted.limit]
    ]
    return PodsFound(answers, len(chosen))


async def _pod_groups(cluster: Cluster, answer: GangAnswer) -> dict[str, PodGroup]:
    """Return the gangs of the answer that a PodGroup describes, by `namespace/name`."""
    groups = {}
    for line in answer.gangs:
        namespace, _, name = line.gang.partition("/")
        with contextlib.suppress(errors.NotFound):  # described by its pods
            groups[line.gang] = await cluster.get(PodGroup, name, namespace)
    return groups


async def _events(cluster: Cluster, kind: str, ask: ExplainArgs) -> Sequence[Event]:
    selector = f"involvedObject.kind={kind},involvedObject.name={ask.name}"
    return (await cluster.list(Event, ask.namespace, field_selector=selector)).items


class ComponentQuery(msgspec.Struct, frozen=True):
    """The address of a component, and what it wants to see."""

    url: str
    headers: Mapping[str, str] = {}
    tls: ssl.SSLContext | None = None


async def where_of(client: ClientConfig, given: str, published_as: str, otherwise: str) -> ComponentQuery:
    """The kubeconfig of a `koordinator up` says where; that component takes the credentials of the cluster. Others get
    none: whoever listens there might not be it."""
    own = client.extensions.get("koordinator")
    published = str(own.get(published_as, "")) if isinstance(own, dict) else ""
    if not published or given not in ("", published):
        return ComponentQuery(given or otherwise)
    authorization = await client.credentials.authorization()
    return ComponentQuery(published, {"Authorization": authorization} if authorization else {}, client.tls)


async def fetch(
    where: ComponentQuery, path: str, params: Mapping[str, str], who: str, hint: str
) -> tuple[int, bytes]:
    """Return status and body of a component's answer. Raises: ClickException when nobody answers."""
    address = f"{where.url.rstrip('/')}/apis/v1/explain/{path}"
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(
                address, params=params, headers=where.headers, ssl=True if where.tls is None else where.tls
            ) as response,
        ):
            return response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise click.ClickException(
            f"no {who} answers at {where.url}: {transport.reason_of(error)}{hint}"
        ) from error


async def _ask_scheduler(
    client: ClientConfig, scheduler_url: str, path: str, params: Mapping[str, str], kind: type[A]
) -> A:
    where = await where_of(client, scheduler_url, "schedulerURL", SCHEDULER_URL)
    hint = "; give --scheduler-url, or ask a dump: kubectl get nodes,pods,podgroups -A -o json > FILE, then --dump FILE"
    status, body = await fetch(where, path, params, "scheduler", hint)
    if status == 200:
        return msgspec.json.decode(body, type=kind)
    if status == 404 and kind is not PodAnswer:
        raise click.ClickException(error_text(body))
    if status == 503 and (leader := _leader(body)):
        raise click.ClickException(
            f"the scheduler at {where.url} is a standby: {leader} leads, and only the leader knows. Ask it: its pod "
            "has the name before the first _ (kubectl -n koordinator-system port-forward POD 10251), or --scheduler-url"
        )
    raise click.ClickException(f"the scheduler at {where.url} answers {status}: {error_text(body)}{hint}")


def _leader(body: bytes) -> str:
    """Return the leader's name, as a standby reports it; empty when it does not."""
    try:
        return msgspec.json.decode(body, type=_Standby).leader
    except msgspec.DecodeError:
        return ""


class _Standby(msgspec.Struct, frozen=True):
    leader: str = ""


def error_text(body: bytes) -> str:
    try:
        found: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body.decode(errors="replace")[:200]
    if not isinstance(found, dict):
        return str(found)
    alike = f"; there are {', '.join(map(str, found['alike']))}" if found.get("alike") else ""
    return f"{found.get('message', found)}{alike}"
