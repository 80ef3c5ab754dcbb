"""Bandwidth by class over fake commands: what is set up, that only changes cause commands, and that all goes again."""

from pathlib import Path
from typing import Any

import pytest

from koordinator.api import labels
from koordinator.api.slo import NodeSLOSpec
from koordinator.host.cgroup_knobs import Knob
from koordinator.koordlet.hooks import tc
from koordinator.koordlet.hooks.hook import Hook
from tests.host import host_tree
from tests.koordlet.hooks.fake_network import FakeNetwork
from tests.koordlet.hooks.hook_node import BEST_EFFORT, BURSTABLE, HookNode, batch, pod, slo

ROUTES = (
    "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    "{} 00000000 0100000A 0003 0 0 0 00000000 0 0 0\n"
)
GATES = "TCNetworkQoS=true,TerwayQoS=true"
MBIT = 1_000_000 // 8


def network(policy: str = "tc", *, enable: bool = True, total: str = "1G") -> NodeSLOSpec:
    """Services are assured half of 1 Gbit/s, best-effort pods 10 % and at most 200 Mbit/s."""
    service = {"enable": enable, "egressRequest": 50, "egressLimit": 100, "ingressRequest": 40}
    best_effort = {"enable": enable, "egressRequest": 10, "egressLimit": "200M"}
    return slo(
        resourceQOSStrategy={
            "policies": {"netQOSPolicy": policy},
            "lsClass": {"networkQOS": service},
            "beClass": {"networkQOS": best_effort},
        },
        systemStrategy={"totalNetworkBandwidth": total},
    )


class NetNode(HookNode):
    def __init__(self, root: Path, net: FakeNetwork, gates: str = GATES, **how: Any) -> None:
        host_tree.write(root, {"proc/1/net/route": ROUTES.format("eth0")})
        for card in ("eth0", "eth1"):
            host_tree.write(root, {f"sys/class/net/{card}/operstate": "up"})
        self.net = net
        super().__init__(root, gates=gates, runner=net, **how)

    @property
    def hook(self) -> Hook:
        return next(each for each in (*self.hooks._hooks, *self.hooks._off) if each.name == "TCNetworkQoS")

    async def settle(self) -> None:
        await self.hook.follow()


async def started(root: Path, net: FakeNetwork | None = None, **how: Any) -> NetNode:
    node = NetNode(root, net or FakeNetwork(), **how)
    node.hooks.start()
    node.policy(network())
    node.run_pods(
        pod("web", ip="10.0.0.1"),
        pod("job", "BE", ip="10.0.0.2", resources=[batch(1000)]),
        pod("own", ip="10.0.0.3", annotations={labels.NETWORK_QOS: '{"egressLimit":"80M"}'}),
        pod("agent", "SYSTEM", ip="10.0.0.9", hostNetwork=True),
        pod("plain", "", ip="10.0.0.5"),
    )
    await node.settle()
    return node


async def test_classes_sets_rules_and_filters_are_made(tmp_path: Path) -> None:
    node = await started(tmp_path)
    net = node.net
    (own,) = set(net.classes["eth0"]) - {"1:1", "1:2", "1:3", "1:4"}

    rates = {minor: words[:6] for minor, words in net.classes["eth0"].items()}
    assert rates == {
        "1:1": ("rate", f"{1000 * MBIT}bps", "ceil", f"{1000 * MBIT}bps", "quantum", "10000"),
        "1:2": ("rate", f"{400 * MBIT}bps", "ceil", f"{1000 * MBIT}bps", "prio", "1"),
        "1:3": ("rate", f"{500 * MBIT}bps", "ceil", f"{1000 * MBIT}bps", "prio", "2"),
        "1:4": ("rate", f"{100 * MBIT}bps", "ceil", f"{200 * MBIT}bps", "prio", "3"),
        own: ("rate", f"{80 * MBIT}bps", "ceil", f"{80 * MBIT}bps", "prio", "2"),
    }
    assert net.sets == {"system_class": set(), "ls_class": {"10.0.0.1"}, "be_class": {"10.0.0.2"}}
    assert len(net.rules) == 3
    (mine,) = [words for words in net.filters["eth0"].values() if "src" in words]
    assert mine[-3:] == ("10.0.0.3/32", "flowid", own)


async def test_pods_get_the_number_of_their_class(tmp_path: Path) -> None:
    node = await started(tmp_path)
    (own,) = set(node.net.classes["eth0"]) - {"1:1", "1:2", "1:3", "1:4"}

    found = {
        name: int(node.says(Knob.NET_CLASS, f"{BURSTABLE}/pod{name}"))
        for name in ("web", "own", "agent", "plain")
    }
    assert found == {"web": 65536 + 3, "own": 65536 + int(own[2:], 16), "agent": 65536 + 2, "plain": 0}
    assert int(node.says(Knob.NET_CLASS, f"{BEST_EFFORT}/podjob")) == 65536 + 4


