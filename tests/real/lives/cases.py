"""Random lives by name and seed: what users do to workloads, and how their pods fare."""

import random
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Life = dict[str, Any]
Step = list[Any]

IMAGES = ("one", "two", "three")


class Draw(random.Random):
    """Words for what is drawn."""

    def often(self) -> bool:
        return self.random() < 0.6

    def seldom(self) -> bool:
        return self.random() < 0.25

    def some(self, **values: Any) -> Json:
        """Each of the members, or not; one of its values."""
        return {name: self.choice(found) for name, found in values.items() if self.random() < 0.5}


def life_of(name: str, seed: int) -> Life:
    draw = Draw(f"{name} {seed}")
    life = _FAMILIES[name](draw)
    return {"name": f"{name.replace(' ', '-')}-{seed}", "nodes": 3, **life}


def body_of(kind: str, name: str, spec: Json | None = None, **metadata: Any) -> Json:
    groups = {
        "Deployment": "apps/v1",
        "ReplicaSet": "apps/v1",
        "StatefulSet": "apps/v1",
        "DaemonSet": "apps/v1",
    }
    groups |= {"Job": "batch/v1", "CronJob": "batch/v1", "PodDisruptionBudget": "policy/v1"}
    body = {"apiVersion": groups.get(kind, "v1"), "kind": kind, "metadata": {"name": name, **metadata}}
    return body if spec is None else {**body, "spec": spec}


def template(image: str = "one", app: str = "web", **spec: Any) -> Json:
    containers = [{"name": "c", "image": image}]
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": containers, **spec}}


def _selector(app: str = "web") -> Json:
    return {"matchLabels": {"app": app}}


def _new_image(kind: str, draw: Draw) -> Step:
    """Rolls back, too, when it was there before."""
    containers = [{"name": "c", "image": draw.choice(IMAGES)}]
    return ["patch", kind, "web", {"spec": {"template": {"spec": {"containers": containers}}}}]


def _scale(kind: str, draw: Draw, most: int = 6) -> Step:
    return ["patch", kind, "web", {"spec": {"replicas": draw.randint(0, most)}}]


def _kubelet(draw: Draw, *fates: str) -> Step:
    rules: list[Json] = []
    if draw.often():
        rules.append({"image": draw.choice(IMAGES), "do": draw.choice(fates or ("hold", "run", "bind"))})
        if draw.seldom():
            rules[0]["below"] = draw.randint(1, 3)
    return ["kubelet", rules]


def _leave(kind: str, draw: Draw) -> Step:
    return ["delete", kind, "web", draw.choice(("Foreground", "Background", "Orphan"))]


def _acts(draw: Draw, count: int, *acts: Callable[[], Step]) -> list[Step]:
    return [draw.choice(acts)() for _ in range(count)]


def _deployment(draw: Draw) -> Life:
    amounts = (0, 1, 2, "25%", "50%", "100%")
    rolling = {"maxSurge": draw.choice(amounts), "maxUnavailable": draw.choice(amounts[1:])}
    strategies = ({"type": "Recreate"}, {"rollingUpdate": rolling}, {"rollingUpdate": rolling}, {})
    spec = {
        "replicas": draw.randint(0, 6),
        "selector": _selector(),
        "template": template(),
        "strategy": draw.choice(strategies),
        **draw.some(minReadySeconds=(1,), progressDeadlineSeconds=(5, 600), revisionHistoryLimit=(0, 1, 2)),
    }
    if draw.seldom():
        spec["paused"] = True
    deployment = "Deployment"

    def pause() -> Step:
        return ["patch", deployment, "web", {"spec": {"paused": draw.often() or None}}]

    def annotate() -> Step:
        notes = {
            "kubernetes.io/change-cause": f"cause {draw.randint(1, 3)}",
            "other": str(draw.randint(1, 2)),
        }
        return ["patch", deployment, "web", {"metadata": {"annotations": notes, "labels": {"own": "1"}}}]

    def new_strategy() -> Step:
        return ["patch", deployment, "web", {"spec": {"minReadySeconds": draw.randint(0, 2) or None}}]

    steps = [
        *([_kubelet(draw)] if draw.seldom() else []),
        ["create", body_of(deployment, "web", spec)],
        *_acts(
            draw,
            draw.randint(4, 8),
            *[lambda: _new_image(deployment, draw)] * 4,
            *[lambda: _scale(deployment, draw)] * 2,
            *[lambda: _kubelet(draw)] * 3,
            *(pause, annotate, new_strategy),
            lambda: ["delete pod", draw.randint(0, 5)],
            lambda: ["label pod", draw.randint(0, 5), {"app": draw.choice(("other", "web"))}],
            lambda: ["wait", 6],
            lambda: ["linger", draw.often()],
        ),
    ]
    if draw.seldom():
        steps.append(_leave(deployment, draw))
    return {"looks": ["Pod", "ReplicaSet", "Deployment"], "steps": steps}


