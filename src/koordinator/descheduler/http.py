"""Serve over HTTP: health, metrics, the configuration, and what the last cycles did and why.
Source: behaviour/descheduler 1.2."""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from koordinator import clock, endpoints, health, profiling
from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.cluster.plugin_registry import PluginRegistry
from koordinator.descheduler.caches import BY_POD
from koordinator.descheduler.configuration import POINTS, DeschedulerConfig
from koordinator.descheduler.cycle import EvictionRecord
from koordinator.descheduler.descheduler import Descheduler
from koordinator.descheduler.migration import jobs
from koordinator.descheduler.plugin import Plugin
from koordinator.descheduler.plugins.low_node_load import usage
from koordinator.descheduler.plugins.low_node_load.cycle import PoolReport
from koordinator.descheduler.plugins.low_node_load.usage import Classified
from koordinator.endpoints import Check, json_response


def effective(config: DeschedulerConfig, registry: PluginRegistry[Plugin]) -> dict[str, Any]:
    """Return the configuration with all defaults, and with the plugins that each profile runs. Read again, it means the
    same: default plugins are switched off, where they are to run they are named."""
    body: dict[str, Any] = _wire(config)
    for wire, profile in zip(body["profiles"], config.profiles, strict=True):
        enabled: dict[str, list[str]] = msgspec.to_builtins(profile.enabled)
        wire["plugins"] = {
            point: {
                "enabled": [{"name": name} for name in enabled.get(point, ())],
                "disabled": [{"name": "*"}],
            }
            for point in POINTS
        }
        names = dict.fromkeys(name for point in POINTS for name in enabled.get(point, ()))
        wire["pluginConfig"] = [
            {"name": name, "args": _wire(registry[name].read(profile.raw_args(name)))} for name in names
        ]
    return body


def _wire(found: Any) -> Any:
    """Return all members that are set, defaults included."""
    if isinstance(found, msgspec.Struct):
        members = {one.encode_name: getattr(found, one.name) for one in msgspec.structs.fields(found)}
        return {name: _wire(member) for name, member in members.items() if member is not None}
    if isinstance(found, list):
        return [_wire(one) for one in found]
    if isinstance(found, dict):
        return {name: _wire(member) for name, member in found.items()}
    return found


def of_pod(descheduler: Descheduler, pod: Pod) -> dict[str, Any]:
    """Return what speaks against evicting the pod now, by profile, its jobs, and what became of it in recent cycles."""
    return {
        "pod": pod.key,
        "node": pod.spec.node_name,
        "profiles": {
            one.name: {"mayBeEvicted": not (why := one.refusal(pod)), "why": why}
            for one in descheduler.profiles
        },
        "jobs": [of_job(descheduler, job) for job in descheduler.caches.jobs.by_index(BY_POD, pod.key)],
        "recent": [
            _eviction_body(record, at_s) for record, at_s in _records(descheduler) if record.pod == pod.key
        ],
    }


def of_job(descheduler: Descheduler, job: PodMigrationJob) -> dict[str, Any]:
    """Return how far a job is, and what it waits for."""
    status, meta = job.status, job.metadata
    refused = descheduler.migration.refused.get(meta.name, "")
    waits = refused and f"arbitration refuses it for now: {refused}"
    if not waits and jobs.is_open(job) and not jobs.has_passed(job) and status.phase != jobs.RUNNING:
        waits = "it waits for the next round of arbitration"
    ref = job.spec.pod_ref
    pod = descheduler.caches.pod(ref.namespace, ref.name)
    has_begun = any(one.type == jobs.EVICTION for one in status.conditions)
    if not waits and jobs.is_open(job) and not has_begun and pod is not None:
        blocking = descheduler.migration.limited(pod)
        waits = blocking and f"evictions of {blocking} must wait (objectLimiters)"
    return {
        "job": meta.name,
        "pod": jobs.pod_key(job),
        "phase": status.phase or jobs.PENDING,
        "status": status.status,
        "reason": status.reason,
        "message": status.message,
        "waitsFor": waits,
        "trigger": meta.annotations.get(labels.EVICT_TRIGGER, ""),
        "evictReason": meta.annotations.get(labels.EVICT_REASON, ""),
        "node": status.node_name,
    }


