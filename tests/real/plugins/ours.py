"""Our answers to a case, by the engine as the scheduler runs it: plugins on the node table, evaluations that are shared
and kept current, nominations, preemption's dry runs.

The objects of a case come in two parts, with the class's evaluation made in between: what is compared was brought up to
date, as in most cycles.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config
from koordinator.scheduler.config.config import SchedulerConfigError
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.post_filter import CycleDiagnosis, KeptFree
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.plugin.framework import ScorePlugin
from koordinator.scheduler.plugin.status import Status
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.plugins.preemption.plugin import DefaultPreemption
from koordinator.scheduler.plugins.preemption.victims import Candidate
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo

Json = dict[str, Any]

NOW_S = 1_800_000_000.0
NOT_STOCK = ("RequiredReservation",)
"""Plugins that each profile would get besides."""
PLUGINS = {name: kind for name, kind in built_in.PLUGINS.items() if name not in NOT_STOCK}


def answer(case: Json) -> Json:
    """In the form of `main.go`."""
    try:
        asked = _Asked(case)
    except SchedulerConfigError as error:
        return {"error": str(error)}
    asked.put_first_part()
    asked.evaluate()
    asked.put_second_part()
    return asked.answer()


class _Asked:
    def __init__(self, case: Json) -> None:
        self._case = case
        self._engine = Engine(config.decode(case["config"]), FixedClock(NOW_S), plugins=PLUGINS)
        self._table = self._engine.table
        [self._profile] = self._engine.profiles.values()
        self._pod = self._info(case["pod"])
        self._early_nodes, self._early_pods = set(case["early"]["nodes"]), set(case["early"]["pods"])

    def _info(self, body: Json) -> PodInfo:
        return PodInfo.of(from_builtins(body, Pod), self._table.registry)

    def put_first_part(self) -> None:
        self._put_objects(self._case["objects"])
        self._put(self._early_nodes, self._early_pods)

    def put_second_part(self) -> None:
        nodes = {each["metadata"]["name"] for each in self._case["nodes"]} - self._early_nodes
        pods = {each["metadata"]["uid"] for each in self._case["pods"]} - self._early_pods
        self._put(nodes, pods)
        for each in self._case["nominated"]:
            self._engine.nominations.set(self._info(each), each["status"]["nominatedNodeName"])

    def _put_objects(self, bodies: Iterable[Json]) -> None:
        watches = [watch for handle in self._engine.handles for watch in handle.watches]
        for body in bodies:
            for watch in watches:
                if watch.view.resource.kind == body["kind"]:
                    watch.on_add(from_builtins(body, watch.view))

    def _put(self, nodes: set[str], pods: set[str]) -> None:
        for body in self._case["nodes"]:
            if body["metadata"]["name"] in nodes:
                self._table.set_node(from_builtins(body, Node))
        for body in self._case["pods"]:
            if body["metadata"]["uid"] in pods:
                info = self._info(body)
                self._table.assign(info, info.node_name)

    def evaluate(self) -> Evaluation:
        return self._engine.cache.evaluate(self._profile, self._pod, self._profile.class_key(self._pod))

    def answer(self) -> Json:
        found: Json = {
            "error": "",
            "preFilter": None,
            "nodes": {},
            "scores": {},
            "victims": {},
            "chosen": [],
            "ineligible": "",
        }
        if not self._table.node_count:
            return found
        evaluation = self.evaluate()
        if evaluation.failure is not None:
            return found | {"error": evaluation.failure.message}
        kept_free = self._engine.cycle.kept_free(self._profile, self._pod, evaluation)
        view = View(self._profile, self._table, self._engine.nominations, self._pod)
        if evaluation.status.is_success:
            found["nodes"] = {
                self._table.name_of(row): _verdict(self._status(view, evaluation, kept_free, row))
                for row in self._table.rows.tolist()
            }
        else:
            found["preFilter"] = _verdict(evaluation.status)
        if self._case["preempt"]:
            return found | self._preemption(CycleDiagnosis(view, evaluation, kept_free))
        if evaluation.status.is_success:
            rows = evaluation.feasible
            found["scores"] = self._scores(evaluation, rows[~np.isin(rows, list(kept_free))])
        return found

    def _status(self, view: View, evaluation: Evaluation, kept_free: KeptFree, row: int) -> Status:
        """In a cycle, nodes that others are nominated to are told by the reasons that they have without these; asked
        one by one, as for preemption, by those that kube-scheduler gives."""
        status = kept_free.get(row) or evaluation.status_of(row)
        if not self._engine.nominations.on(self._table.name_of(row)):
            return status
        asked = view.check(row)
        assert asked.is_success == status.is_success, (asked, status)
        return asked

    def _scores(self, evaluation: Evaluation, rows: Rows) -> Json:
        if not rows.size:
            return {}
        names = [self._table.name_of(row) for row in rows.tolist()]
        shares = evaluation.score_shares(rows)
        totals = sum((each.weight * each.normalised for each in shares), np.zeros(rows.size, np.int64))
        assert np.array_equal(evaluation.totals_of(rows), totals), "the evaluation has other totals"
        return {
            each.plugin: {
                name: {
                    "raw": int(raw) if self._tells_raw(each.plugin) else None,
                    "normalised": int(normalised),
                }
                for name, raw, normalised in zip(names, each.raw, each.normalised, strict=True)
            }
            for each in shares
        }

    def _tells_raw(self, plugin: str) -> bool:
        """Plugins that compare the feasible nodes themselves have no raw scores that mean anything."""
        [found] = [each for each, _ in self._profile.scorers if each.name == plugin]
        return type(found).normalize_at is ScorePlugin.normalize_at

    def _preemption(self, diagnosis: CycleDiagnosis) -> Json:
        [plugin] = [each for each in self._profile.plugins if isinstance(each, DefaultPreemption)]
        preemptor, pod = plugin.preemptor, self._pod
        if objection := preemptor.objection(pod, diagnosis):
            return {"ineligible": objection}
        table = self._table
        rows = table.rows[~diagnosis.unresolvable_rows()[table.rows]]
        rows = rows[~diagnosis.feasible_rows()[rows]]
        options = preemptor.dry_run(pod, rows, diagnosis).options
        searched = {each.node_name: each.candidate() for each in options}
        best = min((each.rank for each in options), default=None)
        victims = {}
        for row in rows.tolist():
            name = table.name_of(row)
            tried = preemptor.search.try_row(pod, row, diagnosis)
            victims[name] = _victims(tried)
            # Many nodes at once are judged otherwise than one.
            at_once = searched.get(name)
            assert isinstance(tried, Status) == (at_once is None), (name, tried, at_once)
            assert at_once is None or _victims(at_once) == victims[name], (name, tried, at_once)
        return {"victims": victims, "chosen": [each.node_name for each in options if each.rank == best]}


def _victims(tried: Candidate | Status) -> Json:
    if isinstance(tried, Status):
        return {"verdict": _verdict(tried), "pods": [], "violations": 0}
    names = [each.pod.pod.metadata.name for each in tried.victims]
    success = {"code": "Success", "reasons": [], "plugin": ""}
    return {"verdict": success, "pods": names, "violations": tried.violations}


def _verdict(status: Status) -> Json:
    return {"code": status.code.word, "reasons": list(status.reasons), "plugin": status.plugin}