def _replicaset(draw: Draw) -> Life:
    kind = "ReplicaSet"
    spec = {"replicas": draw.randint(0, 5), "selector": _selector(), "template": template()}
    spec |= draw.some(minReadySeconds=(1,))
    body = body_of(kind, "web", spec)
    orphan = body_of("Pod", "early", template()["spec"], labels={"app": "web"})
    steps = [
        *([["create", orphan]] if draw.often() else []),
        ["create", body],
        *_acts(
            draw,
            draw.randint(3, 7),
            *[lambda: _scale(kind, draw)] * 2,
            *[lambda: _kubelet(draw, "run", "fail 1", "succeed", "hold")] * 2,
            lambda: _new_image(kind, draw),
            lambda: ["delete pod", draw.randint(0, 5)],
            lambda: ["label pod", draw.randint(0, 5), {"app": draw.choice(("other", "web"))}],
            lambda: ["label pod", draw.randint(0, 5), {"more": "yes"}],
            lambda: ["linger", draw.often()],
            lambda: _leave(kind, draw),
            lambda: ["create", body],
        ),
    ]
    return {"looks": ["Pod", "ReplicaSet"], "steps": steps}


def _statefulset(draw: Draw) -> Life:
    kind = "StatefulSet"
    partition = draw.some(partition=(0, 1, 2, 3))
    claims = [{"metadata": {"name": "data"}, "spec": _claim()}]
    spec = {
        "replicas": draw.randint(0, 4),
        "selector": _selector(),
        "template": template(),
        "serviceName": "web",
        **draw.some(
            podManagementPolicy=("Parallel", "OrderedReady"),
            updateStrategy=({"type": "OnDelete"}, *[{"rollingUpdate": partition}] * 3),
            revisionHistoryLimit=(0, 1),
            minReadySeconds=(1,),
            ordinals=({"start": 2},),
            volumeClaimTemplates=(claims,),
            persistentVolumeClaimRetentionPolicy=(
                {"whenDeleted": "Delete", "whenScaled": "Retain"},
                {"whenDeleted": "Retain", "whenScaled": "Delete"},
                {"whenDeleted": "Delete", "whenScaled": "Delete"},
            ),
        ),
    }
    body = body_of(kind, "web", spec)

    def rules() -> Step:
        if draw.seldom():
            return ["kubelet", []]
        fate = draw.choice(("run", "run", "hold", "fail 1", "ready"))
        rule: Json = {"do": fate, **draw.some(image=IMAGES, at=([0], [1], [2], [0, 1]))}
        if fate == "fail 1":
            rule["below"] = draw.randint(1, 5)  # else it goes on for ever
        return ["kubelet", [rule]]

    steps = [
        *([rules()] if draw.seldom() else []),
        ["create", body],
        *_acts(
            draw,
            draw.randint(4, 8),
            *[lambda: _new_image(kind, draw)] * 4,
            *[lambda: _scale(kind, draw, 4)] * 2,
            *[rules] * 3,
            lambda: ["delete pod", draw.randint(0, 5)],
            lambda: ["label pod", draw.randint(0, 5), {"app": draw.choice(("other", "web"))}],
            lambda: ["linger", draw.often()],
            lambda: [
                "patch",
                kind,
                "web",
                {"spec": {"updateStrategy": {"rollingUpdate": {"partition": draw.randint(0, 3)}}}},
            ],
            lambda: ["patch", kind, "web", {"spec": {"ordinals": {"start": draw.randint(0, 2)}}}],
        ),
    ]
    if draw.seldom():
        steps += [_leave(kind, draw), *([["create", body]] if draw.often() else [])]
    return {"looks": ["Pod", "StatefulSet", "ControllerRevision", "PersistentVolumeClaim"], "steps": steps}


