"""The manifests in deploy/koordlet fit the agent that they run."""

import asyncio
from pathlib import Path
from typing import Any

from koordinator.api.core import Event
from koordinator.api.device import Device
from koordinator.api.meta import Object
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.storage import PersistentVolumeClaim
from koordinator.cli import koordlet as command
from koordinator.cli import koordlet_flags
from koordinator.cluster.informer import Informer
from koordinator.host.files import HostRoots
from tests.cli.deployed import Deployed
from tests.koordlet.agent_world import World, live

DEPLOYED = Deployed("koordlet")


def test_the_command_line_is_understood_and_all_roots_are_mounted() -> None:
    with command.main.make_context("koordlet", DEPLOYED.container()["args"]) as context:
        settings = koordlet_flags.of(context.params, {"NODE_NAME": "n"})
    assert settings.roots == HostRoots()
    mounts = {mount["mountPath"].rstrip("/"): mount for mount in DEPLOYED.container()["volumeMounts"]}
    for root in (settings.roots.cgroup, settings.roots.sys, settings.roots.sys_fs, settings.roots.run):
        assert root in mounts, root
    config = settings.config
    for directory in (config.audit.directory, config.predict.checkpoints, config.kubelet.pod_resources_proxy):
        assert any(directory.startswith(path) for path in mounts), directory
    volumes = {
        volume["name"] for volume in DEPLOYED.of_kind("DaemonSet")["spec"]["template"]["spec"]["volumes"]
    }
    assert {mount["name"] for mount in DEPLOYED.container()["volumeMounts"]} == volumes


def test_the_agent_can_write_where_it_must() -> None:
    mounts = {mount["mountPath"].rstrip("/"): mount for mount in DEPLOYED.container()["volumeMounts"]}
    for path in ("/host-cgroup", "/host-sys-fs", "/host-run", "/prediction-checkpoints", "/var/log/koordlet"):
        assert not mounts[path].get("readOnly"), path


def test_the_role_covers_what_is_followed_and_written_and_no_more(tmp_path: Path, monkeypatch: Any) -> None:
    followed: set[type[Object]] = set()

    async def run(informer: Informer[Any]) -> None:
        followed.add(informer.view)
        await original(informer)

    original = Informer.run
    monkeypatch.setattr(Informer, "run", run)

    async def scenario(world: World) -> None:
        await world.create_objects({})
        await asyncio.sleep(5)

    live(tmp_path, scenario, gates="AllAlpha=true,AllBeta=true")
    assert len(followed) >= 5 and PersistentVolumeClaim in followed
    for view in followed:
        group, plural = view.resource.group, view.resource.plural
        assert DEPLOYED.may("list", group, plural) and DEPLOYED.may("watch", group, plural), (
            view.resource.qualified
        )
    written = [
        ("patch", "slo.koordinator.sh", "nodemetrics/status"),
        ("create", "", "pods/eviction"),
        ("get", "", "nodes/proxy"),
        *(
            (verb, view.resource.group, view.resource.plural)
            for view in (Event, Device, NodeResourceTopology)
            for verb in ("create", "patch")
        ),
    ]
    for verb, group, resource in written:
        assert DEPLOYED.may(verb, group, resource), (verb, group, resource)
    for rule in DEPLOYED.of_kind("ClusterRole")["rules"]:
        assert "*" not in rule["verbs"] + rule["resources"] and "secrets" not in rule["resources"]
