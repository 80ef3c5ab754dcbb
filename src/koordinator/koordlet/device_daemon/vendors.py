"""Accelerators of makers whose tools tell of them, one function per maker. Source: behaviour/koordlet-observe 10.6.

Formats: Huawei "npu-smi Command Reference"; Cambricon "CNMon User Guide"; Kunlunxin `xpu_smi -m` (one line per card,
fields by position); MetaX "mx-smi User Guide".
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

import msgspec

from koordinator.api import quantity, resources
from koordinator.api.errors import SubjectError
from koordinator.api.quantity import Family, ResourceList
from koordinator.host import sysfs
from koordinator.koordlet.report.xpu import XPUDevice, XPUStatus, XPUTopology

_UNITS = {
    "": 2**20,
    "MB": 2**20,
    "MIB": 2**20,
    "KB": 2**10,
    "KIB": 2**10,
    "KBYTES": 2**10,
    "GB": 2**30,
    "GIB": 2**30,
}
_AMOUNT = re.compile(r"([0-9]+)\s*([A-Za-z]*)")
_NOTHING = frozenset(("", "na", "n/a", "-", "none"))


class ToolError(SubjectError):
    """A vendor's tool failed, or printed something else than it is known to."""


class ToolValues(msgspec.Struct, frozen=True):
    """The values of one block of a tool's output, by key in lower case; the first of equal keys counts."""

    tool: str
    by_key: dict[str, str]

    def text(self, key: str, default: str = "") -> str:
        """Return the value, `default` where the tool says nothing or N/A."""
        value = self.by_key.get(key.lower(), "")
        return default if value.lower() in _NOTHING else value

    def number(self, key: str) -> int | None:
        """Return a whole number, None where the tool does not say. Raises: ToolError when it says something else."""
        value = self.text(key)
        if not value:
            return None
        if not value.isdigit():
            raise ToolError(self.tool, f"{key}: {value[:40]!r} is no number")
        return int(value)

    def size_bytes(self, key: str) -> int | None:
        """Return an amount of memory, in megabytes without a unit; None where the tool does not say.

        Raises: ToolError when it says something else.
        """
        value = self.text(key)
        return bytes_of(self.tool, key, value) if value else None


def bytes_of(tool: str, key: str, value: str) -> int:
    """Return an amount of memory such as `24576 MiB`. Raises: ToolError."""
    found = _AMOUNT.fullmatch(value.strip())
    if found is None or found[2].upper() not in _UNITS:
        raise ToolError(tool, f"{key}: {value[:40]!r} is no amount of memory")
    return int(found[1]) * _UNITS[found[2].upper()]


def values(tool: str, output: str) -> ToolValues:
    """Return all `Key : value` lines."""
    found: dict[str, str] = {}
    for line in output.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip():
            found.setdefault(key.strip().lower(), value.strip())
    return ToolValues(tool, found)


def blocks(output: str, head: re.Pattern[str]) -> Iterator[tuple[re.Match[str], str]]:
    """Parts of the output, each beginning with a line that matches `head`; what stands before the first is left out."""
    begun: re.Match[str] | None = None
    lines: list[str] = []
    for line in output.splitlines():
        found = head.match(line.strip())
        if found is not None:
            if begun is not None:
                yield begun, "\n".join(lines)
            begun, lines = found, []
        lines.append(line)
    if begun is not None:
        yield begun, "\n".join(lines)


Run = Callable[[Sequence[str]], Awaitable[str]]
"""Runs a command and answers what it printed. Raises: ToolError."""

NPU_CORE, NPU_CPU, NPU_DVPP = "huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp"
NPU_CPUS = {"910B": 0, "910B2": 6, "910B3": 7, "910B4": 7}
"""AI CPUs of models whose tool does not tell."""
NPU_CORES = {"310P3": 8}
_WHOLE = "100"
_FIT = ("ok", "warning", "healthy", "normal", "good")


class PCIDevice(msgspec.Struct, frozen=True):
    """A device on the bus: address, vendor and product in four hexadecimal digits, and where it is plugged in."""

    bus_id: str
    vendor: str
    product: str
    numa_node: int
    root_complex: str


