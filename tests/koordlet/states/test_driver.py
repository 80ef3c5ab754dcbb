"""How groups are named: seen, told by the kubelet's process, told by the kubelet, or guessed at last."""

import asyncio
from pathlib import Path

from koordinator.host.cgroup_layout import Driver
from koordinator.host.host import tree_host
from koordinator.koordlet.states import pods
from tests.host import host_tree
from tests.koordlet.agent_world import FakeKubelet, World, live


async def test_the_first_sign_counts(tmp_path: Path) -> None:
    kubelet = FakeKubelet()
    kubelet.trouble = "away"
    host = tree_host(str(tmp_path))
    assert await pods.find_driver(host, kubelet) is None

    kubelet.trouble = ""
    assert await pods.find_driver(host, kubelet) is Driver.CGROUPFS
    assert await pods.find_driver(host, None) is None

    process = {"proc/55/comm": "kubelet", "proc/55/cmdline": "kubelet\0--cgroup-driver=systemd\0"}
    host_tree.write(tmp_path, process)
    assert await pods.find_driver(host, kubelet) is Driver.SYSTEMD

    (tmp_path / "sys/fs/cgroup/cpu/kubepods").mkdir(parents=True)
    assert await pods.find_driver(host, kubelet) is Driver.CGROUPFS


def test_without_a_sign_the_agent_goes_on_after_a_minute(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        (tmp_path / "sys/fs/cgroup/cpu/kubepods").rename(tmp_path / "elsewhere")
        world.kubelet.trouble = "away"
        await world.create_objects({})
        await asyncio.sleep(55)
        assert world.agent.troubles()["pods"] == "it is not known yet how the kubelet names groups"
        world.kubelet.trouble = ""
        await asyncio.sleep(50)  # some collectors wait for groups that never come
        assert world.agent.shared.view.driver is Driver.CGROUPFS, "the kubelet told"
        assert world.agent.is_started.is_set()

    live(tmp_path, scenario)
