"""Serve over HTTP: health, metrics, the configuration, debug switches, the view of nodes and what plugins answer.
Source: behaviour/scheduler A6.

Metrics of the scheduler's state are read from it when somebody asks, at no cost in between.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
import yaml
from aiohttp import web

from koordinator import endpoints, health, profiling
from koordinator.api import pod_resources, quantity, resources, scalars
from koordinator.api.config_text import without_nulls
from koordinator.api.core import Pod
from koordinator.api.pod_labels import is_terminated
from koordinator.api.quantity import QuantityError
from koordinator.endpoints import Check, json_response
from koordinator.health import SliMetrics
from koordinator.prometheus import Gauge, GaugeReading
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import API_VERSION, SchedulerConfig
from koordinator.scheduler.engine.profile import Profile, in_file, read_plugins
from koordinator.scheduler.plugin.capabilities import ApiRequest, Endpoint
from koordinator.scheduler.plugin.framework import PluginType
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.serve import explain_service

log = logging.getLogger(__name__)

NOT_LEADER = {"message": "the instance is not leader"}
API_PREFIX = "/apis/v1"
PODS_PER_TURN = 200
"""Pods that `/metrics/resources` tells before others have a turn: about 5 ms."""


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`is_leader` opens `/apis/v1`, `leader` is who else leads, as far as is known; `lease` says why the election is
    unwell, empty when it is well; `set_verbosity` takes what was put to `/debug/flags/v`; `profiling` serves
    `/debug/pprof`; `slis` are shared by all ports."""

    is_leader: Callable[[], bool] = lambda: True
    leader: Callable[[], str] = str
    lease: Check = health.well
    set_verbosity: Callable[[int], None] | None = None
    profiling: bool = False
    slis: SliMetrics = msgspec.field(default_factory=SliMetrics)


def application(
    scheduler: Scheduler, options: HttpOptions, middlewares: tuple[Any, ...] = ()
) -> web.Application:
    """Return the HTTP application; `middlewares` guard a secure port."""
    add_gauges(scheduler)
    app = web.Application(middlewares=middlewares)
    _add_health(app, scheduler, options)
    _add_metrics(app, scheduler, options)
    _add_flags(app, scheduler, options)
    _add_api(app, scheduler, options)
    if options.profiling:
        profiling.add_routes(app)
    return app


def _add_health(app: web.Application, scheduler: Scheduler, options: HttpOptions) -> None:
    alive: dict[str, Check] = {"ping": health.well, "leaderElection": options.lease}
    informers = endpoints.filled(scheduler.synced)
    ready = {**alive, "informer-sync": informers, "sched-handler-sync": informers}
    endpoints.add_checks(app, "healthz", alive, seen=options.slis.seen)
    endpoints.add_checks(app, "livez", alive, seen=options.slis.seen)
    endpoints.add_checks(app, "readyz", ready, failure=503, seen=options.slis.seen)
    app.router.add_get("/metrics/slis", endpoints.metrics(options.slis))


def _add_metrics(app: web.Application, scheduler: Scheduler, options: HttpOptions) -> None:
    async def resource_metrics(_: web.Request) -> web.Response:
        if not options.is_leader():
            return endpoints.metrics_response("")  # as upstream: each pod is told by one scheduler
        found = ResourceMetrics()
        for number, pod in enumerate(list(scheduler.caches.pods.objects.values()), 1):
            try:
                found.add(pod)
            except QuantityError as error:
                log.debug("pod skipped in resource metrics: %s", error, extra={"pod": pod.key})
            if number % PODS_PER_TURN == 0:
                await asyncio.sleep(0)  # pods are scheduled meanwhile
        return endpoints.metrics_response(found.text())

    async def configz(_: web.Request) -> web.Response:
        body = effective(scheduler.config, scheduler.engine.plugin_types)
        return json_response({"kubescheduler.config.k8s.io": body})

    app.router.add_get("/metrics", endpoints.metrics(scheduler.metrics))
    app.router.add_get("/metrics/resources", resource_metrics)
    app.router.add_get("/configz", configz)


def _add_flags(app: web.Application, scheduler: Scheduler, options: HttpOptions) -> None:
    debug = scheduler.observer.debug

    def switch(field: str) -> Callable[[str], None]:
        return lambda text: setattr(debug, field, scalars.parse_bool(text))

    flags: dict[str, tuple[str, Callable[[str], None]]] = {
        "s": ("debugTopNScores", lambda text: setattr(debug, "top_scores", max(0, int(text)))),
        "f": ("debugFilterFailure", switch("filters")),
        "d": ("dumpDiagnosis", switch("diagnosis")),
        "db": ("dumpDiagnosisBlocking", switch("diagnosis_blocking")),
    }
    set_verbosity = options.set_verbosity
    if set_verbosity is not None:
        flags["v"] = ("klog.logging.verbosity", lambda text: set_verbosity(int(text)))
    for name, (upstream, change) in flags.items():
        endpoints.add_flag(app, name, upstream, change)