def _claim() -> Json:
    size = {"requests": {"storage": "1Gi"}}
    return {"accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": size}


def _daemonset(draw: Draw, life: str = "") -> Life:
    kind = "DaemonSet"
    rolling = draw.choice(
        ({"maxSurge": 1, "maxUnavailable": 0}, {"maxUnavailable": 2}, {"maxUnavailable": "50%"}, {})
    )
    strategy = draw.choice(({"type": "OnDelete"}, {"rollingUpdate": rolling}, {"rollingUpdate": rolling}, {}))
    pod = {"nodeSelector": {"life": "$LIFE", **({"part": "one"} if draw.seldom() else {})}}
    if draw.often():
        pod["tolerations"] = draw.choice(
            ([{"key": "dedicated", "operator": "Exists"}], [{"operator": "Exists", "effect": "NoExecute"}])
        )
    spec = {"selector": _selector(), "template": template(**pod), "updateStrategy": strategy}
    spec |= draw.some(minReadySeconds=(1,), revisionHistoryLimit=(0, 1))
    taints = ("NoSchedule", "NoExecute", "PreferNoSchedule")

    def noticed(step: Step) -> Step:
        """The real controller does not look at nodes where nothing is to be done, and its status stays behind."""
        return [
            "all",
            step,
            ["wait", 0.5],
            ["patch", kind, "web", {"metadata": {"labels": {"touch": str(draw.random())}}}],
        ]

    def taint() -> Step:
        taint = {"key": draw.choice(("dedicated", "else")), "effect": draw.choice(taints)}
        return noticed(
            ["node", draw.choice("abc"), {"spec": {"taints": draw.choice(([taint], [taint], None))}}]
        )

    def rules() -> Step:
        fate = draw.choice(("run", "ready", "fail 1", "hold"))
        rule: Json = {"do": fate, **draw.some(image=IMAGES)}
        if fate == "fail 1":
            rule["below"] = draw.randint(1, 4)
        return ["kubelet", [rule] if draw.often() else []]

    steps = [
        *([taint()] if draw.seldom() else []),
        ["create", body_of(kind, "web", spec)],
        *_acts(
            draw,
            draw.randint(4, 8),
            *[lambda: _new_image(kind, draw)] * 4,
            *[rules, taint] * 2,
            lambda: ["delete pod", draw.randint(0, 5)],
            lambda: ["label pod", draw.randint(0, 5), {"app": draw.choice(("other", "web"))}],
            lambda: ["linger", draw.often()],
            lambda: noticed(
                [
                    "node",
                    draw.choice("abc"),
                    {"metadata": {"labels": {"part": draw.choice(("one", "other"))}}},
                ]
            ),
            lambda: noticed(["node", draw.choice("abc"), {"spec": {"unschedulable": draw.often() or None}}]),
        ),
    ]
    steps.append(draw.choice((noticed(["delete node", draw.choice("abc")]), _leave(kind, draw))))
    return {"looks": ["Pod", "DaemonSet", "ControllerRevision"], "steps": steps}