async def test_only_changes_cause_commands_and_now_and_then_a_look(tmp_path: Path) -> None:
    node = await started(tmp_path)
    changes, asked = len(node.net.changes), node.net.asked

    for _ in range(5):
        node.clock.now_s += 10
        node.refresh()
        await node.settle()
    assert (len(node.net.changes), node.net.asked) == (changes, asked)

    node.clock.now_s += 11
    await node.settle()
    assert len(node.net.changes) == changes
    assert asked < node.net.asked <= asked + 10


async def test_the_look_is_due_after_a_minute_and_when_the_clock_was_put_back(tmp_path: Path) -> None:
    node = await started(tmp_path)
    asked = node.net.asked
    for seconds in (59.5, 0.5):
        node.clock.now_s += seconds
        await node.settle()
        assert node.net.asked == asked
    node.clock.now_s += 0.5
    await node.settle()
    assert node.net.asked > asked

    asked = node.net.asked
    node.clock.now_s -= 1
    await node.settle()
    assert node.net.asked > asked


async def test_no_command_runs_before_policy_and_pods_are_known(tmp_path: Path) -> None:
    node = NetNode(tmp_path, FakeNetwork())
    node.hooks.start()
    node.policy(network())
    await node.settle()
    assert node.net.asked == 0


async def test_what_a_former_run_made_stays_until_the_policy_is_known(tmp_path: Path) -> None:
    node = await started(tmp_path)
    again = NetNode(tmp_path, node.net)
    again.hooks.start()
    again.view.pods, again.view.has_pods = node.view.pods, True
    again.refresh()
    await again.settle()
    assert node.net.roots == {"eth0"}
    assert len(node.net.classes["eth0"]) == 5


async def test_a_policy_that_comes_back_is_carried_out_at_once(tmp_path: Path) -> None:
    node = await started(tmp_path)
    node.policy(slo())
    await node.settle()
    assert node.net.roots == set()

    node.policy(network())
    await node.settle()
    assert len(node.net.classes["eth0"]) == 5


async def test_pods_keep_the_number_of_their_class_as_long_as_they_live(tmp_path: Path) -> None:
    node = await started(tmp_path, vendor=False)
    (own,) = set(node.net.classes["eth0"]) - {"1:1", "1:2", "1:3", "1:4"}
    mine = pod("own", ip="10.0.0.3", annotations={labels.NETWORK_QOS: '{"egressLimit":"80M"}'})
    limited = {labels.NETWORK_QOS: '{"egressLimit":"8M"}'}
    node.run_pods(mine, *(pod(f"more{n}", ip=f"10.0.1.{n}", annotations=limited) for n in range(3)))
    await node.settle()
    numbers = dict(node.hook._minors)  # type: ignore[attr-defined]
    assert f"1:{numbers['own']:x}" == own

    node.run_pods(mine, pod("web", ip="10.0.0.1"))
    await node.settle()
    assert node.hook._minors == {"own": numbers["own"]}  # type: ignore[attr-defined]
    assert set(node.net.classes["eth0"]) == {"1:1", "1:2", "1:3", "1:4", own}


async def test_what_somebody_removed_is_made_again(tmp_path: Path) -> None:
    node = await started(tmp_path)
    before = node.net.classes["eth0"], set(node.net.sets)
    node.net.roots.clear()
    node.net.sets.clear()
    node.net.rules.clear()

    node.clock.now_s += 61
    await node.settle()

    assert (node.net.classes["eth0"], set(node.net.sets)) == before
    assert node.net.sets["ls_class"] == {"10.0.0.1"}
    assert len(node.net.rules) == 3


async def test_pods_that_come_and_go_change_their_own_lines_only(tmp_path: Path) -> None:
    node = await started(tmp_path)
    count = len(node.net.changes)

    node.run_pods(
        pod("web", ip="10.0.0.1"),
        pod("new", ip="10.0.0.7"),
        pod("own2", ip="10.0.0.8", annotations={labels.NETWORK_QOS: '{"egressLimit":"8M"}'}),
    )
    await node.settle()

    assert node.net.sets == {"system_class": set(), "ls_class": {"10.0.0.1", "10.0.0.7"}, "be_class": set()}
    assert len(node.net.classes["eth0"]) == 5
    (mine,) = [words for words in node.net.filters["eth0"].values() if "src" in words]
    assert "10.0.0.8/32" in mine
    kinds = [change.split()[1:3] for change in node.net.changes[count:]]
    assert sorted(map(" ".join, kinds)) == [
        "-exist restore",
        "class del",
        "class replace",
        "filter add",
        "filter del",
    ]


