"""Lives under koord-manager: what nodes lend, what their agents are told, quotas of node pools, pods at admission."""

import json
import re
from collections.abc import Callable
from typing import Any

from koordinator.api import labels, quantity, slo_config
from koordinator.manager.config import node_slo_spec
from tests.real.lives.drawing import Draw, Json, Life, Step, body_of
from tests.reference.amounts import configs, drawing
from tests.reference.webhooks import draws, quota_draws

NAME = "koord-manager"
QUOTA = "quota.scheduling.koordinator.sh"
LETTERS = "abc"
CLASSES = ("koord-prod", "koord-prod", "koord-mid", "koord-batch", "koord-free", "")
OF_RESOURCES = (
    slo_config.COLOCATION.key,
    slo_config.CPU_NORMALIZATION.key,
    slo_config.RESOURCE_AMPLIFICATION.key,
)
OF_AGENTS = (
    slo_config.RESOURCE_THRESHOLD.key,
    slo_config.RESOURCE_QOS.key,
    slo_config.CPU_BURST.key,
    slo_config.SYSTEM.key,
    slo_config.HOST_APPLICATION.key,
)
GATES = (
    "NodeMutatingWebhook=true,NodeValidatingWebhook=true,ValidatePodDeviceResource=true,"
    "EnableSyncGPUSharedResource=true,EnableQuotaAdmission=true,MultiQuotaTree=true"
)
"""What is checked at admission besides; texts of the ConfigMap are not, so that managers meet broken ones."""
KEYS = (*OF_RESOURCES, *OF_AGENTS)
_OWN_WORDS = re.compile(
    r'^(admission webhook "velasticquota.koordinator.sh" denied the request:).*', re.DOTALL
)
"""Our refusals of quotas say more."""
_OF_TIME = ("updateTimeThresholdSeconds", "degradeTimeMinutes")
"""With others than the defaults, how busy the machine is would count."""
_TOLD = labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE
RATIOS = ("0.7", "1", "0.29", "-0.1", "x", "", "1e-1", "0.575")


def life(nodes: list[Json], steps: list[Step], *looks: str, **more: object) -> Life:
    return {
        "looks": list(looks),
        "scheduled": True,
        "scheduler": NAME,
        "nodes": nodes,
        "steps": steps,
        **more,
    }


def node(draw: Draw) -> Json:
    size = {"cpu": draw.choice(("4", "7500m", "32", "96")), "memory": draw.choice(("8Gi", "123456789Ki"))}
    return {"labels": node_labels(draw), "size": {**size, "pods": "110"}}


def node_labels(draw: Draw) -> Json:
    return {key: draw.choice("xyz") for key in "ab" if draw.often()}


def touched(draw: Draw) -> Json:
    """A label without meaning: the original does not look at annotations alone for NodeMetrics and NodeSLOs."""
    return {"touch": str(draw.random())}