def _job(draw: Draw) -> Life:
    kind, is_indexed = "Job", draw.often()
    spec: Json = {
        "template": template(restartPolicy="Never" if draw.often() else "OnFailure"),
        **draw.some(
            parallelism=(1, 2, 3, 0),
            completions=(1, 2, 3, 4),
            backoffLimit=(0, 1, 2),
            suspend=(True,),
            activeDeadlineSeconds=(6,),
            ttlSecondsAfterFinished=(0, 4),
            podReplacementPolicy=("Failed",),
        ),
    }
    if is_indexed:
        spec |= {"completionMode": "Indexed", "completions": draw.randint(1, 4)}
        spec["parallelism"] = draw.choice((1, 2, spec["completions"]))
        if spec["template"]["spec"]["restartPolicy"] == "Never" and draw.often():
            spec |= {"backoffLimitPerIndex": draw.randint(0, 1), "backoffLimit": draw.choice((3, 100))}
            spec |= draw.some(maxFailedIndexes=(0, 1, 2))
        if draw.seldom():
            rule = draw.some(succeededIndexes=("0", "0-1", "1"), succeededCount=(1,))
            spec["successPolicy"] = {"rules": [rule or {"succeededCount": 1}]}
    if spec["template"]["spec"]["restartPolicy"] == "Never" and draw.often():
        actions = ["Ignore", "FailJob", "Count", *(["FailIndex"] if "backoffLimitPerIndex" in spec else [])]
        codes = {"operator": draw.choice(("In", "NotIn")), "values": [3]}
        rules = [{"action": draw.choice(actions), "onExitCodes": codes}]
        if draw.often():
            pattern = {"type": "DisruptionTarget", "status": "True"}
            rules.append({"action": draw.choice(actions), "onPodConditions": [pattern]})
        spec["podFailurePolicy"] = {"rules": rules}
        if "podReplacementPolicy" in spec:
            spec["podReplacementPolicy"] = "Failed"

    # While a Job pauses after a failure, the real controller fails to write its status if some pods are ready.
    may_fail = "backoffLimitPerIndex" in spec or spec.get("parallelism", 1) <= 1
    if not may_fail and draw.often():
        spec["backoffLimit"], may_fail = 0, True
    failures = ("fail 1", "fail 3", "evicted") if may_fail else ()

    def rules_of() -> Step:
        fates = ("succeed", "succeed", "run", "ready", "restart 1", *failures)
        found: list[Json] = []
        for _ in range(draw.randint(0, 2)):
            rule: Json = {"do": draw.choice(fates)}
            if is_indexed and draw.often():
                rule["at"] = draw.choice(([0], [1], [0, 1], [2]))
            if rule["do"] in ("fail 3", "evicted") or draw.seldom():
                rule["below"] = draw.randint(1, 3)
            found.append(rule)
        return ["kubelet", found]

    steps = [
        rules_of(),
        ["create", body_of(kind, "web", spec)],
        *_acts(
            draw,
            draw.randint(3, 6),
            *[rules_of] * 4,
            lambda: ["patch", kind, "web", {"spec": {"suspend": draw.random() < 0.5}}],
            lambda: ["patch", kind, "web", {"spec": {"parallelism": draw.randint(0, 3)}}],
            lambda: ["wait", draw.choice((5, 12))],
            *[lambda: [draw.choice(("delete pod", "evict")), draw.randint(0, 3)]] * (2 if may_fail else 0),
            lambda: ["linger", draw.often()],
        ),
    ]
    if draw.seldom():
        steps.append(_leave(kind, draw))
    return {"looks": ["Pod", "Job"], "steps": steps}


