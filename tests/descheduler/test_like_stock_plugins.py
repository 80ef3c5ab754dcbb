"""On random clusters our stock plugins and DefaultEvictor do what those of the Kubernetes descheduler do, in the
release that Koordinator has."""

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from koordinator.api.affinity import Taint
from koordinator.api.core import Namespace, Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.groups import PodDisruptionBudget, PriorityClass
from koordinator.api.meta import Object
from koordinator.api.storage import PersistentVolumeClaim
from koordinator.cluster.protocol import Page
from koordinator.descheduler import facts, node_fit, pod_filter
from koordinator.descheduler.caches import Caches
from koordinator.descheduler.plugin import (
    CycleLimiter,
    CycleLimits,
    DeschedulePlugin,
    EvictAction,
    LiveHandle,
)
from koordinator.descheduler.plugins.built_in import BUILT_IN
from koordinator.descheduler.plugins.stock.default_evictor import DefaultEvictor
from tests import go_programs
from tests.descheduler.stock_plugins.arguments import ARGUMENTS, spoiled
from tests.descheduler.stock_plugins.cases import UNORDERED, Case, drawn
from tests.descheduler.stock_plugins.draw import NOW_S, Draw
from tests.go_programs import Ask, Missing
from tests.searches import examples
from tests.vectors.adapters.descheduler_plugins import drive

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]

CASES = 2_000
RUNS, RUNS_MAX = 2, 400
"""How often the real plugin runs a case again, at first and while ours is no outcome: where nodes or domains are alike
it goes by the order of a map."""
STRICTER = ("args.nodeAffinityType", "args.namespaceLabelSelector")
"""Arguments that we look at even if they have no effect."""
CLASSES = [{"metadata": {"name": name}, "value": 7} for name in ("high", "none", "x", "5", "1h")]
"""Where a class is missing, the real plugin cannot be made."""
PROGRAM = Path(__file__).with_name("stock_plugins")
VIEWS: dict[type[Object], str] = {
    Node: "nodes",
    Pod: "pods",
    Namespace: "namespaces",
    PodDisruptionBudget: "budgets",
    PersistentVolumeClaim: "claims",
    PriorityClass: "classes",
}


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    try:
        path = go_programs.provide(PROGRAM, "descheduler", "the plugins of the Kubernetes descheduler")
    except Missing as missing:
        pytest.skip(str(missing))
    with go_programs.answering(path) as found:
        yield found


@pytest.mark.parametrize("plugin", ARGUMENTS)
def test_a_plugin_evicts_what_the_real_one_does(plugin: str, ask: Ask) -> None:
    different, alike, busy = [], 0, 0
    for number in range(examples(CASES)):
        case = drawn(plugin, number)
        ours = asyncio.run(answer(case))
        if is_deliberate(case):
            continue
        real = ask(case | {"runs": RUNS})
        if not is_same(plugin, ours, real):
            real = ask(case | {"runs": RUNS_MAX})
        if is_same(plugin, ours, real):
            alike += 1
            busy += bool(any(real.get("outcomes") or ()) or real.get("passes"))
        else:
            different.append(f"case {number}: {case['args']}: ours {ours}, real {real}")
    assert not different, f"{len(different)} of {alike}:\n" + "\n".join(different[:5])
    assert alike > examples(CASES) / 2
    assert busy > alike / 20, "most cases evict nobody: they compare nothing"


@pytest.mark.parametrize("plugin", ARGUMENTS)
def test_a_plugin_refuses_the_arguments_that_the_real_one_refuses(plugin: str, ask: Ask) -> None:
    refused = 0
    for number in range(examples(CASES)):
        draw = Draw(plugin, number)
        args = spoiled(draw, ARGUMENTS[plugin](draw))
        if args.get("minPodAge") == "":
            continue  # no duration, there; no age, here
        real = "error" in ask({"plugin": plugin, "args": args, "now": NOW_S, "classes": CLASSES})
        problems = BUILT_IN[plugin].problems(args, "args")
        is_stricter = bool(problems) and all(one.field.startswith(STRICTER) for one in problems)
        assert bool(problems) == real or (is_stricter and not real), f"case {number}: {args}: {problems}"
        refused += real
    assert examples(CASES) / 10 < refused < examples(CASES)


def is_same(plugin: str, ours: dict[str, Any], real: dict[str, Any]) -> bool:
    """Whether both refuse the arguments, or ours is an outcome of the real plugin."""
    if "error" in ours or "error" in real:
        return "error" in ours and "error" in real
    if "passes" in ours:
        return (
            "passes" in real and {key: tuple(both) for key, both in real["passes"].items()} == ours["passes"]
        )
    outcomes = real.get("outcomes") or []
    if plugin in UNORDERED:
        return sorted(ours["evicted"]) in [sorted(one) for one in outcomes]
    return ours["evicted"] in outcomes


# Ours


