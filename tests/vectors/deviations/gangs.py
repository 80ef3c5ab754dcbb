"""What the reference answers in areas of gangs, worked out from what we answer (gaps: behaviour/gangs 20)."""

import copy
import json
from collections import Counter
from typing import Any
from unittest import mock

import numpy as np

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugins.coscheduling.config import gang_id_of
from koordinator.scheduler.plugins.coscheduling.events import Begin, Effect, GangGate, GateReason
from koordinator.scheduler.plugins.coscheduling.gangs import Gang
from koordinator.scheduler.plugins.coscheduling.jobs import DrainCosts
from koordinator.scheduler.plugins.coscheduling.rounds import GO_ON, GangRounds
from koordinator.scheduler.table.columns import Rows
from tests.vectors.adapters.scheduler_gang import Play
from tests.vectors.deviations.question import Ask, Case, Question

# podgroup-phase


def finished_at_once(case: Case, ask: Ask) -> Any:
    """A minimum of 0 is reached by no member (G19)."""
    group = case["podGroup"]
    status = group.get("status") or {}
    is_counted = (
        case.get("check") is None and case["pods"] and status.get("phase") not in (None, "", "Pending")
    )
    if not is_counted or (group.get("spec") or {}).get("minMember", 0) > 0:
        return None
    first = {**ask(case)["afterOneSync"], "phase": "Finished"}
    first.pop("scheduleStartTime", None)
    if "scheduleStartTime" in status:
        first["scheduleStartTime"] = status["scheduleStartTime"]
    return {"afterOneSync": first, "settledPhase": "Finished"}


# gang-state


class _StartedByOne(GangRounds):
    """A group starts without telling anybody, as soon as one member is bound."""

    def _has_started(self, pod: Pod) -> bool:
        return True


class _KeepsNoPlaces(GangRounds):
    """NonStrict gangs give all places back, too."""

    def _keeps_places(self, gang_ids: tuple[str, ...]) -> bool:
        return False


class _LooksLater(GangRounds):
    """Members that wait are looked at when the next one is permitted, whatever happens to their gangs."""

    def _start_or_release(self, gang: Gang) -> Effect:
        return Effect()

    def _after_binding(self, gang: Gang, *, had_started: bool, was_pending: bool = False) -> Effect:
        return Effect()


class _JoinsAnyRound(GangRounds):
    """A pod of another group joins the round that is open."""

    def begin(self, pod: Pod, *, has_topology: bool = True) -> Begin:
        gang, gate = self._checked(pod)
        if self.round is None or gang is None or not gate.is_open:
            return super().begin(pod, has_topology=has_topology)
        if self.round.failure:
            return Begin(GangGate(GateReason.ROUND_FAILED, self.round.failure))
        self.round.tried.add(pod.key)
        return GO_ON


class _AllGaps(_StartedByOne, _KeepsNoPlaces, _LooksLater):
    """All gaps."""


class _PlayWakingOwn(Play):
    """Events wake the pod that comes, or one of the PodGroup that comes or gets eligible, and nobody else (G4, G16)."""

    def event(self, prefix: str, event: str, body: Case) -> Any:
        meta = body["metadata"]
        name = f"{meta['namespace']}/{meta['name']}"
        before = self.rounds.cache.get(name)
        was_enough = before is not None and before.config.is_initialised and before.is_complete
        super().event(prefix, event, body)
        woken: Case = {"activate": [], "activateOneOf": []}
        if prefix == "podGroup":
            gang = self.rounds.cache.get(name)
            is_enough = gang is not None and gang.config.is_initialised and gang.is_complete
            if is_enough and (event == "add" or (event == "update" and not was_enough)):
                woken["activateOneOf"] = sorted(gang.pending)
        elif event == "add" and not (body.get("spec") or {}).get("nodeName"):
            gang = self.rounds.cache.get(gang_id_of(self.pods[name]))
            if gang is not None and gang.config.is_initialised and gang.is_complete:
                woken["activate"] = [name]
        return woken


class _PlayStartedByOne(Play):
    """Groups of which a member was bound have started, for ever (G6)."""

    def __init__(self, args: Case, machine: type[GangRounds]) -> None:
        super().__init__(args, machine)
        self._started: set[str] = set()

    def apply(self, step: Case) -> Any:
        answer = super().apply(step)
        cache = self.rounds.cache
        for gang in cache.gangs().values():
            # A PodGroup's gang has no group before its PodGroup is there.
            if gang.bound and gang.config.is_initialised:
                self._started.add(gang.group.group_id)
        for group_id in self._started:
            group = cache.group(group_id)
            if group is not None:
                group.once_satisfied = True
        return answer