def _add_api(app: web.Application, scheduler: Scheduler, options: HttpOptions) -> None:
    routes: list[str] = []

    def add(method: str, path: str, answer: Callable[[web.Request], Any]) -> None:
        async def handle(request: web.Request) -> web.Response:
            if not options.is_leader():
                leader = options.leader()
                return json_response(NOT_LEADER | ({"leader": leader} if leader else {}), 503)
            found: web.Response = await answer(request)
            return found

        routes.append(f"{method} {API_PREFIX}{path}")
        app.router.add_route(method, API_PREFIX + path, handle)

    async def services(_: web.Request) -> web.Response:
        return json_response(sorted(routes))

    async def node(request: web.Request) -> web.Response:
        name = request.match_info["node"]
        found = describe_node(scheduler, name)
        if found is None:
            return json_response({"message": f"cannot find node {name}"}, 404)
        return json_response(found)

    add("GET", "/__services__", services)
    add("GET", "/nodes/{node}", node)
    add("GET", explain_service.GANG_PATH, partial(explain_service.gang_answer, scheduler))
    add("GET", explain_service.RESERVATION_PATH, partial(explain_service.reservation_answer, scheduler))
    add("GET", explain_service.PATH, partial(explain_service.pod_answer, scheduler))
    add("POST", explain_service.MOVES_PATH, partial(explain_service.moves_answer, scheduler))
    for plugin, offered in scheduler.engine.endpoints().items():
        for endpoint in offered:
            path = f"/plugins/{plugin}/{endpoint.path.lstrip('/')}"
            add(endpoint.method, path, partial(_plugin_answer, endpoint))


async def _plugin_answer(endpoint: Endpoint, request: web.Request) -> web.Response:
    asked = ApiRequest(dict(request.match_info), dict(request.query), await request.read())
    found = endpoint.answer(asked)
    return json_response(found.body, found.status)


def describe_node(scheduler: Scheduler, name: str) -> dict[str, Any] | None:
    """Return a node as the scheduler counts it; None when there is none of that name."""
    table = scheduler.table
    row = table.row_of(name)
    if row is None:
        return None
    allocatable, requested = table.allocatable[:, row], table.requested[:, row]
    return {
        "pods": sorted(pod.key for pod in table.pods_at(row).values()),
        "allocatable": table.registry.to_wire(allocatable),
        "requested": table.registry.to_wire(requested),
        "remaining": table.registry.to_wire(allocatable - requested),
    }


def effective(config: SchedulerConfig, registry: Mapping[str, PluginType]) -> dict[str, Any]:
    """Return a JSON object that is itself a configuration: the merged plugins of each extension point, the arguments of
    each plugin with their defaults. Raises: ConfigError."""
    profiles = config.profiles or [default_plugins.shipped_profile()]
    body: dict[str, Any] = without_nulls(msgspec.to_builtins(config))
    body["profiles"] = []
    for profile, (points, args) in zip(profiles, read_plugins(profiles, registry), strict=True):
        plugins: dict[str, Any] = {
            in_file(point): {
                "enabled": [
                    {"name": ref.name} | ({"weight": ref.weight} if point == "score" else {}) for ref in refs
                ],
                "disabled": [{"name": "*"}],
            }
            for point, refs in points.items()
        }
        plugins["multiPoint"] = {"disabled": [{"name": "*"}]}
        used = {ref.name for refs in points.values() for ref in refs} | args.keys()
        entry: dict[str, Any] = {
            "schedulerName": profile.scheduler_name,
            "plugins": plugins,
            "pluginConfig": [
                {"name": name, "args": _args(name, args.get(name), registry)} for name in sorted(used)
            ],
        }
        if profile.percentage_of_nodes_to_score is not None:
            entry["percentageOfNodesToScore"] = profile.percentage_of_nodes_to_score
        body["profiles"].append(entry)
    return body


def as_yaml(config: SchedulerConfig, registry: Mapping[str, PluginType]) -> str:
    """Return the same as a file. Raises: ConfigError."""
    text: str = yaml.safe_dump(effective(config, registry), sort_keys=False, allow_unicode=True)
    return text


def _args(name: str, given: Any, registry: Mapping[str, PluginType]) -> dict[str, Any]:
    body = without_nulls(msgspec.to_builtins(registry[name].args() if given is None else given))
    return {"apiVersion": API_VERSION, "kind": f"{name}Args", **body}


_RESOURCE_LABELS = ("namespace", "pod", "node", "scheduler", "priority", "resource", "unit")