class Given:
    """A cluster that has what a case gives, and never changes."""

    def __init__(self, case: Case) -> None:
        self.clock = SimpleNamespace(now=lambda: NOW_S + 0.5)
        self._case = case

    async def list(
        self, view: type[Any], namespace: str = "", *, transform: Callable[[Any], Any] | None = None, **_: Any
    ) -> Page[Any]:
        found = [from_builtins(one, view) for one in self._case.get(VIEWS.get(view, ""), ())]
        return Page([one if transform is None else transform(one) for one in found], "1")

    async def watch(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()
        yield []


async def answer(case: Case) -> dict[str, Any]:
    """What our plugin does in the case, asked as the process asks it."""
    caches = Caches(Given(case), FeatureGates.of(Component.DESCHEDULER), random.Random(0))
    handle = msgspec.structs.replace(HANDLE, cluster=Given(case), caches=caches)
    gone = {*case["spared"]}
    plugin = BUILT_IN[case["plugin"]]
    for own, raw in ((plugin, case["args"]), (DefaultEvictor, case.get("evictor", {}))):
        if problems := own.problems(raw, "args"):
            return {"error": str(problems)}
    evictor = DefaultEvictor(DefaultEvictor.read(case["evictor"]), handle) if "evictor" in case else None

    def may_evict(pod: Pod) -> bool:
        return pod.key not in gone and (evictor is None or not evictor.refusal(pod))

    made = plugin(plugin.read(case["args"]), msgspec.structs.replace(handle, may_evict=may_evict))
    async with asyncio.TaskGroup() as group:
        caches.start(group)
        await caches.synced()
        await caches.factory.stop()
    seen = caches.observe(NOW_S + 0.5, lambda _: True)
    if isinstance(made, DefaultEvictor):
        await made.prepare()
        pods = caches.pods.objects.values()
        return {"passes": {pod.key: (not made.refusal(pod), not made.late_refusal(pod)) for pod in pods}}
    if evictor is not None:
        await evictor.prepare()
    evicted: list[str] = []

    limits = case.get("limits", {})
    limiter = CycleLimiter(
        CycleLimits(
            per_node=limits.get("node"), per_namespace=limits.get("namespace"), total=limits.get("total")
        )
    )

    def accept(wanted: EvictAction) -> bool:
        key, where = wanted.pod.key, (wanted.pod.spec.node_name, wanted.pod.metadata.namespace)
        if key in case["failing"] or limiter.refusal(*where):
            return False
        limiter.count(*where)
        assert key not in evicted, "evicted twice"
        evicted.append(key)
        gone.add(key)
        return True

    drive(made.deschedule(seen) if isinstance(made, DeschedulePlugin) else made.balance(seen), accept)
    return {"evicted": evicted}


HANDLE = LiveHandle(
    may_evict=lambda _: False,
    may_evict_now=lambda _: False,
    refusal=lambda _: "",
    **dict.fromkeys(
        ("cluster", "caches", "events", "metrics", "migration", "limits", "prove", "credentials")
    ),
)


# What differs on purpose (docs/deliberate-differences.md)


def is_deliberate(case: Case) -> bool:
    """Whether the case can show a difference that is meant: no other is left out."""
    names_no_class = _has_unknown_class(case["args"], case) or _has_unknown_class(
        case.get("evictor", {}), case
    )
    if names_no_class or "sometimes" in case["args"].get("nodeAffinityType", ()):
        return True
    if "Utilization" in case["plugin"]:
        return any(
            _bears_more_taints_than_it_tolerates(pod, node) for pod in case["pods"] for node in case["nodes"]
        )
    return "Spread" in case["plugin"] and _spreads_pods_that_stay(case)


def _has_unknown_class(evictor: dict[str, Any], case: Case) -> bool:
    """A PriorityClass that is missing keeps all pods, instead of ending the process."""
    name = (evictor.get("priorityThreshold") or {}).get("name", "")
    return name not in ("", *(one["metadata"]["name"] for one in case.get("classes", ())))


def _bears_more_taints_than_it_tolerates(pod: dict[str, Any], node: dict[str, Any]) -> bool:
    """LowNodeUtilization and HighNodeUtilization let a pod go to such a node; there, they do not."""
    taints, one = node["spec"].get("taints", ()), from_builtins(pod, Pod)
    few = len(one.spec.tolerations) < len(taints)
    return few and node_fit.tolerates_all(one, [from_builtins(taint, Taint) for taint in taints])


def _spreads_pods_that_stay(case: Case) -> bool:
    """RemovePodsViolatingTopologySpreadConstraint counts pods that may not be evicted; there, it does not."""
    plugin = BUILT_IN[case["plugin"]]
    if plugin.problems(case["args"], "args"):
        return False
    matches = pod_filter.matches_labels(plugin.read(case["args"]).label_selector)
    pods = [one for one in (from_builtins(one, Pod) for one in case["pods"]) if facts.is_active(one)]
    spread = {one.metadata.namespace for one in pods if one.spec.topology_spread_constraints}
    return "evictor" in case or any(
        one.metadata.namespace in spread and (one.key in case["spared"] or not matches(one)) for one in pods
    )