def _disruption(draw: Draw) -> Life:
    owner = draw.choice(("Deployment", "StatefulSet", "ReplicaSet"))
    spec: Json = {"replicas": draw.randint(1, 5), "selector": _selector(), "template": template()}
    if owner == "StatefulSet":
        spec["podManagementPolicy"] = "Parallel"
    amount = draw.choice((0, 1, 2, "0%", "30%", "50%", "100%"))
    budget: Json = {draw.choice(("minAvailable", "maxUnavailable")): amount, "selector": _selector()}
    budget |= draw.some(unhealthyPodEvictionPolicy=("AlwaysAllow", "IfHealthyBudget"))
    alone = body_of("Pod", "alone", template()["spec"], labels={"app": "web"})
    steps = [
        ["create", body_of("PodDisruptionBudget", "web", budget)],
        ["create", body_of(owner, "web", spec)],
        *_acts(
            draw,
            draw.randint(3, 6),
            *[lambda: ["evict", draw.randint(0, 5)]] * 4,
            lambda: _scale(owner, draw),
            lambda: ["kubelet", [{"do": "run", "below": draw.randint(1, 4)}]],
            lambda: ["kubelet", []],
            lambda: ["linger", draw.often()],
            lambda: ["create", alone],
            lambda: [
                "patch",
                "PodDisruptionBudget",
                "web",
                {"spec": {"selector": {"matchLabels": {"app": draw.choice(("web", "no"))}}}},
            ],
            lambda: ["delete pod", draw.randint(0, 5)],
        ),
    ]
    return {"looks": ["Pod", "PodDisruptionBudget"], "steps": steps}


