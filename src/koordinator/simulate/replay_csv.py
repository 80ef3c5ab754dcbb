"""Nodes and pods from tables (CSV, plain or gzipped) as machine traces publish them.

Nodes have the columns `sn,cpu_milli,memory_mib` and perhaps `gpu,model`; pods `name,cpu_milli,memory_mib` and
perhaps `num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time`. Times are whole
seconds from the start of the trace. `pod_phase` and `scheduled_time` tell what happened elsewhere: they are
checked to be known columns and not used.
"""

import contextlib
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from koordinator.api import labels, resources, user_files
from koordinator.api.affinity import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)
from koordinator.api.annotations.device import DeviceType
from koordinator.api.core import Container, Node, NodeStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from koordinator.api.device import Device, DeviceInfo, DeviceSpec
from koordinator.api.errors import KoordinatorError
from koordinator.api.meta import ObjectMeta
from koordinator.api.quantity import ResourceList
from koordinator.simulate.replay_options import Gpu

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "pod_phase",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
REQUIRED_COUNT = 3
"""The first columns of both tables must be there."""
WHOLE = 100
"""Percent of a card."""
CARD_MEMORY = "100Gi"
"""Memory of every card of a table, which does not tell: 1 GiB is 1 %."""
QOS_CLASSES = ("LSE", "LSR", "LS", "BE", "SYSTEM")
HOSTNAME = "kubernetes.io/hostname"
NAMESPACE = "replay"
AMOUNT_MAX = 1 << 40


NAME_CHARS_MAX = 60
"""Length that is shown of what stands where the name of a column should."""


class TableError(KoordinatorError, ValueError):
    """A table of nodes or pods cannot be read; `row` counts from 1, the header included."""

    def __init__(self, file: str, row: int, column: str, reason: str) -> None:
        super().__init__(file, row, column, reason)
        self.file, self.row, self.column, self.reason = file, row, column, reason

    def __str__(self) -> str:
        place = f": row {self.row}" if self.row else ""
        place += f", column {self.column}" if self.column else ""
        return f"{self.file}{place}: {self.reason}"


class TimedPod(msgspec.Struct, frozen=True):
    """A pod of a list, pending; times in seconds from any start, None when not told."""

    pod: Pod
    arrives_s: float | None = None
    departs_s: float | None = None


class CsvRow(msgspec.Struct, frozen=True):
    """One line of a table."""

    file: str
    number: int
    cells: dict[str, str]

    def text(self, column: str) -> str:
        return self.cells.get(column, "").strip()

    def amount(self, column: str, default: int | None = None) -> int:
        """Return a whole number that is not negative. Raises: TableError."""
        text = self.text(column)
        if not text and default is not None:
            return default
        try:
            number = int(text)
        except ValueError:
            raise self.error(column, f"{text!r} is no whole number") from None
        if not 0 <= number <= AMOUNT_MAX:
            raise self.error(column, f"{number} is not between 0 and {AMOUNT_MAX}")
        return number

    def error(self, column: str, reason: str) -> TableError:
        return TableError(self.file, self.number, column, reason)


def is_table(path: Path) -> bool:
    """Return whether the name says that the file is a table."""
    return path.name.endswith((".csv", ".csv.gz"))


def read_nodes(path: Path, gpu: Gpu, pods_per_node: int) -> list[Node]:
    """Return the nodes of a table; `pods_per_node` is how many pods each takes, which tables do not tell.
    Raises: TableError, OSError."""
    nodes = []
    for row in _unique(_rows(path, NODE_COLUMNS), "sn"):
        gpus = row.amount("gpu", 0)
        if gpus and gpu is Gpu.CPU_ONLY:
            continue
        nodes.append(_node(row, gpus, gpu, pods_per_node))
    return nodes


def read_pods(path: Path, gpu: Gpu) -> tuple[list[TimedPod], int]:
    """Return the pods of a table in its order, and how many were left out for their GPUs. Raises: TableError,
    OSError."""
    pods = []
    left_out = 0
    for row in _unique(_rows(path, POD_COLUMNS), "name"):
        wants_gpus = row.amount("num_gpu", 0) > 0
        if wants_gpus and gpu in (Gpu.SKIP_PODS, Gpu.CPU_ONLY):
            left_out += 1
            continue
        pods.append(_pod(row, gpu if wants_gpus else Gpu.IGNORE))
    return pods, left_out


def device_of(node: Node) -> Device | None:
    """Return the cards of a node of a table as the node agent would report them, without places; None for none."""
    count = int(str(node.status.allocatable.get(resources.GPU_CORE, 0))) // WHOLE
    if not count:
        return None
    each: ResourceList = {
        resources.GPU_CORE: str(WHOLE),
        resources.GPU_MEMORY_RATIO: str(WHOLE),
        resources.GPU_MEMORY: CARD_MEMORY,
    }
    cards = [
        DeviceInfo(type=DeviceType.GPU, id=f"GPU-{minor}", minor=minor, health=True, resources=each)
        for minor in range(count)
    ]
    return Device(metadata=ObjectMeta(name=node.metadata.name), spec=DeviceSpec(devices=cards))


