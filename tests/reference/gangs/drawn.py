"""Questions about gangs, networks and reservations that are drawn from nothing."""

import json
import random
from typing import Any

Json = dict[str, Any]

_NAMES = ("cpu", "memory", "ephemeral-storage", "example.com/gpu", "kubernetes.io/batch-cpu")


def _amounts(chance: random.Random, most: int, names: int = 3) -> dict[str, str]:
    chosen = chance.sample(_NAMES, chance.randint(0, names))
    return {name: f"{chance.randint(0, most)}{'Gi' if name == 'memory' else ''}" for name in chosen}


def _drawn_room(chance: random.Random, name: str) -> Json:
    allocatable = _amounts(chance, 8)
    if chance.random() < 0.2:
        allocatable["pods"] = str(chance.randint(0, 3))
    room: Json = {
        "name": name,
        "policy": chance.choice(("", "Aligned", "Restricted", "Restricted")),
        "allocatable": allocatable,
        "allocated": {n: text for n, text in _amounts(chance, 4).items() if n in allocatable},
        "resourceNames": sorted(chance.sample(sorted(allocatable), chance.randint(0, len(allocatable))))
        if chance.random() < 0.3
        else sorted(allocatable),
        "assignedPods": chance.randint(0, 2),
    }
    if chance.random() < 0.2:
        room["reserved"] = {n: text for n, text in _amounts(chance, 2).items() if n in allocatable}
    return room


def _drawn_policy(chance: random.Random) -> Json:
    op = chance.choice(
        ("filter", "filter", "filter", "preAllocate", "preAllocate", "reservationScore", "restore")
    )
    node = {name: f"{chance.randint(2, 16)}{'Gi' if name == 'memory' else ''}" for name in _NAMES}
    around: Json = {
        "op": op,
        "nodeAllocatable": {**node, "pods": str(chance.randint(1, 10))},
        "nodeRequested": _amounts(chance, 12, 4),
        "podsOnNode": chance.randint(0, 9),
    }
    rooms = [_drawn_room(chance, f"r{number}") for number in range(chance.randint(1, 3))]
    match op:
        case "filter":
            asked = {
                **around,
                "podRequests": _amounts(chance, 6),
                "matchedAllocated": _amounts(chance, 4),
                "reservations": rooms,
                "requiredFromReservation": chance.random() < 0.5,
                "skipFitsNode": chance.random() < 0.2,
            }
            if asked["requiredFromReservation"] and chance.random() < 0.4:
                asked["reservationName"] = "r1"
            if chance.random() < 0.2:
                asked["preemptibleOnNode"] = _amounts(chance, 4)
            return asked
        case "preAllocate":
            asked = _amounts(chance, 8)
            candidates = [
                {"name": f"c{n}", "requests": _amounts(chance, 5)} for n in range(chance.randint(0, 4))
            ]
            room = {"policy": "Restricted", "allocatable": asked, "resourceNames": sorted(asked)}
            flags = {name: chance.random() < 0.5 for name in ("multiple", "required", "preferNoPreAllocated")}
            return {
                **around,
                "reservationRequests": asked,
                "reservation": room,
                "candidates": candidates,
                **flags,
            }
        case "reservationScore":
            return {"op": op, "podRequests": _amounts(chance, 6), "reservation": rooms[0]}
    for room in rooms:
        for member in ("allocated", "resourceNames", "assignedPods", "reserved"):
            room.pop(member, None)
        room["matched"] = chance.random() < 0.5
        room["allocatable"] = {
            name: f"{chance.randint(6, 9)}{text[1:]}" for name, text in _amounts(chance, 1).items()
        }
        own = [_amounts(chance, 3, 5) for _ in range(chance.randint(0, 2))]
        room["owners"] = [
            {name: text for name, text in each.items() if name in room["allocatable"]} for each in own
        ]
    plain = [_amounts(chance, 4) for _ in range(chance.randint(0, 3))]
    return {"op": op, "plainPods": plain, "reservations": rooms}


