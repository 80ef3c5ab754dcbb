"""Reports: pools and reservations conserve CPUs, zones keep foreign parts, unchanged objects are not written."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import cpuset, labels, quantity, resource_list
from koordinator.api.annotations.node import CPUSharedPool, SystemQOSResource
from koordinator.api.core import Pod
from koordinator.api.device import DeviceInfo
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import ObjectMeta
from koordinator.api.node_metric import MetricCollectPolicy, NodeMetricSpec, ResourceMap
from koordinator.api.node_topology import NodeResourceTopology, Zone, ZoneResource
from koordinator.host import sysfs
from koordinator.host.gpu import GPUDevice
from koordinator.host.sysfs import HostCPUTopology, Processor
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.errors import NodeConfigError
from koordinator.koordlet.predict.reclaimable import Prediction, ReclaimableAmount
from koordinator.koordlet.report import device, node_metric, pod_resources, reserved_cpus, topology, xpu
from koordinator.koordlet.report.device import Fault
from koordinator.koordlet.report.node_metric import ReportSubjects
from koordinator.koordlet.report.reserved_cpus import allocations
from koordinator.koordlet.report.topology import NUMANode
from koordinator.koordlet.series import SeriesSample, SeriesStore

GIB = 2**30


def machine(sockets: int, cores: int, threads: int = 2) -> HostCPUTopology:
    count = sockets * cores
    return sysfs.topology_of(
        Processor(node=core % sockets, socket=core % sockets, core=core, cpu=core + thread * count)
        for core in range(count)
        for thread in range(threads)
    )


MACHINES = st.builds(machine, st.integers(1, 3), st.integers(1, 6), st.sampled_from([1, 2]))


@given(MACHINES, st.data())
def test_as_many_free_cpus_are_taken_as_are_wanted(topo: HostCPUTopology, data: st.DataObject) -> None:
    free = data.draw(st.frozensets(st.sampled_from(sorted(topo.cpus)), min_size=1))
    count = data.draw(st.integers(0, len(free)))
    taken = reserved_cpus.take(topo, free, count)

    assert taken <= free
    assert len(taken) == count
    with pytest.raises(NodeConfigError):
        reserved_cpus.take(topo, free, len(free) + 1)


def pod(uid: str, qos: str, cpus: str) -> Pod:
    annotations = {labels.RESOURCE_STATUS: f'{{"cpuset":"{cpus}"}}'} if cpus else {}
    return Pod(
        metadata=ObjectMeta(uid=uid, name=uid, labels={labels.QOS_CLASS: qos}, annotations=annotations)
    )


@given(MACHINES, st.data())
def test_shared_pools_hold_only_cpus_that_nobody_owns(topo: HostCPUTopology, data: st.DataObject) -> None:
    some = st.frozensets(st.sampled_from(sorted(topo.cpus)), max_size=4)
    lse, lsr, taken, reserved = (data.draw(some) for _ in range(4))
    pods = [pod("a", "LSE", cpuset.text_of(lse)), pod("b", "LSR", cpuset.text_of(lsr)), pod("c", "LS", "bad")]
    pools = reserved_cpus.shared_pools(topo, pods, taken, reserved, SystemQOSResource(cpuset="0"))

    def union(each: tuple[CPUSharedPool, ...]) -> cpuset.CPUSet:
        return frozenset().union(*(cpuset.parse(pool.cpuset) for pool in each))

    assert union(pools.shared) == topo.cpus - lse - lsr - taken - reserved - {0}
    assert union(pools.best_effort) == topo.cpus - lse - taken - reserved - {0}


def test_what_kubelet_and_system_keep_adds_up() -> None:
    config = reserved_cpus.KubeletConfig(
        cpu_manager_policy="static", kube_reserved={"cpu": "500m"}, system_reserved={"cpu": "1500m"}
    )

    assert len(reserved_cpus.kubelet_reserved(machine(1, 4), config)) == 2


def test_a_reservation_by_amount_gets_whole_cores_and_keeps_its_other_fields() -> None:
    text = '{"resources":{"cpu":"1500m","memory":"1Gi"},"applyPolicy":"ReservedCPUsOnly"}'
    resolved = reserved_cpus.resolved_reservation(machine(1, 4), {labels.NODE_RESERVATION: text})

    assert resolved.reserved_cpus == "0,4"
    assert resolved.apply_policy == "ReservedCPUsOnly"
    too_much = {labels.NODE_RESERVATION: '{"resources":{"cpu":"64"}}'}
    assert reserved_cpus.resolved_reservation(machine(1, 4), too_much).reserved_cpus == ""


def test_pods_that_our_scheduler_bound_are_not_reported_as_the_kubelets() -> None:
    state = '{"entries":{"ours":{"c":"1"},"ls":{"c":"2"},"theirs":{"c":"3"}}}'
    pods = [pod("ours", "LSR", "1"), pod("ls", "LS", ""), pod("theirs", "", "")]
    found = allocations(state, pods)

    assert [each.uid for each in found.pods] == ["theirs"]
    assert found.cpus == frozenset({3})


ZONES = st.lists(st.integers(0, 10**6), min_size=1, max_size=4)


@given(ZONES, st.integers(0, 10**6))
def test_all_that_the_kubelet_keeps_is_taken_from_the_zones(
    cpus_milli: list[int], reserved_milli: int
) -> None:
    zones = [{"cpu": quantity.Quantity.of_milli(milli)} for milli in cpus_milli]
    left = topology.less_reserved(zones, {"cpu": quantity.Quantity.of_milli(reserved_milli)})
    taken = sum(before - after["cpu"].milli for before, after in zip(cpus_milli, left, strict=True))

    assert all(zone["cpu"].milli >= 0 for zone in left)
    if all(zone["cpu"].milli > 0 for zone in left):
        assert reserved_milli <= taken <= reserved_milli + len(zones)


def test_huge_pages_come_out_of_memory_only_when_they_are_reported() -> None:
    node = NUMANode(4, GIB // 1024 * 2, {1_048_576: 1})
    (reported,) = topology.zone_amounts([node], reports_huge_pages=True)
    (plain,) = topology.zone_amounts([node], reports_huge_pages=False)

    assert (reported["memory"].value, reported["hugepages-1Gi"].value) == (GIB, GIB)
    assert (plain["memory"].value, plain["hugepages-1Gi"].value) == (2 * GIB, 0)


def zone(name: str, **amounts: str) -> Zone:
    resources = [
        ZoneResource(name=key, capacity="9", allocatable=each, available=each)
        for key, each in amounts.items()
    ]
    return Zone(name=name, type="Node", resources=resources)


def test_merged_zones_keep_what_others_wrote_and_our_capacity() -> None:
    (merged,) = topology.merge_zones(
        [zone("node-0", cpu="1", foreign="5"), zone("gone")], [zone("node-0", cpu="4")]
    )

    assert {each.name: (each.capacity, each.allocatable) for each in merged.resources} == {
        "cpu": ("9", "4"),
        "foreign": ("9", "5"),
    }


def test_a_node_that_has_not_told_what_is_allocatable_reserves_nothing() -> None:
    capacity = resource_list.of({"cpu": "8", "memory": "16Gi"})

    kept = topology.reserved_of(capacity, resource_list.of({"cpu": "7500m"}))

    assert resource_list.to_wire(kept) == {"cpu": "500m"}


def test_an_object_that_says_the_same_is_not_written_again() -> None:
    new = NodeResourceTopology(
        metadata=ObjectMeta(annotations={labels.NODE_CPU_TOPOLOGY: '{"detail":[]}'}),
        topology_policies=["None"],
        zones=topology.merge_zones([zone("node-0", foreign="5")], [zone("node-0", cpu="4")]),
    )
    respelt = msgspec.structs.replace(
        new, metadata=ObjectMeta(annotations={labels.NODE_CPU_TOPOLOGY: '{ "detail": [] }'})
    )

    assert not topology.is_changed(new, new)
    assert not topology.is_changed(respelt, new)
    assert topology.is_changed(None, new)
    relabelled = ObjectMeta(
        annotations=new.metadata.annotations, labels={labels.NODE_ENABLE_NUMA_RESERVATION: "true"}
    )
    assert topology.is_changed(new, msgspec.structs.replace(new, metadata=relabelled))


def test_a_condition_keeps_the_time_at_which_it_changed() -> None:
    def devices(fault: Fault | None, now: str) -> list[DeviceInfo]:
        faults = {} if fault is None else {"u": fault}
        return device.report([GPUDevice("u", 0, "", GIB)], [], [], faults=faults, now=now).devices

    old = devices(device.xid_fault(79), "2024-01-01T00:00:00Z")
    again = device.with_old_times(devices(device.xid_fault(79), "2024-02-02T00:00:00Z"), old)

    assert again == old
    status = '[{"uuid":"u","status":{"healthy":true}}]'
    files = (status.replace("true", "false"), status)
    ill, well = (
        device.report([], xpu.parse_files({"f": text}), [], now=f"2024-0{month}-01T00:00:00Z").devices
        for month, text in enumerate(files, start=1)
    )
    (changed,) = device.with_old_times(well, ill)[0].conditions
    assert changed.last_transition_time == "2024-02-01T00:00:00Z"
    assert device.xid_fault(13) is None
    assert device.with_old_times(devices(None, "2024-02-02T00:00:00Z"), old)[0].conditions == []


def test_one_model_of_all_gpus_becomes_a_label_value() -> None:
    assert device.common_model(["NVIDIA A100 SXM", "NVIDIA A100 SXM"]) == "A100-SXM"


def test_a_broken_accelerator_file_is_named() -> None:
    with pytest.raises(ProtocolError) as refused:
        xpu.parse_files({"ok": "[]", "broken": "{"})
    assert refused.value.obj == "broken"


def test_a_null_in_a_file_of_accelerators_is_a_field_that_is_not_set() -> None:
    text = '[{"uuid":"u","resources":null,"topology":{"busID":"b","p2pLinks":null},"status":null}]'

    [card] = xpu.parse_files({"f": text})

    assert (card.uuid, card.resources, card.status) == ("u", {}, None)
    assert card.topology is not None and (card.topology.bus_id, card.topology.p2p_links) == ("b", None)


def test_virtual_functions_stand_for_their_card_and_a_card_for_itself() -> None:
    text = '{"rdma":[{"minor":0,"id":"card"},{"minor":1,"id":"x","extension":{"vfs":[{"minor":-1,"busID":"vf"}]}}]}'

    (found,) = pod_resources.allocated_devices({labels.DEVICE_ALLOCATED: text})
    assert found.ids == ("card", "vf")


def test_only_addresses_are_taken_for_gpus() -> None:
    entries = ["0000:3B:00.0", "3b:00.1", "10000:01:00.0", "bind", "module", "0000:3b:00"]

    assert sysfs.bus_ids(entries) == ["0000:3b:00.0", "3b:00.1", "10000:01:00.0"]


def test_a_report_carries_the_prediction_and_the_real_durations() -> None:
    store = SeriesStore()
    store.append(SeriesSample(kind, 0, 2.5) for kind in (kinds.NODE_CPU, kinds.NODE_MEMORY))
    policy = node_metric.collect_policy(
        NodeMetricSpec(metric_collect_policy=MetricCollectPolicy(aggregate_duration_seconds=1))
    )
    prediction = Prediction(ReclaimableAmount(1500, GIB), ReclaimableAmount(2000, 2 * GIB))
    status = node_metric.with_prediction(
        node_metric.status_of(store, ReportSubjects(), policy, 0, "now"), prediction
    )

    assert policy.aggregate_duration_s == node_metric.AGGREGATE_DURATION_S_MIN
    assert status.node_metric is not None
    assert status.node_metric.node_usage.resources == {"cpu": "2500m", "memory": "2"}
    assert [each.duration for each in status.node_metric.aggregated_node_usages] == ["5m0s", "10m0s", "30m0s"]
    assert status.prod_reclaimable_metric is not None and status.prod_peak_metric is not None
    assert status.prod_reclaimable_metric.resource.resources == {"cpu": "1500m", "memory": "1Gi"}
    without = node_metric.status_of(store, ReportSubjects(), policy, 0, "now")
    assert without.prod_peak_metric is None and without.prod_reclaimable_metric is not None


def test_a_node_whose_cpu_was_not_measured_is_reported_as_unknown_with_its_gpus() -> None:
    card = {kinds.GPU_MINOR: "0", kinds.GPU_UUID: "u"}
    store = SeriesStore()
    store.append(SeriesSample(kind, 0, 50.0, card) for kind in (kinds.NODE_GPU_CORE, kinds.NODE_GPU_MEMORY))
    store.append([SeriesSample(kinds.NODE_MEMORY, 0, 2.5)])
    known = ReportSubjects(gpus=[GPUDevice("u", 0, "", 100)])
    policy = node_metric.collect_policy(NodeMetricSpec())
    blind = node_metric.status_of(store, known, policy, 0, "now").node_metric
    store.append([SeriesSample(kinds.NODE_CPU, 0, 1.0)])
    seeing = node_metric.status_of(store, known, policy, 0, "now").node_metric

    assert blind is not None and blind.node_usage == ResourceMap()
    assert seeing is not None and [each.id for each in seeing.node_usage.devices] == ["u"]


def test_links_without_peer_or_type_and_cards_without_number_join_no_partition() -> None:
    link = '{"peerMinor":"%s","type":"%s"}'
    links = ",".join(link % each for each in (("", "HCCS"), ("1", ""), ("2,x", "HCCS")))
    card = '{"uuid":"u%s","minor":"%s","topology":{"p2pLinks":[%s]}}'
    text = f"[{card % (0, 0, links)},{card % (1, 'x', link % ('4,5', 'HCCS'))}]"

    partitions = device.gpu_partitions(xpu.parse_files({"f": text}))

    assert [each.minors for each in partitions[2]] == [[0, 2], [4, 5]]
    assert list(partitions) == [2]


def test_an_accelerator_may_say_that_it_sits_on_no_numa_node() -> None:
    cards = xpu.parse_files({"f": '[{"uuid":"u","minor":"x","topology":{"nodeID":"-1"}}]'})
    (info,) = device.report([], cards, []).devices

    assert info.minor == 0
    assert info.topology is not None and info.topology.node_id == -1
