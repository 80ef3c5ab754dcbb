"""Files of groups and of the host."""

import json
from typing import Any

from tests.reference.act.parts import KUBE, Chance, Json, maybe


def cgreconcile(chance: Chance) -> Json:
    def section() -> Json:
        return {
            **maybe(chance, 0.7, minLimitPercent=chance.choice((0, 50, 100))),
            **maybe(chance, 0.7, lowLimitPercent=chance.choice((0, 50, 100))),
            **maybe(chance, 0.7, throttlingPercent=chance.choice((0, 60, 80, 100))),
            **maybe(chance, 0.5, wmarkRatio=chance.choice((0, 95)), wmarkMinAdj=chance.choice((-25, 50))),
            **maybe(chance, 0.5, oomKillGroup=1, priority=chance.randint(0, 12), priorityEnable=1),
        }

    def pod(name: str) -> Json:
        qos = chance.choice(("", "LS", "LSR", "BE", "LSE", "SYSTEM"))
        kind = "kubernetes.io/batch-memory" if qos == "BE" else "memory"
        own = {"policy": chance.choice(("", "default", "auto", "none")), **section()}
        containers = []
        for index in range(chance.randint(1, 3)):
            limit = chance.randint(0, 4096) * 2**20
            request = chance.randint(0, limit)
            containers.append(
                {
                    "name": f"c{index}",
                    "resources": {
                        **maybe(chance, 0.8, requests={kind: str(request)}),
                        **maybe(chance, 0.7, limits={kind: str(limit)}),
                    },
                }
            )
        return {
            "metadata": {
                "namespace": "default",
                "name": name,
                "uid": name,
                "labels": {"koordinator.sh/qosClass": qos} if qos else {},
                "annotations": maybe(chance, 0.4, **{"koordinator.sh/memoryQOS": json.dumps(own)}),
            },
            "spec": {"containers": containers},
            "status": {
                "phase": chance.choice(("Running", "Running", "Pending", "Succeeded")),
                "qosClass": "BestEffort" if qos == "BE" else chance.choice(KUBE[:2]),
            },
        }

    names = ("lsrClass", "lsClass", "beClass", "systemClass")
    return {
        "op": "round",
        "pods": [pod(f"p{index}") for index in range(chance.randint(0, 4))],
        "strategy": {name: {"memoryQOS": {"enable": True, **section()}} for name in names},
        "nodeAllocatableMemory": chance.choice(("8Gi", "16000000001")),
        "cgroupVersion": chance.choice((1, 2)),
        **maybe(chance, 0.2, notStarted=["c1"]),
    }


def _groups(chance: Chance) -> Json:
    def section() -> Json:
        start = chance.choice((0, 0, 10, 50))
        return {
            "resctrlQOS": {
                "enable": True,
                **maybe(chance, 0.9, catRangeStartPercent=start),
                **maybe(chance, 0.9, catRangeEndPercent=chance.choice((start + 30, 100, start))),
                **maybe(chance, 0.8, mbaPercent=chance.choice((0, 7, 10, 55, 100, 101))),
            }
        }

    return {
        "op": "groups",
        "strategy": {name: section() for name in ("lsrClass", "lsClass", "beClass") if chance.random() < 0.8},
        "cbm": chance.choice(("ff", "7ff", "fffff")),
        "vendor": chance.choice(("GenuineIntel", "AuthenticAMD")),
        "cacheIds": sorted(chance.sample(range(4), chance.randint(1, 3))),
    }


def resctrl_schemata(chance: Chance) -> Json:
    if chance.random() < 0.3:
        return _groups(chance)
    ids = sorted(chance.sample(range(4), chance.randint(1, 3)))

    def span() -> list[int]:
        start = chance.choice((0, 0, 10, 50))
        return [start, chance.choice((start + 30, 100, start))]

    def part(common: Json, single: Any) -> Json:
        each = [{"cacheID": cache, **single()} for cache in ids if chance.random() < 0.7]
        return {**maybe(chance, 0.7, schemata=common), **maybe(chance, 0.5, schemataPerCache=each)}

    asked = {
        **maybe(chance, 0.8, llc=part({"range": span()}, lambda: {"range": span()})),
        **maybe(
            chance,
            0.6,
            mb=part({"percent": chance.randint(1, 100)}, lambda: {"percent": chance.randint(1, 100)}),
        ),
    }
    return {
        "op": "annotation",
        "annotation": json.dumps(asked),
        "cbm": chance.choice(("ff", "7ff", "fffff")),
        "vendor": chance.choice(("GenuineIntel", "AuthenticAMD", "Else")),
        "cacheIds": ids,
        "podUID": "u1",
    }


