"""Lives of gangs as a scheduler leads them: what comes next is found by playing along."""

import copy
import random
from typing import Any

from tests.vectors.adapters.scheduler_gang import Play

Json = dict[str, Any]

NO_PATCH = {"gangPendingPodsConditionPatch": False}
"""Conditions of members that were not tried are written since a later commit."""
NO_FIT = "0/3 nodes are available: 3 Insufficient cpu."
_PREFIX = "gang.scheduling.koordinator.sh"


class _Life:
    """A scheduler with gangs, and the steps so far."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.args = {**NO_PATCH, "defaultTimeoutSeconds": chance.choice((600, 600, 30))}
        self.steps: list[Json] = []
        self._play = Play(self.args)
        self._waiting: list[str] = []
        self._binding: list[str] = []
        self._bound: set[str] = set()
        self._are_together = False
        self._groups = self._described()
        self._members: dict[str, str] = {}

    def _described(self) -> dict[str, Json]:
        """PodGroups by name, or what their pods say of them."""
        names = self.chance.sample(("g", "h"), self.chance.choice((1, 1, 2)))
        self._are_together = len(names) == 2 and self.chance.random() < 0.7
        mode = self.chance.choice(("Strict", "Strict", "NonStrict")) if not self._are_together else "Strict"
        policies = ("once-satisfied", "once-satisfied", "only-waiting", "waiting-and-running")
        policy = self.chance.choice(policies)
        found = {}
        for name in names:
            annotations = {f"{_PREFIX}/mode": mode, f"{_PREFIX}/match-policy": policy}
            if self._are_together:
                ids = ",".join(f'"default/{each}"' for each in sorted(names))
                annotations[f"{_PREFIX}/groups"] = f"[{ids}]"
            found[name] = {"annotations": annotations, "minimum": self.chance.randint(1, 3)}
        return found

    def step(self, op: str, **members: Any) -> Json:
        step = {"op": op, **members}
        if op != "postBind":
            step["id"] = str(len(self.steps))
        answer: Json = self._play.apply(copy.deepcopy(step)) or {}
        if op == "nextPod":
            step["took"] = answer["pod"]
        self.steps.append(step)
        for pod in answer.get("rejected") or ():
            if pod in self._waiting:
                self._waiting.remove(pod)
                self.step("unreserve", pod=pod, because="rejected")
        for pod in answer.get("allowed") or ():
            if pod in self._waiting:
                self._waiting.remove(pod)
                self._binding.append(pod)
        return answer

    def pod_group(self, op: str, name: str, minimum: int) -> None:
        meta = {"namespace": "default", "name": name, "annotations": self._groups[name]["annotations"]}
        body = {"kind": "PodGroup", "metadata": meta, "spec": {"minMember": minimum}}
        self.step(op, object=body)

    def pod(self, op: str, pod: str) -> None:
        gang = self._members[pod]
        meta: Json = {"namespace": "default", "name": pod, "uid": f"uid-{pod}"}
        meta["labels"] = {"pod-group.scheduling.sigs.k8s.io": gang}
        spec = {"nodeName": "a"} if f"default/{pod}" in self._bound else {}
        self.step(op, object={"kind": "Pod", "metadata": meta, "spec": spec})

    def begun(self) -> None:
        """Everything is made, in some order."""
        made = [("group", name) for name in self._groups]
        for name, group in self._groups.items():
            more = self.chance.choice((-1, 0, 0, 0, 0, 1))
            for number in range(group["minimum"] + (min(more, 0) if self._is_first(name) else more)):
                self._members[f"{name}{number}"] = name
        made += [("pod", pod) for pod in self._members]
        if self.chance.random() < 0.5:
            self.chance.shuffle(made)
        for kind, name in made:
            if kind == "group":
                self.pod_group("podGroupAdd", name, self._groups[name]["minimum"])
            else:
                self.pod("podAdd", name)
        self.look()

    def _is_first(self, name: str) -> bool:
        """Whether a gang is tried before the other: has it more than it needs, we let these wait."""
        return self._are_together and name == "g"

    def look(self) -> None:
        for name in self._groups:
            self.step("read", gang=f"default/{name}")
        self.step("readWaitingGauge")

    def round(self) -> None:
        """One member after the other is tried, from one that may enter the queue."""
        pods = [f"default/{pod}" for pod in self._members]
        self.chance.shuffle(pods)
        free = [pod for pod in pods if pod not in {*self._waiting, *self._binding, *self._bound}]
        opened = (pod for pod in free if self.step("preEnqueue", pod=pod)["allow"])
        pod = next(opened, None)
        fails = self.chance.choice((0.0, 0.0, 0.15, 0.5))
        while pod:
            begun = self.step("beginCycle", pod=pod)
            # What a failure does to members that are being bound differs on purpose.
            if not begun["ok"] or (not self._binding and self.chance.random() < fails):
                self.step("filterFailed", pod=pod, reason=NO_FIT, rootCause=begun["ok"])
            else:
                self.placed(pod)
            self.something()
            pod = self.step("nextPod", bind=f"$x{len(self.steps)}")["pod"]

    def placed(self, pod: str) -> None:
        answer = self.step("permit", pod=pod)
        if answer["decision"] == "wait":
            self._waiting.append(pod)
        elif answer["decision"] == "success":
            self._binding.append(pod)
        else:
            self.step("unreserve", pod=pod, because="unschedulable")

    def something(self) -> None:
        """Time passes: bindings end, waiting times are up, pods come and go."""
        roll = self.chance.random()
        if roll < 0.35 and self._binding:
            pod = self._binding.pop(self.chance.randrange(len(self._binding)))
            self.step("preBind", pod=pod)
            if self.chance.random() < 0.85:
                self.step("postBind", pod=pod)
                self._bound.add(pod)
            else:
                self.step("unreserve", pod=pod, because="bind error")
        elif roll < 0.42 and self._waiting:
            pod = self._waiting.pop(self.chance.randrange(len(self._waiting)))
            self.step("unreserve", pod=pod, because="timeout")
        elif roll < 0.48:
            self.look()
        elif roll < 0.52 and not (self._are_together or self._bound or self._waiting):
            name = self.chance.choice([*self._groups])
            self.pod_group("podGroupUpdate", name, self.chance.randint(1, 3))
        elif roll < 0.56 and self._members:
            self.pod("podUpdate", self.chance.choice([*self._members]))
        elif roll < 0.6:
            name = self.chance.choice([each for each in self._groups if not self._is_first(each)])
            pod = f"{name}{len(self.steps)}"
            self._members[pod] = name
            self.pod("podAdd", pod)


def gang_state(chance: random.Random) -> Json:
    life = _Life(chance)
    life.begun()
    for _ in range(chance.randint(1, 4)):
        life.round()
        for _ in range(chance.randint(0, 6)):
            life.something()
    life.look()
    return {"args": life.args, "steps": life.steps}
