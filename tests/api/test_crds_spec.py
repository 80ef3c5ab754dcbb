"""The CRDs say what the tables of the specification say (behaviour/crds)."""

from typing import Any

import pytest

from koordinator.api import crd, schema
from koordinator.api.crd import object_schema
from koordinator.api.meta import Object
from tests.api import openapi

MANIFESTS = {manifest["metadata"]["name"]: manifest for manifest in crd.manifests()}
VIEWS = [view for definition in crd.DEFINITIONS for view in definition.views]


def node_at(view: type[Object], path: str) -> dict[str, Any]:
    """The schema at a path such as `spec.owners[].object`."""
    found = dict(openapi.nodes(object_schema(view)))
    return found[f".{path}"]


def view_named(kind: str) -> type[Object]:
    return next(view for view in VIEWS if view.resource.kind == kind)


HEADS = {
    "nodemetrics.slo.koordinator.sh": ("NodeMetric", (), "Cluster", True, ()),
    "nodeslos.slo.koordinator.sh": ("NodeSLO", (), "Cluster", True, ()),
    "reservations.scheduling.koordinator.sh": (
        "Reservation",
        (),
        "Cluster",
        True,
        ("Phase", "Age", "Node", "TTL", "Expires"),
    ),
    "devices.scheduling.koordinator.sh": ("Device", (), "Cluster", False, ()),
    "podmigrationjobs.scheduling.koordinator.sh": (
        "PodMigrationJob",
        ("pmj",),
        "Cluster",
        True,
        ("Phase", "Status", "Age", "Node", "Reservation", "PodNamespace", "Pod", "NewPod", "TTL"),
    ),
    "clusternetworktopologies.scheduling.koordinator.sh": (
        "ClusterNetworkTopology",
        (),
        "Cluster",
        True,
        ("Top Layer", "Nodes", "Age"),
    ),
    "scheduleexplanations.scheduling.koordinator.sh": (
        "ScheduleExplanation",
        ("sched-exp",),
        "Namespaced",
        True,
        (),
    ),
    "tidalpools.scheduling.koordinator.sh": (
        "TidalPool",
        ("tp",),
        "Cluster",
        True,
        ("Members", "Online", "Batch", "Target", "Why", "Next", "Age"),
    ),
    "clustercolocationprofiles.config.koordinator.sh": (
        "ClusterColocationProfile",
        (),
        "Cluster",
        True,
        (),
    ),
    "elasticquotaprofiles.quota.koordinator.sh": (
        "ElasticQuotaProfile",
        ("eqp",),
        "Namespaced",
        False,
        ("Quota", "Tree", "Ratio", "Age"),
    ),
    "recommendations.analysis.koordinator.sh": (
        "Recommendation",
        ("recom",),
        "Namespaced",
        True,
        ("Age", "Type", "Kind", "Name", "LastUpdateTime"),
    ),
    "elasticquotas.scheduling.sigs.k8s.io": (
        "ElasticQuota",
        ("eq", "eqs"),
        "Namespaced",
        False,
        (
            *("Parent", "Used CPU", "Min CPU", "Max CPU", "Used Memory", "Min Memory", "Max Memory", "Age"),
            *("Tree", "Runtime", "Request"),
        ),
    ),
    "podgroups.scheduling.sigs.k8s.io": (
        "PodGroup",
        ("pg", "pgs"),
        "Namespaced",
        False,
        ("Phase", "MinMember", "Scheduled", "Running", "Age", "Succeeded", "Failed", "OccupiedBy"),
    ),
    "noderesourcetopologies.topology.node.k8s.io": (
        "NodeResourceTopology",
        ("node-res-topo",),
        "Cluster",
        False,
        (),
    ),
}


def test_there_is_a_crd_for_every_kind_of_the_specification() -> None:
    assert MANIFESTS.keys() == HEADS.keys()


@pytest.mark.parametrize("name", HEADS)
def test_names_scope_status_and_columns(name: str) -> None:
    kind, short_names, scope, has_status, columns = HEADS[name]
    spec = MANIFESTS[name]["spec"]

    assert (spec["names"]["kind"], tuple(spec["names"].get("shortNames", ())), spec["scope"]) == (
        kind,
        short_names,
        scope,
    )
    for version in spec["versions"]:
        assert ("status" in version.get("subresources", {})) is has_status
        assert tuple(c["name"] for c in version.get("additionalPrinterColumns", ())) == columns


