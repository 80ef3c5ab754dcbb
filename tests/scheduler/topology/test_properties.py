"""Whatever happens to a cluster, the two plugins answer what the specification says pod by pod.

A story is a list of random events. After each, evaluations that were kept since the beginning (so that all
counts were brought up to date step by step) and fresh ones are compared with `reference`.
"""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.core import Namespace, Node, Pod, Service
from koordinator.api.decode import from_builtins
from koordinator.api.meta import Object
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.table.columns import NodeAspect
from koordinator.scheduler.table.pod_info import Nominations, PodInfo
from koordinator.scheduler.table.trial import trial_of
from tests.scheduler.topology import reference
from tests.scheduler.topology.drawn_objects import NAMESPACES, OWNER_VIEWS, RACK, ZONE, Writer
from tests.scheduler.topology.reference import HOSTNAME, Cluster, Json

LIST_DEFAULTS = [
    {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"},
    {"maxSkew": 2, "topologyKey": RACK, "whenUnsatisfiable": "ScheduleAnyway"},
]
SETTINGS: list[Json] = [
    {"spread": {}, "affinity": {}},
    {
        "spread": {"defaultingType": "List", "defaultConstraints": LIST_DEFAULTS},
        "affinity": {"hardPodAffinityWeight": 40, "ignorePreferredTermsOfExistingPods": True},
    },
    {
        "spread": {"defaultingType": "List", "defaultConstraints": []},
        "affinity": {"hardPodAffinityWeight": 0},
    },
]


class Story:
    """A cluster twice: as objects (`cluster`), and as an engine sees it."""

    def __init__(self, rng: random.Random, chosen: Json) -> None:
        self.rng = rng
        self.writer = Writer(rng)
        self.chosen = chosen
        self.cluster = Cluster()
        self.seen_events: list[QueueingEvent] = []
        """What the last event tells the queue."""
        self.engine = Engine(
            _config(chosen),
            FixedClock(0.0),
            classes_max=0,
            happened=self.seen_events.append,
            plugins=installed_plugins(),
        )
        [self.profile] = self.engine.profiles.values()
        self.table = self.engine.table
        self.spread = next(p for p in self.profile.plugins if p.name == "PodTopologySpread")
        self.affinity = next(p for p in self.profile.plugins if p.name == "InterPodAffinity")
        self._numbers = iter(range(1_000_000))
        for name in NAMESPACES:
            self.set_namespace(name)
        for number in range(4):
            self.set_node(f"node-{number}")
        self.probes = [self.writer.pod(f"probe-{number}") for number in range(5)]
        self.kept: dict[Any, Evaluation] = {}

    def info(self, pod: Json) -> PodInfo:
        return PodInfo.of(from_builtins(pod, Pod), self.table.registry)

    # Events

    def step(self) -> None:
        events = [
            (20, self.assign),
            (10, self.unassign),
            (3, self.change_pod),
            (5, lambda: self.set_node(f"node-{self.rng.randrange(7)}")),
            (0.5, self.remove_node),
            (1, lambda: self.set_namespace(self.rng.choice(NAMESPACES))),
            (1, self.set_owner),
            (1, self.set_service),
        ]
        self.seen_events.clear()
        [event] = self.rng.choices([each for _, each in events], [weight for weight, _ in events])
        event()

    def assign(self) -> None:
        pod = self.writer.pod(f"pod-{next(self._numbers)}")
        # A pod can be heard of before its node.
        name = self.rng.choice([*self.cluster.nodes, "node-6"])
        self.cluster.pods[pod["metadata"]["uid"]] = (pod, name)
        info = self.info(pod)
        row = self.table.assign(info, name, assumed=self.writer.some(0.5))
        self.seen_events.append(QueueingEvent(ClusterEvent.ASSIGNED_POD_ADDED, row, None, info))

    def unassign(self) -> None:
        if self.cluster.pods:
            uid = self.rng.choice(list(self.cluster.pods))
            pod, _ = self.cluster.pods.pop(uid)
            row = self.table.unassign(uid)
            self.seen_events.append(
                QueueingEvent(ClusterEvent.ASSIGNED_POD_DELETED, row, self.info(pod), None)
            )

    def change_pod(self) -> None:
        """Other labels, or it is being deleted: also how an assumed pod is confirmed."""
        if not self.cluster.pods:
            return
        uid = self.rng.choice(list(self.cluster.pods))
        old, name = self.cluster.pods[uid]
        meta = {**old["metadata"], "labels": self.writer.labels()}
        if self.writer.some(0.3):
            meta["deletionTimestamp"] = "2024-01-01T00:00:00Z"
        pod = {**old, "metadata": meta}
        self.cluster.pods[uid] = (pod, name)
        row = self.table.assign(self.info(pod), name)
        change = (self.info(old), self.info(pod))
        self.seen_events.append(QueueingEvent(ClusterEvent.ASSIGNED_POD_UPDATED, row, *change))

    def set_node(self, name: str) -> None:
        body = self.writer.node(name)
        old = self.cluster.nodes.get(name)
        if old is not None and self.writer.some(0.5):
            part = self.rng.choice(("metadata", "spec"))
            body = {**old, part: body[part]}
        self.cluster.nodes[name] = body
        node = from_builtins(body, Node)
        aspect = self.table.set_node(node)
        row = self.table.row_of(name)
        if old is None:
            self.seen_events.append(QueueingEvent(ClusterEvent.NODE_ADDED, row, None, node))
            return
        before = from_builtins(old, Node)
        for flag, kind in (
            (NodeAspect.LABELS, ClusterEvent.NODE_LABELS),
            (NodeAspect.TAINTS, ClusterEvent.NODE_TAINTS),
        ):
            if flag in aspect:
                self.seen_events.append(QueueingEvent(kind, row, before, node))

    def remove_node(self) -> None:
        if len(self.cluster.nodes) > 1:
            name = self.rng.choice(list(self.cluster.nodes))
            node = from_builtins(self.cluster.nodes.pop(name), Node)
            self.table.remove_node(name)
            self.seen_events.append(QueueingEvent(ClusterEvent.NODE_DELETED, None, node, None))

    def set_namespace(self, name: str) -> None:
        labels = {"team": self.rng.choice("rs")} if self.writer.some(0.8) else {}
        self.cluster.namespaces[name] = labels
        self.deliver(from_builtins({"metadata": {"name": name, "labels": labels}}, Namespace))

    def set_owner(self) -> None:
        """No event of its own: pods refused by default constraints then wait for the next one."""
        kind, namespace = self.rng.choice(list(OWNER_VIEWS)), self.rng.choice(NAMESPACES)
        key = (kind, namespace, "own")
        labels = {"app": self.rng.choice("ab")}
        selector: Json = labels if kind == "ReplicationController" else {"matchLabels": labels}
        body = {"metadata": {"name": "own", "namespace": namespace}, "spec": {"selector": selector}}
        view = from_builtins(body, OWNER_VIEWS[kind])
        if self.cluster.owners.pop(key, None) is not None and self.writer.some(0.4):
            self.deliver(view, gone=True)
            return
        self.cluster.owners[key] = {"matchLabels": labels}
        self.deliver(view)

    def set_service(self) -> None:
        namespace = self.rng.choice(NAMESPACES)
        meta = {"name": "svc", "namespace": namespace}
        old = self.cluster.services.pop((namespace, "svc"), None)
        if old is not None:
            self.deliver(from_builtins({"metadata": meta, "spec": {"selector": old}}, Service), gone=True)
        if old is None or self.writer.some(0.5):
            selector = self.rng.choice(({"tier": "x"}, {"version": "1", "tier": "y"}, {}))
            self.cluster.services[(namespace, "svc")] = selector
            self.deliver(from_builtins({"metadata": meta, "spec": {"selector": selector}}, Service))

    def deliver(self, obj: Object, *, gone: bool = False) -> None:
        for handle in self.engine.handles:
            for watch in handle.watches:
                if watch.view is type(obj):
                    (watch.on_delete if gone else watch.on_add)(obj)

    # Hints

    def refused(self) -> list[tuple[Json, frozenset[str]]]:
        """Probes that no node takes, and the plugins that refused them."""
        found = []
        for pod in self.probes:
            evaluation = Evaluation(self.profile, self.table, self.info(pod))
            if not evaluation.feasible.size:
                found.append((pod, evaluation.rejected_by()))
        return found

    def check_hints(self, refused: list[tuple[Json, frozenset[str]]]) -> None:
        """Who was refused before the event and is not now is woken by it."""
        plugins = [p for p in self.profile.plugins if self.seen_events]
        for pod, rejected_by in refused:
            info = self.info(pod)
            if not Evaluation(self.profile, self.table, info).feasible.size:
                continue
            assert not self.seen_events or any(
                event.kind in plugin.wakes_on and plugin.wakes(event, info)
                for plugin in plugins
                if plugin.name in rejected_by
                for event in self.seen_events
            ), (pod, rejected_by, self.seen_events)

    # Answers

    def reasons(self, pod: Json) -> dict[str, str]:
        """Node → the first refusal, "" when there is none."""
        by_spread = reference.spread_filter(self.cluster, pod, self.defaults)
        by_affinity = reference.affinity_filter(self.cluster, pod)
        return {
            name: "node(s) were unschedulable"
            if node["spec"]["unschedulable"]
            else by_spread[name] or by_affinity[name]
            for name, node in self.cluster.nodes.items()
        }

    @property
    def defaults(self) -> list[Json]:
        args = self.chosen["spread"]
        return args["defaultConstraints"] if args else reference.SYSTEM

    def scores(self, pod: Json, feasible: list[str]) -> tuple[reference.Scores, reference.Scores]:
        args = self.chosen["affinity"]
        is_system = not self.chosen["spread"]
        return (
            reference.spread_score(self.cluster, pod, feasible, self.defaults, is_system),
            reference.affinity_score(
                self.cluster,
                pod,
                feasible,
                args.get("hardPodAffinityWeight", 1),
                args.get("ignorePreferredTermsOfExistingPods", False),
            ),
        )

    def check(self, pod: Json) -> None:
        info = self.info(pod)
        reasons = self.reasons(pod)
        feasible = sorted(name for name, reason in reasons.items() if not reason)
        by_spread, by_affinity = self.scores(pod, feasible)
        totals = {
            name: 2 * (by_spread or {}).get(name, 0) + 2 * (by_affinity or {}).get(name, 0)
            for name in feasible
        }
        key = (info.key, self.profile.live_key(info))
        kept = self.kept.get(key)
        if kept is None:
            kept = self.kept[key] = Evaluation(self.profile, self.table, info)
        kept.update(info)
        for evaluation in (kept, Evaluation(self.profile, self.table, info)):
            found = evaluation.feasible
            names = [self.table.name_of(row) for row in found.tolist()]
            assert sorted(names) == feasible
            assert dict(zip(names, evaluation.totals_of(found).tolist(), strict=True)) == totals
            assert {name: self._first_reason(evaluation, name) for name in self.cluster.nodes} == reasons
        self.check_scorer(self.spread, info, by_spread, feasible)
        self.check_scorer(self.affinity, info, by_affinity, feasible)

    def _first_reason(self, evaluation: Evaluation, name: str) -> str:
        row = self.table.row_of(name)
        assert row is not None
        return next(iter(evaluation.status_of(row).reasons), "")

    def check_scorer(
        self, plugin: Any, info: PodInfo, expected: reference.Scores, feasible: list[str]
    ) -> None:
        state = plugin.prepare(info)
        assert plugin.pre_score(state).is_skip == (expected is None)
        if expected is not None:
            rows = np.array(
                sorted(row for name in feasible if (row := self.table.row_of(name)) is not None), np.intp
            )
            found = plugin.normalize_at(state, plugin.score(state, rows), rows)
            names = [self.table.name_of(row) for row in rows.tolist()]
            assert dict(zip(names, found.tolist(), strict=True)) == expected

    def check_trial(self) -> None:
        """Preemption's question: what if some pods were not there, and another one were?"""
        real = dict(self.cluster.pods)
        views = [
            (pod, View(self.profile, self.table, Nominations(), self.info(pod))) for pod in self.probes[:2]
        ]
        for name in self.rng.sample(list(self.cluster.nodes), min(2, len(self.cluster.nodes))):
            with trial_of(self.table) as trial:
                for uid, (_, at) in real.items():
                    if at == name and self.writer.some(0.7):
                        trial.take(self.table.place_of(uid).pod)  # type: ignore[union-attr]
                        del self.cluster.pods[uid]
                        self._check_views(views, name)
                guest = self.writer.pod("guest")
                trial.add(self.info(guest), name)
                self.cluster.pods["guest"] = (guest, name)
                self._check_views(views, name)
            self.cluster.pods = dict(real)

    def _check_views(self, views: list[tuple[Json, View]], name: str) -> None:
        row = self.table.row_of(name)
        assert row is not None
        for pod, view in views:
            assert next(iter(view.check(row).reasons), "") == self.reasons(pod)[name]


def _config(chosen: Json) -> config.SchedulerConfig:
    names = ("PrioritySort", "NodeUnschedulable", "DefaultBinder")
    enabled = [{"name": name} for name in names]
    enabled += [{"name": name, "weight": 2} for name in ("PodTopologySpread", "InterPodAffinity")]
    plugins = {"multiPoint": {"enabled": enabled, "disabled": [{"name": "*"}]}}
    arguments = [
        {"name": "PodTopologySpread", "args": chosen["spread"]},
        {"name": "InterPodAffinity", "args": chosen["affinity"]},
    ]
    return config.decode({"profiles": [{"plugins": plugins, "pluginConfig": arguments}]})


def _stories(seeds: range) -> list[Any]:
    return [
        pytest.param(seed, chosen, id=f"settings-{number}-seed-{seed}")
        for number, chosen in enumerate(SETTINGS)
        for seed in seeds
    ]


def _play(rng: random.Random, chosen: Json, steps: int) -> None:
    story = Story(rng, chosen)
    for number in range(steps):
        refused = story.refused()
        story.step()
        story.check_hints(refused)
        for pod in story.probes:
            story.check(pod)
        if number % 8 == 7:
            story.check_trial()


@pytest.mark.parametrize(("seed", "chosen"), _stories(range(5)))
def test_after_any_event_the_answers_are_those_of_the_specification(seed: int, chosen: Json) -> None:
    _play(random.Random(seed), chosen, 100)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(SETTINGS), st.integers(1, 30))
