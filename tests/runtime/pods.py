"""Pods with one container as a kubelet would make them, and what their first instruction saw."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from koordinator.api import labels
from koordinator.host.cri_messages import (
    ContainerMetadata,
    ImageSpec,
    KeyValue,
    LinuxContainerResources,
    PodSandboxConfig,
    PodSandboxMetadata,
)
from tests.runtime import cri
from tests.runtime.cri import CRIClient
from tests.runtime.node import IMAGE, RuntimeNode, make_group
from tests.runtime.surroundings import NODE, PODS

OWN_FILES = {
    "shares": "cpu/cpu.shares",
    "quota": "cpu/cpu.cfs_quota_us",
    "idle": "cpu/cpu.idle",
    "cpus": "cpuset/cpuset.cpus",
    "memory": "memory/memory.limit_in_bytes",
}
"""Files of a container's own groups, as it sees them."""
SCORE = "/proc/self/oom_score_adj"
_OWN, OF_NODE = "/sys/fs/cgroup", "/node-cgroup"


class PodShape(NamedTuple):
    """A pod of one container. `kube_qos` is the folder below kubepods, empty for Guaranteed."""

    name: str
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    kube_qos: str = "besteffort"
    resources: LinuxContainerResources = LinuxContainerResources(cpu_shares=2, oom_score_adj=1000)
    environment: Mapping[str, str] = {}
    tells: Sequence[str] = ()
    """Further files, and `stat:` of paths, that the container shall tell."""

    @property
    def uid(self) -> str:
        return f"uid-{self.name}"

    @property
    def parent(self) -> str:
        """The pod's group."""
        return "/".join(("/kubepods", *((self.kube_qos,) if self.kube_qos else ()), f"pod{self.uid}"))


class Told(NamedTuple):
    """What the first instruction of a container saw; `files` by short name (`OWN_FILES`) or path."""

    files: Mapping[str, str]
    environment: Mapping[str, str]


class RunningPod(NamedTuple):
    node: RuntimeNode
    shape: PodShape
    sandbox: str
    config: PodSandboxConfig
    container: str

    def told(self) -> Told:
        """What the container said first."""
        log = f"pods/{self.shape.name}/main.log"
        self.node.until(lambda: _said(self.node.log(log)).endswith("\nend"), log)
        return as_told(_said(self.node.log(log)), self.shape)

    def remove(self) -> None:
        self.node.cri.remove_sandbox(self.sandbox)
        listed(self.node, lambda pods: [each for each in pods if each["metadata"]["uid"] != self.shape.uid])


def start_pod(node: RuntimeNode, shape: PodShape, client: CRIClient | None = None) -> RunningPod:
    """Run it by calls of `client`, by default containerd's; the pod's own group is made first, as a kubelet does."""
    calls = client if client is not None else node.cri
    make_pod_group(node, shape)
    config = sandbox_config(node, shape)
    sandbox = calls.run_sandbox(config)
    container = calls.create_container(sandbox, _container_config(shape), config)
    calls.start_container(container)
    listed(node, lambda pods: [*pods, manifest(shape, container)])
    return RunningPod(node, shape, sandbox, config, container)


BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
BATCH = {
    "containers": {
        "main": {
            "requests": {BATCH_CPU: "500", BATCH_MEMORY: "64Mi"},
            "limits": {BATCH_CPU: "700", BATCH_MEMORY: "128Mi"},
        }
    }
}


def batch_pod(name: str, environment: Mapping[str, str] | None = None) -> PodShape:
    """A best-effort pod as the webhook leaves it: the kubelet sees no CPU or memory on it."""
    annotations = {labels.EXTENDED_RESOURCE_SPEC: json.dumps(BATCH)}
    shape = PodShape(name, {labels.QOS_CLASS: "BE"}, annotations)
    return shape._replace(environment=environment or {})


def is_protected(pod: RunningPod) -> bool:
    """Whether a `batch_pod` had its limits from its first instruction on."""
    return has_batch_limits(pod.told())


def has_batch_limits(told: Told) -> bool:
    """Whether the container of a `batch_pod` was told its limits."""
    files = told.files
    return (files["shares"], files["quota"], files["memory"]) == ("512", "70000", str(128 << 20))


