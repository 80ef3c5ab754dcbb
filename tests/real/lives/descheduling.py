"""Lives under koord-descheduler: jobs that move pods, and load that makes them."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from koordinator.install import configs
from koordinator.install.values import Values
from tests.free_ports import free_port
from tests.real.lives.drawing import Draw, Json, Life, Step, body_of, selector, template
from tests.real.lives.scheduling import led
from tests.real.processes import Program
from tests.real.servers import START_S, Servers

NAME = "koord-descheduler"
QUIET_S = 5.0
"""koord-descheduler looks at jobs every three seconds."""


CYCLE_S = 4
"""Time between two cycles, and until a report is too old: each report is looked at once."""
POOLS = 200
"""Lives side by side hardly meet in one; those with the same rest have the same arguments."""
POOL: tuple[Json, ...] = (
    {},
    {"prodLowThresholds": {"cpu": 40}, "prodHighThresholds": {"cpu": 60}},
    {
        "useDeviationThresholds": True,
        "lowThresholds": {"cpu": 15, "memory": 20},
        "highThresholds": {"cpu": 15, "memory": 20},
    },
    {"anomalyCondition": {"timeout": "1m0s", "consecutiveAbnormalities": 2, "consecutiveNormalities": 1}},
    {"resourceWeights": {"cpu": 1, "memory": 5}, "highThresholds": {"cpu": 65, "memory": 60}},
)
MIGRATION: dict[str, Json] = {
    "migration-jobs": {"maxMigratingPerNode": 1, "maxMigratingPerNamespace": 3},
    "low-node-load": {
        "skipEvictionGates": ["MaxMigratingPerNode", "MaxMigratingPerWorkload", "MaxUnavailablePerWorkload"]
    },
}
"""Arguments of MigrationController, by kind of life. Within a cycle the original sees new jobs late, so that chance
decides how many more limits on jobs let pass."""


def configuration(kind: str) -> Json:
    """What an installation mounts into the descheduler, with LowNodeLoad on and quicker."""
    found: Json = yaml.safe_load(configs.descheduler_config(Values())["data"][configs.DESCHEDULER_CONFIG])
    found |= {"leaderElection": {"leaderElect": False}, "deschedulingInterval": f"{CYCLE_S}s"}
    found |= {"maxNoOfPodsToEvictPerNode": 3}
    [profile] = found["profiles"]
    profile["plugins"]["balance"] = {"enabled": [{"name": "LowNodeLoad"}]}
    args = {each["name"]: each["args"] for each in profile["pluginConfig"]}
    quick = {"objectLimiters": {"workload": {"duration": "1s"}}, "evictQPS": "1000", "evictBurst": 1000}
    args["MigrationController"] |= quick | MIGRATION[kind]
    load = args["LowNodeLoad"]
    common = {name: load.pop(name) for name in ("lowThresholds", "highThresholds")}
    common["anomalyCondition"] = {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1}
    load |= {"nodeMetricExpirationSeconds": CYCLE_S, "nodeSelector": {"matchLabels": {"pool": "none"}}}
    load["nodePools"] = [
        {
            "name": f"p{number}",
            "nodeSelector": {"matchLabels": {"pool": f"p{number}"}},
            **common,
            **POOL[number % 5],
        }
        for number in range(POOLS)
    ]
    return found


_CYCLE = re.compile(r":\d\d(\.\d+).*Error descheduling pods")  # no nodes yet


def start(servers: Servers, program: Any, kind: str) -> Program:
    """The original on these servers, for lives of a kind."""
    address = f"127.0.0.1:{free_port()}"
    client = {"kubeconfig": str(servers.kubeconfig), "qps": 2000, "burst": 4000}
    found = configuration(kind) | {"clientConnection": client}
    found |= {"healthzBindAddress": address, "metricsBindAddress": address}
    path = servers.folder / "descheduler.yaml"
    path.write_text(yaml.safe_dump(found))
    command = [str(program), f"--config={path}", "--secure-port=0", "--v=4"]
    started = Program(NAME, command, servers.folder / f"{NAME}.log")
    started.wait(lambda: _CYCLE.search(started.said()), START_S, "begins")
    # Reports come shortly before a full second, and no cycle may look in between.
    while not 0.25 < float(_CYCLE.findall(started.said())[-1]) < 0.6:
        started.kill()
        started.log.write_text("")
        started.start_again()
        started.wait(lambda: _CYCLE.search(started.said()), START_S, "begins")
    return started


def life(kind: str, steps: list[Step], *looks: str, **more: Any) -> Life:
    looks = ("Pod", "PodMigrationJob", "Reservation", *looks)
    return {
        "looks": looks,
        "descheduler": kind,
        "exact": True,
        "quiet_s": QUIET_S,
        "steps": steps,
        "events": False,
        **more,
    }


# Jobs

EVICT = "descheduler.alpha.kubernetes.io/evict"
COST = "scheduling.koordinator.sh/eviction-cost"
POLICY = "koordinator.sh/evict-policy"
PASSED = "descheduler.koordinator.sh/passed-arbitration"
SOURCE = "koordinator.sh/job-source-node"
ORDER = "scheduling.koordinator.sh/reservation-order"
NEVER = str((1 << 31) - 1)
MODES = ("EvictDirectly", "EvictDirectly", "ReservationFirst", "ReservationFirst", None)
TTLS = (None, None, "10m0s")
FATES = ("place", "place", "place", "hold", "hold", "same", "refuse", "fail", "expire")


class Moves:
    """What is drawn for a life of jobs: workloads, and jobs that move their pods."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.jobs: list[str] = []
        self.kinds = {name: self.workload(name) for name in ("web", "db")[: draw.randint(1, 2)]}

    def workload(self, name: str) -> Json:
        draw = self.draw
        kind = draw.choice(("ReplicaSet", "ReplicaSet", "Deployment", "StatefulSet", "StatefulSet"))
        pod = template(app=name, schedulerName="koord-scheduler", priorityClassName=f"$LIFE-{name}")
        if draw.seldom():
            pod["metadata"]["annotations"] = draw.choice(({COST: NEVER}, {COST: "7"}, {EVICT: "true"}))
        if draw.seldom():
            pod["metadata"]["labels"][POLICY] = draw.choice(("Delete", "SoftEviction"))
        if draw.random() < 0.1:
            pod["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
        if name == "db" and draw.seldom():
            return body_of("Pod", name, pod["spec"], **pod["metadata"])
        spec = {
            "replicas": draw.choice((1, 2, 3, 4, 4, 5, 5, 5, 11, 11)),
            "selector": selector(name),
            "template": pod,
        }
        if kind == "StatefulSet":
            spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
        return body_of(kind, name, spec)

    def migrate(self, mode: str = "") -> Step:
        draw = self.draw
        self.jobs.append(f"$LIFE-j{len(self.jobs)}")
        spec: Json = {"mode": mode or draw.choice(MODES), "ttl": draw.choice(TTLS)}
        if draw.seldom():
            spec["deleteOptions"] = {"gracePeriodSeconds": draw.choice((0, 7))}
        notes = draw.some(
            **{"koordinator.sh/evict-reason": ("tidy",), "koordinator.sh/evict-trigger": ("me",)}
        )
        if draw.seldom():
            notes[EVICT] = "true"
        labels = {"life": "$LIFE"} | ({POLICY: draw.choice(("Delete", "None"))} if draw.seldom() else {})
        spec = {name: each for name, each in spec.items() if each is not None}
        if draw.seldom() and spec.get("mode") != "EvictDirectly":
            spec["reservationOptions"] = {"template": self.template()}
        body = body_of("PodMigrationJob", self.jobs[-1], spec, labels=labels, annotations=notes)
        if draw.random() < 0.1:
            namespace = draw.choice(("$LIFE", "$LIFE", ""))
            body["spec"]["podRef"] = {"namespace": namespace, "name": draw.choice(("gone", ""))}
            return ["create", body]
        return ["migrate", draw.choice([*self.kinds]), draw.choice("abc"), body]

    def template(self) -> Json:
        """Of a Reservation."""
        draw = self.draw
        owner = {"labelSelector": {"matchLabels": {"app": draw.choice([*self.kinds])}}}
        spec = draw.some(owners=([owner],), ttl=("1h0m0s",), allocateOnce=(False,))
        name = {"name": f"{self.jobs[-1]}-room"} if draw.seldom() else {}
        return {"metadata": {"labels": {"life": "$LIFE"}, **name}, "spec": spec}

    def some_job(self) -> str:
        return self.draw.choice([*self.jobs[-3:], "$LIFE-j0"])

    def pause(self) -> Step:
        """Jobs that wait for arbitration are left alone: an edit gets them past it in the original."""
        return ["running", self.some_job(), {"spec": {"paused": self.draw.choice((True, None, None))}}]

    def more(self) -> Step:
        """One pod, as chance decides which of several takes a room."""
        body = self.kinds["web"]
        body["spec"] = {**body["spec"], "replicas": body["spec"]["replicas"] + 1}
        return ["patch", body["kind"], "web", {"spec": {"replicas": body["spec"]["replicas"]}}]

    # Several steps that belong together

    def room(self) -> list[Step]:
        """What becomes of a Reservation, and of the job that waits for it."""
        draw = self.draw
        first, then = ["rooms", draw.choice(FATES)], ["rooms", draw.choice(("place", "place", *FATES))]
        move = self.own_room() if draw.seldom() else self.migrate("ReservationFirst")
        return [first, move, *self.some(), then, ["rooms", "place"]]

    def own_room(self) -> Step:
        """A job with a Reservation that its author made."""
        move, name = self.migrate("ReservationFirst"), f"{self.jobs[-1]}-own"
        owner = {"labelSelector": {"matchLabels": {"app": self.draw.choice([*self.kinds])}}}
        spec = {"template": template(), "owners": [owner], "ttl": "1h0m0s"}
        move[-1]["spec"]["reservationOptions"] = {"reservationRef": {"name": name}}
        return [
            "all",
            ["create", body_of("Reservation", name, spec, labels={"life": "$LIFE"})],
            ["wait", 0.5],
            move,
        ]

    def refused(self) -> list[Step]:
        spec = {"selector": selector(self.draw.choice([*self.kinds])), "maxUnavailable": 0}
        budget, gone = (
            body_of("PodDisruptionBudget", "budget", spec),
            ["delete", "PodDisruptionBudget", "budget", "Background"],
        )
        return [["all", ["create", budget], self.migrate()], *self.some(), noticed(self.draw, gone)]

    def slow(self) -> list[Step]:
        """Pods that take long to go, or whose successors do."""
        what = self.draw.choice((("linger", True, False), ("kubelet", [{"do": "run"}], [])))
        return [[what[0], what[1]], self.migrate(), *self.some(), [what[0], what[2]]]

    def many(self) -> list[Step]:
        """More jobs at once than limits let pass."""
        creates = [self.migrate("ReservationFirst") for _ in range(self.draw.randint(2, 4))]
        spaced = [step for each in creates for step in (each, ["wait", 1.2])]
        return [["all", ["rooms", "hold"], *spaced], *self.some(), ["rooms", "place"]]

    def paused(self) -> list[Step]:
        """A job that begins paused; meanwhile nothing happens, as the original judges it all the same."""
        move = self.migrate()
        move[-1]["spec"]["paused"] = True
        return [move, ["patch", "PodMigrationJob", self.jobs[-1], {"spec": {"paused": None}}]]

    def late(self) -> list[Step]:
        """A job whose time is over."""
        move = self.migrate("ReservationFirst")
        move[-1]["spec"]["ttl"] = "25s"
        return [["all", ["rooms", "hold"], move], noticed(self.draw, ["wait", 26])]

    def pending(self) -> list[Step]:
        """A job for a pod that has no place yet: a certain one."""
        if self.kinds["web"]["kind"] != "StatefulSet":
            return self.room()
        move = self.migrate("ReservationFirst")
        move[-1]["spec"].pop("reservationOptions", None)
        return [
            ["kubelet", [{"do": "unplaced"}]],
            self.more(),
            ["migrate", "web", "", move[-1]],
            ["kubelet", []],
        ]

    def some(self) -> list[Step]:
        some = (self.migrate, self.end, self.more, lambda: ["lose", self.some_job()], self.pause)
        return self.draw.choice(([], [self.pause(), self.pause()], [self.draw.choice(some)()]))

    def end(self) -> Step:
        return ["running", self.some_job(), None]


def noticed(draw: Draw, step: Step) -> Step:
    """Jobs that run look at once: after refusals koord-descheduler looks less and less often."""
    touch = {"metadata": {"labels": {"touch": str(draw.random())}}}
    return ["all", step, ["wait", 1.0], ["running", "", touch]]


def migration_jobs(draw: Draw) -> Life:
    moves = Moves(draw)
    kinds = [{**body} for body in moves.kinds.values()]
    ranks = {"web": 5, "db": 50}
    first = [{**body_of("PriorityClass", f"$LIFE-{name}"), "value": ranks[name]} for name in moves.kinds]
    steps: list[Step] = [
        ["create", *first, *kinds],
        *(moves.paused() if draw.seldom() else [moves.migrate()]),
    ]
    steps += led(
        draw,
        draw.randint(3, 4),
        *[moves.room] * 3,
        *[moves.slow, moves.many, moves.refused] * 2,
        *[moves.pending, moves.migrate, moves.late],
    )
    return life("migration-jobs", steps, "PodDisruptionBudget")


# Load

BANDS = {"prod": 9500, "mid": 7500, "batch": 5500, "free": 3500}


def low_node_load(draw: Draw) -> Life:
    """Reports of hot and cold nodes; each is looked at in one cycle.

    Nodes are large: where the room of cold ones is scarce, the order in which a map is walked decides in the original.
    """
    pool = {"pool": f"p{draw.randrange(POOLS)}"}
    nodes = [
        {
            "labels": {"disk": draw.choice(("ssd", "hdd")), **pool},
            "size": {"cpu": draw.choice(("16", "24")), "memory": "64Gi", "pods": "50"},
        }
        for _ in range(draw.randint(3, 4))
    ]
    letters = "abcd"[: len(nodes)]
    ranks = [{**body_of("PriorityClass", f"$LIFE-{name}"), "value": value} for name, value in BANDS.items()]
    workloads, usages = [], {}
    for name in "xyz"[: draw.randint(2, 3)]:
        size = {"cpu": draw.choice(("200m", "500m", "1")), "memory": draw.choice(("64Mi", "1Gi", "3Gi"))}
        if draw.seldom():
            size = {}
        pod = template(
            app=name, schedulerName="koord-scheduler", priorityClassName=f"$LIFE-{draw.choice([*BANDS])}"
        )
        pod["spec"]["containers"][0]["resources"] = {"requests": size}
        if draw.seldom():
            pod["spec"]["nodeSelector"] = {"disk": "ssd"}
        if draw.often():
            pod["metadata"]["labels"]["koordinator.sh/qosClass"] = draw.choice(("LS", "BE", "LSR"))
        if draw.seldom():
            pod["metadata"]["annotations"] = draw.choice(
                ({COST: NEVER}, {COST: "7"}, {COST: "-3"}, {EVICT: "true"})
            )
        replicas = draw.randint(2, 8)
        spec = {"replicas": replicas, "selector": selector(name), "template": pod, "serviceName": name}
        workloads.append(body_of("StatefulSet", name, {**spec, "podManagementPolicy": "Parallel"}))
        usages |= {f"{name}-{number}": None for number in range(replicas)}

    def report() -> Step:
        """Usage beside pods, in percent of the node, and of pods, in percent of a core and in MiB."""
        system = {letter: draw.choice((2, 5, 30, 60, 73)) for letter in letters}
        pods = {name: [draw.randint(1, 99), draw.randint(20, 2500)] for name in usages}
        return ["report", system, pods]

    def cordon() -> Step:
        taint = {"key": "dedicated", "effect": draw.choice(("NoSchedule", "PreferNoSchedule"))}
        spec = draw.choice(
            ({"unschedulable": True}, {"unschedulable": None}, {"taints": [taint]}, {"taints": None})
        )
        return ["node", draw.choice(letters), {"spec": spec}]

    steps: list[Step] = [["create", *ranks, *workloads]]
    steps += led(
        draw,
        draw.randint(5, 8),
        *[report] * 5,
        cordon,
        lambda: ["rooms", draw.choice(("place", "hold"))],
        lambda: ["linger", draw.often()],
    )
    return life("low-node-load", steps, nodes=nodes)


KINDS: dict[str, Callable[[Draw], Life]] = {
    "migration-jobs": migration_jobs,
    "low-node-load": low_node_load,
}


# What differs on purpose

_FORBIDDEN = re.compile(r"(does not meet the requirements).*", re.DOTALL)


def forget(seen: Json) -> None:
    """Take away what is ours alone, and what the original writes besides; docs/deliberate-differences.md says why."""
    for body in _of("PodMigrationJob", seen):
        options = body.get("spec", {}).get("reservationOptions", {})
        options.pop("template", None)
        for member in ("apiVersion", "kind"):
            options.get("reservationRef", {}).pop(member, None)
        body["metadata"].get("labels", {}).pop("touch", None)
        status = body.get("status", {})
        if (
            body.get("spec", {}).get("paused")
            and status.get("phase") != "Running"
            and not status.get("conditions")
        ):
            body.pop("status", None)  # the original judges what is paused, too
            body["metadata"].get("annotations", {}).pop(PASSED, None)
        body["metadata"].get("annotations", {}).pop(SOURCE, None)
        for name in [name for name, each in body["metadata"].items() if each == {}]:
            del body["metadata"][name]
        conditions = status.get("conditions", [])
        if any(each["type"] == "ReservationBound" for each in conditions):  # ours looks sooner
            status["conditions"] = [
                each for each in conditions if each.get("reason") != "WaitForPodBindReservation"
            ]
        if "message" in status:
            status["message"] = _FORBIDDEN.sub(r"\1", status["message"])
    for body in _of("Reservation", seen):
        body["metadata"].get("labels", {}).update({ORDER: "NOW"})
        pod = body["spec"].get("template", {})
        for member in ("managedFields", "resourceVersion", "generation"):
            pod.get("metadata", {}).pop(member, None)


def _of(kind: str, seen: Json) -> Iterator[Json]:
    return (body for name, bodies in seen.items() if name.startswith(f"{kind} ") for body in bodies)
