"""Accelerators of other makers, as small daemons describe them in files. Source: behaviour/koordlet-observe 10.3."""

from collections.abc import Mapping

import msgspec

from koordinator.api.errors import ProtocolError
from koordinator.api.meta import ViewPart
from koordinator.api.quantity import ResourceList


class P2PLink(ViewPart, frozen=True, kw_only=True):
    """Cards that are linked with this one; `peer_minor` is a list with commas."""

    peer_minor: str = ""
    type: str = ""


class XPUTopology(ViewPart, frozen=True, kw_only=True):
    """The place where the card is plugged in, and what it is linked with."""

    p2p_links: list[P2PLink] = msgspec.field(name="p2pLinks", default_factory=list)
    must_honor_partition: bool = False
    socket_id: str = msgspec.field(name="socketID", default="")
    node_id: str = msgspec.field(name="nodeID", default="")
    pcie_id: str = msgspec.field(name="pcieID", default="")
    bus_id: str = msgspec.field(name="busID", default="")


class XPUStatus(ViewPart, frozen=True, kw_only=True):
    """Health of a card."""

    healthy: bool = False
    err_code: str = ""
    err_message: str = ""


class XPUDevice(ViewPart, frozen=True, kw_only=True):
    """One card."""

    vendor: str = ""
    model: str = ""
    uuid: str = ""
    minor: str = ""
    resources: ResourceList = {}
    topology: XPUTopology | None = None
    status: XPUStatus | None = None


_DECODER = msgspec.json.Decoder(list[XPUDevice] | None)


def parse_files(texts: Mapping[str, str]) -> list[XPUDevice]:
    """Return the cards in all files, by file name.

    Raises: ProtocolError naming the file that is malformed.
    """
    found: list[XPUDevice] = []
    for name in sorted(texts):
        try:
            found += _DECODER.decode(texts[name]) or []
        except msgspec.MsgspecError as error:
            raise ProtocolError(name, "devices", str(error)) from error
    return found
