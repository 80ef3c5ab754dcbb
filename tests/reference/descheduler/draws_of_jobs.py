"""Questions about migration jobs, drawn from nothing."""

from random import Random

from tests.reference.descheduler.draws import Json, evictable, given, owner, pod, rarely


def _job(chance: Random, name: str, of: Json, phases: tuple[str | None, ...]) -> Json:
    meta = of["metadata"]
    passed = {"descheduler.koordinator.sh/passed-arbitration": "true"}
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": chance.randint(0, 50_000) / 10,
            "annotations": chance.choice(({}, {}, passed)),
        },
        "spec": {"podRef": {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}},
        "status": given({"phase": chance.choice(phases)}),
    }


GATES = (
    *("MaxMigratingGlobally", "MaxMigratingPerNode", "MaxMigratingPerNamespace", "MaxMigratingPerWorkload"),
    *("MaxUnavailablePerWorkload", "ExpectedReplicas", "PVC", "BarePods", "LocalStorage", "SystemCritical"),
    *("PriorityThreshold", "LabelSelector", "Namespaces", "NodeFit"),
)


def arbitrate_filter(chance: Random) -> Json:
    asked = evictable(chance)
    pods = [pod(chance, f"p{index}", chance.choice(("n0", "n1"))) for index in range(chance.randint(1, 8))]
    own = asked["pod"]
    for one in (own, *pods):
        one["spec"]["schedulerName"] = chance.choice(("koord-scheduler",) * 5 + ("other",))
        one["status"]["conditions"] = [
            {"type": "Ready", "status": chance.choice(("True", "True", "True", "False"))}
        ]
        if chance.random() < 0.6:
            one["metadata"]["namespace"] = "default"
            refs = own["metadata"]["ownerReferences"]
            one["metadata"]["ownerReferences"] = [
                {**ref, "controller": chance.random() < 0.9} for ref in refs
            ]
    phases = (None, "Pending", "Running", "Running", "Succeeded", "Failed", "Aborted")
    jobs = [_job(chance, f"j{n}", one, phases) for n, one in enumerate((own, *pods)) if chance.random() < 0.3]
    limits = (None, None, 0, 1, 2, 5, "10%", "30%", "50%", "100%")
    options = asked["options"]
    args = {
        **{name: member for name, member in options.items() if name not in ("nodeFit", "priorityThreshold")},
        "priorityThreshold": {"value": options["priorityThreshold"]}
        if "priorityThreshold" in options
        else None,
        "maxMigratingGlobally": chance.choice((None, None, 0, 1, 2, 4)),
        "maxMigratingPerNode": chance.choice((None, None, 0, 1, 2)),
        "maxMigratingPerNamespace": chance.choice((None, None, 0, 1, 2)),
        "maxMigratingPerWorkload": chance.choice(limits),
        "maxUnavailablePerWorkload": chance.choice(limits),
        "skipCheckExpectedReplicas": chance.choice((None, True, False)),
        "skipEvictionGates": chance.sample(GATES, chance.choice((0, 0, 0, 1, 4))),
        "namespaces": rarely(chance, {chance.choice(("include", "exclude")): ["default"]}, 6),
        "defaultJobMode": chance.choice((None, "EvictDirectly", "ReservationFirst")),
        "schedulerNames": rarely(chance, ["other"], 6),
    }
    replicas = (1, 2, 3, 4, 6, 10, 11, 30)
    owners = {ref["uid"] for one in (own, *pods) for ref in one["metadata"]["ownerReferences"]}
    workloads = {uid: {"replicas": chance.choice(replicas)} for uid in sorted(owners)}
    for uid in workloads:
        if chance.random() < 0.05:
            workloads[uid] = {"error": True}
    return {
        "pod": own,
        "args": {name: member for name, member in args.items() if member not in (None, [])},
        "jobs": jobs,
        "pods": [own, *pods],
        "workloads": workloads,
        "arbitrating": chance.random() < 0.5,
        "arbitrated_jobs": [one["metadata"]["name"] for one in jobs if chance.random() < 0.5],
    }


def arbitrate_sort(chance: Random) -> Json:
    count, others = chance.randint(2, 10), chance.randint(0, 6)
    pods = [pod(chance, f"p{index}", "n0") for index in range(count + others)]
    for one in pods:
        if chance.random() < 0.5:
            one["metadata"]["ownerReferences"] = [owner(chance, ("Job",))]
        one["metadata"]["ownerReferences"] *= chance.random() < 0.9
        for ref in one["metadata"]["ownerReferences"]:
            ref["controller"] = chance.random() < 0.85
    jobs = [_job(chance, f"j{n}", one, (None, "Running", "Succeeded")) for n, one in enumerate(pods)]
    for one in jobs[:count]:
        one["metadata"]["annotations"], one["status"] = {}, {}
    return {
        "waiting_jobs": jobs[:count],
        "other_jobs": jobs[count:],
        "pods": [one for one in pods if chance.random() < 0.9],
    }


