"""Lives of pods on the process node: restarts, steps, probes, ends. Real processes below a group of the test's own."""

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest

from koordinator.api.core import ConfigMap, ContainerStateTerminated, ContainerStatus, Event, Pod, Secret
from koordinator.host.cgroups import Cgroups
from koordinator.local.processes import pod_worker
from tests.kernel.process_world import NAMESPACE, ProcessWorld, eventually, process_world, sh


def first(pod: Pod) -> ContainerStatus:
    return pod.status.container_statuses[0]


def ended(pod: Pod) -> ContainerStateTerminated:
    end = first(pod).state.terminated
    assert end is not None, first(pod)
    return end


async def events(world: ProcessWorld, pod: str, *reasons: str) -> list[Event]:
    """Events about a pod, once all of these reasons are among them."""
    found: list[Event] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            while True:
                listed = await world.cluster.list(Event, NAMESPACE)
                found = [event for event in listed.items if event.involved_object.name == pod]
                if set(reasons) <= {event.reason for event in found}:
                    return found
                await asyncio.sleep(0.02)
    raise AssertionError(f"{reasons} are not all among {[(e.reason, e.message) for e in found]}")


async def test_a_crash_is_restarted_at_once_and_the_next_one_waits(group: str, tmp_path: Path) -> None:
    async with process_world(group, tmp_path) as world:
        await world.create("crash", sh("echo boom; exit 7"))

        pod = await world.until(
            "crash", lambda p: first(p).state.waiting if p.status.container_statuses else None
        )
        pod = await world.until("crash", lambda p: first(p).restart_count == 1 and first(p).state.waiting)

        waiting, last = first(pod).state.waiting, first(pod).last_state.terminated
        assert waiting is not None and waiting.reason == "CrashLoopBackOff"
        assert "back-off 10s restarting failed container=main" in waiting.message
        assert last is not None and (last.exit_code, last.reason) == (7, "Error")
        assert pod.status.phase == "Running"
        backed_off = await events(world, "crash", "BackOff", "Started", "Created", "Pulled")
        assert any("Back-off restarting failed container main in pod crash_" in e.message for e in backed_off)
        await world.delete("crash")


async def test_steps_run_in_order_before_containers_and_sidecars_end_last(group: str, tmp_path: Path) -> None:
    note = tmp_path / "order"
    async with process_world(group, tmp_path) as world:
        await world.create(
            "job",
            sh(f"echo main >> {note}"),
            initContainers=[
                sh(f"echo one >> {note}", "one"),
                sh(
                    f"trap 'echo bye >> {note}; exit 0' TERM; echo side >> {note}; while :; do sleep 0.02; done",
                    "side",
                )
                | {"restartPolicy": "Always"},
                sh(f"sleep 0.1; echo two >> {note}", "two"),
            ],
            restartPolicy="Never",
        )

        pod = await world.phase("job", "Succeeded", "Failed")

        assert note.read_text().split() == ["one", "side", "two", "main", "bye"]
        assert pod.status.phase == "Succeeded"
        assert [status.name for status in pod.status.init_container_statuses] == ["one", "side", "two"]


async def test_a_step_that_fails_fails_a_pod_that_is_not_restarted(group: str, tmp_path: Path) -> None:
    async with process_world(group, tmp_path) as world:
        await world.create("job", sh("true"), initContainers=[sh("exit 4", "step")], restartPolicy="Never")

        pod = await world.phase("job", "Failed")

        assert pod.status.init_container_statuses[0].state.terminated is not None
        assert first(pod).state.waiting is not None and first(pod).state.waiting.reason == "PodInitializing"
        condition = next(c for c in pod.status.conditions if c.type == "Initialized")
        assert (condition.status, condition.reason) == ("False", "ContainersNotInitialized")