class Nodes:
    """What is drawn for a life of nodes: pods on them, and what their agents report."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.letters = LETTERS[: draw.choice((1, 1, 2))]
        self.nodes = [node(draw) for _ in self.letters]
        self.sizes = {letter: each["size"] for letter, each in zip(self.letters, self.nodes, strict=True)}
        self.pods: dict[str, str] = {}

    def letter(self) -> str:
        return self.draw.choice(self.letters)

    def report(self, letter: str = "") -> Step:
        """As the agent of a node reports; now and then an old report, which nobody goes by."""
        draw, letter = self.draw, letter or self.letter()

        def usage(cpu: int = 2000, memory: int = 2000) -> Json:
            found = {"cpu": f"{draw.randint(0, cpu)}m", "memory": f"{draw.randint(0, memory)}Mi"}
            return {"resources": found}

        pods = [
            {
                "name": name,
                "namespace": "$LIFE",
                "podUsage": usage(),
                **draw.some(priority=CLASSES, qos=("LSR", "LS", "BE", "")),
            }
            for name, on in self.pods.items()
            if on == letter and draw.random() < 0.9
        ]
        status: Json = {
            "updateTime": "$AGO" if draw.random() < 0.1 else "$NOW",
            "nodeMetric": {"nodeUsage": usage(4000, 6000), "systemUsage": usage(500, 900)},
            "podsMetric": pods,
            "prodReclaimableMetric": {"resource": usage()} if draw.often() else None,
            "hostApplicationMetric": [
                {"name": "h", "usage": usage(300, 300), "priority": draw.choice(CLASSES)}
            ],
        }
        return ["patch", "NodeMetric/status", f"$LIFE-{letter}", {"status": status}]

    def reports(self) -> Step:
        return ["all", *[self.report(letter) for letter in self.letters]]

    def create(self) -> Step:
        """A pod on a node, and what the node's agent reports of it: pods alone change nothing."""
        draw, letter, name = self.draw, self.letter(), f"p{len(self.pods)}"
        self.pods[name] = letter
        tier = draw.choice(CLASSES)
        size = {"cpu": draw.choice(("500m", "1", "2")), "memory": draw.choice(("512Mi", "1Gi"))}
        if tier in ("koord-batch", "koord-mid"):
            kind = tier.removeprefix("koord-")
            size = {f"kubernetes.io/{kind}-cpu": "500", f"kubernetes.io/{kind}-memory": "512Mi"}
        container = {"name": "c", "image": "one", "resources": {"requests": size, "limits": size}}
        spec: Json = {"containers": [container], "nodeName": f"$LIFE-{letter}"}
        if tier:
            spec["priorityClassName"] = tier
        qos = {"koord-batch": "BE", "koord-free": "BE"}.get(tier, draw.choice(("LS", "LSR", "")))
        own = {labels.QOS_CLASS: qos} if qos else {}
        pod = ["create", body_of("Pod", name, spec, labels=own)]
        return ["all", pod, ["wait", 1], self.report(letter)]

    def remove(self) -> Step:
        if not self.pods:
            return self.report()
        name = self.draw.choice([*self.pods])
        letter = self.pods.pop(name)
        return ["all", ["delete", "Pod", name, "Background"], ["wait", 1], self.report(letter)]

    def beats(self, step: Step) -> Step:
        """The step, and what kubelets report later: amounts before they are amplified."""
        sizes = {letter: self.sizes[letter] for letter in self.letters}
        told = [["node/status", letter, {"status": {"allocatable": size}}] for letter, size in sizes.items()]
        return ["all", step, ["wait", 1], *told]

    def relabel(self) -> Step:
        new = {key: self.draw.choice(("x", "y", "z", None)) for key in "ab" if self.draw.often()}
        return ["node", self.letter(), {"metadata": {"labels": new}}]

    def come_and_go(self) -> Step:
        new = next((each for each in LETTERS if each not in self.letters), "")
        if new:
            self.letters += new
            found = node(self.draw)
            self.sizes[new] = found["size"]
            return ["add node", new, found]
        letter, self.letters = self.letters[0], self.letters[1:]
        self.pods = {name: on for name, on in self.pods.items() if on != letter}
        return ["delete node", letter]


def settings(draw: Draw, keys: tuple[str, ...]) -> Step:
    """Some keys of the ConfigMap."""
    found: Json = {}
    for key in draw.sample(keys, draw.choice((1, 1, 2))):
        found[key] = None if draw.random() < 0.1 else _text(draw, key)
    return ["settings", found]


def _text(draw: Draw, key: str) -> str:
    if key == slo_config.RESOURCE_AMPLIFICATION.key:
        ratios = {"cpu": draw.choice((1, 1.5, 2)), **draw.some(memory=(1.2, 1))}
        wanted: Json = {"enable": draw.often(), "resourceAmplificationRatio": ratios}
        entry = {"name": "e", "nodeSelector": {"matchLabels": {"a": "x"}}, "enable": draw.often()}
        return json.dumps(wanted | draw.some(nodeConfigs=([entry],)))
    found = _sound(configs.config(draw, key))
    while not _is_storable(key, json.dumps(found)):
        found = _sound(configs.config(draw, key))
    if key in OF_RESOURCES and draw.random() < 0.8:
        found = {"enable": True, **found}
    return json.dumps(found)


def _sound(value: Any) -> Any:
    """With small numbers; NodeSLOs may hold most of them, and others the original keeps writing in vain, with all
    other keys. Without what tells of time."""
    if isinstance(value, dict):
        return {name: _sound(part) for name, part in value.items() if name not in _OF_TIME}
    if isinstance(value, list):
        return [_sound(part) for part in value]
    return abs(value) % 101 if isinstance(value, int) and not isinstance(value, bool) else value


def _is_storable(key: str, text: str) -> bool:
    """Return whether NodeSLOs may hold what the text says."""
    before = node_slo_spec.NodeSLOConfig()
    return not node_slo_spec.storable(before, node_slo_spec.sync(before, {key: text}).config)[1]


