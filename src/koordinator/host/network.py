"""RDMA cards, from `/sys/class`.

Source: behaviour/koordlet-observe 10.2; behaviour/koordlet-act 21.
"""

import os

import msgspec

from koordinator.host import sysfs
from koordinator.host.errors import ContentError
from koordinator.host.files import Files, HostRoots

_VIRTUAL_FUNCTION = "virtfn"
_NETWORK_CLASS = "0x02"


class RDMADevice(msgspec.Struct, frozen=True):
    """A network card with RDMA, known by its bus id; `virtual_functions` are such, too, None while it has none switched
    on."""

    id: str
    minor: int
    is_healthy: bool
    bus_id: str = ""
    numa_node: int = 0
    root_complex: str = ""
    virtual_functions: tuple[str, ...] | None = None


def rdma_devices(files: Files, roots: HostRoots) -> list[RDMADevice]:
    """RDMA cards that are not virtual functions, one per PCI device, by bus id.

    Cards whose name has no minor are left out, as in the reference.
    """
    base = f"{roots.sys}/class/infiniband"
    found: dict[str, RDMADevice] = {}
    for name in files.names(base) or ():
        where = files.link(f"{base}/{name}/device")
        if where is None or where in found or files.exists(f"{where}/physfn"):
            continue
        if not (files.read(f"{where}/class") or "").startswith(_NETWORK_CLASS):
            continue
        try:
            found[where] = _rdma_device(files, f"{base}/{name}", name, where)
        except ContentError:
            continue
    return sorted(found.values(), key=lambda device: device.bus_id)


def verbs_device(files: Files, roots: HostRoots, bus_id: str) -> str | None:
    """Name below `/dev/infiniband` of a PCI device; None when it has none."""
    names = files.names(f"{roots.sys}/bus/pci/devices/{bus_id}/infiniband_verbs")
    return names[0] if names else None


def _rdma_device(files: Files, device: str, name: str, where: str) -> RDMADevice:
    ports = files.names(f"{device}/ports") or ()
    functions = (files.read(f"{where}/sriov_numvfs") or "0").strip()
    bus_id = os.path.basename(where)
    return RDMADevice(
        id=bus_id,
        minor=sysfs.rdma_minor(name),
        is_healthy=sysfs.is_rdma_healthy(files.read(f"{device}/ports/{port}/state") or "" for port in ports),
        bus_id=bus_id,
        numa_node=sysfs.numa_node(files.read(f"{where}/numa_node") or "-1"),
        root_complex=sysfs.root_complex(where),
        virtual_functions=_functions(files, where) if functions.isdigit() and int(functions) > 0 else None,
    )


def _functions(files: Files, where: str) -> tuple[str, ...]:
    links = (name for name in files.names(where) or () if name.startswith(_VIRTUAL_FUNCTION))
    targets = (files.link(f"{where}/{name}") for name in links)
    return tuple(sorted(os.path.basename(target) for target in targets if target is not None))