async def test_a_deleted_pod_has_its_grace_period_and_no_more(
    real: Cgroups, group: str, tmp_path: Path
) -> None:
    note = tmp_path / "signals"
    hook = {"preStop": {"exec": {"command": ["sh", "-c", f"echo hook >> {note}"]}}}
    async with process_world(group, tmp_path) as world:
        await world.create(
            "polite",
            sh(f"trap 'echo term >> {note}; exit 0' TERM; while :; do sleep 0.02; done", lifecycle=hook),
        )
        await world.create("deaf", sh("trap '' TERM; sleep 60 & while :; do sleep 0.05; done"))
        await world.phase("polite", "Running")
        deaf = await world.phase("deaf", "Running")
        await asyncio.sleep(0.1)

        await asyncio.gather(world.delete("polite"), world.delete("deaf", grace_s=1))

        assert note.read_text().split() == ["hook", "term"]
        assert not real.exists(f"{group}/kubepods/besteffort/pod{deaf.metadata.uid}")
        await events(world, "deaf", "Killing")


async def test_a_container_beyond_its_memory_limit_is_reported_as_oom_killed(
    group: str, tmp_path: Path
) -> None:
    hog = {"name": "main", "image": "any", "command": [sys.executable, "-c", "x = bytearray(256 << 20)"]}
    hog["resources"] = {"limits": {"memory": "24Mi"}}
    async with process_world(group, tmp_path) as world:
        await world.create("hog", hog, restartPolicy="Never")

        pod = await world.phase("hog", "Failed", "Succeeded")

        assert (ended(pod).reason, ended(pod).exit_code) == ("OOMKilled", 137)


async def test_probes_decide_on_readiness_and_restarts(group: str, tmp_path: Path) -> None:
    ready, alive = tmp_path / "ready", tmp_path / "alive"
    alive.touch()

    def asks(path: Path, **more: Any) -> dict[str, Any]:
        return {
            "exec": {"command": ["test", "-e", str(path)]},
            "periodSeconds": 1,
            "failureThreshold": 1,
            "timeoutSeconds": 20,
        } | more

    async with process_world(group, tmp_path) as world:
        await world.create(
            "web",
            sh(
                "exec sleep 60",
                readinessProbe=asks(ready),
                livenessProbe=asks(alive),
                startupProbe=asks(alive),
            ),
            terminationGracePeriodSeconds=1,
        )
        pod = await world.phase("web", "Running")
        assert not first(pod).ready
        await events(world, "web", "Unhealthy")
        ready.touch()
        await world.until("web", lambda p: first(p).ready)
        alive.unlink()

        pod = await world.until("web", lambda p: first(p).restart_count >= 1)

        reported = await events(world, "web", "Unhealthy", "Killing")
        messages = " | ".join(event.message for event in reported)
        assert "Readiness probe failed" in messages
        assert "Container main failed liveness probe, will be restarted" in messages


async def test_requests_and_connections_are_probes_too(group: str, tmp_path: Path) -> None:
    port = 18_000 + (id(tmp_path) >> 4) % 10_000
    server = f"exec {sys.executable} -m http.server --bind $(POD_IP) {port}"
    container = sh(server.replace("$(POD_IP)", '"$POD_IP"'))
    container |= {
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "http", "containerPort": port}],
        "readinessProbe": {
            "httpGet": {"path": "/", "port": "http"},
            "periodSeconds": 1,
            "timeoutSeconds": 20,
        },
        "startupProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1, "failureThreshold": 30},
    }
    async with process_world(group, tmp_path) as world:
        await world.create("web", container, terminationGracePeriodSeconds=1)

        pod = await world.until("web", lambda p: p.status.container_statuses and first(p).ready)

        assert pod.status.pod_ip.startswith("127.")
        assert first(pod).started


async def test_a_pod_past_its_deadline_fails(group: str, tmp_path: Path) -> None:
    async with process_world(group, tmp_path) as world:
        await world.create(
            "slow", sh("exec sleep 60"), activeDeadlineSeconds=1, terminationGracePeriodSeconds=1
        )

        pod = await world.phase("slow", "Failed")

        assert pod.status.reason == "DeadlineExceeded"
        assert "longer than the specified deadline" in pod.status.message


