"""Devices on the PCI bus and RDMA cards, as pure functions of names and text. Source: behaviour/koordlet-observe 10."""

import re
from collections.abc import Iterable

from koordinator.host.cgroup_values import signed
from koordinator.host.errors import ContentError

_BUS_ID = re.compile(r"(?:(?:1?[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])")
_ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")
_RDMA_NAME = re.compile(r"mlx[0-9]+_([0-9]+)")
_ACTIVE = "ACTIVE"


def bus_ids(entries: Iterable[str]) -> list[str]:
    """Entries of a driver's directory that are PCI addresses, in lower case."""
    return [name for name in (entry.lower() for entry in entries) if _BUS_ID.fullmatch(name)]


def numa_node(text: str) -> int:
    """NUMA node of a device; 0 where the machine does not say.

    Raises: ContentError.
    """
    return max(signed("numa_node", text), 0)


def root_complex(device_path: str) -> str:
    """Root complex in the resolved path of a device, empty without."""
    return next((part for part in device_path.split("/") if _ROOT_COMPLEX.fullmatch(part)), "")


def rdma_minor(device: str) -> int:
    """Minor number of an RDMA device, from its name.

    Raises: ContentError for names that have none.
    """
    form = _RDMA_NAME.fullmatch(device)
    if form is None:
        raise ContentError("RDMA device", f"{device[:40]!r} is not named like mlx5_0")
    return int(form[1])


def is_rdma_healthy(port_states: Iterable[str]) -> bool:
    """Return whether an RDMA device has ports, and all of them are up."""
    states = list(port_states)
    return bool(states) and all(_ACTIVE in state for state in states)