def _drawn_reservation(chance: random.Random, number: int) -> Json:
    phase = chance.choice(("", "Pending", "Available", "Available", "Waiting", "Succeeded", "Failed"))
    status: Json = {"phase": phase, "allocatable": {"cpu": "10", "memory": "10Gi"}}
    if chance.random() < 0.6:
        status["nodeName"] = chance.choice(("n1", "n2"))
    if chance.random() < 0.4:
        reason = chance.choice(("Available", "Expired", "Succeeded", "other"))
        moment = f"2026-02-{chance.choice((20, 27, 28)):02}T12:00:00Z"
        state = chance.choice(("True", "False"))
        status["conditions"] = [
            {"type": chance.choice(("Ready", "Scheduled")), "status": state, "reason": reason}
            | {"lastTransitionTime": moment, "lastProbeTime": moment}
        ]
    spec: Json = {
        "template": {
            "spec": {
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "10", "memory": "10Gi"}}}]
            }
        },
        "owners": [{"object": {"name": "p"}}],
    }
    if chance.random() < 0.8:
        spec["ttl"] = chance.choice(("0s", "1m0s", "1h0m0s", "30s"))
    if chance.random() < 0.3:
        spec["expires"] = f"2026-03-01T{chance.choice(('11:59:59', '12:00:05', '12:00:20', '13:00:00'))}Z"
    if chance.random() < 0.5:
        spec["allocateOnce"] = chance.random() < 0.5
    uid = chance.choice(("uid-r", "uid-r", "uid-r", f"uid-{number}"))
    made = f"2026-03-01T{chance.choice(('11:00:00', '11:59:30', '11:59:50', '12:00:00'))}Z"
    meta = {"name": "r", "uid": uid, "creationTimestamp": made, "resourceVersion": str(chance.randint(1, 3))}
    return {"metadata": meta, "spec": spec, "status": status}


def _drawn_life(chance: random.Random) -> Json:
    op = chance.choice(("sync", "sync", "sync", "gc", "route", "route", "states", "metrics"))
    asked: Json = {"op": op, "reservation": _drawn_reservation(chance, 0)}
    match op:
        case "route":
            mine = {name: chance.random() < 0.7 for name in ("oldResponsible", "newResponsible")}
            old, new = (_drawn_reservation(chance, number) for number in range(2))
            return {
                "op": op,
                "event": "update",
                "old": old,
                "new": new,
                "assumed": chance.random() < 0.2,
                **mine,
            }
        case "sync" | "gc":
            asked |= {"now": "2026-03-01T12:00:01Z", "nodeExists": chance.random() < 0.7}
    if op == "gc":
        asked["gcDurationSeconds"] = chance.choice((3600, 86400, 864000))
    if op == "sync":
        asked["pods"] = [
            {
                "uid": f"p{number}",
                "namespace": "default",
                "name": f"p{number}",
                "requests": _amounts(chance, 3),
                "allocatedUID": chance.choice((None, "uid-r", "uid-r", "uid-0")),
            }
            for number in chance.sample(range(5), chance.randint(0, 3))
        ]
        if asked["pods"] and chance.random() < 0.5:
            one = asked["pods"][0]
            asked["reservation"]["status"]["currentOwners"] = [
                {k: one[k] for k in ("namespace", "name", "uid")}
            ]
            asked["reservation"]["status"]["allocated"] = one["requests"]
    return asked


def _drawn_selector(chance: random.Random) -> Json:
    rule = {
        "key": chance.choice("ab"),
        "operator": chance.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Odd")),
    }
    if chance.random() < 0.6:
        rule["values"] = chance.sample(("1", "2", "x"), chance.randint(0, 2))
    return rule


