"""Hooks and the runtime proxy."""

import json

from tests.reference.act.parts import KUBE, Chance, Json, maybe


def cpuset_hook(chance: Chance) -> Json:
    def pools() -> list[Json]:
        nodes = chance.choice((1, 2))
        return [
            {"socket": node, "node": node, "cpuset": f"{node * 8}-{node * 8 + chance.randint(1, 7)}"}
            for node in range(nodes)
        ]

    resources = ({"cpu": "2"}, {"kubernetes.io/batch-cpu": "2000"}, {"memory": "1Gi"}, {})
    status = {
        **maybe(chance, 0.2, cpuset=chance.choice(("2-4", "", "0,7"))),
        **maybe(
            chance,
            0.6,
            numaNodeResources=[
                {"node": node, **maybe(chance, 0.9, resources=chance.choice(resources))}
                for node in chance.sample((0, 1, 2), chance.randint(1, 2))
            ],
        ),
    }
    qos = chance.choice(("", "LS", "LSR", "LSE", "BE", "SYSTEM"))
    topology = {
        "sharePools": pools(),
        "beSharePools": pools(),
        **maybe(chance, 0.5, kubeletPolicy=chance.choice(("none", "static", ""))),
        **maybe(chance, 0.4, systemQOSCPUSet=chance.choice(("15", ""))),
    }
    return {
        "op": "container",
        "labels": {"koordinator.sh/qosClass": qos} if qos else {},
        "annotations": maybe(
            chance, 0.7, **{"scheduling.koordinator.sh/resource-status": json.dumps(status)}
        ),
        "cgroupParent": chance.choice(
            ("kubepods/besteffort/podx/c", "kubepods/burstable/podx/c", "kubepods/podx/c")
        ),
        "topology": chance.choice((None, topology, topology, topology)),
        "beCPUManager": chance.random() < 0.5,
        "keepQuota": chance.random() < 0.3,
    }


def batchresource(chance: Chance) -> Json:
    def side() -> Json:
        return {
            **maybe(chance, 0.8, **{"kubernetes.io/batch-cpu": str(chance.choice((0, 1, 5, 10, 333, 2000)))}),
            **maybe(chance, 0.8, **{"kubernetes.io/batch-memory": chance.choice(("0", "1", "1500M", "2Gi"))}),
        }

    def both() -> Json:
        return {**maybe(chance, 0.9, requests=side()), **maybe(chance, 0.8, limits=side())}

    op = chance.choice(("pod", "container"))
    return {
        "op": op,
        "qos": chance.choice(("BE", "BE", "BE", "LS", "")),
        "extended": both()
        if op == "container"
        else {f"c{index}": both() for index in range(chance.randint(0, 3))},
        **maybe(chance, 0.3, quotaUsed=chance.random() < 0.5),
        **maybe(chance, 0.5, ratio=chance.choice((-1, 0.5, 1.0, 1.2, 1.333, 3))),
    }


def _strategy(chance: Chance, policy: str) -> Json:
    def section() -> Json:
        return {
            "cpuQOS": {
                "enable": chance.random() < 0.6,
                "groupIdentity": chance.randint(-1, 2),
                "schedIdle": chance.choice((0, 1)),
                "coreExpeller": chance.random() < 0.5,
            }
        }

    policies = {"cpuPolicy": chance.choice((policy, policy, policy, "groupIdentity", "coreSched", ""))}
    names = ("lsrClass", "lsClass", "beClass")
    return {**maybe(chance, 0.9, policies=policies), **{name: section() for name in names}}


def bvt(chance: Chance) -> Json:
    asked = {
        "op": chance.choice(("rule", "pod", "pod", "kubeqos", "hostapp")),
        "strategy": _strategy(chance, "groupIdentity"),
        **maybe(chance, 0.3, supported=chance.random() < 0.7),
        **maybe(chance, 0.4, sysctl=chance.choice((0, 1))),
    }
    qos = chance.choice(("", "LS", "LS", "LSR", "LSE", "BE", "SYSTEM"))
    own = chance.choice(({"enable": True, "groupIdentity": -1}, {"enable": False}, {"groupIdentity": 1}, {}))
    return asked | {
        "labels": {"koordinator.sh/qosClass": qos} if qos else {},
        "annotations": maybe(chance, 0.3, **{"koordinator.sh/cpuQOS": json.dumps(own)}),
        "cgroupParent": chance.choice(
            ("kubepods/besteffort/podx", "kubepods/burstable/podx", "kubepods/podx")
        ),
        "kubeQOS": chance.choice(KUBE),
        "qos": qos,
    }