def _service(draw: Draw) -> Life:
    owner = draw.choice(("ReplicaSet", "StatefulSet", "Deployment"))
    pod = template()
    pod["spec"]["containers"][0]["ports"] = [
        {"name": "http", "containerPort": 8080},
        {"name": "dns", "containerPort": 53, "protocol": "UDP"},
    ]
    spec: Json = {"replicas": draw.randint(0, 4), "selector": _selector(), "template": pod}
    if owner == "StatefulSet":
        spec |= {"serviceName": "web", "podManagementPolicy": "Parallel"}
    all_ports = [
        {"name": "http", "port": 80, "targetPort": "http"},
        {"name": "plain", "port": 81},
        {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": "dns"},
        {"name": "none", "port": 82, "targetPort": "missing", "appProtocol": "h2c"},
    ]

    def some_ports() -> list[Json]:
        return draw.sample(all_ports, draw.randint(1, 3))

    service: Json = {"selector": {"app": "web"}, "ports": some_ports()}
    service |= draw.some(
        publishNotReadyAddresses=(True,),
        clusterIP=("None",),
        trafficDistribution=("PreferClose", "PreferSameNode"),
        sessionAffinity=("ClientIP",),
    )
    notes = draw.some(mine=("1",))
    labels = draw.some(team=("a",))
    alone = body_of(
        "Pod",
        "alone",
        {**pod["spec"], "hostname": "alone", "subdomain": draw.choice(("web", "no"))},
        labels={"app": "web"},
    )
    steps = [
        ["create", body_of("Service", "web", service, annotations=notes, labels=labels)],
        ["create", body_of(owner, "web", spec)],
        *_acts(
            draw,
            draw.randint(3, 7),
            lambda: _scale(owner, draw, 4),
            lambda: ["kubelet", [{"do": draw.choice(("run", "hold", "bind")), "below": draw.randint(1, 4)}]],
            lambda: ["kubelet", []],
            lambda: (
                ["kubelet", [{"do": draw.choice(("succeed", "fail 1")), "below": 2}]]
                if owner != "StatefulSet"
                else ["kubelet", []]
            ),
            lambda: ["linger", draw.often()],
            lambda: ["create", alone],
            lambda: ["patch", "Service", "web", {"spec": {"ports": some_ports()}}],
            lambda: ["patch", "Service", "web", {"spec": {"publishNotReadyAddresses": draw.often() or None}}],
            lambda: ["patch", "Service", "web", {"metadata": {"labels": {"team": draw.choice(("b", None))}}}],
            lambda: [
                "patch",
                "Service",
                "web",
                {"spec": {"selector": draw.choice(({"app": "web"}, {"app": "no"}, None))}},
            ],
            lambda: ["label pod", draw.randint(0, 5), {"app": draw.choice(("other", "web"))}],
            lambda: ["delete pod", draw.randint(0, 5)],
            lambda: ["delete", "Service", "web", "Background"],
        ),
    ]
    return {"looks": ["Pod", "EndpointSlice", "Endpoints"], "steps": steps}


def _owners(draw: Draw) -> Life:
    """A small forest of ConfigMaps and Pods that own each other."""
    names = ["a", "b", "c", "d", "e"]
    owned = {
        name: draw.sample(names[:number], min(number, draw.choice((0, 1, 1, 2))))
        for number, name in enumerate(names)
    }
    finalizers = [name for name in names if draw.random() < 0.15]
    steps: list[Step] = []
    for name in names:
        meta: Json = {"finalizers": ["life/kept"]} if name in finalizers else {}
        if owned[name]:
            owners = [{"of": owner, **draw.some(blockOwnerDeletion=(True, False))} for owner in owned[name]]
            meta["ownerReferences"] = owners
        steps.append(["create", body_of("ConfigMap", name, **meta)])
    steps += _acts(
        draw,
        draw.randint(2, 5),
        lambda: [
            "delete",
            "ConfigMap",
            draw.choice(names),
            draw.choice(("Foreground", "Background", "Orphan")),
        ],
        lambda: [
            "delete",
            "ConfigMap",
            draw.choice(names),
            draw.choice(("Foreground", "Background", "Orphan")),
        ],
        lambda: ["patch", "ConfigMap", draw.choice(names), {"metadata": {"finalizers": None}}],
        lambda: ["patch", "ConfigMap", draw.choice(names), {"metadata": {"ownerReferences": None}}],
    )
    return {"looks": ["ConfigMap"], "steps": steps, "nodes": 0}


def _quota(draw: Draw) -> Life:
    scopes = draw.choice(([], [], ["BestEffort"], ["NotBestEffort"], ["Terminating"], ["NotTerminating"]))
    hard: Json = {"pods": str(draw.randint(1, 6))}
    if scopes != ["BestEffort"]:
        hard |= draw.some(**{"requests.cpu": ("2",), "limits.memory": ("4Gi",), "count/pods": ("9",)})
    if not scopes:
        hard |= draw.some(**{"services": ("1",), "count/deployments.apps": ("1",), "configmaps": ("3",)})
    quota: Json = {"hard": hard, **({"scopes": scopes} if scopes else {})}
    size = draw.choice(
        (
            {},
            {"requests": {"cpu": "500m"}},
            {name: {"cpu": "1", "memory": "1Gi"} for name in ("limits", "requests")},
        )
    )
    pod = template(**draw.some(activeDeadlineSeconds=(1000,)))
    pod["spec"]["containers"][0]["resources"] = size
    kind = draw.choice(("ReplicaSet", "Job"))
    spec: Json = {"template": pod}
    if kind == "ReplicaSet":
        spec |= {"replicas": draw.randint(1, 6), "selector": _selector()}
        pod["spec"].pop("activeDeadlineSeconds", None)
    else:
        spec |= {"parallelism": draw.randint(1, 5), "completions": 6}
        pod["spec"]["restartPolicy"] = "Never"
    steps = [
        ["create", body_of("ResourceQuota", "limit", quota)],
        ["create", body_of(kind, "web", spec)],
        *_acts(
            draw,
            draw.randint(2, 5),
            lambda: ["kubelet", [{"do": draw.choice(("succeed", "run")), "below": draw.randint(1, 4)}]],
            lambda: [
                "all",
                ["patch", "ResourceQuota", "limit", {"spec": {"hard": {"pods": str(draw.randint(1, 8))}}}],
                ["wait", 0.5],
                # Else it tries again when its pause is over, which depends on how long it has been refused.
                ["patch", kind, "web", {"metadata": {"labels": {"touch": str(draw.random())}}}],
            ],
            lambda: ["create", body_of("Service", f"s{draw.randint(0, 3)}", {"ports": [{"port": 80}]})],
            lambda: ["create", body_of("ConfigMap", f"m{draw.randint(0, 3)}")],
            *([lambda: ["delete pod", draw.randint(0, 5)]] if kind == "ReplicaSet" else []),
            lambda: ["wait", 12],
        ),
    ]
    return {"looks": ["Pod", "ResourceQuota", kind], "steps": steps}


def _nodes(draw: Draw) -> Life:
    tolerations = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", **draw.some(tolerationSeconds=(0, 4, 60))}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "mine")
        if draw.often()
    ]
    spec = {
        "replicas": draw.randint(1, 4),
        "selector": _selector(),
        "template": template(tolerations=tolerations),
    }
    owner = draw.choice(("ReplicaSet", "StatefulSet"))
    if owner == "StatefulSet":
        spec |= {"podManagementPolicy": "Parallel"}
    owner_body = body_of(owner, "web", spec)
    taint = {"key": "mine", "effect": "NoExecute", "value": "x"}
    steps = [
        ["create", owner_body],
        *_acts(
            draw,
            draw.randint(3, 6),
            *[lambda: ["node ready", draw.choice("abc"), draw.choice(("True", "False", "False", "Unknown"))]]
            * 4,
            lambda: ["node", draw.choice("abc"), {"spec": {"taints": draw.choice(([taint], [taint], None))}}],
            lambda: ["node", draw.choice("abc"), {"spec": {"unschedulable": draw.often() or None}}],
            lambda: ["wait", 6],
            lambda: ["linger", draw.often()],
        ),
    ]
    if draw.random() < 0.15:
        steps += [["silent", draw.choice("abc")], ["wait", 75]]
    return {"looks": ["Pod", "Node", owner], "steps": steps, "elsewhere": True}


