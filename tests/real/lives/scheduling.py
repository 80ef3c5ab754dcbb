"""Lives of pods that a scheduler places: what they wait for, and what wakes them."""

from collections.abc import Callable
from typing import Any

from tests.real.lives.drawing import Draw, Json, Life, Step, body_of

LETTERS = "abcd"
CLASSES = 25
WEIGHTS = (100, 71, 37, 11)
"""Of preferences for nodes: hardly any two nodes are worth the same to a pod, so that chance decides nothing."""


class World:
    """What is drawn for a life: names for new pods, and pods that users may mean."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.pods: list[str] = []
        self.letters = LETTERS[: draw.randint(1, 3)]
        self.nodes = [self.node() for _ in self.letters]
        self.number = 0

    def pod(self, cpu: str = "", port: int = 0, **more: Any) -> Json:
        """The body of a new one. `port` is one of the node; `more` are members of spec and metadata."""
        draw = self.draw
        name = f"p{self.number}"
        self.number += 1
        self.pods.append(name)
        size = {"cpu": cpu or draw.choice(("500m", "1", "1500m", "2", "2", "3")), "memory": "64Mi"}
        container: Json = {"name": "c", "image": "one", "resources": {"requests": size}}
        if port:
            container["ports"] = [{"containerPort": port, "hostPort": port}]
        prefers = [
            {"weight": weight, "preference": {"matchExpressions": [on(letter)]}}
            for weight, letter in zip(WEIGHTS, draw.sample(LETTERS, len(LETTERS)), strict=True)
        ]
        affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefers}}
        affinity |= more.pop("affinity", {})
        more.setdefault("priorityClassName", f"$LIFE-{self.number % CLASSES}")
        labels = more.pop("labels", {"app": draw.choice(("web", "db"))})
        spec = {"containers": [container], "affinity": affinity, **more}
        return body_of("Pod", name, spec, labels=labels)

    def some_pod(self) -> str:
        """The last one rather: it waits perhaps."""
        return self.draw.choice([*self.pods, *self.pods[-1:], "p0"])

    def node(self) -> Json:
        draw = self.draw
        labels = {"disk": draw.choice(("ssd", "hdd")), "topology.kubernetes.io/zone": draw.choice("xy")}
        size = {"cpu": draw.choice("2334"), "memory": "8Gi", "pods": draw.choice(("110", "110", "3"))}
        return {"labels": labels, "size": size}

    def first(self, *more: Json) -> Step:
        """Classes for pods, no two of which are equal: an attempt in vain would put a pod behind its equals."""
        ranks = [body_of("PriorityClass", f"$LIFE-{number}") for number in range(CLASSES)]
        meek = [{**each, "value": rank, "preemptionPolicy": "Never"} for rank, each in enumerate(ranks)]
        return ["create", *meek, *more]

    # Acts

    def delete(self) -> Step:
        name = self.some_pod()
        if name in self.pods:
            self.pods.remove(name)
        return ["delete", "Pod", name, "Background"]

    def relabel(self) -> Step:
        return [
            "patch",
            "Pod",
            self.some_pod(),
            {"metadata": {"labels": {"app": self.draw.choice(("web", "db"))}}},
        ]

    def filled(self, *creates: Step) -> Step:
        """Several in one step, in an order that no scheduler changes."""
        return ["all", *(step for create in creates for step in (create, ["wait", 0.5]))]

    def waits(self) -> list[Step]:
        """A pod that waits for one thing, and then gets it."""
        draw, letter = self.draw, self.draw.choice(self.letters)
        kept = {"nodeSelector": {"kubernetes.io/hostname": f"$LIFE-{letter}"}}
        wants = {"tolerations": [{"key": "dedicated", "operator": "Exists"}]} if draw.seldom() else {}
        what = draw.choice(("cordon", "taint", "label", "room", "places", "node", "port"))
        if what == "label":
            new = ["node", letter, {"metadata": {"labels": {"part": str(len(self.pods))}}}]
            return [["create", self.pod("100m", nodeSelector={"part": str(len(self.pods))}, **wants)], new]
        if what == "node" and len(self.letters) < len(LETTERS):
            added = next(each for each in LETTERS if each not in self.letters)
            self.letters += added
            kept["nodeSelector"]["kubernetes.io/hostname"] = f"$LIFE-{added}"
            return [["create", self.pod(**kept, **wants)], ["add node", added, self.node()]]
        if what == "port":
            creates = [["create", self.pod("100m", 9090, **kept, **wants)] for _ in range(2)]
            return [self.filled(*creates), ["delete", "Pod", self.pods[-2], "Background"]]
        by = {
            "cordon": ("node", {"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}),
            "taint": ("node", {"spec": {"taints": [taint(draw)]}}, {"spec": {"taints": None}}),
            "places": ("node/status", *({"status": {"allocatable": {"pods": each}}} for each in ("0", "20"))),
        }
        room = ("node/status", *({"status": {"allocatable": {"cpu": each}}} for each in ("0", "20")))
        verb, before, after = by.get(what, room)
        create = ["create", self.pod("100m", **kept, **wants)]
        return [["all", [verb, letter, before], ["wait", 0.5], create], [verb, letter, after]]

    def node_acts(self) -> Step:
        draw = self.draw
        letter = draw.choice(self.letters)
        new = next((each for each in LETTERS if each not in self.letters), "")
        verb = draw.choice(
            ("label", "cordon", "cordon", "taint", "cpu", "pods", "ready", "add", "add", "delete")
        )
        if verb == "add" and new:
            self.letters += new
            return [
                "add node",
                new,
                {**self.node(), "spec": {"taints": [taint(draw)] if draw.seldom() else []}},
            ]
        if verb == "delete" and len(self.letters) > 1:
            self.letters = self.letters.replace(letter, "")
            return ["delete node", letter]
        if verb == "ready":
            return ["node ready", letter, draw.choice(("True", "False"))]
        if verb in ("cpu", "pods"):
            return ["node/status", letter, {"status": {"allocatable": {verb: draw.choice("2468")}}}]
        if verb == "cordon":
            return ["node", letter, {"spec": {"unschedulable": draw.choice((True, None))}}]
        if verb == "taint":
            return ["node", letter, {"spec": {"taints": draw.choice(([taint(draw)], None, None))}}]
        return ["node", letter, {"metadata": {"labels": {"disk": draw.choice(("ssd", "ssd", "hdd"))}}}]


def led(draw: Draw, count: int, *makers: Callable[[], list[Any]]) -> list[Step]:
    """So many acts, some of which are several steps."""
    found = [draw.choice(makers)() for _ in range(count)]
    return [step for each in found for step in ([each] if isinstance(each[0], str) else each)]


def company(world: World) -> list[Step]:
    """A pod that waits for another one, or for another one to leave, or for domains."""
    draw = world.draw
    wanted = draw.choice(("web", "db"))
    chosen, key = {"labelSelector": {"matchLabels": {"app": wanted}}}, draw.choice(KEYS)
    other = ["create", world.pod("100m", labels={"app": wanted})]
    name, not_so = world.pods[-1], {"metadata": {"labels": {"app": "else"}}}
    leaves = draw.choice((["delete", "Pod", name, "Background"], ["patch", "Pod", name, not_so]))
    what = draw.choice(("together", "apart", "domain", "namespace"))
    if what == "domain":
        constraint = {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", **chosen}
        rack = {"metadata": {"labels": {"rack": "r"}}}
        create = ["create", world.pod("100m", topologySpreadConstraints=[constraint])]
        return [create, ["node", draw.choice(world.letters), rack]]
    if what == "namespace":
        teams = [
            ["patch", "Namespace", "$LIFE", {"metadata": {"labels": {"team": each}}}] for each in ("b", "a")
        ]
        term = {**chosen, "topologyKey": key, "namespaceSelector": {"matchLabels": {"team": "a"}}}
        required = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        create = ["create", world.pod("100m", affinity=required, labels={"app": "else"})]
        return [["all", teams[0], other, ["wait", 0.5], create], teams[1]]
    kind = "podAffinity" if what == "together" else "podAntiAffinity"
    required = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [{**chosen, "topologyKey": key}]}}
    kept = {"nodeSelector": {"kubernetes.io/hostname": f"$LIFE-{draw.choice(world.letters)}"}}
    create = ["create", world.pod("100m", affinity=required, labels={"app": "else"}, **kept)]
    other[1]["spec"] |= kept
    return [create, other] if what == "together" else [["all", other, ["wait", 0.5], create], leaves]


def on(letter: str) -> Json:
    return {"key": "kubernetes.io/hostname", "operator": "In", "values": [f"$LIFE-{letter}"]}


def taint(draw: Draw) -> Json:
    return {
        "key": draw.choice(("dedicated", "else")),
        "effect": draw.choice(("NoSchedule", "PreferNoSchedule")),
    }


def pods(draw: Draw) -> Life:
    world = World(draw)

    def create() -> Step:
        spec = draw.some(
            nodeSelector=({"disk": "ssd"}, {"disk": "ssd"}, {"disk": "hdd"}),
            tolerations=([{"key": "dedicated", "operator": "Exists"}],),
        )
        if draw.random() < 0.1:
            spec["nodeName"] = f"$LIFE-{draw.choice(world.letters)}"
        return ["create", world.pod(**spec)]

    steps = [world.first(), world.filled(create(), create(), create())]
    steps += led(
        draw,
        draw.randint(7, 9),
        *[create] * 3,
        *[world.waits] * 5,
        *[world.node_acts] * 4,
        *[world.delete] * 3,
        world.relabel,
        lambda: ["patch", "Pod", world.some_pod(), {"spec": {"tolerations": [{"operator": "Exists"}]}}],
        lambda: ["kubelet", [{"do": draw.choice(("succeed", "run", "hold"))}]],
        lambda: ["linger", draw.often()],
        lambda: ["patch", "Pod/resize", world.some_pod(), resized(draw)],
    )
    return {**SCHEDULED, "nodes": world.nodes, "steps": steps}


def resized(draw: Draw) -> Json:
    requests = {"requests": {"cpu": draw.choice(("250m", "1", "2"))}}
    return {"spec": {"containers": [{"name": "c", "resources": requests}]}}


def gates(draw: Draw) -> Life:
    world = World(draw)

    def create() -> Step:
        spec = draw.some(
            nodeSelector=({"disk": "ssd"}, {}),
            schedulingGates=([{"name": "g/1"}], [{"name": "g/1"}, {"name": "g/2"}]),
        )
        return ["create", world.pod(**spec)]

    def update(*specs: Json) -> Step:
        return ["patch", "Pod", world.some_pod(), {"spec": draw.choice(specs)}]

    steps = [world.first(), world.filled(create(), create(), create())]
    steps += led(
        draw,
        draw.randint(8, 11),
        *[create] * 3,
        *[
            lambda: update(
                {"schedulingGates": []}, {"schedulingGates": []}, {"schedulingGates": [{"name": "g/2"}]}
            )
        ]
        * 4,
        lambda: update({"nodeSelector": {"disk": "hdd"}}, {"nodeSelector": {"disk": "ssd", "more": "1"}}),
        lambda: update({"tolerations": [{"operator": "Exists"}]}),
        lambda: ["patch", "Pod/resize", world.some_pod(), resized(draw)],
        *[world.node_acts] * 3,
        *(world.delete, world.relabel),
    )
    return {**SCHEDULED, "nodes": world.nodes, "steps": steps}


PRIORITIES = {"low": 10, "mid": 100, "high": 1000, "meek": 1000}


def priorities() -> list[Json]:
    found = [
        {**body_of("PriorityClass", f"$LIFE-{name}"), "value": value} for name, value in PRIORITIES.items()
    ]
    found[-1]["preemptionPolicy"] = "Never"
    return found


def budget(draw: Draw) -> Step:
    amount = {draw.choice(("minAvailable", "maxUnavailable")): draw.choice((0, 1, 2, "50%"))}
    chosen = {"selector": {"matchLabels": {"app": draw.choice(("web", "db"))}}}
    return ["create", body_of("PodDisruptionBudget", f"b{draw.randint(0, 1)}", {**amount, **chosen})]


def preemption(draw: Draw) -> Life:
    world = World(draw)

    def create(*names: str) -> Step:
        name = draw.choice(names or ("low", "mid", "mid", "high", "high", "meek"))
        spec = draw.some(nodeSelector=({"disk": "ssd"},)) if draw.seldom() else {}
        return [
            "create",
            world.pod(draw.choice(("500m", "1", "1500m", "2")), priorityClassName=f"$LIFE-{name}", **spec),
        ]

    steps = [
        world.first(*priorities()),
        world.filled(*[create("low", "mid") for _ in range(draw.randint(2, 5))]),
    ]
    steps += led(
        draw,
        draw.randint(7, 10),
        *[create] * 7,
        *[lambda: budget(draw)] * 2,
        *[world.delete] * 3,
        *[lambda: ["linger", draw.often()]] * 3,
        *[world.node_acts] * 2,
        world.relabel,
        lambda: ["delete", "PodDisruptionBudget", f"b{draw.randint(0, 1)}", "Background"],
    )
    return {**SCHEDULED, "nodes": world.nodes, "steps": [*steps, ["linger", False]]}


KEYS = ("topology.kubernetes.io/zone", "kubernetes.io/hostname", "disk")


def spread(draw: Draw) -> Json:
    chosen = {"matchLabels": {"app": draw.choice(("web", "db"))}}
    constraint = {"maxSkew": draw.randint(1, 2), "topologyKey": draw.choice(KEYS), "labelSelector": chosen}
    constraint |= {"whenUnsatisfiable": draw.choice(("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"))}
    if constraint["whenUnsatisfiable"] == "DoNotSchedule":
        constraint |= draw.some(minDomains=(2,), nodeTaintsPolicy=("Honor",))
    return {"topologySpreadConstraints": [constraint]}


def kept_together(draw: Draw, kind: str = "podAffinity") -> Json:
    term: Json = {"labelSelector": {"matchLabels": {"app": draw.choice(("web", "db"))}}}
    if draw.seldom():
        term["namespaceSelector"] = {"matchLabels": {"team": "a"}}
    term["topologyKey"] = draw.choice(KEYS)
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def kept_apart(draw: Draw) -> Json:
    return kept_together(draw, "podAntiAffinity")


def spreading(draw: Draw) -> Life:
    world = World(draw)

    def create() -> Step:
        return [
            "create",
            world.pod("250m", **draw.choice((spread, kept_together, kept_apart, kept_apart))(draw)),
        ]

    def namespace() -> Step:
        return ["patch", "Namespace", "$LIFE", {"metadata": {"labels": {"team": draw.choice(("a", "b"))}}}]

    def topology() -> Step:
        labels = {draw.choice(KEYS[::2]): draw.choice(("x", "y", None))}
        return ["node", draw.choice(world.letters), {"metadata": {"labels": labels}}]

    steps = [world.first(), world.filled(create(), create(), create())]
    steps += led(
        draw,
        draw.randint(7, 9),
        *[create] * 3,
        *[lambda: company(world)] * 6,
        *[world.relabel] * 3,
        *[world.delete] * 3,
        *[topology] * 2,
        *[world.node_acts] * 2,
        namespace,
        lambda: ["linger", draw.often()],
        lambda: ["kubelet", [{"do": draw.choice(("succeed", "run"))}]],
    )
    return {**SCHEDULED, "nodes": world.nodes, "steps": steps}


def mixed(draw: Draw) -> Life:
    """All at once, in two profiles."""
    world = World(draw)
    others = (spread, kept_together, kept_apart)

    def create() -> Step:
        spec = draw.some(
            nodeSelector=({"disk": "ssd"},),
            tolerations=([{"key": "dedicated", "operator": "Exists"}],),
            schedulerName=("packing", "packing", "nobody"),
        )
        spec |= {"priorityClassName": f"$LIFE-{draw.choice(tuple(PRIORITIES))}"} if draw.often() else {}
        spec |= {"schedulingGates": [{"name": "g/1"}]} if draw.random() < 0.15 else {}
        spec |= draw.choice(others)(draw) if draw.often() else {}
        return ["create", world.pod(port=8080 if draw.seldom() else 0, **spec)]

    steps = [world.first(*priorities()), world.filled(create(), create(), create(), create())]
    steps += led(
        draw,
        draw.randint(9, 13),
        *[create] * 5,
        *[world.waits, lambda: company(world)] * 2,
        *[world.node_acts] * 5,
        *[world.delete] * 3,
        *[world.relabel] * 2,
        lambda: ["patch", "Pod", world.some_pod(), {"spec": {"schedulingGates": []}}],
        lambda: ["patch", "Pod", world.some_pod(), {"spec": {"tolerations": [{"operator": "Exists"}]}}],
        lambda: ["kubelet", [{"do": draw.choice(("succeed", "run"))}]],
        *[lambda: ["linger", draw.often()]] * 2,
        lambda: budget(draw),
        lambda: ["patch", "Pod/resize", world.some_pod(), resized(draw)],
    )
    return {**SCHEDULED, "nodes": world.nodes, "steps": [*steps, ["linger", False]]}


SCHEDULED: Json = {"looks": ["Pod"], "scheduled": True}