def runtime_hooks_misc(chance: Chance) -> Json:
    op = chance.choice(("core_group", "cpu_idle", "gpu_env", "net_amount"))
    if op == "gpu_env":
        return _gpu(chance)
    if op == "net_amount":
        values = (None, chance.randint(-1, 101), "50M", "1500k", "1Gi", "2.5G", "many", "0.5")
        return {
            "op": op,
            "total": chance.choice((0, 1000, 10**9, 25 * 10**9)),
            "value": chance.choice(values),
        }
    asked = {"op": op, "strategy": _strategy(chance, "coreSched")}
    if op == "cpu_idle":
        return asked
    qos = chance.choice(("", "LS", "LSR", "LSE", "BE"))
    labels = {
        **({"koordinator.sh/qosClass": qos} if qos else {}),
        **maybe(chance, 0.4, **{"koordinator.sh/core-sched-group-id": "team"}),
        **maybe(
            chance,
            0.4,
            **{"koordinator.sh/core-sched-policy": chance.choice(("none", "exclusive", "", "else"))},
        ),
    }
    return asked | {"labels": labels, "kubeQOS": chance.choice(KUBE), "podUID": "xxx"}


def _gpu(chance: Chance) -> Json:
    def device() -> Json:
        resources = {
            **maybe(
                chance, 0.9, **{"koordinator.sh/gpu-memory-ratio": chance.choice(("50", "99", "100", "25"))}
            ),
            **maybe(chance, 0.9, **{"koordinator.sh/gpu-memory": chance.choice(("8Gi", "1000"))}),
            **maybe(chance, 0.7, **{"koordinator.sh/gpu-core": "50"}),
        }
        return {"minor": chance.randint(0, 7), "resources": resources}

    kinds = {
        "gpu": [device() for _ in range(chance.randint(0, 3))],
        **maybe(chance, 0.3, rdma=[{"minor": 1}]),
    }
    return {
        "op": "gpu_env",
        "deviceAllocated": chance.choice((None, "{", *[json.dumps(kinds)] * 4)),
        **maybe(chance, 0.7, isolationProvider=chance.choice(("HAMi-core", "HAMi-core", "Else"))),
    }


def runtime_proxy_merge(chance: Chance) -> Json:
    def resources() -> Json | None:
        numbers = (
            "cpuPeriod",
            "cpuQuota",
            "cpuShares",
            "memoryLimitInBytes",
            "oomScoreAdj",
            "memorySwapLimitInBytes",
        )
        found: Json = {
            name: chance.choice((-1001, -1, 1, 7, 1001)) for name in numbers if chance.random() < 0.6
        }
        found |= maybe(chance, 0.6, cpusetCpus=chance.choice(("0-3", "7"))) | maybe(
            chance, 0.5, cpusetMems="0"
        )
        found |= maybe(chance, 0.4, unified={chance.choice("ab"): chance.choice("xy")})
        return None if chance.random() < 0.1 else found

    op = chance.choice(("hook_response", "update_request", "docker_update", "calls"))
    if op == "hook_response":
        return {"op": op, "current": resources(), "response": resources()}
    if op != "calls":
        return {"op": op, "cached": resources(), "request": resources()}
    requests = (
        "RunPodSandbox",
        "StopPodSandbox",
        "CreateContainer",
        "StartContainer",
        "StopContainer",
        "UpdateContainerResources",
    )
    hooks = (
        "PreRunPodSandbox",
        "PostStopPodSandbox",
        "PreCreateContainer",
        "PreStartContainer",
        "PostStartContainer",
    )
    hooks += ("PreUpdateContainerResources", "PostStopContainer")
    skip = {"runtimeproxy.koordinator.sh/skip-hookserver": chance.choice(("true", "true", "false"))}
    return {
        "op": op,
        "request": chance.choice(requests),
        "runtimeHooks": chance.sample(hooks, chance.randint(0, len(hooks))),
        **maybe(chance, 0.9, failurePolicy=chance.choice(("Fail", "Ignore"))),
        **maybe(chance, 0.2, labels=skip),
        **maybe(chance, 0.4, hookFails=True),
    }