def object_limiter(chance: Random) -> Json:
    limiters = {
        kind: given(
            {
                "durationSeconds": chance.choice((0, 1, 2, 10, 100, 300)),
                "maxMigrating": chance.choice(
                    (None, 1, 2, 5, "10%", "50%") if kind == "workload" else (1, 2, 5)
                ),
                "burst": chance.choice((None, 0, 1, 2, 3)),
            }
        )
        for kind in chance.choice((("workload",), ("namespace",), ("workload", "namespace")))
    }
    for one in limiters.values():
        one.setdefault("durationSeconds", 0)
    events, at = [], 0.0
    for _ in range(chance.randint(2, 15)):
        at = round(at + chance.choice((0, 0.01, 0.1, 0.5, 1, 3, 7, 30, 60)), 2)
        names = {
            "workload": chance.choice(("w1", "w1", "w2")),
            "namespace": chance.choice(("ns", "ns", "other")),
        }
        events.append({"at": at, "op": chance.choice(("evicted", "check", "check")), **names})
    return {
        "object_limiters": limiters,
        "replicas": chance.choice((1, 2, 4, 10, 100)),
        "max_migrating_per_workload": chance.choice((None, None, 1, 3, "20%")),
        "events": events,
    }


def migration_state(chance: Random) -> Json:
    """A job and a world that goes its way, with mishaps."""
    ref: Json = {
        "namespace": "default",
        "name": "pod-a",
        **given({"uid": chance.choice((None, "u1", "u1", "u9"))}),
    }
    mode = chance.choice((None, "ReservationFirst", "ReservationFirst", "EvictDirectly"))
    has_room = chance.random() < 0.7
    options = {"reservationRef": {"name": "rsv"}} if has_room else None
    spec = given(
        {"podRef": ref, "mode": mode, "ttlSeconds": chance.choice((None, 300)), "reservationOptions": options}
    )
    annotations = {
        "koordinator.sh/evict-reason": rarely(chance, "hot", 3),
        "koordinator.sh/evict-trigger": rarely(chance, "LowNodeLoad", 3),
        "descheduler.alpha.kubernetes.io/evict": rarely(chance, "true"),
    }
    meta = {"name": "job-1", "uid": "job-uid-1", "creationTimestamp": 0, "annotations": given(annotations)}
    bound = chance.random() < 0.5
    steps, progress, now = [], 0, 0
    for _ in range(chance.randint(1, 7)):
        now += chance.choice((1, 3, 3, 3, 120))
        progress += chance.choice((0, 1, 1, 2))
        world = {
            "pods": _pods_of_step(chance, progress),
            "reservation": _reservation(chance, "rsv" if has_room else "job-uid-1", progress, bound),
            "limiter_blocked": rarely(chance, True),
            "eviction_error": rarely(chance, "429"),
            "create_reservation_error": rarely(chance, "quota"),
        }
        if world["reservation"] is None or chance.random() < 0.03:
            del world["reservation"]
        steps.append({"now": now, "world": {name: m for name, m in world.items() if m is not None}})
    return {
        "args": {"defaultJobMode": chance.choice(("ReservationFirst", "EvictDirectly"))},
        "reconciler_uid": "me",
        "job": {"metadata": meta, "spec": spec, "status": {}},
        "steps": steps,
    }


def _pods_of_step(chance: Random, progress: int) -> list[Json]:
    def one(name: str, uid: str, node: str, is_ready: bool) -> Json:
        ready = {"type": "Ready", "status": "True" if is_ready else "False"}
        scheduled = {
            "type": "PodScheduled",
            "status": "True" if node else "False",
            "message": "" if node else "no room",
        }
        return {
            "metadata": {"namespace": "default", "name": name, "uid": uid},
            "spec": {"nodeName": node, "schedulerName": "koord-scheduler"},
            "status": {"phase": "Running" if node else "Pending", "conditions": [ready, scheduled]},
        }

    found = []
    if progress < 4 or chance.random() < 0.1:
        found.append(one("pod-a", "u1", chance.choice(("n1", "n1", "n1", "n2", "")), True))
    elif chance.random() < 0.2:
        found.append(one("pod-a", "u3", "n2", chance.random() < 0.5))
    if progress > 4:
        found.append(one("pod-b", "u2", "n2", chance.random() < 0.6))
    return found


def _reservation(chance: Random, name: str, progress: int, is_bound: bool) -> Json | None:
    if progress == 0 and chance.random() < 0.3:
        return None
    failing = chance.random() < 0.1
    scheduled = {"type": "Scheduled", "status": "True", "reason": "Scheduled"}
    if failing:
        scheduled = {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "no fit"}
    status: Json = {"phase": "Pending", "conditions": [scheduled] if failing else []}
    if progress > 1:
        phase = chance.choice(("Available",) * 8 + ("Succeeded", "Failed", "Pending", ""))
        conditions = [scheduled]
        if chance.random() < 0.15:
            conditions.append(
                {"type": "Ready", "status": "False", "reason": chance.choice(("Expired", "Succeeded"))}
            )
        status = {"phase": phase, "nodeName": chance.choice(("n2", "n2", "n2", "")), "conditions": conditions}
    if progress > 4 and is_bound:
        status["phase"] = "Succeeded"
        status["currentOwners"] = [{"namespace": "default", "name": "pod-b", "uid": "u2"}]
    owner = {"controller": {"kind": "ReplicaSet", "name": "rs", "namespace": "default"}}
    itself = {"object": {"kind": "Pod", "namespace": "default", "name": "pod-a", "uid": "u1"}}
    order = {"scheduling.koordinator.sh/reservation-order": "1700000000000"}
    return {
        "metadata": {"name": name, "labels": chance.choice((order, order, order, {}))},
        "spec": {"owners": chance.choice(([owner], [owner], [owner], [itself], [itself, owner], []))},
        "status": status,
    }