def test_columns_point_at_fields() -> None:
    for definition in crd.DEFINITIONS:
        paths = {path for path, _ in openapi.nodes(object_schema(definition.views[0]))}

        for column in definition.columns:
            path = column.path.replace("[0]", "[]")
            of_map, _, _ = path.rpartition(".")
            is_metadata = path.startswith(
                (".metadata.labels.", ".metadata.annotations.", ".metadata.creationTimestamp")
            )
            assert path in paths or of_map in paths or is_metadata, column


@pytest.mark.parametrize(
    ("name", "pull"),
    [
        ("elasticquotas.scheduling.sigs.k8s.io", "scheduler-plugins/pull/52"),
        ("podgroups.scheduling.sigs.k8s.io", "scheduler-plugins/pull/52"),
        ("noderesourcetopologies.topology.node.k8s.io", "enhancements/pull/1870"),
    ],
)
def test_groups_of_kubernetes_carry_their_approval(name: str, pull: str) -> None:
    assert MANIFESTS[name]["metadata"]["annotations"]["api-approved.kubernetes.io"].endswith(pull)


def test_one_version_is_stored_and_the_topology_is_served_in_two() -> None:
    for name, manifest in MANIFESTS.items():
        versions = [(v["name"], v["served"], v["storage"]) for v in manifest["spec"]["versions"]]
        if name.startswith("noderesourcetopologies"):
            assert versions == [("v1alpha1", True, False), ("v1alpha2", True, True)]
        else:
            assert versions == [("v1alpha1", True, True)]


def test_both_versions_of_the_topology_have_the_same_zones() -> None:
    old, new = (object_schema(view)["properties"] for view in VIEWS if "zones" in view.__struct_fields__)

    assert old["zones"] == new["zones"]
    assert old["topologyPolicies"]["type"] == new["topologyPolicies"]["type"]


REQUIRED = {
    "NodeMetric": {"status.nodeMetric.numaUsages[].numaNodeID"},
    "NodeSLO": set(),
    "Reservation": {
        "spec.template", "spec.owners",
        *(f"spec.owners[].controller.{name}" for name in ("apiVersion", "kind", "name", "uid")),
        "spec.taints[].key", "spec.taints[].effect",
    },
    "Device": {
        "spec.devices[].health",
        *(f"spec.devices[].topology.{name}" for name in ("socketID", "nodeID", "pcieID")),
        "spec.devices[].vfGroups[].vfs[].minor",
    },
    "PodMigrationJob": {"spec.podRef", "status.conditions[].type", "status.conditions[].status"},
    "ClusterNetworkTopology": {
        "spec.networkTopologySpec", "spec.networkTopologySpec[].topologyLayer",
        "status.detailStatus[].topologyInfo", "status.detailStatus[].nodeNum",
        *(
            f"status.detailStatus[].{which}.{name}"
            for which in ("topologyInfo", "parentTopologyInfo")
            for name in ("topologyLayer", "topologyName")
        ),
    },
    "ScheduleExplanation": set(),
    "TidalPool": {
        "spec.nodeSelector", *(f"spec.schedule[].{name}" for name in ("start", "duration", "batchNodes")),
        "status.nodes[].name", "status.nodes[].phase",
    },
    "ClusterColocationProfile": set(),
    "ElasticQuotaProfile": {"spec.quotaName", "spec.nodeSelector"},
    "Recommendation": {"spec.target", "spec.target.type", "spec.target.workload.kind", "spec.target.workload.name"},
    "ElasticQuota": set(),
    "PodGroup": set(),
}  # fmt: skip


def is_device_of_metric(kind: str, path: str) -> bool:
    """Devices in a NodeMetric are those of the kind Device, where their rules are checked."""
    return kind == "NodeMetric" and ".devices[]" in path