class _PlayWithAllGaps(_PlayStartedByOne, _PlayWakingOwn):
    """All gaps."""


def started_by_one(case: Case, ask: Ask) -> Any:
    """G6."""
    return _PlayStartedByOne(case.get("args") or {}, _StartedByOne).run(case["steps"])


def without_kept_places(case: Case, ask: Ask) -> Any:
    """G5."""
    return Play(case.get("args") or {}, _KeepsNoPlaces).run(case["steps"])


def joining_any_round(case: Case, ask: Ask) -> Any:
    """G9."""
    return Play(case.get("args") or {}, _JoinsAnyRound).run(case["steps"])


def with_ended_members(case: Case, ask: Ask) -> Any:
    """G8."""
    return ask({**case, "steps": _without_ends(case["steps"])})


def waking_own(case: Case, ask: Ask) -> Any:
    """G4 and G16."""
    return _PlayWakingOwn(case.get("args") or {}, _LooksLater).run(case["steps"])


def with_all_gaps(case: Case, ask: Ask) -> Any:
    """G4, G5, G6, G8 and G16."""
    steps = _without_ends(case["steps"])
    return _PlayWithAllGaps(case.get("args") or {}, _AllGaps).run(steps)


def _without_ends(steps: list[Case]) -> list[Case]:
    """The steps as a reader sees them who does not look at how pods end."""
    kept = []
    for step in steps:
        is_over = ((step.get("object") or {}).get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if step["op"] == "podUpdate" and is_over and "id" not in step:
            continue
        plain = copy.deepcopy(step)
        if step["op"].startswith("pod") and "object" in plain:
            plain["object"].get("status", {}).pop("phase", None)
            plain["object"]["metadata"].pop("deletionTimestamp", None)
        kept.append(plain)
    return kept


# gang-config-parse


def with_nameless_groups(case: Case, ask: Ask) -> Any:
    """An entry of a list of groups that is no text counts, and names nothing (G15)."""
    key, events, found = labels.GANG_GROUPS, [], False
    for event in case["events"]:
        metadata = event["object"]["metadata"]
        names = _list_of((metadata.get("annotations") or {}).get(key))
        if any(not isinstance(name, str) for name in names):
            found = True
            texts = [name if isinstance(name, str) else "" for name in names]
            annotations = {**metadata["annotations"], key: json.dumps(texts)}
            event = {
                **event,
                "object": {**event["object"], "metadata": {**metadata, "annotations": annotations}},
            }
        events.append(event)
    return ask({**case, "events": events}) if found else None


def _list_of(text: str | None) -> list[Any]:
    try:
        found = json.loads(text or "")
    except ValueError:
        return []
    return found if isinstance(found, list) else []


# gang-preemption


def with_costs_on_each_node(case: Case, ask: Ask) -> Any:
    """A job costs on each node that it loses pods on, and of nodes that cost the same the first by name is taken."""

    def cheapest(self: DrainCosts, nodes: Rows, order: I64) -> int:
        ranks = self.ranks[nodes]
        best = np.flatnonzero(ranks == ranks.min())
        return int(best[order[nodes[best]].argmin()])

    with mock.patch.multiple(
        DrainCosts, cheapest=cheapest, hit=lambda self, node: None, combined=property(lambda self: self.ranks)
    ):
        return ask(case)


def with_priorities_listed_first(case: Case, ask: Ask) -> Any:
    """A job costs on a node what the pod costs that the node lists first of it."""
    own_costs = DrainCosts.__init__

    def costs(self: DrainCosts, nodes: I64, priorities: I64, jobs: I64, node_count: int) -> None:
        first: dict[tuple[int, int], int] = {}
        pairs = zip(nodes.tolist(), jobs.tolist(), priorities.tolist(), strict=True)
        listed = np.array([first.setdefault((node, job), each) for node, job, each in pairs], np.int64)
        # All priorities keep their ranks: those that nobody has any more stand on nodes behind all others.
        lost = np.setdiff1d(priorities, listed)
        behind = node_count + np.arange(lost.size)
        own_costs(
            self,
            np.append(nodes, behind),
            np.append(listed, lost),
            np.append(jobs, jobs.max(initial=0) + 1 + np.arange(lost.size)),
            node_count + lost.size,
        )
        self.ranks, self.job_counts = self.ranks[:node_count], self.job_counts[:node_count]

    with mock.patch.object(DrainCosts, "__init__", costs):
        return ask(case)


def with_members_one_upon_another(case: Case, ask: Ask) -> Any:
    """All members go to the cheapest node that takes the largest of them alone, and nobody stays there where it does
    not take all of them (G1)."""
    pending, gang = case.get("pending") or (), case.get("gang") or {}
    if len(pending) < 2 or "gatherStrategy" in gang:
        return None
    largest = {**case["trigger"], "cpu": max(pod.get("cpu", 0) for pod in pending)}
    alone = ask({**case, "pending": [largest], "trigger": largest})
    names = [pod["name"] for pod in pending]
    if alone["outcome"] != "success":
        return {**alone, "nominations": dict.fromkeys(names, "")} if "nominations" in alone else alone
    node = alone["nominatedNode"]
    together = ask({**case, "nodeStatus": {node: "Unschedulable"}})
    if together["outcome"] == "success":
        return together
    gone = {
        pod["name"]: _action(pod)
        for pod in case.get("existing") or ()
        if pod["node"] == node and _may_go(pod, case["trigger"])
    }
    count = len(case.get("waiting") or ())
    end = f"alreadyWaitingForBound: {count}/{count + len(names)}"
    return {
        **alone,
        "nominations": {**alone["nominations"], **dict.fromkeys(names, node)},
        "victims": sorted(gone),
        "victimActions": gone,
        "groupMessage": alone["groupMessage"].rpartition("alreadyWaitingForBound")[0] + end,
    }


def _may_go(pod: Case, trigger: Case) -> bool:
    is_kept = pod.get("disablePreemptible") or pod.get("quotaNonPreemptible")
    return not is_kept and (pod.get("priority") or 0) < (trigger.get("priority") or 0)


def _action(pod: Case) -> str:
    if pod.get("waitingInPermit"):
        return "reject"
    return "none" if pod.get("terminating") else "delete"


def with_one_job_of_the_jobless(case: Case, ask: Ask) -> Any:
    """All pods that say no job are one (G18)."""
    jobless = [pod for pod in case.get("existing") or () if not pod.get("job")]
    if not jobless:
        return None
    # Before any other, as no name is.
    existing = [{**pod, "job": pod.get("job") or "-"} for pod in case["existing"]]
    return ask({**case, "existing": existing})


def with_those_that_leave(case: Case, ask: Ask) -> Any:
    """Pods that are being deleted cost as all others, and go by their importance."""
    leaving = {
        pod["name"] for pod in case["existing"] if pod.get("terminating") and not pod.get("waitingInPermit")
    }
    if not leaving or ask(case)["outcome"] != "success":
        return None
    staying = [{key: value for key, value in pod.items() if key != "terminating"} for pod in case["existing"]]
    answer = ask({**case, "existing": staying})
    actions = {
        name: "none" if name in leaving else action
        for name, action in (answer.get("victimActions") or {}).items()
    }
    return {**answer, "victimActions": actions}


def breaks_no_more_jobs(question: Question) -> bool:
    """Of equally important pods ours may choose others; it evicts none that are more important, of no more jobs.

    Where both empty the same nodes nothing else may differ; otherwise members may go to other nodes, too.
    """
    expected, ours = {**question.ours, **question.expected}, question.ours
    if expected["outcome"] != "success" or ours["outcome"] != "success" or "victims" not in question.expected:
        return False
    pods = {each["name"]: each for each in question.input["existing"]}
    actions = question.expected.get("victimActions")
    if not set(expected["victims"]) <= pods.keys() or (
        actions and actions.keys() != set(expected["victims"])
    ):
        return False
    if max(Counter(each.get("priority", 0) for each in pods.values()).values()) < 2:
        return False
    emptied = [{pods[name]["node"] for name in answer["victims"]} for answer in (ours, expected)]
    fixed = ["message", "groupMessage", "waitingRejectedBy"]
    if emptied[0] == emptied[1]:
        fixed += ["nominations", "nominatedNode"]
    is_same = all(expected[name] == ours[name] for name in fixed)
    is_same &= set((actions or {}).values()) <= set(ours["victimActions"].values())
    return is_same and _cost(ours["victims"], pods) <= _cost(expected["victims"], pods)


def _cost(victims: list[str], pods: dict[str, Case]) -> tuple[int, int, int]:
    """The highest priority that must go, the jobs of several pods that lose some, and all jobs that do."""
    gone = [pods[name] for name in victims]
    jobs = {each.get("job") or each["name"] for each in gone}
    own = {each["name"] for each in gone if not each.get("job")}
    return max((each.get("priority", 0) for each in gone), default=0), len(jobs - own), len(jobs)