@pytest.mark.parametrize(
    "later", [network("terway-qos"), network(total="0"), slo()], ids=["terway", "unknown", "gone"]
)
async def test_another_policy_removes_everything(tmp_path: Path, later: NodeSLOSpec) -> None:
    node = await started(tmp_path)
    node.policy(later)
    node.run_pods(pod("web", ip="10.0.0.1"))
    await node.settle()

    net = node.net
    assert (net.roots, net.sets, net.rules) == (set(), {}, [])
    assert node.says(Knob.NET_CLASS, f"{BURSTABLE}/podweb") == "0"
    assert "TCNetworkQoS" not in node.executor.owners()
    asked = net.asked
    await node.settle()
    assert net.asked == asked


@pytest.mark.parametrize("vendor", [True, False], ids=["by net_cls", "by address"])
async def test_numbers_of_classes_outlive_a_restart(tmp_path: Path, vendor: bool) -> None:
    node = await started(tmp_path, vendor=vendor)
    before = dict(node.net.classes["eth0"])

    again = NetNode(tmp_path, node.net, vendor=vendor)
    again.shared.rng.seed(99)
    again.hooks.start()
    again.policy(network())
    again.view.pods, again.view.has_pods = node.view.pods, True
    again.refresh()
    await again.settle()

    assert again.net.classes["eth0"] == before
    assert len([words for words in again.net.filters["eth0"].values() if "src" in words]) == 1


async def test_a_class_whose_pod_got_another_number_goes(tmp_path: Path) -> None:
    node = await started(tmp_path, vendor=False)
    node.hook._minors["own"] = 77  # type: ignore[attr-defined]

    await node.settle()

    assert set(node.net.classes["eth0"]) == {"1:1", "1:2", "1:3", "1:4", "1:4d"}


async def test_a_gate_that_is_off_after_a_restart_removes_everything(tmp_path: Path) -> None:
    node = await started(tmp_path)

    again = NetNode(tmp_path, node.net, gates="")
    again.hooks.start()
    await again.hook.close()

    assert (again.net.roots, again.net.sets, again.net.rules) == (set(), {}, [])


async def test_nothing_of_others_is_removed_by_hooks_that_did_nothing(tmp_path: Path) -> None:
    net = FakeNetwork()
    net.roots.add("eth0")
    net.classes["eth0"], net.filters["eth0"] = {"1:1": ()}, {}
    node = NetNode(tmp_path, net, gates="")
    node.hooks.start()
    await node.hooks.disable()

    assert net.roots == {"eth0"}