async def test_a_container_finds_its_environment_and_its_volumes(group: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    container = sh(f"echo $A $B $C $D $CPU > {out}; cat conf/key secret/word scratch/x >> {out}")
    container |= {
        "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}},
        "env": [
            {"name": "A", "value": "a"},
            {"name": "B", "value": "$(A)b $$(A)"},
            {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {"name": "D", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "key"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        ],
        "volumeMounts": [
            {"name": "conf", "mountPath": "/conf"},
            {"name": "word", "mountPath": "/secret"},
            {"name": "scratch", "mountPath": "/scratch"},
        ],
    }
    fill = sh("echo filled > scratch/x", "fill") | {
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]
    }
    async with process_world(group, tmp_path) as world:
        await world.cluster.create(
            ConfigMap, {"metadata": {"name": "conf"}, "data": {"key": "v\n"}}, NAMESPACE
        )
        secret = {"metadata": {"name": "word"}, "data": {"word": "c2VzYW1lCg=="}}
        await world.cluster.create(Secret, secret, NAMESPACE)
        await world.create(
            "job",
            container,
            initContainers=[fill],
            restartPolicy="Never",
            volumes=[
                {"name": "conf", "configMap": {"name": "conf"}},
                {"name": "word", "secret": {"secretName": "word"}},
                {"name": "scratch", "emptyDir": {}},
            ],
            labels={"app": "web"},
        )

        await world.phase("job", "Succeeded")

        assert out.read_text().split("\n") == ["a ab $(A) web v 2", "v", "sesame", "filled", ""]


async def test_what_cannot_be_started_says_why(group: str, tmp_path: Path) -> None:
    async with process_world(group, tmp_path) as world:
        await world.create("image", {"name": "main", "image": "nginx:1.27"})
        await world.create(
            "typo", {"name": "main", "image": "any", "command": ["no-such-command"]}, restartPolicy="Never"
        )
        lost = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "lost", "key": "a"}}}]
        await world.create("lost", sh("true", env=lost))

        image = await world.until("image", lambda p: p.status.container_statuses and first(p).state.waiting)
        image = await world.until("image", lambda p: first(p).state.waiting.reason == "ErrImagePull")  # type: ignore[union-attr]
        mistyped = await world.phase("typo", "Failed")
        config = await world.until(
            "lost",
            lambda p: (
                p.status.container_statuses
                and first(p).state.waiting
                and first(p).state.waiting.reason == "CreateContainerConfigError"
            ),  # type: ignore[union-attr]
        )

        assert image.status.phase == "Pending"
        assert "give the container a command" in first(image).state.waiting.message  # type: ignore[union-attr]
        assert (ended(mistyped).exit_code, ended(mistyped).reason) == (128, "StartError")
        assert "executable file not found in $PATH" in ended(mistyped).message
        assert first(config).state.waiting.message == 'configmap "lost" not found'  # type: ignore[union-attr]
        await world.delete("image")


async def test_a_pod_that_does_not_fit_is_refused(group: str, tmp_path: Path) -> None:
    async with process_world(group, tmp_path) as world:
        await world.create("big", sh("sleep 60", resources={"requests": {"cpu": "900"}}))

        pod = await world.phase("big", "Failed")

        assert pod.status.reason == "OutOfcpu"
        assert (
            "Node didn't have enough resource: cpu, requested: 900000, used: 0, capacity: "
            in pod.status.message
        )
        await world.delete("big")


async def test_volumes_follow_their_objects_while_a_container_runs(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_worker, "REFRESH_S", 0.1)
    mount = {"volumeMounts": [{"name": "conf", "mountPath": "/conf"}]}
    volume = {"name": "conf", "configMap": {"name": "conf", "defaultMode": 0o400}}
    out = tmp_path / "out"
    waiting = sh(f"until grep -q new conf/key; do sleep 0.05; done; ls conf > {out}", **mount)
    async with process_world(group, tmp_path) as world:
        await world.create("early", waiting, volumes=[volume], restartPolicy="Never")
        await eventually(lambda: "early" in {w.pod.raw.metadata.name for w in world.node.workers.values()})
        body = {"metadata": {"name": "conf"}, "data": {"key": "old\n", "gone": ""}}
        await world.cluster.create(ConfigMap, body, NAMESPACE)
        await world.phase("early", "Running")

        await world.cluster.patch(ConfigMap, "conf", {"data": {"key": "new\n", "gone": None}}, NAMESPACE)
        await world.phase("early", "Succeeded")

        assert out.read_text().split() == ["key"]
