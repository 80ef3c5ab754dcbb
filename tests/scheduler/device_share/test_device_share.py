"""How: pods with drawn requests come and go on a drawn node; what was given out is added up from outside."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import labels, resources
from koordinator.api.affinity import LabelSelector
from koordinator.api.annotations.device import (
    AllocationExtension,
    DeviceAllocation,
    DeviceAllocations,
    DeviceHint,
    JointAllocate,
    VirtualFunction,
)
from koordinator.api.decode import from_builtins
from koordinator.api.device import Device
from koordinator.scheduler.plugin.status import unresolvable
from koordinator.scheduler.plugins.device_share.allocate import (
    AllocateOptions,
    DeviceDecision,
    PodDevices,
    allocate,
    designated,
    node_score,
)
from koordinator.scheduler.plugins.device_share.exact import numa_hints
from koordinator.scheduler.plugins.device_share.inventory import (
    NO_LIMITS,
    DeviceLimits,
    HeldDevice,
    NodeDevices,
    held_by,
    node_devices,
)
from koordinator.scheduler.plugins.device_share.node_device_record import NodeDeviceRecord
from koordinator.scheduler.plugins.device_share.pick import DeviceScoringStrategy
from koordinator.scheduler.plugins.device_share.request import parse, per_gpu
from koordinator.scheduler.plugins.device_share.reservations import allocate_reserved
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import cpus_of

GIB = 1 << 30
VF = {"rdma": DeviceHint(vf_selector=LabelSelector())}


def device(gpus: int = 4, *, has_topology: bool = True, unhealthy: int | None = None) -> Device:
    """GPUs and half as many NICs with two VFs each; two GPUs and one NIC per switch, two switches per NUMA node."""

    def place(switch: int) -> dict[str, object]:
        topology = {"socketID": 0, "nodeID": switch // 2, "pcieID": f"{switch}"}
        return {"topology": topology} if has_topology else {}

    cards = [
        {
            "type": "gpu",
            "minor": i,
            "health": i != unhealthy,
            "resources": {
                resources.GPU_CORE: 100,
                resources.GPU_MEMORY_RATIO: 100,
                resources.GPU_MEMORY: 100 * GIB,
            },
            **place(i // 2),
        }
        for i in range(gpus)
    ]
    nics = [
        {
            "type": "rdma",
            "minor": i,
            "health": True,
            "resources": {resources.RDMA: 100},
            "vfGroups": [{"vfs": [{"minor": v, "busID": f"0000:0{i}:00.{v}"} for v in range(2)]}],
            **place(i),
        }
        for i in range(gpus // 2)
    ]
    return from_builtins({"metadata": {"name": "node"}, "spec": {"devices": [*cards, *nics]}}, Device)


def recorded(decision: DeviceDecision) -> DeviceAllocations:
    return {
        device_type: [
            DeviceAllocation(
                minor=picked.minor,
                resources=dict(picked.amounts),
                extension=AllocationExtension(vfs=list(picked.vfs)) if picked.vfs else None,
            )
            for picked in of_type
        ]
        for device_type, of_type in decision.by_type.items()
    }


def node(*pods: DeviceAllocations, of: Device | None = None) -> NodeDevices:
    record = NodeDeviceRecord()
    record.set_idle(node_devices(of or device(), {}))
    for number, allocations in enumerate(pods):
        record.hold(f"uid-{number}", held_by(allocations))
    return record.devices


def pod(
    asked: dict[str, int], hints: dict[str, DeviceHint] | None = None, joint: JointAllocate | None = None
) -> PodDevices:
    names = {"gpu": resources.NVIDIA_GPU, "percent": resources.GPU, "rdma": resources.RDMA}
    parsed = parse({names[name]: amount for name, amount in asked.items() if amount})
    assert parsed.status.is_success
    return PodDevices(parsed.by_type, hints or {}, joint)


gpu_requests = st.one_of(
    st.builds(lambda n: {"gpu": n}, st.integers(1, 4)),
    st.builds(lambda p: {"percent": p}, st.integers(1, 100)),
    st.just({"rdma": 1}),
    st.builds(lambda n: {"gpu": n, "rdma": 1}, st.integers(1, 4)),
)


@given(st.lists(st.tuples(gpu_requests, st.booleans()), max_size=14), st.booleans())
@settings(max_examples=100, deadline=None)
def test_no_device_gives_more_than_it_has_and_no_virtual_function_is_given_twice(
    steps: list[tuple[dict[str, int], bool]], has_topology: bool
) -> None:
    machine = device(has_topology=has_topology, unhealthy=3)
    running: list[DeviceAllocations] = []

    for asked, leaves in steps:
        decision = allocate(node(*running, of=machine), pod(asked, VF))
        if decision.status.is_success:
            running.append(recorded(decision))
        if leaves and running:
            running.pop(0)

        now = node(*running, of=machine)
        for device_type, minors in now.used.items():
            for minor, amounts in minors.items():
                total = now.devices[device_type][minor].total
                assert all(amount <= total[name] for name, amount in amounts.items())
        vfs = [vf.bus_id for p in running for a in p.get("rdma", []) if a.extension for vf in a.extension.vfs]
        assert len(vfs) == len(set(vfs))


@given(st.integers(1, 4), st.sets(st.integers(0, 3)))
@settings(deadline=None)
def test_whole_gpus_are_idle_ones_and_as_many_as_asked(count: int, busy: set[int]) -> None:
    used = {"gpu": [DeviceAllocation(minor=m, resources={resources.GPU_CORE: 1}) for m in busy]}

    decision = allocate(node(used), pod({"gpu": count}))

    assert decision.status.is_success == (count <= 4 - len(busy))
    picked = [p.minor for p in decision.by_type.get("gpu", ())]
    assert not busy & set(picked)
    assert len(picked) == (count if decision.status.is_success else 0)


def test_two_gpus_come_from_one_switch_and_leave_an_idle_machine_half_alone() -> None:
    used = {"gpu": [DeviceAllocation(minor=4, resources={resources.GPU_CORE: 100})]}

    decision = allocate(node(used, of=device(8)), pod({"gpu": 2}))

    assert [p.minor for p in decision.by_type["gpu"]] == [6, 7]  # the other switch of the NUMA node in use


def test_same_pcie_refuses_gpus_whose_switches_lack_nics() -> None:
    joint = JointAllocate(device_types=["gpu", "rdma"], required_scope="SamePCIe")
    full = [DeviceAllocation(minor=0, resources={resources.RDMA: 100})]
    asked = pod({"gpu": 4, "rdma": 1}, joint=joint)

    assert allocate(node(), asked).status.is_success
    refused = allocate(node({"rdma": full}), asked)

    assert not refused.status.is_success


@given(st.integers(1, 100), st.integers(0, 100), st.integers(1, 100))
@settings(deadline=None)
def test_a_restricted_reservation_gives_only_what_its_owners_left(held: int, owned: int, asked: int) -> None:
    owned = min(held, owned)
    part = {resources.GPU_CORE: held, resources.GPU_MEMORY_RATIO: held, resources.GPU_MEMORY: held * GIB}
    theirs = {resources.GPU_CORE: owned, resources.GPU_MEMORY_RATIO: owned, resources.GPU_MEMORY: owned * GIB}
    record = NodeDeviceRecord()
    record.set_idle(node_devices(device(), {}))
    record.hold("r", {"gpu": [HeldDevice(1, part)]})
    record.hold("owner", {"gpu": [HeldDevice(1, theirs)]}, "r")
    reservation = record.reserved_by("r", is_restricted=True)
    assert reservation is not None

    decision = allocate_reserved(record.devices, pod({"percent": asked}), reservation)

    assert decision.status.is_success == (asked <= held - owned)
    if decision.status.is_success:
        assert [p.minor for p in decision.by_type["gpu"]] == [1]


@pytest.mark.parametrize(
    ("part", "is_allowed"), [pytest.param(50, False, id="half"), pytest.param(100, True, id="whole")]
)
@pytest.mark.parametrize("has_table", [True, False])
def test_a_reserved_part_of_a_card_is_no_whole_card(part: int, is_allowed: bool, has_table: bool) -> None:
    amounts = {resources.GPU_CORE: part, resources.GPU_MEMORY_RATIO: part, resources.GPU_MEMORY: part * GIB}
    record = NodeDeviceRecord()
    record.set_idle(node_devices(device(), {labels.GPU_MODEL: "H800"} if has_table else {}))
    record.hold("r", {"gpu": [HeldDevice(1, amounts)]})
    reservation = record.reserved_by("r", is_restricted=True)
    assert reservation is not None

    decision = allocate_reserved(record.devices, pod({"gpu": 1}), reservation)

    assert decision.status.is_success is is_allowed


def test_what_others_give_back_of_a_card_is_not_in_the_reservation() -> None:
    half = {resources.GPU_CORE: 50, resources.GPU_MEMORY_RATIO: 50, resources.GPU_MEMORY: 50 * GIB}
    record = NodeDeviceRecord()
    record.set_idle(node_devices(device(), {}))
    record.hold("victim", {"gpu": [HeldDevice(1, half)]})
    record.hold("r", {"gpu": [HeldDevice(1, half)]})
    reservation = record.reserved_by("r", is_restricted=True)
    assert reservation is not None
    limits = DeviceLimits(given_back={"gpu": {1: half}})

    def fits(percent: int) -> bool:
        asked = pod({"percent": percent})
        return allocate_reserved(record.devices, asked, reservation, limits).status.is_success

    assert fits(50)
    assert not fits(51)


def test_cards_in_use_draw_others_to_their_switch_also_where_the_pod_may_not_have_them() -> None:
    used = {"gpu": [DeviceAllocation(minor=5, resources={resources.GPU_CORE: 100})]}
    only = DeviceLimits(required={"gpu": {2: {}, 4: {}}})

    decision = allocate(node(used, of=device(8)), pod({"gpu": 1}), only)

    assert [p.minor for p in decision.by_type["gpu"]] == [4]


def test_what_no_eviction_can_mend_is_told_before_what_is_only_in_use() -> None:
    machine = device()
    for info in machine.spec.devices:
        info.vf_groups.clear()
    full = [DeviceAllocation(minor=minor, resources={resources.GPU_CORE: 100}) for minor in range(4)]

    status = allocate(node({"gpu": full}, of=machine), pod({"gpu": 1, "rdma": 1}, VF)).status

    assert status == unresolvable("Insufficient rdma VirtualFunctions")


def test_a_node_with_fewer_cards_than_asked_for_is_no_case_for_evictions() -> None:
    assert numa_hints(node(), pod({"gpu": 5})).status == unresolvable("Insufficient NUMA Scoped Devices")


def test_a_card_that_reports_no_memory_is_given_with_none() -> None:
    machine = device(1)
    del machine.spec.devices[0].resources[resources.GPU_MEMORY]

    [card] = allocate(node(of=machine), pod({"gpu": 1})).by_type["gpu"]

    assert card.amounts == {
        resources.GPU_CORE: 100,
        resources.GPU_MEMORY_RATIO: 100,
        resources.GPU_MEMORY: 0,
    }


@given(gpu_requests, st.sets(st.integers(0, 7)))
@settings(max_examples=50, deadline=None)
def test_every_numa_hint_can_be_allocated(asked: dict[str, int], busy: set[int]) -> None:
    used = {"gpu": [DeviceAllocation(minor=m, resources={resources.GPU_CORE: 100}) for m in busy]}
    machine, wish = node(used, of=device(8)), pod(asked)

    hints = numa_hints(machine, wish)

    for hint in hints.by_resource.get("gpu") or ():
        numa_nodes = set(cpus_of(hint.numa_nodes or 0))
        decision = allocate(machine, wish, DeviceLimits(numa_nodes=numa_nodes))
        assert decision.status.is_success
        near = {machine.devices["gpu"][p.minor].numa_node for p in decision.by_type["gpu"]}
        assert near <= numa_nodes


@given(st.integers(1, 8), st.integers(1, 800), st.integers(1, 800))
def test_the_parts_of_a_gpu_request_never_exceed_it(cards: int, core: int, ratio: int) -> None:
    parsed = parse({resources.GPU_SHARED: cards, resources.GPU_CORE: core, resources.GPU_MEMORY_RATIO: ratio})

    if parsed.status.is_success:
        each = per_gpu(parsed.by_type["gpu"])
        assert each.count == cards
        assert each.amounts == {resources.GPU_CORE: core // cards, resources.GPU_MEMORY_RATIO: ratio // cards}
        assert max(each.amounts.values()) <= 100
    else:
        assert core % cards or ratio % cards or max(core, ratio) > 100 * cards


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        pytest.param({resources.RDMA: 150}, "invalid resource unit", id="one and a half NICs"),
        pytest.param({resources.GPU_SHARED: 1}, "invalid resource device requests", id="a share of nothing"),
        pytest.param({"kubernetes.io/gpu": 50}, "", id="a name of former times"),
    ],
)
def test_requests_are_refused_by_what_is_wrong_with_them(asked: dict[str, int], refusal: str) -> None:
    parsed = parse(dict(asked))

    assert parsed.status.message.startswith(refusal)
    assert parsed.status.is_success == (not refusal)


@pytest.mark.parametrize(
    ("asked", "is_planned", "is_reserve", "is_allowed"),
    [
        pytest.param({"gpu": 1, "rdma": 1}, True, False, True, id="vouched for"),
        pytest.param({"gpu": 1, "rdma": 1}, True, True, False, id="really taken"),
        pytest.param({"gpu": 1, "rdma": 1}, False, False, False, id="not vouched for"),
        pytest.param({"percent": 50, "rdma": 1}, True, False, False, id="part of a card"),
    ],
)
def test_nics_of_a_node_that_is_vouched_for_are_tried_with_whole_cards_when_they_are_taken(
    asked: dict[str, int], is_planned: bool, is_reserve: bool, is_allowed: bool
) -> None:
    machine = device()
    if is_planned:
        machine.metadata.labels[labels.SECONDARY_DEVICE_WELL_PLANNED] = "true"
    full = [DeviceAllocation(minor=minor, resources={resources.RDMA: 100}) for minor in range(2)]
    joint = JointAllocate(device_types=["gpu", "rdma"])

    decision = allocate(
        node({"rdma": full}, of=machine),
        pod(asked, joint=joint),
        options=AllocateOptions(is_reserve=is_reserve),
    )

    assert decision.status.is_success is is_allowed
    assert set(decision.by_type) == ({"gpu"} if is_allowed else set())


def test_a_node_that_is_vouched_for_is_tried_for_whole_cards_only_whatever_else_it_lacks() -> None:
    machine = device(4)
    machine.metadata.labels[labels.SECONDARY_DEVICE_WELL_PLANNED] = "true"
    machine.spec.devices[:] = [info for info in machine.spec.devices if info.type == "gpu"]
    asked = pod({"gpu": 2, "rdma": 1}, joint=JointAllocate(device_types=["gpu"]))

    assert set(allocate(node(of=machine), asked).by_type) == {"gpu"}
    assert set(numa_hints(node(of=machine), asked).by_resource) == {"gpu"}
    taken = allocate(node(of=machine), asked, options=AllocateOptions(is_reserve=True))
    assert taken.status == unresolvable("Insufficient rdma devices")


def test_nics_of_a_node_that_is_vouched_for_do_not_score_with_whole_cards() -> None:
    machine = device()
    machine.metadata.labels[labels.SECONDARY_DEVICE_WELL_PLANNED] = "true"
    joint = JointAllocate(device_types=["gpu", "rdma"])
    strategy, cards = DeviceScoringStrategy(), pod({"gpu": 1})

    def points(asked: PodDevices, of: Device) -> int:
        return node_score(node(of=of), asked, strategy)

    assert points(pod({"gpu": 1, "rdma": 1}, joint=joint), machine) == points(cards, machine)
    assert points(pod({"gpu": 1, "rdma": 1}, joint=joint), device()) > points(cards, device())


def test_a_device_chosen_beforehand_gives_any_virtual_function_where_none_was_recorded() -> None:
    one = AllocationExtension(vfs=[VirtualFunction(minor=1, bus_id="0000:00:00.1")])
    chosen = [
        DeviceAllocation(minor=minor, resources={resources.RDMA: 100}, extension=extension)
        for minor, extension in enumerate((one, None))
    ]
    asked = pod({"rdma": 200}, {"rdma": DeviceHint(vf_selector=LabelSelector())})

    decision = allocate(node(), asked, designated(NO_LIMITS, node(), {"rdma": chosen}))

    found = [vf.bus_id for picked in decision.by_type["rdma"] for vf in picked.vfs]
    assert found == ["0000:00:00.1", "0000:01:00.0"]


def test_what_was_not_recorded_of_a_device_chosen_beforehand_is_not_given() -> None:
    share = {resources.GPU_MEMORY_RATIO: 50}
    chosen = {"gpu": [DeviceAllocation(minor=0, resources=dict(share))]}
    limits = designated(NO_LIMITS, node(), chosen)

    def fits(asked: dict[str, int]) -> bool:
        parsed = parse(asked)
        return allocate(node(), PodDevices(parsed.by_type, {}, None), limits).status.is_success

    assert fits(share)
    assert not fits({**share, resources.GPU_CORE: 50})


def test_a_type_of_which_no_device_was_chosen_beforehand_is_free_to_choose() -> None:
    asked = pod({"gpu": 1})

    assert allocate(node(), asked, designated(NO_LIMITS, node(), {"gpu": []})) == allocate(node(), asked)


def test_a_nic_whose_place_is_unknown_is_at_no_switch_also_at_none_without_a_name() -> None:
    somewhere = {"topology": {"socketID": 0, "nodeID": 0}}
    gpu = {"type": "gpu", "health": True, "resources": {resources.GPU_CORE: 100, resources.GPU_MEMORY: GIB}}
    nic = {"type": "rdma", "health": True, "resources": {resources.RDMA: 100}}
    devices = [{**gpu, **somewhere, "minor": 0}, {**nic, "minor": 0}, {**nic, **somewhere, "minor": 1}]
    machine = from_builtins({"metadata": {"name": "node"}, "spec": {"devices": devices}}, Device)
    joint = JointAllocate(device_types=["gpu", "rdma"], required_scope="SamePCIe")

    decision = allocate(node(of=machine), pod({"gpu": 1, "rdma": 1}, joint=joint))

    assert [picked.minor for picked in decision.by_type["rdma"]] == [1]