def add_gauges(scheduler: Scheduler) -> None:
    """Register them with the scheduler's metrics."""
    queue, table, metrics = scheduler.queue, scheduler.table, scheduler.metrics
    if "scheduler_pending_pods" in metrics.registry:
        return  # a secure and an insecure port tell the same

    def cache_size() -> Mapping[str, float]:
        places = len(scheduler.caches.pods)
        return {"nodes": table.node_count, "pods": places, "assumed_pods": table.assumed_count}

    metrics.read(
        "scheduler_pending_pods",
        "[STABLE] Number of pending pods, by the queue type. 'active' means number of pods in activeQ; "
        "'backoff' means number of pods in backoffQ; 'unschedulable' means number of pods in "
        "unschedulablePods that the scheduler attempted to schedule and failed; 'gated' is the number of "
        "unschedulable pods that the scheduler never attempted to schedule because they are gated.",
        "queue",
        queue.counts,
    )
    metrics.read(
        "scheduler_cache_size",
        "[ALPHA] Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
        "type",
        cache_size,
    )
    metrics.read(
        "scheduler_inflight_events",
        "[ALPHA] Number of events currently tracked in the scheduling queue.",
        "event",
        queue.events_in_flight,
    )
    metrics.read(
        "scheduler_goroutines",
        "[ALPHA] Number of running goroutines (here: asyncio tasks) split by the work they do such as binding.",
        "operation",
        lambda: {"binding": scheduler.bindings_in_progress},
    )
    metrics.registry.add(
        GaugeReading(
            "scheduler_plugin_evaluation_total",
            "[ALPHA] Number of attempts to schedule pods by each plugin and the extension point (available "
            "only in PreFilter, Filter, PreScore, and Score).",
            ("plugin", "extension_point", "profile"),
            lambda: evaluations(scheduler.profiles.values()),
            kind="counter",
        ),
        GaugeReading(
            "scheduler_queue_incoming_pods_total",
            "[STABLE] Number of pods added to scheduling queues by event and queue type.",
            ("queue", "event"),
            lambda: queue.incoming,
            kind="counter",
        ),
        GaugeReading(
            "scheduler_unschedulable_pods",
            "[ALPHA] The number of unschedulable pods broken down by plugin name.",
            ("plugin", "profile"),
            lambda: queue.rejections,
        ),
    )


def evaluations(profiles: Iterable[Profile]) -> dict[tuple[str, str, str], int]:
    """(plugin, extension point, profile) → cycles in which the plugin took part."""
    found: Counter[tuple[str, str, str]] = Counter()
    for profile in profiles:
        for each in profile.participations.values():
            for plugin, point in each.pairs:
                found[plugin, point, profile.name] += each.cycle_count
    return dict(found)


class ResourceMetrics:
    """`/metrics/resources`: what each pod that has not ended requests and is limited to.

    Pods are added one by one, so that a large cluster can be told in pieces.
    """

    def __init__(self) -> None:
        self._requests = Gauge(
            "kube_pod_resource_request",
            "[STABLE] Resources requested by workloads on the cluster, broken down by pod. This shows the "
            "resource usage the scheduler and kubelet expect per pod for resources along with the unit for "
            "the resource if any.",
            _RESOURCE_LABELS,
        )
        self._limits = Gauge(
            "kube_pod_resource_limit",
            "[STABLE] Resources limit for workloads on the cluster, broken down by pod. This shows the "
            "resource usage the scheduler and kubelet expect per pod for resources along with the unit for "
            "the resource if any.",
            _RESOURCE_LABELS,
        )
        self._lines: dict[str, list[str]] = {gauge.name: [] for gauge in (self._requests, self._limits)}

    def add(self, pod: Pod) -> None:
        """Raises: QuantityError when an amount is none."""
        if is_terminated(pod):
            return
        spec = pod.spec
        priority = "" if spec.priority is None else str(spec.priority)
        of_pod = (pod.metadata.namespace, pod.metadata.name, spec.node_name, spec.scheduler_name, priority)
        requests, limits = pod_resources.wire_requests(pod), pod_resources.wire_limits(pod)
        for gauge, amounts in ((self._requests, requests), (self._limits, limits)):
            for name, raw in amounts.items():
                if amount := quantity.of(raw):
                    line = gauge.line(amount.nanos / quantity.NANO, *of_pod, name, _unit(name))
                    self._lines[gauge.name].append(line)

    def families(self) -> tuple[Gauge, Gauge]:
        """Requests and limits, without their samples."""
        return self._requests, self._limits

    def text(self) -> str:
        """In the Prometheus text format."""
        return "".join("\n".join([*gauge.head(), *self._lines[gauge.name], ""]) for gauge in self.families())


def _unit(name: str) -> str:
    """Return the unit in upstream's words: extended resources have none."""
    if name == resources.CPU:
        return "cores"
    if name in ("memory", "storage", "ephemeral-storage") or name.startswith(resources.HUGEPAGES_PREFIX):
        return "bytes"
    return "integer" if name.startswith("attachable-volumes-") else ""