def sandbox_config(node: RuntimeNode, shape: PodShape) -> PodSandboxConfig:
    (node.folder / "log/pods" / shape.name).mkdir(parents=True, exist_ok=True)
    kubelets = {
        "io.kubernetes.pod.name": shape.name,
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": shape.uid,
    }
    return PodSandboxConfig(
        metadata=PodSandboxMetadata(shape.name, shape.uid, "default"),
        log_directory=str(node.folder / "log/pods" / shape.name),
        labels={**shape.labels, **kubelets},
        annotations=shape.annotations,
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=shape.parent,
            resources=shape.resources,
        ),
    )


def listed(node: RuntimeNode, changed: Callable[[list[Any]], list[Any]]) -> None:
    """Change what the kubelet lists (`surroundings`)."""
    path = node.folder / PODS
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(changed(json.loads(path.read_text()) if path.exists() else [])))
    beside.rename(path)


def manifest(shape: PodShape, container: str, runtime: str = "containerd") -> dict[str, Any]:
    """The running pod as a kubelet lists it."""
    qos = {"besteffort": "BestEffort", "burstable": "Burstable"}.get(shape.kube_qos, "Guaranteed")
    status = {"name": "main", "containerID": f"{runtime}://{container}", "state": {"running": {}}}
    return {
        "metadata": {
            "name": shape.name,
            "namespace": "default",
            "uid": shape.uid,
            "labels": dict(shape.labels),
            "annotations": dict(shape.annotations),
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": IMAGE}]},
        "status": {"phase": "Running", "qosClass": qos, "containerStatuses": [status]},
    }


def as_told(said: str, shape: PodShape) -> Told:
    """What the probe of a pod said, by the short names of files."""
    lines = [line.partition("\t") for line in said.splitlines() if "\t" in line]
    short = {f"{_OWN}/{path}": name for name, path in OWN_FILES.items()}
    short |= {f"{OF_NODE}/{_of_pod(path, shape)}": f"pod {name}" for name, path in OWN_FILES.items()}
    files = {short.get(what, what): text.removesuffix("\\n") for what, _, text in lines}
    environment = {key[4:]: value for key, value in files.items() if key.startswith("env:")}
    return Told({key: value for key, value in files.items() if not key.startswith("env:")}, environment)


def questions(shape: PodShape) -> tuple[str, ...]:
    """Arguments of the probe: files of the container's own groups, of its pod's, its score, what is asked for."""
    own = [f"{_OWN}/{path}" for path in OWN_FILES.values()]
    of_pod = [f"{OF_NODE}/{_of_pod(path, shape)}" for path in OWN_FILES.values()]
    return (*own, *of_pod, SCORE, *shape.tells)


def _container_config(shape: PodShape) -> cri.MountingContainerConfig:
    return cri.MountingContainerConfig(
        metadata=ContainerMetadata("main"),
        image=ImageSpec(IMAGE),
        args=questions(shape),
        envs=tuple(KeyValue(*each) for each in shape.environment.items()),
        mounts=(cri.Mount(OF_NODE, "/sys/fs/cgroup", readonly=True),),
        labels={
            "io.kubernetes.container.name": "main",
            "io.kubernetes.pod.name": shape.name,
            "io.kubernetes.pod.namespace": "default",
            "io.kubernetes.pod.uid": shape.uid,
        },
        log_path="main.log",
        linux=cri.LinuxContainerConfig(shape.resources),
    )


def _of_pod(path: str, shape: PodShape) -> str:
    controller, _, file = path.partition("/")
    return f"{controller}{shape.parent}/{file}"


def make_pod_group(node: RuntimeNode, shape: PodShape) -> None:
    """As a kubelet does before it asks for a sandbox."""
    for controller in ("cpu", "cpuset", "memory"):
        make_group(node.group(controller, shape.parent))


def _said(log: str) -> str:
    """The text of a log in CRI's format: time, stream, tag, text."""
    return "\n".join(parts[3] for line in log.splitlines() if len(parts := line.split(" ", 3)) == 4)