def _node(row: CsvRow, gpus: int, gpu: Gpu, pods_max: int) -> Node:
    name = row.text("sn")
    amounts: ResourceList = {
        resources.CPU: f"{row.amount('cpu_milli')}m",
        resources.MEMORY: f"{row.amount('memory_mib')}Mi",
        resources.PODS: str(pods_max),
    }
    own_labels = {HOSTNAME: name}
    if gpus and gpu is Gpu.WHOLE:
        amounts[resources.NVIDIA_GPU] = str(gpus)
    elif gpus and gpu is Gpu.SHARE:
        amounts[resources.GPU_CORE] = amounts[resources.GPU_MEMORY_RATIO] = str(gpus * WHOLE)
    if gpus and gpu in (Gpu.WHOLE, Gpu.SHARE):
        own_labels[labels.GPU_MODEL] = row.text("model")
    return Node(
        metadata=ObjectMeta(name=name, labels=own_labels),
        status=NodeStatus(allocatable=amounts, capacity=amounts),
    )


def _pod(row: CsvRow, gpu: Gpu) -> TimedPod:
    requests: ResourceList = {
        resources.CPU: f"{row.amount('cpu_milli')}m",
        resources.MEMORY: f"{row.amount('memory_mib')}Mi",
    }
    affinity = None
    if gpu is Gpu.WHOLE:
        requests[resources.NVIDIA_GPU] = str(_whole_gpus(row))
    elif gpu is Gpu.SHARE:
        percent = str(row.amount("num_gpu") * _percent(row))
        requests[resources.GPU_CORE] = requests[resources.GPU_MEMORY_RATIO] = percent
        if row.amount("num_gpu") > 1 and _percent(row) < WHOLE:
            requests[resources.GPU_SHARED] = row.text("num_gpu")
    if gpu in (Gpu.WHOLE, Gpu.SHARE):
        affinity = _models(row.text("gpu_spec"))
    qos = row.text("qos")
    name = row.text("name")
    pod = Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=NAMESPACE,
            uid=f"{NAMESPACE}/{name}",
            labels={labels.QOS_CLASS: qos} if qos in QOS_CLASSES else {},
        ),
        spec=PodSpec(
            containers=[Container(name="main", resources=ResourceRequirements(requests=requests))],
            affinity=affinity,
        ),
        status=PodStatus(phase="Pending"),
    )
    arrives_s, departs_s = _time(row, "creation_time"), _time(row, "deletion_time")
    if arrives_s is not None and departs_s is not None and departs_s < arrives_s:
        raise row.error("deletion_time", f"{departs_s:g} is before creation_time {arrives_s:g}")
    return TimedPod(pod, arrives_s, departs_s)


def _whole_gpus(row: CsvRow) -> int:
    """GPUs rounded up: `num_gpu` of them, each used to `gpu_milli` thousandths."""
    milli = row.amount("gpu_milli", 1_000)
    return row.amount("num_gpu") * max(1, -(-milli // 1_000))


def _percent(row: CsvRow) -> int:
    """Percent of each card, rounded up; at least 1. Raises: TableError when it is more than a card."""
    milli = row.amount("gpu_milli", 1_000)
    if milli > 1_000:
        raise row.error("gpu_milli", f"{milli} is more than the 1000 of a card; num_gpu says how many cards")
    return max(1, -(-milli // 10))


def _models(spec: str) -> Affinity | None:
    """`A10|T4`: nodes with one of these models."""
    if not spec:
        return None
    wanted = NodeSelectorRequirement(key=labels.GPU_MODEL, operator="In", values=sorted(set(spec.split("|"))))
    terms = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[wanted])])
    return Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=terms))


def _time(row: CsvRow, column: str) -> float | None:
    return float(row.amount(column)) if row.text(column) else None


def _unique(rows: Iterator[CsvRow], column: str) -> Iterator[CsvRow]:
    seen: dict[str, int] = {}
    for row in rows:
        name = row.text(column)
        if not name:
            raise row.error(column, "empty")
        if name in seen:
            raise row.error(column, f"{name!r} stands in row {seen[name]} already")
        seen[name] = row.number
        yield row


def _rows(path: Path, known: Sequence[str]) -> Iterator[CsvRow]:
    file = str(path)
    try:
        with contextlib.closing(user_files.lines(path)) as text:
            reader = csv.reader(text)
            header = [cell.strip() for cell in next(reader, [])]
            _check_header(file, header, known)
            for number, cells in enumerate(reader, start=2):
                if not cells:
                    continue
                if len(cells) != len(header):
                    reason = f"{len(cells)} values, but the header has {len(header)}"
                    raise TableError(file, number, "", reason)
                yield CsvRow(file, number, dict(zip(header, cells, strict=True)))
    except user_files.FileError as error:
        raise TableError(file, 0, "", ": ".join(filter(None, (error.place, error.reason)))) from error
    except csv.Error as error:
        raise TableError(file, 0, "", f"no table: {error}") from error


def _check_header(file: str, header: list[str], known: Sequence[str]) -> None:
    if not header:
        raise TableError(file, 0, "", f"empty; expected a header such as {','.join(known)}")
    for column in header:
        if column not in known:
            raise TableError(
                file, 1, column[:NAME_CHARS_MAX], f"unknown column; known are {', '.join(known)}"
            )
        if header.count(column) > 1:
            raise TableError(file, 1, column, "stands twice in the header")
    for column in known[:REQUIRED_COUNT]:
        if column not in header:
            raise TableError(file, 1, column, "missing")