def _drawn_match(chance: random.Random) -> Json:
    labels = {name: chance.choice("12x") for name in "ab" if chance.random() < 0.6}
    owners: list[Json] = []
    for _ in range(chance.randint(0, 2)):
        owner: Json = {}
        if chance.random() < 0.4:
            owner["object"] = {
                chance.choice(("name", "namespace", "uid", "kind")): chance.choice(("p", "default", "x"))
            }
        if chance.random() < 0.3:
            owner["controller"] = {
                key: chance.choice(values)
                for key, values in (
                    ("name", ("rs", "x")),
                    ("namespace", ("default", "x")),
                    ("controller", (True, False)),
                )
                if chance.random() < 0.5
            }
        if chance.random() < 0.5:
            owner["labelSelector"] = {"matchExpressions": [_drawn_selector(chance)]}
        owners.append(owner)
    meta: Json = {"name": "p", "namespace": "default", "uid": "p", "labels": labels, "annotations": {}}
    if chance.random() < 0.4:
        meta["ownerReferences"] = [{"kind": "ReplicaSet", "name": "rs", "uid": "rs"}]
        if chance.random() < 0.5:
            meta["ownerReferences"][0]["controller"] = chance.random() < 0.7
    if chance.random() < 0.4:
        return {"op": "owners", "pod": {"metadata": meta}, "owners": owners}
    affinity: Json = {}
    if chance.random() < 0.2:
        affinity["name"] = chance.choice(("r", "other"))
    if chance.random() < 0.4:
        affinity["reservationSelector"] = {chance.choice("ab"): chance.choice("12")}
    if chance.random() < 0.4:
        terms = [{"matchExpressions": [_drawn_selector(chance)]} for _ in range(chance.randint(0, 2))]
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"reservationSelectorTerms": terms}
    if chance.random() < 0.4:
        toleration = {"operator": chance.choice(("Exists", "Equal")), "key": chance.choice(("a", "b", ""))}
        affinity["tolerations"] = [toleration | {"value": "1", "effect": chance.choice(("", "NoSchedule"))}]
    if chance.random() < 0.8:
        meta["annotations"]["scheduling.koordinator.sh/reservation-affinity"] = json.dumps(affinity)
    if chance.random() < 0.2:
        exact = json.dumps({"resourceNames": chance.sample(("cpu", "memory"), chance.randint(0, 2))})
        meta["annotations"]["scheduling.koordinator.sh/exact-match-reservation"] = exact
    spec: Json = {"owners": owners if chance.random() < 0.4 else [{}], "unschedulable": chance.random() < 0.2}
    if chance.random() < 0.3:
        spec["taints"] = [
            {"key": "a", "value": "1", "effect": chance.choice(("NoSchedule", "PreferNoSchedule"))}
        ]
    own = {name: chance.choice("12x") for name in "ab" if chance.random() < 0.5}
    room = {
        "metadata": {"name": "r", "labels": own},
        "spec": spec,
        "status": {"allocatable": _amounts(chance, 2)},
    }
    node = {name: chance.choice("12x") for name in "ab" if chance.random() < 0.5}
    asked = {
        "op": "outcome",
        "pod": {"metadata": meta},
        "reservation": room,
        "podRequests": _amounts(chance, 2),
    }
    return {**asked, "nodeLabels": node, "omitNodeLabels": chance.random() < 0.2}


def _drawn_placement(chance: random.Random) -> Json:
    spines, blocks = chance.randint(1, 3), chance.randint(1, 3)
    nodes = []
    for number in range(chance.randint(1, 14)):
        spine = chance.randrange(spines)
        place = {"spine": f"s{spine}", "block": f"b{spine}-{chance.randrange(blocks)}"}
        labels = {f"network.topology.nvidia.com/{layer}": name for layer, name in place.items()}
        nodes.append({"name": f"n{number}", "labels": labels, "cpu": chance.randint(0, 5)})
    layers = ("SpineLayer", "BlockLayer", "NodeTopologyLayer")
    rules: list[Json] = []
    for layer in chance.sample(layers, chance.randint(0, 2)):
        rule: Json = {"layer": layer, "strategy": chance.choice(("MustGather", "MustGather", "PreferGather"))}
        if chance.random() < 0.2:
            rule["podCountMultiple"] = chance.randint(2, 3)
        rules.append(rule)
    pods = [{"name": f"p{number}", "cpu": 1} for number in range(chance.randint(1, 9))]
    asked = {"nodes": nodes, "pods": pods, "gatherStrategy": rules}
    if chance.random() < 0.3:
        busy = [chance.choice(nodes) for _ in range(chance.randint(0, 4))]
        asked["existing"] = [
            {"node": node["name"], "cpu": 0, "selector": chance.choice(("x", "y"))} for node in busy
        ]
        asked["selector"] = "x"
    return asked