def _odd(draw: Draw, key: str) -> str | None:
    """A text that may be broken; its numbers are those that objects may hold."""
    text: str | None = configs.text(draw, key)
    try:
        text = json.dumps(_sound(json.loads(text or "")))
    except ValueError:
        return text or None
    return text if _is_storable(key, text) else _odd(draw, key)


# What nodes lend


def node_resources(draw: Draw) -> Life:
    world = Nodes(draw)
    told: list[str] = []
    listed: list[str] = []

    def annotate() -> Step:
        reservation = draw.some(
            resources=({"cpu": "1"}, {"cpu": "500m", "memory": "1Gi"}),
            reservedCPUs=("0-1", "0"),
            applyPolicy=("Default", "ReservedCPUsOnly"),
        )
        strategy = json.dumps(_sound(configs.config(draw, slo_config.COLOCATION.key)))
        new = draw.some(
            **{
                labels.NODE_RESERVATION: (json.dumps(reservation), None),
                labels.NODE_COLOCATION_STRATEGY: (strategy, '{"enable":false}', "{", None),
                labels.NODE_RESOURCE_AMPLIFICATION_RATIO: ('{"cpu":1.5}', '{"cpu":1,"memory":2}', None),
                labels.NODE_CPU_NORMALIZATION_RATIO: ("1.20", "x", None),
            }
        )
        return ["node", world.letter(), {"metadata": {"annotations": new, "labels": touched(draw)}}]

    def ratio() -> Step:
        new = draw.some(
            **{
                labels.NODE_CPU_RECLAIM_RATIO: (*RATIOS, None),
                labels.NODE_MEMORY_RECLAIM_RATIO: (*RATIOS, None),
                labels.NODE_MID_STATIC_CPU_RESERVED_RATIO: (*RATIOS, None),
                labels.NODE_CPU_NORMALIZATION_ENABLED: ("true", "false", "x", None),
            }
        )
        return ["node", world.letter(), {"metadata": {"labels": new}}]

    def cards() -> Step:
        """What the agent finds in the node, or finds out anew."""
        letter, found = world.letter(), None
        while found is None:
            found = drawing.devices(draw)["device"]
        spec, own = found["spec"], {"metadata": {"labels": found["metadata"]["labels"]}}
        if letter in told:
            return ["patch", "Device", f"$LIFE-{letter}", {**own, "spec": spec}]
        told.append(letter)
        return ["create", body_of("Device", f"$LIFE-{letter}", spec, **own["metadata"])]

    def cpus() -> Step:
        letter = world.letter()
        model = {"cpuModel": draw.choice("abc")} | draw.some(hyperThreadEnabled=(True,), turboEnabled=(True,))
        own = {"annotations": {labels.NODE_CPU_BASIC_INFO: json.dumps(model)}}
        if letter in listed:
            return ["patch", "NodeResourceTopology", f"$LIFE-{letter}", {"metadata": own}]
        listed.append(letter)
        amounts = [{"name": "cpu", "amount": "2"}, {"name": "memory", "amount": "4Gi"}]
        resources = [
            {"name": each["name"], **dict.fromkeys(("capacity", "allocatable", "available"), each["amount"])}
            for each in amounts
        ]
        zones = [{"name": f"node-{index}", "type": "Node", "resources": resources} for index in range(2)]
        body = body_of("NodeResourceTopology", f"$LIFE-{letter}", **own)
        return ["create", {**body, "topologyPolicies": ["None"], "zones": zones}]

    def resize() -> Step:
        letter, cpu = world.letter(), draw.choice(("4", "16", "31500m"))
        world.sizes[letter] = {**world.sizes[letter], "cpu": cpu}
        return [
            "node/status",
            letter,
            {"status": {"capacity": {"cpu": cpu}, "allocatable": {"cpu": cpu}}},
        ]

    first = json.dumps({"enable": True} | draw.some(cpuReclaimThresholdPercent=(70, 100)))
    steps: list[Step] = [["settings", {slo_config.COLOCATION.key: first}], world.reports()]
    acts = (
        *[world.create] * 3,
        *[world.report] * 3,
        *[lambda: settings(draw, OF_RESOURCES)] * 3,
        *(
            world.remove,
            world.relabel,
            world.come_and_go,
            annotate,
            annotate,
            ratio,
            resize,
            cards,
            cpus,
            cpus,
        ),
        lambda: ["delete", "NodeMetric", f"$LIFE-{world.letter()}", "Background"],
    )
    steps += [world.beats(draw.choice(acts)()) for _ in range(draw.randint(6, 9))]
    return life(world.nodes, [*steps, world.beats(world.reports())], "Node", "NodeMetric")