class Vendor(msgspec.Struct, frozen=True):
    """A maker, how its cards are known on the bus, and how its tool is asked."""

    name: str
    pci_vendor: str
    read: Callable[[Run, Collection[PCIDevice]], Awaitable[list[XPUDevice]]]
    other_products: frozenset[str] = frozenset()
    """Its devices that are no accelerators."""

    def cards(self, devices: Collection[PCIDevice]) -> list[PCIDevice]:
        """Return its accelerators on the bus."""
        return [
            each
            for each in devices
            if each.vendor == self.pci_vendor and each.product not in self.other_products
        ]


async def read_huawei(run: Run, cards: Collection[PCIDevice]) -> list[XPUDevice]:
    """NPUs. `npu-smi info -m` lists chips; a chip without logic id is a management controller."""
    tool = "npu-smi"
    found = []
    for line in (await run((tool, "info", "-m"))).splitlines():
        fields = line.split(None, 3)
        if len(fields) == 4 and fields[0].isdigit() and fields[2].isdigit():
            npu, chip, minor, name = fields
            found.append(await _huawei_chip(run, cards, npu, chip, minor, name.strip()))
    return found


async def _huawei_chip(
    run: Run, cards: Collection[PCIDevice], npu: str, chip: str, minor: str, name: str
) -> XPUDevice:
    tool = "npu-smi"

    async def ask(kind: str, *more: str) -> ToolValues:
        return values(tool, await run((tool, "info", "-t", kind, "-i", npu, *more)))

    model = name.removeprefix("Ascend").strip().replace(" ", "-")
    of_chip = ("-c", chip)
    board, place = await ask("board"), await ask("board", *of_chip)
    memory = await ask("memory", *of_chip)
    size = memory.size_bytes("HBM Capacity(MB)") or memory.size_bytes("DDR Capacity(MB)")
    if not size:
        raise ToolError(tool, f"memory of NPU {npu} chip {chip} is not reported")
    cores, cpus = NPU_CORES.get(model), NPU_CPUS.get(model)
    if cores is None:
        cores = (await ask("common", *of_chip)).number("Aicore Count")
    if cpus is None:
        cpus = (await ask("cpu-num-cfg", *of_chip)).number("Current AI CPU number")
    amounts: ResourceList = {resources.GPU_MEMORY: _binary(size), NPU_DVPP: _WHOLE}
    amounts |= {key: str(count) for key, count in ((NPU_CORE, cores), (NPU_CPU, cpus)) if count is not None}
    health = await ask("health", *of_chip)
    return XPUDevice(
        vendor="huawei",
        model=f"Ascend-{model}",
        uuid=f"{board.text('Serial Number', f'npu-{npu}')}-{minor}",
        minor=minor,
        resources=amounts,
        topology=_place(cards, place.text("PCIe Bus Info") or board.text("PCIe Bus Info")),
        status=_status(
            health.text("Health Status") or health.text("Health"),
            health.text("Error Code"),
            health.text("Error Information"),
        ),
    )


_CAMBRICON_CARD = re.compile(r"Card\s+([0-9]+)\b")


async def read_cambricon(run: Run, cards: Collection[PCIDevice]) -> list[XPUDevice]:
    """Read MLUs, one block of `cnmon info` each. Raises: ToolError when something is missing."""
    tool = "cnmon"
    found = []
    for head, block in blocks(await run((tool, "info")), _CAMBRICON_CARD):
        fields = values(tool, block)
        memory = values(tool, block.partition("Physical Memory Usage")[2])
        size = memory.size_bytes("Total")
        if not size:
            raise ToolError(tool, f"memory of card {head[1]} is not reported")
        found.append(
            XPUDevice(
                vendor="cambricon",
                model=fields.text("Product Name").replace(" ", "-"),
                uuid=fields.text("UUID", f"mlu-{head[1]}"),
                minor=head[1],
                resources=_gpu(size),
                topology=_place(cards, _cambricon_bus_id(fields, cards)),
                status=_status(fields.text("Health"), "", ""),
            )
        )
    return found


def _cambricon_bus_id(fields: ToolValues, cards: Collection[PCIDevice]) -> str:
    """Return the address, which the tool prints in parts; in hexadecimal or decimal digits, as the bus tells."""
    parts = [fields.text(key) for key in ("Domain ID", "Bus num", "Device", "Function")]
    known = {card.bus_id for card in cards}
    for base in (16, 10):
        try:
            domain, bus, device, function = (int(part or "0", base) for part in parts)
        except ValueError:
            continue
        bus_id = f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
        if bus_id in known:
            return bus_id
    return ""


