"""Draws questions about the host's files, and about tools that tell of its disks."""

import random
from typing import Any

Json = dict[str, Any]


def _stat(chance: random.Random, pid: int) -> str:
    comm = chance.choice(("stress", "a b", "(sd-pam)", "kworker/0:1", "", "x:y"))
    state = chance.choice(("S", "R", "Z", "SS", ""))
    group = chance.choice((pid, pid, pid + 1, 1, -1))
    tail = chance.choice((" 0 0 0 0", "", " x"))
    return f"{chance.choice((str(pid), str(pid), 'x'))} ({comm}) {state} 1 {group}{tail}"


def _groups(chance: random.Random) -> Json:
    pids = chance.sample(range(1, 30), chance.randint(0, 8))
    stats = {}
    for pid in pids:
        if chance.random() < 0.9:
            group = chance.choice((pid, chance.choice(pids), 99))
            stats[str(pid)] = chance.choice((f"{pid} (x) S 1 {group} 0",) * 6 + ("", f"{pid} (x"))
    return {"op": "pgids", "pids": pids, "stats": stats}


_SIZES = ("MemTotal", "MemFree", "MemAvailable", "Buffers", "Active(file)", "HugePages_Total", "X")


def _meminfo(chance: random.Random, prefix: str = "") -> str:
    lines = []
    total = chance.randint(1 << 20, 1 << 30)
    for name in chance.sample(_SIZES, chance.randint(3, len(_SIZES))):
        size = total if name == "MemTotal" else chance.randint(0, total)
        lines.append(f"{prefix}{name}:{chance.choice((' ', '       '))}{size}{chance.choice((' kB', ''))}")
    lines += chance.choice(([], [""], [prefix + "odd"]))
    if not any("MemTotal" in line for line in lines):
        lines.append(f"{prefix}MemTotal: {total} kB")
    return "\n".join(lines) + chance.choice(("", "\n"))


def _nodes(chance: random.Random) -> Json:
    names = [f"node{index}" for index in range(chance.randint(0, 4))]
    names += chance.sample(("node7", "nodex", "other", "node"), chance.choice((0, 0, 0, 1)))
    dirs = {
        name: None if chance.random() < 0.1 else _meminfo(chance, f"Node {name[4:] or 0} ") for name in names
    }
    return {"op": "numa-nodes", "dirs": dirs, "skip": chance.choice(([], [], [0], [1], [3, 7]))}


def _huge_pages(chance: random.Random) -> Json:
    names = ("hugepages-2048kB", "hugepages-1048576kB", "hugepages-64kB", "odd", "hugepages-xkB")
    texts = ("0", "3\n", "512\n", "", "x\n")
    return {
        "op": "hugepages",
        "files": {name: chance.choice(texts) for name in chance.sample(names, chance.randint(1, 4))},
    }


def _cpu_basics(chance: random.Random) -> Json:
    lines = (
        "vendor_id\t: GenuineIntel",
        "vendor_id\t: AuthenticAMD",
        "model name\t: Intel(R) Xeon(R) @ 2.50GHz",
        "CPU implementer\t: 0x41",
        "processor\t: 0",
        "flags\t\t: fpu vme",
    )
    asked: Json = {"op": "cpu-basic", "cpuinfo": "\n".join(chance.sample(lines, chance.randint(0, 5))) + "\n"}
    for name, texts in (
        ("smtActive", ("1\n", "0\n", "x", "")),
        ("noTurbo", ("1\n", "0\n", "x", "")),
        ("l3CbmMask", ("7ff\n", "fffff", "")),
    ):
        if chance.random() < 0.6:
            asked[name] = chance.choice(texts)
    if "smtActive" not in asked:
        count = chance.choice(("2", "1", "x", ""))
        asked["lscpuY"] = chance.choice((f"CPU(s): 8\nThread(s) per core:  {count}\n", "", "CPU(s): 8\n"))
    return asked


def _total(chance: random.Random) -> Json:
    fields = [str(chance.choice((0, 7, 10**12, "x"))) if chance.random() < 0.1 else "5" for _ in range(10)]
    line = " ".join(("cpu", *fields[: chance.choice((10, 10, 7, 6, 8))]))
    lines = chance.choice(([line], ["intr 1", line], [line, line], ["cpu0 1 2 3 4 5 6 7", line], []))
    return {"op": "stat-total", "text": "\n".join(lines)}


def _ids(chance: random.Random) -> Json:
    parts = ("0", "3-5", "7", "5-3", "10-12", "", "x", "1-", " 2", "04", "2-2")
    count = chance.randint(0, 4)
    return {
        "op": "id-list",
        "text": ",".join(chance.choice(parts[:5] * 4 + parts) for _ in range(count))
        + chance.choice(("", "\n")),
    }


def host_text(chance: random.Random) -> Json:
    """A question of `parse-procfs`."""
    draws = (
        _groups,
        _nodes,
        _huge_pages,
        _cpu_basics,
        _total,
        _ids,
        lambda chance: {"op": "pid-stat", "text": _stat(chance, chance.randint(1, 99))},
        lambda chance: {"op": "meminfo", "text": _meminfo(chance)},
    )
    return chance.choice(draws)(chance)


def storage(chance: random.Random) -> Json:
    """A question of `storage-info`."""
    disks = chance.sample(("sda", "sdb", "vda", "nvme0n1"), chance.randint(0, 3))
    blocks, devices = [], []
    for index, disk in enumerate(disks):
        blocks.append((disk, "disk", f"8:{16 * index}"))
        devices.append(f"/dev/{disk}")
        for number in range(chance.randint(0, 2)):
            blocks.append((f"{disk}{number}", "part", f"8:{16 * index + number + 1}"))
            devices.append(f"/dev/{disk}{number}")
    blocks += [("vg-lv", "lvm", "253:0"), ("loop0", "loop", "7:0")][: chance.randint(0, 2)]
    devices.append("/dev/x")
    groups = [f"  {name} {chance.choice((1, 1, 2))} {chance.choice(devices)}" for name in ("vg0", "vg-1")]
    volumes = ["  lv0 vg0", "  lv-1 vg-1", "one"][: chance.choice((0, 1, 2, 2, 2, 3))]
    mounts = [f'TARGET="/m{index}" SOURCE="{each}"' for index, each in enumerate(devices)]
    return {
        "lsblk": "\n".join(f'NAME="{name}" TYPE="{kind}" MAJ:MIN="{at}"' for name, kind, at in blocks),
        "vgs": "\n".join(groups[: chance.randint(0, 2)]),
        "lvs": "\n".join(volumes),
        "findmnt": "\n".join(mounts[: chance.randint(0, 3)]),
    }