# What agents are told


def node_slos(draw: Draw) -> Life:
    world = Nodes(draw)

    def annotate() -> Step:
        new = {labels.NODE_NETWORK_BANDWIDTH: draw.choice(("1G", "100", "0", "x", "", None))}
        return ["node", world.letter(), {"metadata": {"annotations": new, "labels": touched(draw)}}]

    acts = (
        *[lambda: settings(draw, OF_AGENTS)] * 8,
        *(world.relabel, world.relabel, world.come_and_go, annotate),
        lambda: ["delete", "NodeSLO", f"$LIFE-{world.letter()}", "Background"],
    )
    steps = [draw.choice(acts)() for _ in range(draw.randint(9, 13))]
    return life(world.nodes, steps, "NodeSLO")


def configurations(draw: Draw) -> Life:
    """Texts of the ConfigMap of all kinds, also ones that nobody can read."""
    steps: list[Step] = []
    for _ in range(draw.randint(8, 10)):
        keys = draw.sample(KEYS, draw.choice((1, 1, 2)))
        keys = [key for key in keys if key != slo_config.RESOURCE_AMPLIFICATION.key]
        steps.append(["settings", {key: _odd(draw, key) for key in keys}])
    return life([node(draw) for _ in "ab"], steps, "Node", "NodeMetric", "NodeSLO")


# Quotas of node pools


def quota_profiles(draw: Draw) -> Life:
    """The original looks at a profile's nodes every ten seconds."""
    world = Nodes(draw)
    names = ("q0", "q1")

    def spec() -> Json:
        wanted = {
            "quotaName": f"root-{draw.choice('ab')}",
            "nodeSelector": {"matchLabels": node_labels(draw)},
        }
        return wanted | draw.some(
            resourceRatio=("0.9", "0.33", "1", "0", "abc", ".5", "1.01"),
            quotaLabels=({"a": "v"}, {f"{QUOTA}/is-root": "v"}),
        )

    def create() -> Step:
        meta: Json = draw.some(labels=({f"{QUOTA}/tree-id": "t1"}, {"a": "b"}))
        keys = ('["cpu","pods"]', "[]", "cpu", "null", '["cpu",1]')
        meta |= draw.some(annotations=({f"{QUOTA}/resource-keys": draw.choice(keys)},))
        return ["create", body_of("ElasticQuotaProfile", draw.choice(names), spec(), **meta)]

    def change() -> Step:
        return ["patch", "ElasticQuotaProfile", draw.choice(names), {"spec": spec()}]

    def node_acts() -> Step:
        letter = world.letter()
        what = draw.choice(("ready", "cordon", "label", "size", "come"))
        if what == "ready":
            return ["node ready", letter, draw.choice(("True", "False"))]
        if what == "cordon":
            return ["node", letter, {"spec": {"unschedulable": draw.choice((True, None))}}]
        if what == "size":
            amounts = {"cpu": draw.choice(("3", "7500m")), "memory": draw.choice(("1Gi", "5G"))}
            return ["node/status", letter, {"status": {"allocatable": amounts}}]
        return world.relabel() if what == "label" else world.come_and_go()

    acts = (
        *(create, create, change, change),
        *[node_acts] * 5,
        lambda: ["delete", "ElasticQuota", f"root-{draw.choice('ab')}", "Background"],
        lambda: ["delete", "ElasticQuotaProfile", draw.choice(names), "Background"],
    )
    steps = [create(), *(draw.choice(acts)() for _ in range(draw.randint(2, 3)))]
    return life(world.nodes, steps, "ElasticQuotaProfile", "ElasticQuota", quiet_s=12.0)


# Admission


