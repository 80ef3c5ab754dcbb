"""Leads lives: the same steps on real servers, many side by side, and on ours, one after the other on virtual time."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from koordinator.api import slo_config
from koordinator.api.core import ConfigMap, Namespace, Node, Pod
from koordinator.api.node_metric import NodeMetric
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.quantity import milli
from koordinator.api.storage import PersistentVolumeClaim
from koordinator.clock import LoopClock, rfc3339
from koordinator.cluster import connect, errors
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import strictly
from koordinator.descheduler import configuration
from koordinator.descheduler.plugins.built_in import installed_plugins
from koordinator.local.cluster import ClusterOptions, LocalCluster, install
from koordinator.scheduler.config import config
from koordinator.simulate import virtual_time
from tests.local.controllers.fake_kubelet import pinned_node
from tests.real.lives import descheduling, koordinator, managing
from tests.real.lives.look import Looker, Seen
from tests.real.lives.stage import Kubelet, Stage, view_of

Json = dict[str, Any]
Life = dict[str, Any]
"""`name`, `nodes` (how many, or what they are like), `elsewhere` (whether a node of another zone is ready), `looks`
(kinds), `quiet_s` (where controllers look now and then only), `scheduled` (a scheduler places its pods, and it is alone
on its server), `scheduler` (such as koord-scheduler), `descheduler`, `exact` and `events` (see Looker), `steps`. A step
is a list: a verb, and what belongs to it."""

QUIET_S = 2.0
SIZE = {"cpu": "32", "memory": "64Gi", "pods": "200"}
SCHEDULER: Json = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
    "podInitialBackoffSeconds": 1,
    "podMaxBackoffSeconds": 1,
    "profiles": [
        {"schedulerName": "default-scheduler"},
        {
            "schedulerName": "packing",
            "plugins": {"multiPoint": {"disabled": [{"name": "TaintToleration"}]}},
            "pluginConfig": [
                {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}
            ],
        },
    ],
}
"""Of both schedulers: a pod that is woken is tried again within the time that it takes to be quiet."""
LONG_S = 1_800.0
"""Before this a node's agent is lost."""
FILLED_S = 60
"""Within this a namespace has its ServiceAccount, without which pods are refused."""


async def lead(stage: Stage, life: Life, namespace: str, quiet_s: float = QUIET_S) -> list[Seen]:
    """What is seen after each step; answers of the API that refuse are seen, too."""
    is_scheduled, nodes = life.get("scheduled", False), life.get("nodes", 3)
    nodes = [{}] * nodes if isinstance(nodes, int) else nodes
    is_managed = life.get("scheduler") == managing.NAME
    if is_managed:
        await _configure(stage.cluster, dict.fromkeys(managing.KEYS))
    await _set_up(stage.cluster, namespace, nodes)
    if life.get("elsewhere"):
        await _add_node(stage.cluster, f"{namespace}-x", {})
    kubelet = stage.kubelets[namespace] = Kubelet(stage, namespace, len(nodes), binds=not is_scheduled)
    looker = Looker(
        stage.cluster,
        namespace,
        life["looks"],
        is_exact=is_scheduled or "exact" in life,
        is_managed=is_managed,
        events=life.get("events", True),
    )
    seen = []
    works = (kubelet.run(), kubelet.report(), kubelet.rooms.run())
    tasks = [asyncio.create_task(work) for work in works]
    try:
        if is_scheduled:
            await _untainted(stage, kubelet)
            await stage.quiet("", quiet_s)
        for step in life["steps"]:
            refusal: Json = {}
            try:
                await _act(stage, kubelet, namespace, _own(step, namespace, stage.cluster.clock.now()))
            except errors.ApiError as error:
                told = {"message": error.message.replace(namespace, "LIFE")} if is_managed else {}
                refusal = {"class": type(error).__name__, **told}
            await stage.quiet("" if is_scheduled else namespace, max(quiet_s, life.get("quiet_s", 0.0)))
            found = await looker.look()
            seen.append({**found, **({"refusal": [refusal]} if refusal else {})})
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await _tidy_up(stage.cluster, kubelet, namespace)
        if is_managed:  # names of quotas are those of all namespaces
            await _gone(stage.cluster, namespace)
    return seen


async def _untainted(stage: Stage, kubelet: Kubelet) -> None:
    """Until new nodes have lost the taint that they begin with."""
    for _ in range(FILLED_S * 10):
        nodes = (await stage.cluster.list(Node)).items
        if not any(
            taint.key == "node.kubernetes.io/not-ready"
            for node in nodes
            if node.metadata.name in kubelet.nodes
            for taint in node.spec.taints
        ):
            return
        await asyncio.sleep(0.1)