def of_node(descheduler: Descheduler, name: str) -> dict[str, Any]:
    """Return how LowNodeLoad saw the node in the last cycle, how old its data are, and what left it."""
    found = descheduler.caches.nodes.get(name)
    pools = []
    for (profile, plugin), results in descheduler.runner.results.items():
        for report in results if isinstance(results, list) else ():
            if isinstance(report, PoolReport) and report.found is not None:
                pools.append({"profile": profile, "plugin": plugin, **_of_pool(report, report.found, name)})
    return {
        "node": name,
        "known": found is not None,
        "dataAgeSeconds": _data_age_s(descheduler, name),
        "pools": pools,
        "recent": [
            _eviction_body(record, at_s) for record, at_s in _records(descheduler) if record.node == name
        ],
    }


def _of_pool(report: PoolReport, found: Classified, name: str) -> dict[str, Any]:
    row = next((row for row, load in enumerate(found.loads) if load.name == name), None)
    body: dict[str, Any] = {"pool": report.pool, "outcome": report.outcome.value}
    if row is None:
        return {
            **body,
            "class": "left out",
            "why": "it has no fresh NodeMetric, so it is neither source nor target",
        }
    if name in report.stuck:
        body["why"] = f"a plan does not cool it: {report.stuck[name]}"
    names = found.filled.names
    shown = {
        resource: {
            "used": int(found.usage[row, column]),
            "low": int(found.limits.low[row, column]),
            "high": int(found.limits.high[row, column]),
        }
        for column, resource in enumerate(names)
    }
    return {**body, "class": usage.NodeClass(int(found.classes[row])).name.lower(), "usage": shown}


def _data_age_s(descheduler: Descheduler, node: str) -> float | None:
    """Return the age of the node's last report; None without one."""
    metrics = descheduler.caches.metrics
    metric = metrics.get(node) if metrics is not None else None
    if metric is None or metric.update_time is None:
        return None
    return round(descheduler.clock.now() - clock.parse_rfc3339(metric.update_time), 1)


def _records(descheduler: Descheduler) -> list[tuple[EvictionRecord, float]]:
    return [(one, report.started_s) for report in descheduler.reports for one in report.evictions]


def _eviction_body(record: EvictionRecord, at_s: float) -> dict[str, Any]:
    return {"at": clock.rfc3339(at_s), **msgspec.to_builtins(record)}


# Over HTTP


def add_routes(app: web.Application, descheduler: Descheduler) -> None:
    """Serve the configuration and the explanations."""

    async def cycles(_: web.Request) -> web.Response:
        return json_response(
            [
                {**msgspec.to_builtins(one), "startedAt": clock.rfc3339(one.started_s)}
                for one in descheduler.reports
            ]
        )

    async def pod(request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        found = descheduler.caches.pod(namespace, name)
        if found is None:
            return _missing(f"pod {namespace}/{name}")
        for profile in descheduler.profiles:
            await profile.prepare()
        return json_response(of_pod(descheduler, found))

    async def job(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        found = descheduler.caches.jobs.get(name)
        return _missing(f"job {name}") if found is None else json_response(of_job(descheduler, found))

    async def node(request: web.Request) -> web.Response:
        return json_response(of_node(descheduler, request.match_info["name"]))

    async def configuration(_: web.Request) -> web.Response:
        return json_response({"componentconfig": effective(descheduler.config, descheduler.registry)})

    app.router.add_get("/configz", configuration)
    app.router.add_get("/apis/v1/cycles", cycles)
    app.router.add_get("/apis/v1/explain/pods/{namespace}/{name}", pod)
    app.router.add_get("/apis/v1/explain/jobs/{name}", job)
    app.router.add_get("/apis/v1/explain/nodes/{name}", node)


def _missing(what: str) -> web.Response:
    return json_response({"message": f"there is no {what}"}, 404)


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`lease` says why the election is unwell; `set_verbosity` takes what was put to `/debug/flags/v`."""

    lease: Check = health.well
    set_verbosity: Callable[[int], None] | None = None


def application(
    descheduler: Descheduler, options: HttpOptions, middlewares: tuple[Any, ...] = ()
) -> web.Application:
    """Return the HTTP application; `middlewares` guard a secure port."""
    app = web.Application(middlewares=middlewares)

    endpoints.add_component(app, descheduler.metrics.registry, descheduler.synced, options.lease)
    add_routes(app, descheduler)
    if descheduler.config.enable_profiling:
        profiling.add_routes(app)
        if (change := options.set_verbosity) is not None:
            endpoints.add_flag(app, "v", "klog.logging.verbosity", lambda text: change(int(text)))
    return app
