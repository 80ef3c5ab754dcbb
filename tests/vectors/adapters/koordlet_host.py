"""Areas of the host's files: `cgroup-paths`, `cgroup-v2-convert`, `parse-*`, `storage-info`."""

import json
from collections.abc import Callable
from typing import Any

from koordinator.api import cpuset
from koordinator.api.annotations.node import CPU_BASIC_INFO
from koordinator.api.decode import from_builtins
from koordinator.api.qos import KubeQoS
from koordinator.api.slo import HostApplicationSpec
from koordinator.host import cgroup_knobs, cgroup_layout, cgroup_values, procfs, sysfs
from koordinator.host.cgroup_knobs import V2, Knob, quota_of_milli, shares_of_milli
from koordinator.host.cgroup_layout import Driver
from koordinator.host.errors import ContentError, KnobValueError, UnsupportedError
from koordinator.host.sysfs import HostCPUTopology
from tests.host import lscpu, storage_tools

_KINDS = {
    "cpu-usage": Knob.CPU_USAGE,
    "cpu-stat": Knob.CPU_STAT,
    "cpu-quota": Knob.CPU_QUOTA,
    "cpu-period": Knob.CPU_PERIOD,
    "cpu-shares": Knob.CPU_SHARES,
    "cpu-burst": Knob.CPU_BURST,
    "threads": Knob.TASKS,
    "procs": Knob.PROCS,
    "cpuset": Knob.CPUSET,
    "cpuset-effective": Knob.CPUSET_EFFECTIVE,
    "memory-limit": Knob.MEMORY_LIMIT,
    "memory-usage": Knob.MEMORY_USAGE,
    "memory-stat": Knob.MEMORY_STAT,
    "memory-numa-stat": Knob.MEMORY_NUMA_STAT,
    "cpu-pressure": Knob.CPU_PRESSURE,
    "memory-pressure": Knob.MEMORY_PRESSURE,
    "io-pressure": Knob.IO_PRESSURE,
    "idle-page-stats": Knob.MEMORY_IDLE_PAGES,
}


def cgroup_paths(case: dict[str, Any]) -> Any:
    op = case["op"]
    driver = Driver(case.get("driver", "systemd"))
    match op:
        case "qos-dir":
            return {"dir": cgroup_layout.class_dir(driver, _kube(case["kubeQOS"]))}
        case "pod-dir":
            return {"dir": cgroup_layout.pod_dir(driver, _kube(case["kubeQOS"]), case["uid"])}
        case "container-dirname":
            container = cgroup_layout.parse_container_id(case["containerID"])
            dirname = cgroup_layout.container_dirname(driver, container)
            return {"runtime": container.runtime.value, "dirname": dirname}
        case "container-dir":
            container = cgroup_layout.parse_container_id(case["containerID"])
            return {"dir": cgroup_layout.container_dir(driver, case["podDir"], container)}
        case "parse-pod-dirname":
            return {"id": cgroup_layout.pod_uid_of_dirname(driver, case["dirname"])}
        case "parse-container-dirname":
            return {"id": cgroup_layout.container_id_of_dirname(driver, case["dirname"])}
        case "file":
            return {"path": f"{case['root'].rstrip('/')}/{_file(case)}".rstrip("/")}
        case "host-app-dir":
            application = from_builtins(case["hostApplication"], HostApplicationSpec)
            return {"dir": cgroup_layout.host_application_dir(driver, application)}
        case "sandbox":
            known = [*case["containerIDs"], *case["initContainerIDs"]]
            containers = [cgroup_layout.parse_container_id(text) for text in known]
            return {"containerID": cgroup_layout.sandbox_id(driver, case["podSubdirs"], containers)}
        case "kube-qos-of-dir":
            return {"kubeQOS": cgroup_layout.kube_qos_of_dir(case["dir"]).value}
        case "be-cpuset":
            found = cgroup_layout.smallest_cpuset(case["rootCpuset"], case["containerCpusets"])
            return {"cpus": sorted(found)}
    raise AssertionError(op)


def _kube(name: str) -> KubeQoS:
    return KubeQoS(name or "Guaranteed")


def _file(case: dict[str, Any]) -> str:
    version, directory = case["cgroupVersion"], case["dir"]
    if case["kind"] == "perf-dir":
        return cgroup_knobs.perf_dir(version, directory)
    return cgroup_knobs.path(_KINDS[case["kind"]], version, directory)