def _cached(chance: Chance) -> Json:
    at, steps = 0, []
    for _ in range(chance.randint(1, 6)):
        at += chance.choice((0, 1, 20, 59, 60, 61, 130))
        text = chance.choice(("10", "11"))
        steps.append(
            {"at": at, "set": text, **maybe(chance, 0.2, external="7"), **maybe(chance, 0.2, cacheable=False)}
        )
    return {"op": "cache", "resource": "cpu.shares", "initial": "2", "steps": steps}


def resource_update_order(chance: Chance) -> Json:
    if chance.random() < 0.3:
        return _cached(chance)
    version = chance.choice((1, 2))
    resource = chance.choice(("cpu.cfs_quota_us", "memory.min", "memory.low", "memory.high", "cpuset.cpus"))

    def value() -> str:
        if resource == "cpuset.cpus":
            start = chance.randint(0, 4)
            return f"{start}-{start + chance.randint(1, 4)}"
        return str(chance.randint(1, 9) * 10000)

    def content() -> str:
        if resource == "cpu.cfs_quota_us":
            unlimited = "max" if version == 2 else "-1"
            text = chance.choice((unlimited, f"{chance.randint(1, 9)}5000"))
            return f"{text} 100000" if version == 2 else text
        return value()

    groups = ("kp", "kp/p", "kp/p/c", "kp/q", "kp/q/d")
    return {
        "op": "leveled",
        "version": version,
        "files": {f"{group}/{resource}": content() for group in groups if chance.random() < 0.9},
        "levels": [
            [
                {"group": group, "resource": resource, "value": value()}
                for group in groups
                if group.count("/") == depth
            ]
            for depth in range(3)
        ],
    }


def sysconfig_blkio(chance: Chance) -> Json:
    if chance.random() < 0.5:
        disks = ("8:0", "253:0", "253:16")
        kind = chance.choice(("blkio.throttle.read_iops_device", "blkio.cost.weight", "blkio.cost.qos"))

        def line(disk: str) -> str:
            if kind == "blkio.cost.qos":
                return f"{disk} {chance.choice(('enable=0', 'enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000'))}"
            return f"{disk} {chance.choice((0, 5, 30))}"

        current = [line(disk) for disk in disks if chance.random() < 0.6]
        return {
            "op": "blkio_needs_write",
            "file": kind,
            "current": "\n".join(current),
            "value": line(chance.choice(disks)),
        }
    names = ("ID_IDLE_AVG", "ID_RESCUE_EXPELLEE", "WAKEUP")
    return {
        "op": "sysconfig",
        "strategy": {
            **maybe(chance, 0.7, minFreeKbytesFactor=chance.choice((0, 1, 99, 100, 400, 10001))),
            **maybe(chance, 0.7, watermarkScaleFactor=chance.choice((9, 10, 150, 400, 401))),
            **maybe(chance, 0.7, memcgReapBackGround=chance.choice((-1, 0, 1, 2))),
            **maybe(chance, 0.4, schedGroupIdentityEnabled=chance.choice((0, 1, 2))),
            **maybe(chance, 0.4, schedIdleSaverWmark=chance.choice((0, 5000000))),
            "schedFeatures": {name: chance.random() < 0.5 for name in names if chance.random() < 0.5},
        },
        "nodeMemory": chance.choice(("512Mi", "3Gi", "512Gi", "2Ti")),
        "currentFeatures": " ".join(
            chance.choice((name, f"NO_{name}")) for name in names if chance.random() < 0.7
        ),
    }
