"""Lives of what is around workloads: budgets, Services, owners, quotas and nodes."""

from tests.real.lives.drawing import Draw, Json, Life, Step, acts, body_of, scale, selector, template


def disruption(draw: Draw) -> Life:
    owner = draw.choice(("Deployment", "StatefulSet", "ReplicaSet"))
    spec: Json = {"replicas": draw.randint(1, 5), "selector": selector(), "template": template()}
    if owner == "StatefulSet":
        spec["podManagementPolicy"] = "Parallel"
    amount = draw.choice((0, 1, 2, "0%", "30%", "50%", "100%"))
    budget: Json = {draw.choice(("minAvailable", "maxUnavailable")): amount, "selector": selector()}
    budget |= draw.some(unhealthyPodEvictionPolicy=("AlwaysAllow", "IfHealthyBudget"))
    alone = body_of("Pod", "alone", template()["spec"], labels={"app": "web"})
    steps = [
        ["create", body_of("PodDisruptionBudget", "web", budget)],
        ["create", body_of(owner, "web", spec)],
        *acts(
            draw,
            draw.randint(3, 6),
            *[lambda: ["evict", draw.randint(0, 5)]] * 4,
            lambda: scale(owner, draw),
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


def service(draw: Draw) -> Life:
    owner = draw.choice(("ReplicaSet", "StatefulSet", "Deployment"))
    pod = template()
    pod["spec"]["containers"][0]["ports"] = [
        {"name": "http", "containerPort": 8080},
        {"name": "dns", "containerPort": 53, "protocol": "UDP"},
    ]
    spec: Json = {"replicas": draw.randint(0, 4), "selector": selector(), "template": pod}
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
        *acts(
            draw,
            draw.randint(3, 7),
            lambda: scale(owner, draw, 4),
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
                {"spec": {"selector": draw.choice(({"app": "web"}, {"app": "no"}))}},
            ],
            lambda: ["label pod", draw.randint(0, 5), {"app": draw.choice(("other", "web"))}],
            lambda: ["delete pod", draw.randint(0, 5)],
            lambda: ["delete", "Service", "web", "Background"],
        ),
    ]
    return {"looks": ["Pod", "EndpointSlice", "Endpoints"], "steps": steps}


def owners(draw: Draw) -> Life:
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
    steps += acts(
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


def quota(draw: Draw) -> Life:
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
        spec |= {"replicas": draw.randint(1, 6), "selector": selector()}
        pod["spec"].pop("activeDeadlineSeconds", None)
    else:
        spec |= {"parallelism": draw.randint(1, 5), "completions": 6}
        pod["spec"]["restartPolicy"] = "Never"

    def noticed(step: Step) -> Step:
        """Else a workload tries again when its pause is over, which depends on how long it has been refused."""
        touch = {"metadata": {"labels": {"touch": str(draw.random())}}}
        return ["all", step, ["wait", 1.5], ["patch", kind, "web", touch]]

    steps = [
        ["create", body_of("ResourceQuota", "limit", quota)],
        ["create", body_of(kind, "web", spec)],
        *acts(
            draw,
            draw.randint(2, 5),
            lambda: noticed(
                ["kubelet", [{"do": draw.choice(("succeed", "run")), "below": draw.randint(1, 4)}]]
            ),
            lambda: noticed(
                ["patch", "ResourceQuota", "limit", {"spec": {"hard": {"pods": str(draw.randint(1, 8))}}}]
            ),
            lambda: ["create", body_of("Service", f"s{draw.randint(0, 3)}", {"ports": [{"port": 80}]})],
            lambda: ["create", body_of("ConfigMap", f"m{draw.randint(0, 3)}")],
            lambda: ["wait", 12],
        ),
    ]
    return {"looks": ["Pod", "ResourceQuota", kind], "steps": steps}


def nodes(draw: Draw) -> Life:
    tolerations = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", **draw.some(tolerationSeconds=(0, 4, 60))}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "mine")
        if draw.often()
    ]
    spec = {
        "replicas": draw.randint(1, 4),
        "selector": selector(),
        "template": template(tolerations=tolerations),
    }
    owner = draw.choice(("ReplicaSet", "StatefulSet"))
    if owner == "StatefulSet":
        spec |= {"podManagementPolicy": "Parallel"}
    owner_body = body_of(owner, "web", spec)
    taint = {"key": "mine", "effect": "NoExecute", "value": "x"}
    steps = [
        ["create", owner_body],
        *acts(
            draw,
            draw.randint(2, 4),
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
    return {"looks": ["Pod", "Node", owner], "steps": steps, "elsewhere": True, "quiet_s": 11.0}