def cgroup_v2_convert(case: dict[str, Any]) -> Any:
    match case["op"]:
        case "shares_to_weight":
            return {"weight": _if_valid(cgroup_knobs.encode, Knob.CPU_SHARES, V2, str(case["shares"]))}
        case "weight_to_shares":
            return {"shares": _if_valid(cgroup_values.shares, V2, str(case["weight"]))}
        case "milli_to_shares":
            return {"shares": shares_of_milli(case["milli"])}
        case "milli_to_quota":
            return {"quota": quota_of_milli(case["milli"])}
    knob, version = Knob(case["resource"]), case["version"]
    match case["op"]:
        case "path":
            try:
                return {"path": cgroup_knobs.path(knob, version, case["dir"])}
            except UnsupportedError:
                return {"path": None}
        case "write":
            return {"text": cgroup_knobs.encode(knob, version, case["value"])}
        case "read":
            return {"value": _read(knob, version, case["content"])}
        case "validate":
            if knob is Knob.CPU_SHARES and version == V2:  # the reference checks weights, not shares, there
                return {"valid": _if_valid(cgroup_values.shares, V2, case["value"]) is not None}
            try:
                cgroup_knobs.check(knob, version, case["value"])
            except KnobValueError:
                return {"valid": False}
            return {"valid": True}
    raise AssertionError(case["op"])


def _if_valid(convert: Callable[..., str | int], *args: Any) -> int | None:
    try:
        return int(convert(*args))
    except (KnobValueError, ContentError):
        return None


def _read(knob: Knob, version: int, content: str) -> Any:
    match knob:
        case Knob.CPU_QUOTA:
            return cgroup_values.quota_us(version, content)
        case Knob.CPU_PERIOD:
            return cgroup_values.period_us(version, content)
        case Knob.CPU_SHARES:
            return cgroup_values.shares(version, content)
        case Knob.MEMORY_LIMIT:
            return cgroup_values.memory_limit_bytes(version, content)
        case Knob.CPU_USAGE:
            return cgroup_values.cpu_usage_ns(version, content)
        case Knob.CPU_STAT:
            found = cgroup_values.throttling(version, content)
            counts = {"periods": found.periods, "throttled": found.throttled}
            return {**counts, "throttledNs": found.throttled_ns}
        case Knob.MEMORY_STAT:
            stat = cgroup_values.memory_stat(version, content)
            return {"usage": stat.usage_bytes, "usageWithPageCache": stat.usage_with_page_cache_bytes}
        case Knob.MEMORY_NUMA_STAT:
            pages = cgroup_values.numa_pages(version, content)
            return {str(node): number for node, number in pages.items()}
        case Knob.CPUSET:
            return cpuset.text_of(sysfs.id_list(content))
        case Knob.TASKS | Knob.PROCS:
            return cgroup_values.ids(knob, content)
    return cgroup_values.signed(knob, content)


def parse_cgroup(case: dict[str, Any]) -> Any:
    text, version = case.get("text", ""), case.get("version", 2)
    match case["op"]:
        case "cpu-stat":
            found = cgroup_values.throttling(version, text)
            counts = {"periods": found.periods, "throttled": found.throttled}
            return {**counts, "throttledNanos": found.throttled_ns}
        case "cpu-usage":
            return {"nanos": cgroup_values.cpu_usage_ns(version, text)}
        case "memory-stat":
            stat = cgroup_values.memory_stat(version, text)
            fields = {name: getattr(stat, name) for name in stat.__struct_fields__}
            usage = {"usage": stat.usage_bytes, "usageWithPageCache": stat.usage_with_page_cache_bytes}
            return {**fields, **usage}
        case "memory-numa-stat":
            return {"pages": [list(item) for item in cgroup_values.numa_pages(version, text).items()]}
        case "cpu-max-quota":
            return {"quotaMicros": cgroup_values.quota_us(version, text)}
        case "cpu-max-period":
            return {"periodMicros": cgroup_values.period_us(version, text)}
        case "memory-limit":
            return {"limitBytes": cgroup_values.memory_limit_bytes(version, text)}
        case "weight-to-shares":
            return {"shares": cgroup_values.shares(2, str(case["weight"]))}
        case "shares-to-weight":
            return {"weight": int(cgroup_knobs.encode(Knob.CPU_SHARES, 2, str(case["shares"])))}
        case "psi":
            return _psi(text)
        case "kidled":
            idle = cgroup_values.idle_pages(text)
            cold_bytes = idle.cold_bytes(case.get("coldBoundary", cgroup_values.COLD_BOUNDARY))
            heads = {"scanPeriodSeconds": idle.scan_period_s, "buckets": list(idle.buckets)}
            return {"coldBytes": cold_bytes, **heads}
        case "procs":
            return {"pids": cgroup_values.ids("cgroup.procs", text)}
    raise AssertionError(case["op"])