@pytest.mark.parametrize("kind", REQUIRED)
def test_required_fields(kind: str) -> None:
    required = {
        f"{path}.{name}"[1:]
        for path, node in openapi.nodes(object_schema(view_named(kind)))
        for name in node.get("required", ())
        # Selectors and standard conditions have the rules of Kubernetes.
        if not path.endswith("matchExpressions[]") and "observedGeneration" not in node["properties"]
        if not is_device_of_metric(kind, path)
    }

    assert required == REQUIRED[kind]


def rules_of(kind: str, *members: str) -> dict[str, Any]:
    """Path → what the schema says of these members, where it says anything."""
    found = {}
    for path, node in openapi.nodes(object_schema(view_named(kind))):
        rule = {member: node[member] for member in members if member in node}
        if rule and not path.endswith("observedGeneration") and not is_device_of_metric(kind, path):
            found[path[1:]] = rule
    return found


DEFAULTS = {
    "Reservation": {
        "spec.ttl": "24h",
        "spec.allocateOnce": True,
        "spec.preAllocationPolicy.mode": "Default",
        "spec.preAllocationPolicy.enableMultiple": False,
        "status.phase": "Pending",
    },
    "Device": {"spec.devices[].health": False},
    "ScheduleExplanation": {"spec.ttl": "24h"},
    "TidalPool": {
        "spec.onlineReserve": 0,
        "spec.katalystLabels": False,
        "spec.batchReserve": 0,
        "spec.timeZone": "UTC",
        "spec.load.scaleInBelowPercent": 45,
        "spec.load.scaleOutAbovePercent": 65,
        "spec.load.window": "15m",
        "spec.leadTime": "30m",
        "spec.drain": {},
        "spec.drain.gracePeriod": "5m",
        "spec.drain.batchPolicy": "Checkpoint",
        "spec.drain.onlineBudget": "PDB",
        "spec.drain.maxUnavailable": 1,
        "spec.drain.timeout": "30m",
        "spec.maxNodesPerStep": 1,
        "spec.cooldown": "10m",
        "spec.suspend": False,
    },
    "NodeSLO": {
        f"spec.resourceQOSStrategy.{qos}.networkQOS.{way}{what}": value
        for qos in ("lsrClass", "lsClass", "beClass", "systemClass", "cgroupRoot")
        for way in ("ingress", "egress")
        for what, value in (("Request", 0), ("Limit", 100))
    },
}


@pytest.mark.parametrize("kind", REQUIRED)
def test_defaults_that_the_api_server_fills_in(kind: str) -> None:
    found = {path: rule["default"] for path, rule in rules_of(kind, "default").items()}

    assert found == DEFAULTS.get(kind, {})


@pytest.mark.parametrize(
    ("kind", "path", "values"),
    [
        (
            "NodeMetric",
            "spec.metricCollectPolicy.nodeMemoryCollectPolicy",
            ["usageWithHotPageCache", "usageWithoutPageCache", "usageWithPageCache"],
        ),
        ("Reservation", "spec.allocatePolicy", ["Aligned", "Restricted"]),
        ("Reservation", "spec.preAllocationPolicy.mode", ["Default", "Cluster"]),
        ("ClusterColocationProfile", "spec.qosClass", ["LSE", "LSR", "LS", "BE", "SYSTEM"]),
    ],
)
def test_closed_sets_of_texts(kind: str, path: str, values: list[str]) -> None:
    assert node_at(view_named(kind), path)["enum"] == values


