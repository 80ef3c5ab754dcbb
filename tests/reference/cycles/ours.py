"""Our answers to a question: pods one after the other through the engine as the scheduler runs it."""

import asyncio
import copy
import json
from typing import Any

import numpy as np

from koordinator.api import labels, normalization
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.reservation import Reservation
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.post_filter import CycleDiagnosis, KeptFree
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.plugin.handle import Watch
from koordinator.scheduler.plugin.status import PodPatch, Status
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.plugins.preemption.plugin import DefaultPreemption
from koordinator.scheduler.plugins.reservation import objects
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.simulate.dump import DumpActions

Json = dict[str, Any]


def answer(question: Json, now_s: float) -> list[Json]:
    """In the form of `program/cycle.go`."""
    return _Cycles(question, now_s).answers()


class _Actions(DumpActions):
    def remove_pod(self, pod: Pod) -> None:
        if self.table.place_of(pod.metadata.uid) is not None:
            self.table.unassign(pod.metadata.uid)


class _Cycles:
    def __init__(self, question: Json, now_s: float) -> None:
        self._question, self._now_s = question, now_s
        settings, actions = config.decode(question["config"]), _Actions()
        self._engine = Engine(settings, FixedClock(now_s), plugins=built_in.PLUGINS, actions=actions)
        self._table = actions.table = self._engine.table
        self._steps = normalization.PodSteps.of(FeatureGates.of(Component.SCHEDULER))
        [self._profile] = self._engine.profiles.values()
        self._put()

    def _put(self) -> None:
        for body in sorted(self._question["objects"], key=lambda each: each["kind"] != "Node"):
            if body["kind"] == "Pod":
                self._bound(None, body)
                continue
            if body["kind"] == "Node":
                self._table.set_node(normalization.normalize_node(from_builtins(body, Node)))
            for watch in self._watches(body["kind"]):
                found = from_builtins(body, watch.view)
                watch.on_add(normalization.normalize_node(found) if isinstance(found, Node) else found)

    def _watches(self, kind: str) -> list[Watch[Any]]:
        return [
            watch
            for handle in self._engine.handles
            for watch in handle.watches
            if watch.view.resource.kind == kind
        ]

    def _bound(self, old: Json | None, body: Json) -> None:
        """Note that a pod is on its node now, as informers do."""
        pod = self._pod(body)
        for watch in self._watches("Pod"):
            if old is None:
                watch.on_add(pod)
            else:
                watch.on_update(self._pod(old), pod)
        self._table.assign(PodInfo.of(pod, self._table.registry), pod.spec.node_name)

    def _available(self, old: Json, new: Json, node: str) -> None:
        """Note that a Reservation is on its node now, as its Bind plugin writes it."""
        requests = new["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
        new["status"] = {"phase": "Available", "nodeName": node, "allocatable": requests}
        self._question["objects"].append(new)
        for watch in self._watches("Reservation"):
            watch.on_update(from_builtins(old, watch.view), from_builtins(new, watch.view))

    def _end_reservation(self, pod: Json) -> None:
        """Do what the controller does to a Reservation for one pod."""
        taken = json.loads(pod["metadata"]["annotations"].get(labels.RESERVATION_ALLOCATED, "{}")).get("uid")
        for body in (each for each in self._question["objects"] if each["kind"] == "Reservation"):
            if body["metadata"]["uid"] == taken and body["spec"]["allocateOnce"]:
                owner = {key: pod["metadata"][key] for key in ("namespace", "name", "uid")}
                status = {**body["status"], "phase": "Succeeded", "currentOwners": [owner]}
                for watch in self._watches("Reservation"):
                    old, new = (
                        from_builtins(each, watch.view) for each in (body, {**body, "status": status})
                    )
                    watch.on_update(old, new)

    def _pod(self, body: Json) -> Pod:
        return normalization.normalize_pod(from_builtins(body, Pod), self._steps)

    def answers(self) -> list[Json]:
        return [self._cycle(body) for body in self._question["pods"]]

    def _cycle(self, body: Json) -> Json:
        found: Json = {
            "preFilter": None,
            "nodes": {},
            "scores": {},
            "victims": None,
            "node": "",
            "reserved": None,
            "annotations": None,
            "labels": None,
        }
        pod, profile, cycle = self._entered(body), self._profile, self._engine.cycle
        key = profile.class_key(pod)
        profile.refresh(self._now_s)
        evaluation = self._engine.cache.evaluate(profile, pod, key)
        if evaluation.failure is not None:
            return found | {"preFilter": _verdict(evaluation.failure)}
        if not evaluation.status.is_success:
            return found | {"preFilter": _verdict(evaluation.status)}
        kept_free = cycle.kept_free(profile, pod, evaluation)
        found["nodes"] = {
            self._table.name_of(row): _verdict(kept_free.get(row) or evaluation.status_of(row))
            for row in self._table.rows.tolist()
        }
        rows = evaluation.feasible
        rows = rows[~np.isin(rows, list(kept_free))]
        if rows.size:
            found["scores"] = self._scores(evaluation, rows)
            found |= self._placed(body, pod, found["scores"])
        elif body["kind"] == "Pod":
            found["victims"] = self._victims(pod, evaluation, kept_free)
        return found

    def _victims(self, pod: PodInfo, evaluation: Evaluation, kept_free: KeptFree) -> dict[str, list[str]]:
        """By node: the pods that would have to leave."""
        [plugin] = [each for each in self._profile.plugins if isinstance(each, DefaultPreemption)]
        view = View(self._profile, self._table, self._engine.nominations, pod)
        diagnosis = CycleDiagnosis(view, evaluation, kept_free)
        rows = self._table.rows[~diagnosis.unresolvable_rows()[self._table.rows]]
        options = plugin.preemptor.dry_run(pod, rows, diagnosis).options
        return {
            each.node_name: sorted(victim.pod.pod.metadata.name for victim in each.candidate().victims)
            for each in options
        }

    def _entered(self, body: Json) -> PodInfo:
        """The pod, or that of a Reservation, as the queue has it."""
        if body["kind"] == "Reservation":
            reservation = from_builtins(body, Reservation)
            for watch in self._watches("Reservation"):
                watch.on_add(reservation)
            return PodInfo.of(objects.reserve_pod(reservation), self._table.registry)
        pod = self._pod(body)
        for watch in self._watches("Pod"):
            watch.on_add(pod)
        return PodInfo.of(pod, self._table.registry)

    def _scores(self, evaluation: Evaluation, rows: Rows) -> dict[str, dict[str, int]]:
        shares = evaluation.score_shares(rows)
        totals = sum((each.weight * each.normalised for each in shares), np.zeros(rows.size, np.int64))
        assert np.array_equal(evaluation.totals_of(rows), totals), "the evaluation has other totals"
        return {
            self._table.name_of(row): {each.plugin: int(each.weight * each.normalised[at]) for each in shares}
            for at, row in enumerate(rows.tolist())
        }

    def _placed(self, body: Json, pod: PodInfo, scores: dict[str, dict[str, int]]) -> Json:
        """Take the best node, of equally good ones the first by name."""
        node = min(scores, key=lambda name: (-sum(scores[name].values()), name))
        engine, profile = self._engine, self._profile
        engine.nominations.set(pod, node)
        key = profile.class_key(pod)
        result = engine.cycle.run(profile, pod, key, 1, self._now_s)
        if not isinstance(result, Placed):
            engine.nominations.remove(pod.uid)
            return {"node": node, "reserved": _verdict(result.status)}
        bound = asyncio.run(self._prepared(body, result))
        meta = bound["metadata"]
        if body["kind"] == "Reservation":
            self._available(body, bound, result.node_name)
        else:
            self._bound(body, bound)
            self._end_reservation(bound)
        return {
            "node": result.node_name,
            "annotations": meta.get("annotations", {}),
            "labels": meta.get("labels", {}),
        }

    async def _prepared(self, body: Json, placed: Placed) -> Json:
        """The pod as it is bound."""
        patch, states = PodPatch(), placed.evaluation.states
        bound, node = copy.deepcopy(body), placed.node_name
        if body["kind"] == "Reservation":
            reservation = from_builtins(body, Reservation)
            for each in self._profile.extensions.reservation_pre_binds:
                status = await each.pre_bind_reservation(states[each.name], reservation, node, patch)
                assert status.is_success or status.is_skip, status
        else:
            for plugin in self._profile.pre_binds:
                status = await plugin.pre_bind(states[plugin.name], placed.pod, node, patch)
                assert status.is_success or status.is_skip, status
            bound["spec"]["nodeName"] = node
        for part, changes in (("annotations", patch.annotations), ("labels", patch.labels)):
            held = bound["metadata"].setdefault(part, {})
            for name, value in changes.items():
                if value is None:
                    held.pop(name, None)
                else:
                    held[name] = value
        return bound


def _verdict(status: Status) -> Json:
    return {"code": status.code.word, "reasons": list(status.reasons), "plugin": status.plugin}
