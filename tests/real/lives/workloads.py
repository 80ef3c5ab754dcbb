"""Lives of Deployments, ReplicaSets, StatefulSets and DaemonSets."""

from tests.real.lives.drawing import (
    IMAGES,
    Draw,
    Json,
    Life,
    Step,
    acts,
    body_of,
    kubelet,
    leave,
    new_image,
    scale,
    selector,
    template,
)


def deployment(draw: Draw) -> Life:
    amounts = (0, 1, 2, "25%", "50%", "100%")
    rolling = {"maxSurge": draw.choice(amounts), "maxUnavailable": draw.choice(amounts[1:])}
    strategies = ({"type": "Recreate"}, {"rollingUpdate": rolling}, {"rollingUpdate": rolling}, {})
    spec = {
        "replicas": draw.randint(0, 6),
        "selector": selector(),
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
        *([kubelet(draw)] if draw.seldom() else []),
        ["create", body_of(deployment, "web", spec)],
        *acts(
            draw,
            draw.randint(4, 8),
            *[lambda: new_image(deployment, draw)] * 4,
            *[lambda: scale(deployment, draw)] * 2,
            *[lambda: kubelet(draw)] * 3,
            *(pause, annotate, new_strategy),
            lambda: ["delete pod", draw.randint(0, 5)],
            lambda: ["label pod", draw.randint(0, 5), {"app": draw.choice(("other", "web"))}],
            lambda: ["wait", 6],
            lambda: ["linger", draw.often()],
        ),
    ]
    if draw.seldom():
        steps.append(leave(deployment, draw))
    return {"looks": ["Pod", "ReplicaSet", "Deployment"], "steps": steps}


def replicaset(draw: Draw) -> Life:
    kind = "ReplicaSet"
    spec = {"replicas": draw.randint(0, 5), "selector": selector(), "template": template()}
    spec |= draw.some(minReadySeconds=(1,))
    body = body_of(kind, "web", spec)
    orphan = body_of("Pod", "early", template()["spec"], labels={"app": "web"})
    steps = [
        *([["create", orphan]] if draw.often() else []),
        ["create", body],
        *acts(
            draw,
            draw.randint(3, 7),
            *[lambda: scale(kind, draw)] * 2,
            *[lambda: kubelet(draw, "run", "fail 1", "succeed", "hold")] * 2,
            lambda: new_image(kind, draw),
            lambda: ["delete pod", draw.randint(0, 5)],
            lambda: ["label pod", draw.randint(0, 5), {"app": draw.choice(("other", "web"))}],
            lambda: ["label pod", draw.randint(0, 5), {"more": "yes"}],
            lambda: ["linger", draw.often()],
            lambda: leave(kind, draw),
            lambda: ["create", body],
        ),
    ]
    return {"looks": ["Pod", "ReplicaSet"], "steps": steps}


def statefulset(draw: Draw) -> Life:
    kind = "StatefulSet"
    partition = draw.some(partition=(0, 1, 2, 3))
    claims = [{"metadata": {"name": "data"}, "spec": _claim()}]
    spec = {
        "replicas": draw.randint(0, 4),
        "selector": selector(),
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
        *acts(
            draw,
            draw.randint(4, 8),
            *[lambda: new_image(kind, draw)] * 4,
            *[lambda: scale(kind, draw, 4)] * 2,
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
        steps += [leave(kind, draw), *([["create", body]] if draw.often() else [])]
    return {"looks": ["Pod", "StatefulSet", "ControllerRevision", "PersistentVolumeClaim"], "steps": steps}


def _claim() -> Json:
    size = {"requests": {"storage": "1Gi"}}
    return {"accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": size}


def daemonset(draw: Draw, life: str = "") -> Life:
    kind = "DaemonSet"
    rolling = draw.choice(
        ({"maxSurge": 1, "maxUnavailable": 0}, {"maxUnavailable": 2}, {"maxUnavailable": "50%"}, {})
    )
    strategy = draw.choice(({"type": "OnDelete"}, {"rollingUpdate": rolling}, {"rollingUpdate": rolling}, {}))
    pod: Json = {"nodeSelector": {"life": "$LIFE", **({"part": "one"} if draw.seldom() else {})}}
    if draw.often():
        pod["tolerations"] = draw.choice(
            ([{"key": "dedicated", "operator": "Exists"}], [{"operator": "Exists", "effect": "NoExecute"}])
        )
    spec = {"selector": selector(), "template": template(**pod), "updateStrategy": strategy}
    spec |= draw.some(minReadySeconds=(1,), revisionHistoryLimit=(0, 1))
    # Pods that do not tolerate NoExecute are deleted by two controllers, and chance decides who is first.
    tolerates = any("effect" in each for each in pod.get("tolerations", []))
    taints = ("NoSchedule", "PreferNoSchedule", *(["NoExecute"] if tolerates else []))

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
        *acts(
            draw,
            draw.randint(4, 8),
            *[lambda: new_image(kind, draw)] * 4,
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
    steps.append(draw.choice((noticed(["delete node", draw.choice("abc")]), leave(kind, draw))))
    return {"looks": ["Pod", "DaemonSet", "ControllerRevision"], "steps": steps}