async def _gone(cluster: Cluster, namespace: str) -> None:
    for _ in range(FILLED_S * 10):
        try:
            await cluster.get(Namespace, namespace)
        except errors.NotFound:
            return
        await asyncio.sleep(0.1)


async def _tidy_up(cluster: Cluster, kubelet: Kubelet, namespace: str) -> None:
    """What is left would keep the controllers busy, and a scheduler."""
    for pod in [] if kubelet.binds else (await cluster.list(Pod, namespace)).items:
        with contextlib.suppress(errors.ApiError):
            await cluster.delete(Pod, pod.metadata.name, namespace, grace_period_s=0)
    for kind, name in kubelet.created:
        with contextlib.suppress(errors.ApiError):
            await cluster.delete(view_of(kind), name)
    with contextlib.suppress(errors.ApiError):
        await cluster.delete(Namespace, namespace)
    for node in (*kubelet.nodes, f"{namespace}-x"):
        with contextlib.suppress(errors.ApiError):
            await cluster.delete(Node, node)


async def _set_up(cluster: Cluster, namespace: str, nodes: Sequence[Json]) -> None:
    await cluster.create(Namespace, {"metadata": {"name": namespace}})
    for letter, node in zip("abcdef", nodes, strict=False):
        await _add_node_of(cluster, namespace, letter, node)
    for _ in range(FILLED_S * 10):
        if (await cluster.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts"))["items"]:
            return
        await asyncio.sleep(0.1)


async def _add_node_of(cluster: Cluster, namespace: str, letter: str, node: Json) -> None:
    """`node` has members `labels`, `spec` and `size`, or some of them."""
    labels = {"life": namespace, "topology.kubernetes.io/zone": namespace, **node.get("labels", {})}
    await _add_node(cluster, f"{namespace}-{letter}", labels, node.get("spec", {}), node.get("size", SIZE))


async def _add_node(
    cluster: Cluster, name: str, labels: dict[str, str], spec: Json | None = None, size: Json = SIZE
) -> None:
    labels = {**labels, "kubernetes.io/hostname": name}
    await cluster.create(Node, {"metadata": {"name": name, "labels": labels}, "spec": spec or {}})
    await _node_status(cluster, name, "True", size)


async def _node_status(cluster: Cluster, name: str, ready: str, size: Json = SIZE) -> None:
    now = rfc3339(cluster.clock.now())
    condition = {"type": "Ready", "status": ready, "reason": "Told", "lastHeartbeatTime": now}
    status = {
        "conditions": [{**condition, "lastTransitionTime": now}],
        "capacity": size,
        "allocatable": size,
    }
    await cluster.patch(Node, name, {"status": status}, subresource="status")


async def _act(stage: Stage, kubelet: Kubelet, namespace: str, step: list[Any]) -> None:
    cluster = stage.cluster
    match step:
        case ["create", *bodies]:
            for body in bodies:
                await _name_owners(cluster, namespace, body)
                view = view_of(body["kind"])
                if not view.resource.namespaced:
                    kubelet.created.append((body["kind"], body["metadata"]["name"]))
                await cluster.create(view, body, namespace if view.resource.namespaced else "")
        case ["provide", claim, volume]:
            asked = await cluster.get(PersistentVolumeClaim, claim, namespace)
            if asked.spec.volume_name:
                return
            kubelet.created.append(("PersistentVolume", volume["metadata"]["name"]))
            volume["spec"] |= {
                "claimRef": {"name": claim, "namespace": namespace, "uid": asked.metadata.uid},
                "storageClassName": asked.spec.storage_class_name,
                "accessModes": asked.spec.access_modes,
            }
            await cluster.create(view_of("PersistentVolume"), volume)
        case ["patch", kind, name, patch]:
            kind, _, subresource = kind.partition("/")
            view = view_of(kind)
            within = namespace if view.resource.namespaced else ""
            await cluster.patch(view, name, patch, within, subresource=subresource)
        case ["delete", kind, name, policy]:
            view = view_of(kind)
            within = namespace if view.resource.namespaced else ""
            await cluster.delete(view, name, within, propagation=policy)
        case ["migrate", app, letter, body]:
            body["spec"]["podRef"] = await _some_pod(stage, namespace, app, letter)
            await _act(stage, kubelet, namespace, ["create", body])
        case ["running", name, patch]:
            for job in (await cluster.list(PodMigrationJob)).items:
                is_meant = name in ("", job.metadata.name) and job.spec.pod_ref.namespace == namespace
                if is_meant and job.status.phase == "Running":
                    if patch is None:
                        await cluster.delete(PodMigrationJob, job.metadata.name)
                    else:
                        await cluster.patch(PodMigrationJob, job.metadata.name, patch)
        case ["report", system, pods]:
            told = {node: await _load(stage, kubelet, node, system[node[-1]], pods) for node in kubelet.nodes}
            await asyncio.sleep((0.95 - cluster.clock.now()) % 1.0)
            time = {"updateTime": rfc3339(cluster.clock.now() + 0.5)}
            for node, status in told.items():
                await cluster.patch(NodeMetric, node, {"status": status | time}, subresource="status")
        case ["lose", name]:
            job = await cluster.get(PodMigrationJob, name)
            if job.status.phase == "Running":
                await cluster.delete(Pod, job.spec.pod_ref.name, namespace)
        case ["rooms", fate]:
            kubelet.rooms.fate = fate
            kubelet.rooms.wake_all()
        case ["settings", data]:
            await _configure(cluster, data)
        case ["delete pod", number]:
            await cluster.delete(Pod, _nth(stage, namespace, number), namespace)
        case ["label pod", number, labels]:
            name = _nth(stage, namespace, number)
            await cluster.patch(Pod, name, {"metadata": {"labels": labels}}, namespace)
        case ["evict", number]:
            await cluster.evict(namespace, _nth(stage, namespace, number))
        case ["kubelet", rules]:
            kubelet.rules = rules
            kubelet.wake_all()
        case ["linger", lingers]:
            kubelet.lingers = lingers
            kubelet.wake_all()
        case ["wait", seconds]:
            await asyncio.sleep(seconds)
        case ["minute", seconds]:
            await asyncio.sleep(60.0 - cluster.clock.now() % 60.0 + seconds)
        case ["even minute", seconds]:
            await asyncio.sleep(120.0 - cluster.clock.now() % 120.0 + seconds)
        case ["node ready", letter, ready]:
            await _node_status(cluster, f"{namespace}-{letter}", ready)
        case ["node", letter, patch]:
            await cluster.patch(Node, f"{namespace}-{letter}", patch)
        case ["node/status", letter, patch]:
            await cluster.patch(Node, f"{namespace}-{letter}", patch, subresource="status")
        case ["add node", letter, node]:
            await _add_node_of(cluster, namespace, letter, node)
            kubelet.nodes |= {f"{namespace}-{letter}": None}
        case ["delete node", letter]:
            await cluster.delete(Node, f"{namespace}-{letter}")
        case ["silent", letter]:
            kubelet.silent.add(f"{namespace}-{letter}")
        case ["all", *steps]:
            for one in steps:
                await _act(stage, kubelet, namespace, one)
        case _:
            raise ValueError(step)


async def _load(stage: Stage, kubelet: Kubelet, name: str, system: int, pods: dict[str, Json]) -> Json:
    """What a node agent would say of the node."""
    cluster = stage.cluster
    if ("NodeMetric", name) not in kubelet.created:
        kubelet.created.append(("NodeMetric", name))
        await cluster.create(NodeMetric, {"metadata": {"name": name}, "spec": {}})
    node = await cluster.get(Node, name)
    size = {kind: milli(node.status.allocatable[kind]) * system // 100 for kind in ("cpu", "memory")}
    told = {"cpu": f"{size['cpu']}m", "memory": str(size["memory"] // 1000)}
    here = [pod.metadata for pod in stage.pods.list(kubelet.namespace) if pod.spec.node_name == name]
    return {
        "nodeMetric": {"systemUsage": {"resources": told}},
        "podsMetric": [
            {
                "name": meta.name,
                "namespace": meta.namespace,
                "podUsage": {
                    "resources": {"cpu": f"{pods[meta.name][0] * 10}m", "memory": f"{pods[meta.name][1]}Mi"}
                },
            }
            for meta in sorted(here, key=lambda meta: meta.name)
        ],
    }


def _own(step: list[Any], namespace: str, now_s: float) -> list[Any]:
    """A copy, in which the life has its name, and what is now its time."""
    text = json.dumps(step).replace("$LIFE", namespace)
    text = text.replace("$NOW", rfc3339(now_s)).replace("$AGO", rfc3339(now_s - LONG_S))
    found: list[Any] = json.loads(text)
    return found


async def _configure(cluster: Cluster, data: Json) -> None:
    """Change keys of the manager's ConfigMap."""
    await cluster.patch(ConfigMap, slo_config.CONFIG_NAME, {"data": data}, slo_config.CONFIG_NAMESPACE)


async def _name_owners(cluster: Cluster, namespace: str, body: Json) -> None:
    """Owners by `of`, a ConfigMap's name, get their uid; who is gone has one that nobody has."""
    for owner in body["metadata"].get("ownerReferences", []):
        name, uid = owner.pop("of"), "00000000-0000-4000-8000-000000000000"
        with contextlib.suppress(errors.NotFound):
            uid = (await cluster.get(view_of("ConfigMap"), name, namespace)).metadata.uid
        owner |= {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid}


def _nth(stage: Stage, namespace: str, number: int) -> str:
    """A pod by its place among those that live, in the order of names without what chance drew."""
    alive = [
        pod
        for pod in stage.pods.list(namespace)
        if pod.metadata.deletion_timestamp is None and pod.status.phase not in ("Succeeded", "Failed")
    ]
    if not alive:
        raise errors.NotFound("no pod lives")
    alive.sort(
        key=lambda pod: (
            pod.metadata.labels.get("apps.kubernetes.io/pod-index", ""),
            pod.spec.containers[0].image,
            pod.status.phase,
            pinned_node(pod),
        )
    )
    return alive[number % len(alive)].metadata.name


async def _some_pod(stage: Stage, namespace: str, app: str, letter: str) -> Json:
    """A reference to a pod that no job moves, rather on that node: which of two jobs is quicker is left to chance."""
    jobs = (await stage.cluster.list(PodMigrationJob)).items
    left = [one.spec.pod_ref for one in jobs if one.status.phase not in ("Succeeded", "Failed")]
    moved = {ref.name for ref in left if ref.namespace == namespace}
    alive = [
        pod
        for pod in stage.pods.list(namespace)
        if pod.metadata.labels.get("app") == app
        and pod.metadata.deletion_timestamp is None
        and pod.metadata.name not in moved
    ]
    if not alive:
        return {"namespace": namespace, "name": "nobody"}
    node = f"{namespace}-{letter}"
    found = min(alive, key=lambda pod: (pod.spec.node_name != node, pod.spec.node_name, pod.metadata.name))
    return {"namespace": namespace, "name": found.metadata.name}


@contextlib.asynccontextmanager
async def real_stage(kubeconfig: Path, *, is_koordinator: bool) -> AsyncIterator[Stage]:
    config = connect.load(kubeconfig_file=str(kubeconfig))
    async with KubeCluster(config, rng=random.Random(0)) as cluster:
        factory = InformerFactory(cluster, random.Random(0))
        stage = Stage(cluster, factory, is_koordinator=is_koordinator)
        async with asyncio.TaskGroup() as group:
            factory.start(group)
            await factory.wait_synced()
            yield stage
            await factory.stop()


async def on_real(
    kubeconfigs: Sequence[Path],
    lives: Sequence[Life],
    at_once: int,
    quiet_s: float = QUIET_S,
    prefix: str = "life",
) -> list[list[Seen]]:
    """Each life has a namespace of its own; so many are led at once on each server."""
    seen: dict[str, list[Seen]] = {}
    left = list(reversed(lives))

    async def some(stage: Stage) -> None:
        while left:
            life = left.pop()
            seen[life["name"]] = await lead(stage, life, f"{prefix}-{life['name']}", quiet_s)

    async with contextlib.AsyncExitStack() as stack:
        kind = any(_is_koordinator(life) or life.get("scheduler") == managing.NAME for life in lives)
        stages = [
            await stack.enter_async_context(real_stage(each, is_koordinator=kind)) for each in kubeconfigs
        ]
        await asyncio.gather(*(some(stage) for stage in stages for _ in range(at_once)))
    return [seen[life["name"]] for life in lives]


def _is_koordinator(life: Life) -> bool:
    return life.get("scheduler") == koordinator.NAME or "descheduler" in life


def on_ours(life: Life, quiet_s: float = QUIET_S) -> list[Seen]:
    async def main(clock: LoopClock) -> list[Seen]:
        is_koordinator = _is_koordinator(life)
        scheduler = config.decode(koordinator.configuration() if is_koordinator else SCHEDULER)
        descheduler = None
        if "descheduler" in life:
            chosen = descheduling.configuration(life["descheduler"])
            descheduler = configuration.decode(chosen, installed_plugins())
        up = LocalCluster(clock, ClusterOptions(manager=False, scheduler=scheduler, descheduler=descheduler))
        cluster = MemoryCluster(up.registry)
        factory = InformerFactory(cluster, random.Random(0))
        stage = Stage(cluster, factory, is_koordinator=is_koordinator)
        seen: list[Seen] = []

        async def story() -> None:
            await factory.wait_synced()
            seen.extend(await lead(stage, life, f"life-{life['name']}", quiet_s))

        with strictly():
            async with asyncio.TaskGroup() as group:
                await install(cluster)
                before = asyncio.all_tasks()
                up._start_controllers(group)
                if life.get("scheduled"):
                    group.create_task(up.scheduler.run())
                if up.descheduler is not None:
                    group.create_task(up.descheduler.run())
                factory.start(group)
                await story()
                for task in asyncio.all_tasks() - before:
                    task.cancel()
        return seen

    return virtual_time.run_virtual(main)
