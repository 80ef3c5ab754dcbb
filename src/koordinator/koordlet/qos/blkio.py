"""Disk limits of best-effort pods and disk models of the node, as texts. Source: behaviour/koordlet-act 11.

Every text names its disk first, as `major:minor`.
"""

from collections.abc import Collection, Mapping

from koordinator.api.slo import IOConfig
from koordinator.host.cgroup_knobs import Knob

WEIGHT_PERCENT = 100
LATENCY_US = 3_000
LATENCY_PERCENT = 95
_MODEL_LEAST = 1  # what a field of the cost model is when it is not set

_OFF = {
    Knob.BLKIO_READ_IOPS: "0",
    Knob.BLKIO_READ_BPS: "0",
    Knob.BLKIO_WRITE_IOPS: "0",
    Knob.BLKIO_WRITE_BPS: "0",
    Knob.BLKIO_WEIGHT: str(WEIGHT_PERCENT),
    Knob.BLKIO_QOS: "enable=0",
    Knob.IO_MAX: "rbps=max wbps=max riops=max wiops=max",
    Knob.IO_WEIGHT: "default",
}
"""How each file forgets a disk; the cost model stays."""


def group_texts(disk: str, limits: IOConfig) -> dict[Knob, str]:
    """Files of a group (of all best-effort pods, or of one pod) for one disk; 0 is no limit."""
    return {
        Knob.BLKIO_READ_IOPS: f"{disk} {limits.read_iops or 0}",
        Knob.BLKIO_READ_BPS: f"{disk} {limits.read_bps or 0}",
        Knob.BLKIO_WRITE_IOPS: f"{disk} {limits.write_iops or 0}",
        Knob.BLKIO_WRITE_BPS: f"{disk} {limits.write_bps or 0}",
        Knob.BLKIO_WEIGHT: f"{disk} {_or(limits.io_weight_percent, WEIGHT_PERCENT)}",
    }


def share_texts(disk: str, limits: IOConfig) -> dict[Knob, str]:
    """Return the same without a weight, for a group that only gets a part of somebody's limits."""
    texts = group_texts(disk, limits)
    del texts[Knob.BLKIO_WEIGHT]
    return texts


def unified_texts(disk: str, limits: IOConfig) -> dict[Knob, str]:
    """Files of a group on cgroup v2, where one line holds all limits of a disk."""
    rates = {
        "rbps": limits.read_bps,
        "wbps": limits.write_bps,
        "riops": limits.read_iops,
        "wiops": limits.write_iops,
    }
    words = (f"{name}={value if value and value > 0 else 'max'}" for name, value in rates.items())
    weight = _or(limits.io_weight_percent, WEIGHT_PERCENT)
    return {
        Knob.IO_MAX: f"{disk} {' '.join(words)}",
        Knob.IO_WEIGHT: f"{disk} {_OFF[Knob.IO_WEIGHT] if weight == WEIGHT_PERCENT else weight}",
    }


def root_texts(disk: str, model: IOConfig) -> dict[Knob, str]:
    """Files of the root group for one disk: when it counts as full, and what its operations cost."""
    reads = (
        f"rpct={_or(model.read_latency_percent, LATENCY_PERCENT)} rlat={_or(model.read_latency, LATENCY_US)}"
    )
    writes = f"wpct={_or(model.write_latency_percent, LATENCY_PERCENT)} wlat={_or(model.write_latency, LATENCY_US)}"
    return {
        Knob.BLKIO_QOS: f"{disk} enable=1 ctrl=user {reads} {writes}",
        Knob.BLKIO_MODEL: f"{disk} {_cost_model(model)}",
    }


def removals(contents: Mapping[Knob, str], configured: Collection[str]) -> dict[Knob, list[str]]:
    """Texts that make files forget disks that are not configured any more."""
    wanted: dict[Knob, list[str]] = {}
    for knob, content in contents.items():
        if knob in _OFF:
            gone = [disk for disk in _disks(content) if disk not in configured]
            texts = [f"{disk} {_OFF[knob]}" for disk in gone]
            wanted[knob] = [text for text in texts if needs_write(content, text)]
    return {knob: texts for knob, texts in wanted.items() if texts}


def needs_write(content: str, text: str) -> bool:
    """Return whether a file with this content must be written: no limit only where the disk has one."""
    disk, _, value = text.partition(" ")
    if value in ("0", _OFF[Knob.IO_MAX], _OFF[Knob.IO_WEIGHT]):
        return disk in _disks(content)
    return text not in (line.strip() for line in content.splitlines())


def _cost_model(model: IOConfig) -> str:
    if not model.enable_user_model:
        return "ctrl=auto"
    fields = {
        "rbps": model.model_read_bps,
        "rseqiops": model.model_read_seq_iops,
        "rrandiops": model.model_read_rand_iops,
        "wbps": model.model_write_bps,
        "wseqiops": model.model_write_seq_iops,
        "wrandiops": model.model_write_rand_iops,
    }
    return "ctrl=user " + " ".join(f"{name}={_or(value, _MODEL_LEAST)}" for name, value in fields.items())


def _disks(content: str) -> list[str]:
    first = (line.split()[0] for line in content.splitlines() if line.strip())
    return [word for word in first if ":" in word]  # cgroup v2 has a line for all other disks


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