PERCENT = {"minimum": 0, "maximum": 100}
AT_LEAST_0, AT_LEAST_1 = {"minimum": 0}, {"minimum": 1}
THRESHOLD_RANGES = {
    "cpuSuppressThresholdPercent": PERCENT,
    "cpuSuppressMinPercent": PERCENT,
    "memoryEvictThresholdPercent": PERCENT,
    "memoryEvictLowerPercent": PERCENT,
    "memoryAllocatableEvictThresholdPercent": AT_LEAST_0,
    "memoryAllocatableEvictLowerPercent": AT_LEAST_0,
    "cpuEvictThresholdPercent": PERCENT,
    "cpuEvictLowerPercent": PERCENT,
    "cpuAllocatableEvictThresholdPercent": AT_LEAST_0,
    "cpuAllocatableEvictLowerPercent": AT_LEAST_0,
}
QOS_RANGES = {
    "resctrlQOS.catRangeStartPercent": PERCENT,
    "resctrlQOS.catRangeEndPercent": PERCENT,
    "resctrlQOS.mbaPercent": PERCENT,
    "memoryQOS.minLimitPercent": AT_LEAST_0,
    "memoryQOS.lowLimitPercent": AT_LEAST_0,
    "memoryQOS.throttlingPercent": AT_LEAST_0,
    "memoryQOS.wmarkRatio": PERCENT,
    "memoryQOS.wmarkScalePermill": {"minimum": 1, "maximum": 1000},
    "memoryQOS.wmarkMinAdj": {"minimum": -25, "maximum": 50},
    "memoryQOS.pageCacheLimitPercent": PERCENT,
    **{
        f"blkioQOS.blocks[].ioCfg.{name}": AT_LEAST_0
        for name in ("readIOPS", "writeIOPS", "readBPS", "writeBPS")
    },
    "blkioQOS.blocks[].ioCfg.ioWeightPercent": {"minimum": 1, "maximum": 100},
    "blkioQOS.blocks[].ioCfg.readLatencyPercent": PERCENT,
    "blkioQOS.blocks[].ioCfg.writeLatencyPercent": PERCENT,
    **{
        f"blkioQOS.blocks[].ioCfg.model{way}{what}": AT_LEAST_1
        for way in ("Read", "Write")
        for what in ("BPS", "SeqIOPS", "RandIOPS")
    },
}


def test_ranges_of_node_slo() -> None:
    expected = {f"spec.resourceUsedThresholdWithBE.{name}": rule for name, rule in THRESHOLD_RANGES.items()}
    expected["spec.cpuBurstStrategy.cpuBurstPercent"] = {"minimum": 0, "maximum": 10000}
    for qos in ("lsrClass", "lsClass", "beClass", "systemClass", "cgroupRoot"):
        expected |= {f"spec.resourceQOSStrategy.{qos}.{name}": rule for name, rule in QOS_RANGES.items()}

    assert rules_of("NodeSLO", "minimum", "maximum") == expected


@pytest.mark.parametrize(
    ("kind", "path", "rule"),
    [
        ("Reservation", "spec.template", {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
        ("Reservation", "spec.owners", {"minItems": 1}),
        ("Reservation", "spec.owners[]", {"minProperties": 1}),
        ("Reservation", "spec.owners[].object", {"x-kubernetes-map-type": "atomic"}),
        ("Reservation", "status.allocatable{}", {"pattern": schema.QUANTITY_PATTERN}),
        ("PodMigrationJob", "spec.podRef", {"x-kubernetes-map-type": "atomic"}),
        ("PodMigrationJob", "status.conditions[].lastProbeTime", {"nullable": True, "format": "date-time"}),
        (
            "PodMigrationJob",
            "spec.reservationOptions.template",
            {"x-kubernetes-preserve-unknown-fields": True},
        ),
        ("ClusterColocationProfile", "spec.patch", {"x-kubernetes-preserve-unknown-fields": True}),
        ("ClusterColocationProfile", "spec.probability", {"x-kubernetes-int-or-string": True}),
        ("ClusterColocationProfile", "spec.koordinatorPriority", {"format": "int32"}),
        ("NodeSLO", "spec.extensions", {"x-kubernetes-preserve-unknown-fields": True}),
        ("NodeMetric", "status.podsMetric[].extensions", {"x-kubernetes-preserve-unknown-fields": True}),
        ("PodGroup", "spec.minMember", {"type": "integer", "format": "int32"}),
        ("NodeResourceTopology", "zones[].costs[].value", {"type": "integer", "format": "int64"}),
    ],
)
def test_other_rules(kind: str, path: str, rule: dict[str, Any]) -> None:
    node = node_at(view_named(kind), path)

    assert node | rule == node


def test_delete_options_are_those_of_kubernetes() -> None:
    options = node_at(view_named("PodMigrationJob"), "spec.deleteOptions")["properties"]

    assert set(options) == {
        "apiVersion", "kind", "dryRun", "gracePeriodSeconds", "orphanDependents", "preconditions",
        "propagationPolicy", "ignoreStoreReadErrorWithClusterBreakingPotential",
    }  # fmt: skip
    assert set(options["preconditions"]["properties"]) == {"uid", "resourceVersion"}