def pod_profiles(draw: Draw) -> Life:
    """Pods that profiles change, and that rules refuse. No name is used twice: caches may be late."""
    count = 0

    def profile() -> Step:
        found = draws.colocation_profile(draw, f"$LIFE-{draw.choice('abcdef')}")
        found["spec"]["probability"] = draw.choice((None, "0%", "100%"))
        for field in ("selector", "namespaceSelector"):  # nobody's namespace is to be changed
            if not found["spec"].get(field):
                found["spec"][field] = {"matchLabels": {"kubernetes.io/metadata.name": "$LIFE"}}
        found["spec"].setdefault("selector", {"matchLabels": {"a": "x"}})
        return ["create", {**body_of("ClusterColocationProfile", ""), **found}]

    def create() -> Step:
        nonlocal count
        count += 1
        found = draws.enriched(draw, draws.pod(draw)) if draw.seldom() else draws.pod(draw)
        del found["metadata"]["namespace"]
        for container in (*found["spec"]["containers"], *found["spec"].get("initContainers", ())):
            container["image"] = "one"
            container.pop("volumeMounts", None)
            needs = container["resources"]
            amounts = needs.get("requests", {}) | needs.get("limits", {})
            amounts = {name: text if text.isdigit() else "3" for name, text in amounts.items()}
            container["resources"] = {"requests": amounts, "limits": amounts}
        for name in ("priority", "preemptionPolicy", "resources", "overhead"):
            found["spec"].pop(name, None)
        if found["spec"].get("priorityClassName"):
            found["spec"]["priorityClassName"] = draw.choice(CLASSES[:-1])
        found["metadata"].pop("finalizers", None)
        found["metadata"]["name"] = f"p{count}"
        found.pop("status", None)
        return ["create", {**body_of("Pod", ""), **found}]

    steps = [profile(), profile()]
    steps += [draw.choice((create, create, create, profile))() for _ in range(12)]
    return life([], steps, "Pod")


def quota_trees(draw: Draw) -> Life:
    """Quotas that go with each other, or not, and pods that use them."""
    steps: list[Step] = []
    for number, asked in enumerate(quota_draws.quota_webhook(draw)["steps"]):
        if "quota" not in asked:
            own = asked["pod"]["metadata"]["labels"]
            container = {"name": "c", "image": "one", "resources": {"requests": {"cpu": "1"}}}
            pod = body_of("Pod", f"p{number}", {"containers": [container]}, labels=own)
            steps.append(["create", pod])
            continue
        meta, spec = asked["quota"]["metadata"], asked["quota"]["spec"]
        changed = {"labels": meta["labels"], "annotations": meta["annotations"]}
        if asked["op"] == "create":
            steps.append(["create", body_of("ElasticQuota", meta["name"], spec, **changed)])
        elif asked["op"] == "update":
            steps.append(["patch", "ElasticQuota", meta["name"], {"metadata": changed, "spec": spec}])
        else:
            steps.append(["delete", "ElasticQuota", meta["name"], "Background"])
    return life([], steps, "ElasticQuota", "Pod")


def settle(theirs: Json, ours: Json) -> None:
    """Take for equal amounts that are the same, the words of some refusals, and what docs/deliberate-differences.md
    names: zeros are not told of, and what is told belongs to what is lent."""
    for seen in (theirs, ours):
        for refusal in seen.get("refusal", ()):
            refusal["message"] = _OWN_WORDS.sub(r"\1", refusal["message"].replace("LSR Pod", "LSE Pod"))
        for name in seen:
            if name.startswith("Event ElasticQuotaProfile"):  # the original's is there, and yet to be made
                seen[name] = [each for each in seen[name] if "quota already exist:" not in each["message"]]
            if name.startswith("Node "):
                _settle_node(seen[name][0])
    for name in {*theirs} & {*ours}:
        if name.startswith("Node "):
            first, second = (seen[name][0]["metadata"].get("annotations", {}) for seen in (theirs, ours))
            told, lent = second.get(_TOLD, {}).get("resources", {}), ours[name][0]["status"]["allocatable"]
            if _TOLD in first and told and all(lent.get(each) == int(told[each]) * 1000 for each in told):
                first[_TOLD] = second[_TOLD]


def _settle_node(node: Json) -> None:
    for field in ("allocatable", "capacity"):
        amounts = node["status"].get(field, {})
        amounts |= {each: quantity.milli(text) for each, text in amounts.items()}
    own = node["metadata"].get("annotations", {})
    if {*own.get(_TOLD, {}).get("resources", {}).values()} == {"0"}:
        del own[_TOLD]


KINDS: dict[str, Callable[[Draw], Life]] = {
    "node-resources": node_resources,
    "node-slos": node_slos,
    "configurations": configurations,
    "quota-profiles": quota_profiles,
    "pod-profiles": pod_profiles,
    "quota-trees": quota_trees,
}