def _cronjob(draw: Draw) -> Life:
    kind = "CronJob"
    job = {
        "template": template(restartPolicy="Never"),
        "backoffLimit": 0,
        **draw.some(ttlSecondsAfterFinished=(20,)),
    }
    spec = {
        "schedule": draw.choice(("* * * * *", "*/2 * * * *", "* * * * *")),
        "jobTemplate": {
            "spec": job,
            "metadata": {"labels": {"from": "template"}, "annotations": {"note": "1"}},
        },
        **draw.some(
            concurrencyPolicy=("Forbid", "Replace", "Allow"),
            suspend=(True,),
            successfulJobsHistoryLimit=(0, 1, 2),
            failedJobsHistoryLimit=(0, 1),
            startingDeadlineSeconds=(10, 200),
            timeZone=("Asia/Tokyo", "Etc/UTC"),
        ),
    }
    steps = [
        ["kubelet", [{"do": draw.choice(("succeed", "fail 1", "run", "ready"))}]],
        ["minute", 20],
        ["create", body_of(kind, "web", spec)],
        ["minute", 8],
        *_acts(
            draw,
            2,
            lambda: ["kubelet", [{"do": draw.choice(("succeed", "fail 1", "ready"))}]],
            lambda: ["patch", kind, "web", {"spec": {"suspend": draw.often()}}],
            lambda: [
                "patch",
                kind,
                "web",
                {"spec": {"concurrencyPolicy": draw.choice(("Forbid", "Replace", "Allow"))}},
            ],
        ),
        ["minute", 8],
        ["kubelet", [{"do": "succeed"}]],
        ["minute", 8],
        *([_leave(kind, draw)] if draw.seldom() else []),
    ]
    return {"looks": [kind, "Job", "Pod"], "steps": steps}


_FAMILIES: dict[str, Callable[[Draw], Life]] = {
    "deployment": _deployment,
    "replicaset": _replicaset,
    "statefulset": _statefulset,
    "daemonset": _daemonset,
    "job": _job,
    "cronjob": _cronjob,
    "disruption": _disruption,
    "service": _service,
    "owners": _owners,
    "quota": _quota,
    "nodes": _nodes,
}
NAMES = tuple(_FAMILIES)