@pytest.mark.parametrize("missing", ["tc", "ipset", "iptables", "htb"])
async def test_a_missing_tool_is_reported_once_and_tried_again_later(
    tmp_path: Path, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    net = FakeNetwork()
    (net.broken if missing == "htb" else net.missing).add(missing)
    node = await started(tmp_path, net)
    asked = net.asked
    for seconds in (10, 10, 10, 10, 10, 9.5, 0.5):
        node.clock.now_s += seconds
        await node.settle()
    assert net.asked == asked

    net.missing.clear()
    net.broken.clear()
    node.clock.now_s += 0.5
    await node.settle()

    dry_run_writes = [each for each in caplog.records if each.getMessage() == "network QoS not applied"]
    assert len(dry_run_writes) == 1
    assert len(net.rules) == 3


async def test_without_the_cgroup_filter_addresses_still_tell_pods_apart(tmp_path: Path) -> None:
    net = FakeNetwork()
    net.missing.add("cgroup")

    await started(tmp_path, net)

    assert len(net.rules) == 3
    assert len(net.classes["eth0"]) == 5


async def test_a_new_card_takes_over_and_the_old_one_is_given_back(tmp_path: Path) -> None:
    node = await started(tmp_path)
    host_tree.write(tmp_path, {"proc/1/net/route": ROUTES.format("eth1")})

    await node.settle()

    assert node.net.roots == {"eth1"}
    assert len(node.net.classes["eth1"]) == 5


async def test_a_dry_run_tells_commands_and_runs_none_that_change(tmp_path: Path) -> None:
    node = await started(tmp_path, dry_run=True)

    assert node.net.changes == []
    assert any(str(each.path).startswith("tc qdisc replace dev eth0 root") for each in node.dry_run_writes)


async def test_a_malformed_limit_is_no_limit(tmp_path: Path) -> None:
    node = await started(tmp_path)
    node.run_pods(pod("own", ip="10.0.0.3", annotations={labels.NETWORK_QOS: "{"}))
    await node.settle()

    assert len(node.net.classes["eth0"]) == 4
    assert node.net.sets["ls_class"] == {"10.0.0.3"}


async def test_a_pod_with_an_ipv6_address_only_has_the_class_of_its_qos_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await started(tmp_path)
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(node.events, "warning", lambda obj, reason, message: told.append((reason, message)))
    limit = {labels.NETWORK_QOS: '{"egressLimit":"80M"}'}
    for _ in range(2):
        node.run_pods(pod("six", ip="2001:db8::5", annotations=limit), pod("web", ip="10.0.0.1"))
        await node.settle()

    assert set(node.net.classes["eth0"]) == {"1:1", "1:2", "1:3", "1:4"}, "no class that nothing leads to"
    assert int(node.says(Knob.NET_CLASS, f"{BURSTABLE}/podsix")) == 65536 + 3
    assert [reason for reason, _ in told] == ["EgressLimitIgnored"]
    assert "2001:db8::5" in told[0][1]


def test_filters_of_the_kernel_are_understood() -> None:
    text = (
        "filter parent 1: protocol ip pref 5 u32 chain 0 \n"
        "filter parent 1: protocol ip pref 5 u32 chain 0 fh 800: ht divisor 1 \n"
        "filter parent 1: protocol ip pref 5 u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 *flowid 1:abc \n"
        "  match 0a000103/ffffffff at 12\n"
        "filter parent 1: protocol ip pref 1 cgroup chain 0 handle 0x2 \n"
    )

    u32, cgroup = tc.filters(text)

    assert (u32.preference, u32.minor, u32.address) == (5, 0xABC, "10.0.1.3")
    assert (cgroup.preference, cgroup.address) == (1, "")
    assert tc.next_preference([u32, cgroup]) == 6


# Terway


def terway_files(node: HookNode) -> dict[str, str]:
    directory = node.root / "var/lib/terway/qos"
    return {each.name: each.read_text() for each in directory.iterdir()} if directory.exists() else {}


async def test_terway_is_reported_in_bytes_and_no_more_when_the_policy_goes(tmp_path: Path) -> None:
    node = NetNode(tmp_path, FakeNetwork())
    node.hooks.start()
    node.policy(network("terway-qos"))
    both = '{"ingressLimit":"8M","egressLimit":"16M"}'
    node.run_pods(
        pod("web", annotations={labels.NETWORK_QOS: both}),
        pod("job", "BE"),
        pod("plain", "", kube="Guaranteed"),
        pod("idle", "", kube="BestEffort"),
    )

    files = terway_files(node)
    lines = dict(line.split() for line in files["global_bps_config"].splitlines())
    assert lines["hw_tx_bps_max"] == str(1000 * MBIT)
    assert lines["offline_l1_tx_bps_min"] == str(500 * MBIT)
    assert lines["offline_l1_rx_bps_min"] == str(400 * MBIT)
    assert lines["offline_l2_tx_bps_max"] == str(200 * MBIT), "texts and percents are in the same unit"
    assert '"prio":1,"cgroupDir":"kubepods/burstable/podweb"' in files["pod.json"]
    assert '"qosConfig":{"ingressBandwidth":1000000,"egressBandwidth":2000000}' in files["pod.json"]
    assert '"podUID":"job","prio":2' in files["pod.json"]
    assert '"podUID":"plain","prio":1' in files["pod.json"]
    assert '"podUID":"idle","prio":2' in files["pod.json"]
    assert node.net.changes == []

    node.policy(network("tc"))
    assert terway_files(node) == {}


async def test_files_that_cannot_be_written_are_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host_tree.write(tmp_path, {"var/lib/terway": "no directory"})
    node = NetNode(tmp_path, FakeNetwork())
    node.hooks.start()
    node.policy(network("terway-qos"))
    node.run_pods(pod("web"))
    node.run_pods(pod("web"), pod("job", "BE"))

    assert [each.getMessage() for each in caplog.records].count("Terway configuration not written") == 2, (
        "of each file"
    )


async def test_terways_own_files_are_left_alone_while_the_gate_is_off(tmp_path: Path) -> None:
    host_tree.write(tmp_path, {"var/lib/terway/qos/pod.json": "{}"})
    node = NetNode(tmp_path, FakeNetwork(), gates="")
    node.hooks.start()
    node.policy(network("terway-qos"))

    assert terway_files(node) == {"pod.json": "{}\n"}


async def test_a_gate_that_is_off_after_a_restart_removes_our_files(tmp_path: Path) -> None:
    node = NetNode(tmp_path, FakeNetwork())
    node.hooks.start()
    node.policy(network("terway-qos"))
    assert terway_files(node)

    NetNode(tmp_path, node.net, gates="").hooks.start()

    assert terway_files(node) == {}
