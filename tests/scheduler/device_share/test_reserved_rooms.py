"""Several reservations on a node, and devices of them that were chosen beforehand: what one pod gets. Pure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import resources
from koordinator.api.affinity import LabelSelector
from koordinator.api.annotations.device import (
    AllocateStrategy,
    AllocationExtension,
    DeviceAllocation,
    DeviceHint,
    JointAllocate,
    VirtualFunction,
)
from koordinator.scheduler.plugins.device_share.allocate import PodDevices, designated
from koordinator.scheduler.plugins.device_share.exact import Room, decide_within, numa_hints
from koordinator.scheduler.plugins.device_share.inventory import (
    NO_LIMITS,
    DeviceLimits,
    HeldDevice,
    node_devices,
)
from koordinator.scheduler.plugins.device_share.node_device_record import NodeDeviceRecord
from koordinator.scheduler.plugins.device_share.reservations import ReservedDevices
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import mask_of
from tests.scheduler.device_share.test_device_share import GIB, VF, device, pod

Minors = tuple[int, ...]


def part(percent: int) -> dict[str, int]:
    names = (resources.GPU_CORE, resources.GPU_MEMORY_RATIO)
    return {**dict.fromkeys(names, percent), resources.GPU_MEMORY: percent * GIB}


def node_with(gpus: int = 4, **rooms: dict[int, int]) -> NodeDeviceRecord:
    """A node whose reservations hold these percentages of cards, by minor."""
    record = NodeDeviceRecord()
    record.set_idle(node_devices(device(gpus), {}))
    for name, cards in rooms.items():
        held = tuple(HeldDevice(minor, part(percent)) for minor, percent in cards.items())
        record.hold(name, {"gpu": held})
    return record


def rooms_of(record: NodeDeviceRecord, *names: str, is_restricted: bool = True) -> list[ReservedDevices]:
    found = [record.reserved_by(name, is_restricted=is_restricted) for name in names]
    return [each for each in found if each is not None]


def test_the_first_reservation_that_will_do_is_used() -> None:
    record = node_with(small={0: 50}, large={2: 100}, larger={3: 100})
    room = Room(reserved=rooms_of(record, "small", "large", "larger"))

    found = decide_within(record.devices, pod({"gpu": 1}), room, NO_LIMITS, None)

    assert found.reservation == "large" and [each.minor for each in found.by_type["gpu"]] == [2]


@pytest.mark.parametrize(("must_use", "minors"), [(True, ()), (False, (0, 1))])
def test_reservations_that_do_together_only_do_for_a_pod_that_need_not_use_one(
    must_use: bool, minors: Minors
) -> None:
    record = node_with(2, one={0: 100}, two={1: 100})
    room = Room(reserved=rooms_of(record, "one", "two"), must_use=must_use)

    found = decide_within(record.devices, pod({"gpu": 2}), room, NO_LIMITS, None)

    assert tuple(each.minor for each in found.by_type.get("gpu", ())) == minors
    assert found.reservation == ""
    if must_use:
        assert found.status.reasons == ("Reservation(s) Insufficient GPU Devices",), "told once"


def test_numa_nodes_are_hinted_by_what_is_reserved_for_who_must_use_it() -> None:
    record = node_with(8, room={6: 100})
    reserved = rooms_of(record, "room")

    def hinted(room: Room) -> list[int | None]:
        hints = numa_hints(record.devices, pod({"gpu": 1}), room=room).by_resource["gpu"] or ()
        return [hint.numa_nodes for hint in hints]

    assert hinted(Room(reserved=reserved, must_use=True)) == [mask_of([1]), mask_of([0, 1])]
    assert hinted(Room(reserved=reserved)) == [mask_of([0]), mask_of([1]), mask_of([0, 1])]


def chosen(*cards: tuple[int, int]) -> DeviceLimits:
    record = node_with()
    allocations = [DeviceAllocation(minor=minor, resources=dict(part(percent))) for minor, percent in cards]
    return designated(NO_LIMITS, record.devices, {"gpu": allocations})


@given(kept=st.integers(1, 100), recorded=st.integers(1, 100), asked=st.integers(1, 100))
def test_of_a_chosen_card_an_owner_gets_no_more_than_was_recorded_nor_than_is_reserved(
    kept: int, recorded: int, asked: int
) -> None:
    record = node_with(room={1: kept, 2: 100})
    room = Room(reserved=rooms_of(record, "room"), must_use=True)

    found = decide_within(record.devices, pod({"percent": asked}), room, chosen((1, recorded)), None)

    assert found.status.is_success == (asked <= min(kept, recorded))
    assert all(each.minor == 1 for each in found.by_type.get("gpu", ()))


def test_a_chosen_card_that_the_reservation_does_not_hold_is_not_given_out_of_it() -> None:
    record = node_with(room={1: 100})
    room = Room(reserved=rooms_of(record, "room"), must_use=True)

    assert not decide_within(record.devices, pod({"gpu": 1}), room, chosen((0, 100)), None).status.is_success
    free = decide_within(record.devices, pod({"gpu": 1}), Room(), chosen((0, 100)), None)
    assert [each.minor for each in free.by_type["gpu"]] == [0]


def vf(number: int, minor: int = 0) -> VirtualFunction:
    return VirtualFunction(minor=number, bus_id=f"0000:0{minor}:00.{number}")


def of_nic(*owners: VirtualFunction, kept: VirtualFunction) -> tuple[NodeDeviceRecord, ReservedDevices]:
    """A reservation of NIC 0 with one of its virtual functions, and owners with these."""
    record = node_with()
    record.hold("room", {"rdma": (HeldDevice(0, {resources.RDMA: 100}, (kept,)),)})
    for number, each in enumerate(owners):
        record.hold(f"owner-{number}", {"rdma": (HeldDevice(0, {resources.RDMA: 1}, (each,)),)}, "room")
    [reserved] = rooms_of(record, "room")
    return record, reserved


@pytest.mark.parametrize(
    ("owners", "given"),
    [
        pytest.param((), [vf(1)], id="the reserved one first"),
        pytest.param((vf(1),), [vf(0)], id="then another of the reserved NIC"),
        pytest.param((vf(1), vf(0)), [], id="then none"),
    ],
)
def test_virtual_functions_that_owners_get(
    owners: tuple[VirtualFunction, ...], given: list[VirtualFunction]
) -> None:
    record, reserved = of_nic(*owners, kept=vf(1))

    found = decide_within(
        record.devices, pod({"rdma": 1}, VF), Room(reserved=[reserved], must_use=True), NO_LIMITS, None
    )

    assert [each for nic in found.by_type.get("rdma", ()) for each in nic.vfs] == given


def test_of_each_nic_the_reserved_virtual_function_is_taken_where_it_is_left() -> None:
    record = node_with()
    kept = tuple(HeldDevice(minor, {resources.RDMA: 100}, (vf(1, minor),)) for minor in (0, 1))
    record.hold("room", {"rdma": kept})
    record.hold("owner", {"rdma": (HeldDevice(0, {resources.RDMA: 1}, (vf(1),)),)}, "room")
    two = DeviceHint(vf_selector=LabelSelector(), allocate_strategy=AllocateStrategy.REQUESTS_AS_COUNT)
    room = Room(reserved=rooms_of(record, "room"), must_use=True)

    found = decide_within(record.devices, pod({"rdma": 2}, {"rdma": two}), room, NO_LIMITS, None)

    assert [each for nic in found.by_type["rdma"] for each in nic.vfs] == [vf(0), vf(1, 1)]


def test_a_virtual_function_chosen_beforehand_is_given_rather_than_the_reserved_one() -> None:
    record, reserved = of_nic(kept=vf(0))
    extension = AllocationExtension(vfs=[vf(1)])
    nic = DeviceAllocation(minor=0, resources={resources.RDMA: 1}, extension=extension)
    limits = designated(NO_LIMITS, record.devices, {"rdma": [nic]})

    found = decide_within(
        record.devices, pod({"rdma": 1}, VF), Room(reserved=[reserved], must_use=True), limits, None
    )

    assert [each for given in found.by_type["rdma"] for each in given.vfs] == [vf(1)]


joint = JointAllocate(device_types=["gpu", "rdma"], required_scope="SamePCIe")


@given(
    cards=st.sets(st.integers(0, 7), min_size=1),
    nics=st.sets(st.integers(0, 3), min_size=1),
    count=st.integers(1, 4),
    is_restricted=st.booleans(),
)
def test_an_owner_gets_what_would_be_free_without_the_reservation(
    cards: set[int], nics: set[int], count: int, is_restricted: bool
) -> None:
    """Nobody is worse off for a reservation that is not restricted; of a restricted one only its devices are given."""
    record = node_with(8)
    record.hold(
        "room",
        {
            "gpu": tuple(HeldDevice(minor, part(100)) for minor in sorted(cards)),
            "rdma": tuple(HeldDevice(minor, {resources.RDMA: 100}) for minor in sorted(nics)),
        },
    )
    asked: PodDevices = pod({"gpu": count, "rdma": 1}, joint=joint)
    room = Room(reserved=rooms_of(record, "room", is_restricted=is_restricted), must_use=True)
    only = DeviceLimits(required={"gpu": {n: {} for n in cards}, "rdma": {n: {} for n in nics}})
    idle = node_with(8).devices

    found = decide_within(record.devices, asked, room, NO_LIMITS, None)

    alone = decide_within(idle, asked, Room(), only, None)
    assert found.status.is_success == (alone.status.is_success or not is_restricted)
    if alone.status.is_success:
        assert {each.minor for each in found.by_type["gpu"]} <= cards
        assert {each.minor for each in found.by_type["rdma"]} <= nics
