"""koordlet as a container of this containerd, with exactly the privileges, arguments and mounts of its DaemonSet.

With the images that `make images` has made, for amd64 and (emulated) arm64, and without one:
then the machine's own Python and this checkout are mounted read-only in its place.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from koordinator.api import yaml_text
from koordinator.host.cri_messages import (
    ContainerMetadata,
    ImageSpec,
    KeyValue,
    LinuxContainerResources,
    PodSandboxConfig,
)
from tests.runtime import cri
from tests.runtime.agent import JOINED, RunningAgent
from tests.runtime.node import IMAGE, RuntimeNode
from tests.runtime.pods import PodShape, batch_pod, is_protected, listed, manifest, sandbox_config, start_pod
from tests.runtime.surroundings import NODE

ROOT = Path(__file__).parents[2]
DAEMON_SET = ROOT / "deploy/koordlet/daemonset.yaml"
SHAPE = PodShape("koordlet", kube_qos="burstable", resources=LinuxContainerResources(cpu_shares=51))
ARCHIVES = {"amd64": ROOT / "build/images/koordlet.tar", "arm64": ROOT / "build/images/koordlet-arm64.tar"}
EMULATOR = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
LOG = "pods/koordlet/main.log"


def pod_spec() -> dict[str, Any]:
    spec: dict[str, Any] = yaml_text.load(DAEMON_SET.read_bytes())["spec"]["template"]["spec"]
    return spec


def mounts(node: RuntimeNode, spec: dict[str, Any]) -> list[cri.Mount]:
    """As the kubelet makes them of volumes; what lies outside of /run and /sys is in the node's folder."""
    sources = {}
    for volume in spec["volumes"]:
        path = volume.get("hostPath", {}).get("path", "")
        is_nodes = path.startswith(("/sys/", "/run/", "/var/run/"))
        source = path if is_nodes else str(node.folder / "volumes" / volume["name"])
        outside = node.folder / "run" / path.partition("run/")[2] if "run/" in path else Path(source)
        outside.mkdir(parents=True, exist_ok=True)
        sources[volume["name"]] = source
    return [
        cri.Mount(
            each["mountPath"],
            sources[each["name"]],
            each.get("readOnly", False),
            cri.PROPAGATIONS[each.get("mountPropagation", "")],
        )
        for each in spec["containers"][0]["volumeMounts"]
    ]


def python_mounts() -> list[cri.Mount]:
    """Instead of an image: this Python with its packages, and the sources."""
    needed = {"/usr", "/lib", "/lib64", "/bin", "/etc", sys.base_prefix, sys.prefix, str(ROOT)}
    return [cri.Mount(path, path, readonly=True) for path in sorted(needed) if os.path.exists(path)]


class Program(NamedTuple):
    """What stands for koordlet in a container."""

    image: str
    command: tuple[str, ...]
    environment: tuple[KeyValue, ...] = ()
    mounts: tuple[cri.Mount, ...] = ()


def program_of(node: RuntimeNode, kind: str, container: dict[str, Any]) -> Program:
    if kind == "checkout":
        path = KeyValue("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
        command = (sys.executable, "-m", "koordinator.cli.koordlet")
        return Program(IMAGE, command, (path,), tuple(python_mounts()))
    archive = ARCHIVES[kind]
    if not archive.exists():
        pytest.skip(f"no {archive.relative_to(ROOT)}: `make images ARCHITECTURE={kind}` makes it")
    if kind == "arm64" and not EMULATOR.exists():
        pytest.skip("this kernel knows no emulator of arm64 (Debian: qemu-user-static, binfmt-support)")
    node.import_archive(archive, kind)
    return Program(container["image"], tuple(container["command"]))


@pytest.fixture(params=["checkout", "amd64", "arm64"])
def daemon(runtime_node: RuntimeNode, request: pytest.FixtureRequest) -> Iterator[RuntimeNode]:
    """The node with koordlet's pod, once it has joined."""
    node, spec = runtime_node, pod_spec()
    container = spec["containers"][0]
    program = program_of(node, request.param, container)
    agent, said = RunningAgent(node), len(node.log(LOG))
    host = cri.NamespaceOption(pid=cri.NODE if spec["hostPID"] else cri.CONTAINER)
    security = container["securityContext"]
    config = cri.MountingContainerConfig(
        metadata=ContainerMetadata("koordlet"),
        image=ImageSpec(program.image),
        command=program.command,
        args=(*container["args"], *agent.surroundings()),
        envs=(KeyValue("NODE_NAME", NODE), *program.environment),
        mounts=(*mounts(node, spec), *program.mounts),
        log_path="main.log",
        linux=cri.LinuxContainerConfig(
            SHAPE.resources,
            cri.ContainerSecurity(security["privileged"], host, security["readOnlyRootFilesystem"]),
        ),
    )
    sandbox, of_pod = _sandbox(node, host, privileged=security["privileged"])
    try:
        own = node.cri.create_container(sandbox, config, of_pod)
        listed(node, lambda pods: [*pods, manifest(SHAPE, own)])
        node.cri.start_container(own)
        node.until(lambda: JOINED in node.log(LOG)[said:], LOG)
        yield node
    finally:
        node.cri.remove_sandbox(sandbox)
        listed(node, lambda pods: [each for each in pods if each["metadata"]["uid"] != SHAPE.uid])
        agent.close()


def _sandbox(
    node: RuntimeNode, host: cri.NamespaceOption, *, privileged: bool
) -> tuple[str, PodSandboxConfig]:
    linux = cri.LinuxPodSandboxConfig(
        cgroup_parent=SHAPE.parent, security_context=cri.SandboxSecurity(host, privileged)
    )
    plain = sandbox_config(node, SHAPE)
    config = PodSandboxConfig(plain.metadata, plain.log_directory, plain.labels, plain.annotations, linux)
    return node.cri.run_sandbox(config), config


def test_batch_containers_start_with_their_limits(daemon: RuntimeNode) -> None:
    pod = start_pod(daemon, batch_pod("batch"))

    assert is_protected(pod)
    pod.remove()