_KUNLUN_FIELDS = re.compile(r'"[^"]*"|\S+')
_KUNLUN_BUS_ID, _KUNLUN_MINOR, _KUNLUN_SERIAL, _KUNLUN_TOTAL_MB, _KUNLUN_MODEL = 0, 2, 3, 18, 21


async def read_kunlun(run: Run, cards: Collection[PCIDevice]) -> list[XPUDevice]:
    """Read XPUs, one line of `xpu_smi -m` each. Raises: ToolError when something is missing."""
    tool = "xpu_smi"
    found = []
    for line in (await run((tool, "-m"))).splitlines():
        fields = _KUNLUN_FIELDS.findall(line)
        if len(fields) <= _KUNLUN_MODEL or ":" not in fields[_KUNLUN_BUS_ID]:
            continue
        minor = fields[_KUNLUN_MINOR]
        if not minor.isdigit():
            raise ToolError(tool, f"{minor[:40]!r} is no device number")
        found.append(
            XPUDevice(
                vendor="kunlun",
                model=fields[_KUNLUN_MODEL].strip('"').replace(" ", "-"),
                uuid=f"{fields[_KUNLUN_SERIAL]}-{minor}",
                minor=minor,
                resources=_gpu(bytes_of(tool, "memory", fields[_KUNLUN_TOTAL_MB])),
                topology=_place(cards, fields[_KUNLUN_BUS_ID]),
            )
        )
    return found


_METAX_CARD = re.compile(r"GPU#([0-9]+)\b")
_METAX_LISTED = re.compile(
    r"GPU#(?P<minor>[0-9]+)\s+(?P<model>\S+)\s+(?P<bus>[0-9A-Fa-f:.]+)\s+(?P<state>[A-Za-z ]+?)\s*"
    r"\(UUID:\s*(?P<uuid>[^)]+)\)"
)


async def read_metax(run: Run, cards: Collection[PCIDevice]) -> list[XPUDevice]:
    """Read GPUs, of `mx-smi -L` (one line each) and `mx-smi --show-memory` (one block each). Raises: ToolError when
    something is missing."""
    tool = "mx-smi"
    memory = {
        head[1]: values(tool, block)
        for head, block in blocks(await run((tool, "--show-memory")), _METAX_CARD)
    }
    found = []
    for listed in _METAX_LISTED.finditer(await run((tool, "-L"))):
        minor = listed["minor"]
        amounts = memory.get(minor)
        size = amounts.size_bytes("vram total") or amounts.size_bytes("vis_vram total") if amounts else None
        if not size:
            raise ToolError(tool, f"memory of GPU {minor} is not reported")
        is_fit = listed["state"].strip().lower() == "available"
        found.append(
            XPUDevice(
                vendor="metax",
                model=listed["model"],
                uuid=listed["uuid"].strip(),
                minor=minor,
                resources=_gpu(size),
                topology=_place(cards, listed["bus"]),
                status=XPUStatus(healthy=is_fit, err_code="" if is_fit else listed["state"].replace(" ", "")),
            )
        )
    return found


VENDORS = (
    Vendor("Huawei", "19e5", read_huawei, frozenset(("1710", "1711"))),
    Vendor("Cambricon", "cabc", read_cambricon),
    Vendor("Kunlunxin", "1d22", read_kunlun),
    Vendor("MetaX", "9999", read_metax),
)
"""Huawei's other two are the graphics of its management controllers."""


def _gpu(memory_bytes: int) -> ResourceList:
    return {resources.GPU_CORE: _WHOLE, resources.GPU_MEMORY: _binary(memory_bytes)}


def _binary(amount: int) -> str:
    return quantity.text_of_value(amount, Family.BINARY)


def _status(health: str, code: str, message: str) -> XPUStatus | None:
    """None where the tool does not tell."""
    if not health:
        return None
    if health.lower() in _FIT:
        return XPUStatus(healthy=True)
    return XPUStatus(healthy=False, err_code=code or health, err_message=message)


def _place(cards: Collection[PCIDevice], text: str) -> XPUTopology:
    """Return where the card is; tools write addresses in many ways."""
    bus_id = sysfs.bus_id(text)
    for card in cards:
        if card.bus_id == bus_id:
            return XPUTopology(
                socket_id="-1", node_id=str(card.numa_node), pcie_id=card.root_complex, bus_id=bus_id
            )
    return XPUTopology(socket_id="-1", bus_id=bus_id)
