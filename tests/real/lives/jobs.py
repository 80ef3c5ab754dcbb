"""Lives of Jobs and CronJobs."""

from tests.real.lives.drawing import Draw, Json, Life, Step, acts, body_of, leave, template


def job(draw: Draw) -> Life:
    kind, is_indexed = "Job", draw.often()
    spec: Json = {
        "template": template(restartPolicy="Never" if draw.often() else "OnFailure"),
        **draw.some(
            parallelism=(1, 2, 3, 0),
            completions=(1, 2, 3, 4),
            backoffLimit=(0, 1, 2),
            suspend=(True,),
            activeDeadlineSeconds=(1, 60),
            ttlSecondsAfterFinished=(0, 1),
            podReplacementPolicy=("Failed",),
        ),
    }
    if is_indexed:
        spec |= {"completionMode": "Indexed", "completions": draw.randint(1, 4)}
        spec["parallelism"] = draw.choice((1, 2, spec["completions"]))
        if spec["template"]["spec"]["restartPolicy"] == "Never" and draw.often():
            spec |= {"backoffLimitPerIndex": draw.randint(0, 1), "backoffLimit": draw.choice((3, 100))}
            spec |= draw.some(maxFailedIndexes=(0, 1))
        if draw.seldom():
            last = spec["completions"] - 1
            rule = draw.some(succeededIndexes=("0", str(last), f"0-{last}"), succeededCount=(1,))
            spec["successPolicy"] = {"rules": [rule or {"succeededCount": 1}]}
    if spec["template"]["spec"]["restartPolicy"] == "Never" and draw.often():
        actions = ["Ignore", "Count", *(["FailIndex"] if "backoffLimitPerIndex" in spec else [])]
        if spec.get("parallelism", 1) <= 1:  # of several pods, chance decides who fails before it is stopped
            actions.append("FailJob")
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
        *acts(
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
        steps.append(leave(kind, draw))
    return {"looks": ["Pod", "Job"], "steps": steps}


def cronjob(draw: Draw) -> Life:
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
        ["even minute", 20],
        ["create", body_of(kind, "web", spec)],
        ["minute", 8],
        *acts(
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
        *([leave(kind, draw)] if draw.seldom() else []),
    ]
    return {"looks": [kind, "Job", "Pod"], "steps": steps}
