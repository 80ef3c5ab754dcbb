"""Network QoS on a real kernel, in a network namespace of the test: packets go to the classes that they should."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordinator.api import labels
from koordinator.koordlet.hooks.hook import Hook, NamespaceRunner
from tests.host import host_tree
from tests.koordlet.hooks.hook_node import HookNode, batch, pod
from tests.koordlet.hooks.test_tc_run import ROUTES, network

CARD = "koord0"
SERVICE, JOB, OWN, OTHER = "10.9.0.1", "10.9.0.2", "10.9.0.3", "10.9.0.5"
FAR = "10.9.0.100"
SEND = """
import socket, sys
for source in sys.argv[2:]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((source, 0))
        for _ in range(20):
            sender.sendto(b"x" * 500, (sys.argv[1], 9))
"""


class Namespace:
    """A network namespace that lives as long as a process sleeps in it."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "120"])
        own = os.stat("/proc/self/ns/net").st_ino
        self.file = f"/proc/{self._holder.pid}/ns/net"
        deadline = time.monotonic() + 5
        while os.stat(self.file).st_ino == own:
            assert time.monotonic() < deadline, "no network namespace within 5 s"
            time.sleep(0.01)

    def run(self, *command: str) -> str:
        prefix = ["nsenter", f"--net={self.file}", "--"]
        done = subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    if os.geteuid() != 0:
        pytest.skip("needs root: a network namespace is made")
    for tool in ("unshare", "nsenter", "ip", "tc", "ipset", "iptables"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    made = Namespace()
    try:
        try:
            made.run("ip", "link", "add", CARD, "type", "veth", "peer", "name", "koord1")
            made.run("tc", "qdisc", "add", "dev", CARD, "root", "handle", "1:", "htb")
            made.run("tc", "qdisc", "del", "dev", CARD, "root")
        except AssertionError as error:
            pytest.skip(f"this kernel lacks something: {error}")
        for each in ("lo", CARD, "koord1"):
            made.run("ip", "link", "set", each, "up")
        for address in (SERVICE, JOB, OWN, OTHER):
            made.run("ip", "address", "add", f"{address}/24", "dev", CARD)
        made.run("ip", "neigh", "replace", FAR, "lladdr", "02:00:00:00:00:01", "dev", CARD)
        yield made
    finally:
        made.close()


def sent(namespace: Namespace) -> dict[str, int]:
    """Packets so far, by class."""
    text = namespace.run("tc", "-s", "class", "show", "dev", CARD)
    found = re.findall(r"class htb 1:([0-9a-f]+) .*?\n Sent \d+ bytes (\d+) pkt", text)
    return {minor: int(packets) for minor, packets in found}


def node_in(namespace: Namespace, root: Path) -> tuple[HookNode, Hook]:
    host_tree.write(root, {"proc/1/net/route": ROUTES.format(CARD), f"sys/class/net/{CARD}/operstate": "up"})
    node = HookNode(root, gates="TCNetworkQoS=true", vendor=False, runner=NamespaceRunner(namespace.file))
    node.hooks.start()
    return node, next(each for each in node.hooks._hooks if each.name == "TCNetworkQoS")


PODS = (
    pod("web", ip=SERVICE),
    pod("job", "BE", ip=JOB, resources=[batch(1000)]),
    pod("own", ip=OWN, annotations={labels.NETWORK_QOS: '{"egressLimit":"80M"}'}),
)


async def test_packets_go_to_the_class_of_their_pod_until_the_policy_goes(
    namespace: Namespace, tmp_path: Path
) -> None:
    node, hook = node_in(namespace, tmp_path)
    node.policy(network())
    node.run_pods(*PODS)
    await hook.follow()
    before = sent(namespace)
    (own,) = set(before) - {"1", "2", "3", "4"}

    namespace.run("python3", "-c", SEND, FAR, SERVICE, SERVICE, JOB, OWN, OWN, OWN, OTHER)

    counts = {minor: count - before[minor] for minor, count in sent(namespace).items()}
    assert (counts["3"], counts["4"], counts[own]) == (40, 20, 60)
    assert counts["2"] >= 20, "what belongs to nobody counts as the system"
    rates = namespace.run("tc", "class", "show", "dev", CARD)
    assert re.search(r"1:3 .*rate 500Mbit ceil 1Gbit", rates)
    assert re.search(rf"1:{own} .*rate 80Mbit ceil 80Mbit", rates)

    node.policy(network("terway-qos"))
    await hook.follow()
    assert "htb" not in namespace.run("tc", "qdisc", "show", "dev", CARD)
    assert namespace.run("ipset", "list", "-n").split() == []
    assert "CLASSIFY" not in namespace.run("iptables", "-t", "mangle", "-S")


async def test_a_restarted_agent_keeps_classes_and_changes_nothing(
    namespace: Namespace, tmp_path: Path
) -> None:
    node, hook = node_in(namespace, tmp_path)
    node.policy(network())
    node.run_pods(*PODS)
    await hook.follow()
    classes = namespace.run("tc", "class", "show", "dev", CARD)
    filters = namespace.run("tc", "filter", "show", "dev", CARD, "parent", "1:")

    again, following = node_in(namespace, tmp_path)
    again.shared.rng.seed(5)
    again.policy(network())
    again.run_pods(*PODS)
    await following.follow()

    assert namespace.run("tc", "class", "show", "dev", CARD) == classes
    assert namespace.run("tc", "filter", "show", "dev", CARD, "parent", "1:") == filters
    await again.hooks.disable()
    assert "htb" not in namespace.run("tc", "qdisc", "show", "dev", CARD)


async def test_a_pod_that_goes_takes_its_class_along(namespace: Namespace, tmp_path: Path) -> None:
    node, hook = node_in(namespace, tmp_path)
    node.policy(network())
    node.run_pods(*PODS)
    await hook.follow()

    node.run_pods(*PODS[:2])
    await hook.follow()

    assert set(sent(namespace)) == {"1", "2", "3", "4"}
    assert OWN not in namespace.run("ipset", "list")