def _drawn_gang(chance: random.Random) -> Json:
    domain = "gang.scheduling.koordinator.sh"
    values: dict[str, tuple[str, ...]] = {
        "min-available": ("2", "0", "-1", "+3", "03", " 2", "2.0", "2147483648", "", "x"),
        "total-number": ("5", "1", "0", "-2", "", "1e1"),
        "mode": ("Strict", "NonStrict", "strict", ""),
        "waiting-time": ("30s", "1h2m", "-5s", "0", "1.5h", "300ms", "10", "1d", "2us", "+3m", ".5s", ""),
        "groups": (
            '["default/g","a/b"]',
            '["b/b","a/a"]',
            "[]",
            "null",
            "{}",
            '"default/g"',
            "",
            '["default/g",]',
        ),
        "match-policy": ("only-waiting", "waiting-and-running", "once-satisfied", "other", ""),
        "network-topology-spec": (
            '{"gatherStrategy":[{"layer":"BlockLayer","strategy":"MustGather"}]}',
            "{}",
            "[]",
            "",
        ),
    }
    events = []
    for number in range(chance.randint(1, 4)):
        notes = {
            f"{domain}/{key}": chance.choice(each) for key, each in values.items() if chance.random() < 0.5
        }
        if chance.random() < 0.2:
            notes["pod-group.scheduling.sigs.k8s.io/match-policy"] = chance.choice(values["match-policy"])
        meta: Json = {
            "namespace": "default",
            "name": f"p{chance.randrange(3)}",
            "annotations": notes,
            "labels": {},
        }
        body: Json = {"kind": "Pod", "metadata": meta, "spec": {}}
        if chance.random() < 0.3:
            meta["name"] = "g"
            body = {"kind": "PodGroup", "metadata": meta, "spec": {"minMember": chance.randint(0, 4)}}
            if chance.random() < 0.5:
                body["spec"]["scheduleTimeoutSeconds"] = chance.choice((0, 5, -1))
        else:
            way = chance.choice(("annotation", "annotation", "label", "lightweight"))
            if way == "annotation":
                notes[f"{domain}/name"] = "g"
            else:
                name = "pod-group.scheduling.sigs.k8s.io"
                meta["labels"][name if way == "label" else f"{name}/name"] = "g"
            if way == "lightweight" and chance.random() < 0.7:
                meta["labels"][f"{name}/min-available"] = chance.choice(values["min-available"])
            if chance.random() < 0.3:
                body["spec"]["nodeName"] = "n1"
        # What pods are without their PodGroup is no matter of what they say.
        later = ("add", "update", "update", "delete")[: 3 if body["kind"] == "PodGroup" else 4]
        event = "add" if number == 0 else chance.choice(later)
        events.append({"event": event, "object": body})
    asked: Json = {"events": events, "gang": "default/g"}
    if chance.random() < 0.3:
        asked["args"] = {
            "defaultTimeoutSeconds": 77,
            "defaultMatchPolicy": chance.choice(values["match-policy"][:3]),
        }
    return asked


DRAW = {
    "gang-config-parse": _drawn_gang,
    "topology-placement": _drawn_placement,
    "reservation-allocate-policy": _drawn_policy,
    "reservation-match": _drawn_match,
    "reservation-phase": _drawn_life,
}
"""Other questions than those that come out of the known cases."""