def test_short_stories_that_hypothesis_tells(seed: int, chosen: Json, steps: int) -> None:
    _play(random.Random(seed), chosen, steps)


def test_a_taint_that_comes_takes_a_node_out_of_the_count() -> None:
    story = Story(random.Random(0), SETTINGS[0])
    story.cluster.nodes.clear()
    for number in range(7):
        story.table.remove_node(f"node-{number}")
    bodies = {}
    for name, zone in (("n0", "u"), ("n1", "v"), ("n2", "v")):
        spec: Json = {"taints": [], "unschedulable": False}
        meta = {"name": name, "labels": {HOSTNAME: name, ZONE: zone}}
        bodies[name] = {"metadata": meta, "spec": spec, "status": {"allocatable": {"cpu": "4", "pods": "9"}}}
        story.cluster.nodes[name] = bodies[name]
        story.table.set_node(from_builtins(bodies[name], Node))
    probe: Json = {
        "metadata": {"name": "probe", "namespace": "one", "uid": "probe", "labels": {"app": "a"}},
        "spec": {
            "containers": [],
            "schedulerName": "koord-scheduler",
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": ZONE,
                    "whenUnsatisfiable": "DoNotSchedule",
                    "nodeTaintsPolicy": "Honor",
                    "labelSelector": {"matchLabels": {"app": "a"}},
                }
            ],
        },
    }
    for number in range(2):
        meta = {"name": f"p{number}", "uid": f"p{number}", "namespace": "one", "labels": {"app": "a"}}
        pod = {"metadata": meta, "spec": {"containers": []}}
        story.cluster.pods[f"p{number}"] = (pod, "n1")
        story.table.assign(story.info(pod), "n1")
        story.check(probe)
    assert story.reasons(probe)["n2"] == reference.SPREAD_SKEW

    taints = [{"key": "t", "effect": "NoSchedule"}]
    story.cluster.nodes["n0"] = {**bodies["n0"], "spec": {"taints": taints, "unschedulable": False}}
    story.table.set_node(from_builtins(story.cluster.nodes["n0"], Node))
    story.check(probe)
    assert story.reasons(probe)["n2"] == ""
