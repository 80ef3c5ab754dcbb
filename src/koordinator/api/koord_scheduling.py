"""The group `scheduling.koordinator.sh` in one place; each kind has a module of its own."""

from koordinator.api.device import Device, DeviceInfo
from koordinator.api.network_topology import ClusterNetworkTopology
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.reservation import Reservation, ReservationOwner, ReservationSpec
from koordinator.api.schedule_explanation import ScheduleExplanation

__all__ = [
    "ClusterNetworkTopology",
    "Device",
    "DeviceInfo",
    "PodMigrationJob",
    "Reservation",
    "ReservationOwner",
    "ReservationSpec",
    "ScheduleExplanation",
]