def _psi(text: str) -> Any:
    stall = cgroup_values.pressure(text)
    some, full = (
        {"avg10": each.avg10, "avg60": each.avg60, "avg300": each.avg300, "total": each.total_us}
        for each in (stall.some, stall.full)
    )
    return {"some": some, "full": full, "fullSupported": stall.is_full_supported}


def parse_procfs(case: dict[str, Any]) -> Any:
    text = case.get("text", "")
    match case["op"]:
        case "stat-total":
            return {"ticks": procfs.busy_ticks(text)}
        case "stat-percpu":
            return {"ticks": {str(cpu): ticks for cpu, ticks in procfs.busy_ticks_by_cpu(text).items()}}
        case "meminfo":
            memory = procfs.memory(text)
            usage = {"usageBytes": memory.usage_bytes}
            with_cache = {"usageWithPageCacheBytes": memory.usage_with_page_cache_bytes}
            return {"totalBytes": memory.total_bytes, **usage, **with_cache}
        case "numa-meminfo":
            kib = sysfs.numa_meminfo_kib(text)
            total = kib.get("MemTotal", 0) * procfs.KIB
            return {"totalBytes": total, "usageBytes": sysfs.numa_usage_bytes(text)}
        case "numa-nodes":
            nodes = sysfs.numa_nodes(case["dirs"], case.get("skip", []))
            return {"totalKiB": {str(node): kib.get("MemTotal", 0) for node, kib in nodes.items()}}
        case "id-list":
            return {"ids": sorted(sysfs.id_list(text))}
        case "pid-stat":
            process = procfs.process_stat(text)
            return {name: getattr(process, name) for name in process.__struct_fields__}
        case "pgids":
            stats = {int(pid): stat for pid, stat in case["stats"].items()}
            return {"pgids": procfs.process_groups(case["pids"], stats)}
        case "cpu-basic":
            info = sysfs.cpu_basic_info(
                case["cpuinfo"],
                smt_active=case.get("smtActive"),
                no_turbo=case.get("noTurbo"),
                l3_cbm_mask=case.get("l3CbmMask"),
                lscpu_y=case.get("lscpuY") or "",
            )
            return json.loads(CPU_BASIC_INFO.encode(info))
        case "hugepages":
            return {"pages": {str(kib): number for kib, number in sysfs.huge_pages(case["files"]).items()}}
    raise AssertionError(case["op"])


def parse_lscpu(case: dict[str, Any]) -> Any:
    if case["op"] == "cache-info":
        caches = lscpu.parse_cache(case["text"], accepts_no_cache=case["arm64"])
        return {"l1l2": caches.l1l2, "l3": caches.l3}
    topology = lscpu.parse_lscpu(case["text"], accepts_no_cache=case["arm64"])
    rows = [[p.cpu, p.core, p.socket, p.node, p.l1l2, p.l3, p.online] for p in topology.processors]
    return {"processors": rows, "totals": _totals(topology)}


def _totals(topology: HostCPUTopology) -> Any:
    levels = {"byCore": "core", "byNode": "node", "bySocket": "socket", "byL3": "l3"}
    groups = {
        name: {str(key): cpus for key, cpus in topology.by(level).items()} for name, level in levels.items()
    }
    return {"cpus": len(topology.cpus), **groups}


def storage_info(case: dict[str, Any]) -> Any:
    found = storage_tools.parse(case["lsblk"], case["vgs"], case["lvs"], case["findmnt"])
    return {
        "disks": found.numbers,
        "partitions": found.partitions,
        "volumeGroups": found.volume_groups,
        "logicalVolumes": found.logical_volumes,
        "mounts": found.mounts,
    }


ADAPTERS = {
    "cgroup-paths": cgroup_paths,
    "cgroup-v2-convert": cgroup_v2_convert,
    "parse-cgroup": parse_cgroup,
    "parse-procfs": parse_procfs,
    "parse-lscpu": parse_lscpu,
    "storage-info": storage_info,
}
