"""Areas `yarn-config`, `yarn-node-resource`, `yarn-batch-subtract`, `yarn-evict-order`, `yarn-rpc`."""

from typing import Any

import msgspec

from koordinator.api import copilot, quantity, resources
from koordinator.api.annotations import node as node_annotations
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.cluster import controller
from koordinator.manager.noderesource import target
from koordinator.yarn import amounts, eviction, hadoop_config, node_sync, resource_managers, rpc, sasl
from koordinator.yarn.amounts import BatchAmount, Rounding, YarnResource
from koordinator.yarn.connection import Unreachable
from koordinator.yarn.hadoop_config import Dialect, YarnCluster
from koordinator.yarn.node_sync import NodeFacts, NodeId, NodeManagerReport, Policy, SyncPlan
from tests.vectors.compare import subset

Case = dict[str, Any]
BATCH = resources.BATCH_RESOURCES


def config(case: Case) -> Any:
    if case["op"] == "controllers":
        return {"enabled": controller.is_controller_enabled(case["name"], case["list"])}
    if case["op"] == "activeRM":
        ids, states = zip(*case["statuses"], strict=True) if case["statuses"] else ((), ())
        try:
            return {"active": ids[resource_managers.active("", ids, states)], "error": False}
        except Unreachable:
            return {"active": None, "error": True}
    dialect = Dialect.REFERENCE if case["mode"] == "reference" else Dialect.HADOOP
    loaded = hadoop_config.load(case["files"], case.get("env") or {}, dialect)
    clusters: Case = {name: _cluster(cluster) for name, cluster in loaded.clusters.items()}
    clusters.update({name: {"error": True} for name in loaded.errors})
    return {"clusters": clusters, "startFails": hadoop_config.start_fails(loaded, dialect)}


def _cluster(cluster: YarnCluster) -> Case:
    managers = [{"id": rm.id, "admin": rm.admin, "client": rm.client} for rm in cluster.managers]
    if cluster.is_ha:
        return {"ha": True, "rms": managers}
    return {"ha": False, "admin": managers[0]["admin"], "client": managers[0]["client"]}


def node_resource(case: Case) -> Any:
    match case["op"]:
        case "convert":
            batch = BatchAmount(*(quantity.value(case[name]) for name in BATCH))
            return {rounding.value: _yarn(amounts.to_yarn(batch, rounding)) for rounding in Rounding}
        case "annotation":
            used = amounts.to_batch(YarnResource(case["usedVcores"], case["usedMemoryMB"]))
            entries = amounts.with_allocation(amounts.read(case["existing"]), amounts.entry(used))
            return {
                "allocations": [
                    {"name": e.name, "priority": e.priority, "resources": _values(e.resources)}
                    for e in entries
                ]
            }
    known, made = _plan(case)
    outcome, used_batch = made.outcome.value, made.allocation
    update = None
    if made.total is not None:
        node = known.node
        update = {"cluster": known.cluster, "host": node.host, "port": node.port, **_yarn(made.total)}
        if case.get("rmUpdateFails") or (case.get("options") or {}).get("rmUpdateFails"):
            outcome, used_batch = "rm-error", node_sync.when_refused(used_batch, BatchAmount())
    return {
        "outcome": outcome,
        "update": update,
        "allocated": None
        if used_batch is None
        else dict(zip(BATCH, msgspec.structs.astuple(used_batch), strict=True)),
        "retry": outcome in ("bad-origin", "rm-error"),
    }


def _plan(case: Case) -> tuple[NodeFacts, SyncPlan]:
    options = case.get("options") or {}
    policy = Policy(
        rounding=Rounding(options.get("rounding", "exact")),
        is_kube_subtracted=options.get("subtractKubeBatchRequests", True),
    )
    node = None if case["node"] is None else from_builtins(case["node"], Node)
    pods = [from_builtins(pod, Pod) for pod in case["pods"]]
    polled = {
        cluster: {report.node: report for report in map(_report, reports)}
        for cluster, reports in case["reports"].items()
    }
    here = [pod for pod in pods if node is not None and pod.spec.node_name == node.metadata.name]
    known = node_sync.facts(node, node_sync.node_manager(here), _sum_of(here))
    report = None if known.node is None else polled.get(known.cluster, {}).get(known.node)
    nothing = node_sync.HeldFigure(YarnResource(), 0.0)
    return known, node_sync.plan(known, node_sync.use_to_count(report, nothing, True, 0.0), policy)


def _sum_of(pods: list[Pod]) -> BatchAmount:
    requested = [node_sync.batch_requested(pod) for pod in pods]
    return BatchAmount(sum(r.cpu_milli for r in requested), sum(r.memory_bytes for r in requested))


def _report(body: Case) -> NodeManagerReport:
    used = YarnResource(body.get("usedVcores") or 0, body.get("usedMemoryMB") or 0)
    return NodeManagerReport(NodeId(body["host"], body["port"]), body.get("state", "RUNNING"), used)


def _yarn(resource: YarnResource) -> Case:
    return {"vcores": resource.vcores, "memoryMB": resource.memory_mb}


def _values(listed: Any) -> Case:
    return {name: quantity.value(raw) for name, raw in listed.items()}


def batch_subtract(case: Case) -> Any:
    return {"prepare": _prepare, "sum": _sum, "views": _views}[case["op"]](case)


def _sum(case: Case) -> Any:
    annotations = case.get("annotations") or {}
    try:
        found = node_annotations.third_party_by_priority(annotations, case["class"])
    except (ProtocolError, QuantityError):
        return {"sum": None, "error": True}
    if found is None:
        return {"sum": None, "error": False}
    return {"sum": {name: amount.value for name, amount in found.items()}, "error": False}


def _prepare(case: Case) -> Any:
    annotations = case.get("annotations") or {}
    calculated = {
        name: None if raw is None else quantity.milli(raw) for name, raw in case["calculated"].items()
    }
    try:
        taken, is_malformed = target.third_party(annotations), False
    except (ProtocolError, QuantityError):
        taken, is_malformed = {}, True
    lent = target.lend(calculated, case.get("cpuNormalizationRatio") or 0.0, taken)
    codec = node_annotations.ORIGIN_EXTENDED_ALLOCATABLE
    is_subtracted = all(calculated.get(name) is not None for name in BATCH)
    return {
        "origin": _values(codec.decode(target.origin_text(annotations, lent.origin)).resources),
        "kubeTotal": lent.left,
        "error": is_subtracted and is_malformed,
    }


def _views(case: Case) -> Any:
    origin, requested, used = (
        BatchAmount(*(case[part].get(name, 0) for name in BATCH))
        for part in ("origin", "kubeRequested", "yarnUsed")
    )
    found = {
        "kubeTotal": amounts.view_total(origin, used),
        "yarnTotal": amounts.view_total(origin, requested),
        "overbooked": amounts.overbooked(origin, requested, used),
    }
    return {
        part: dict(zip(BATCH, msgspec.structs.astuple(total), strict=True)) for part, total in found.items()
    }


def evict_order(case: Case) -> Any:
    match case["op"]:
        case "list":
            alive = [each for each in eviction.parse(case["nm"]) if not each.is_final]
            found = [eviction.info(each, case["cgroupPath"]) for each in alive]
            varying = ("labels", "annotations", "createTimestamp")
            listed = [msgspec.to_builtins(each) for each in found]
            return {"containers": [{k: v for k, v in each.items() if k not in varying} for each in listed]}
        case "parentShares":
            parsed = eviction.parse({"containers": {"container": case["containers"]}})
            return {"cpuShares": eviction.parent_shares(parsed)}
        case "isMaster":
            return {"isMaster": copilot.is_master(case["id"])}
        case "validId":
            return {"valid": copilot.is_yarn_id(case["id"])}
    candidates = [from_builtins(each, eviction.EvictionCandidate) for each in case["candidates"]]
    if case["op"] == "order":
        return {"order": [each.id for each in eviction.order(candidates, case["resource"])]}
    mode = eviction.ReleaseMode(case.get("mode", "satisfaction"))
    chosen = eviction.select(candidates, case["resource"], case["targets"], mode)
    return {
        "victims": [each.id for each in chosen.victims],
        "released": chosen.released,
        "shortfall": chosen.shortfall,
    }


def rpc_case(case: Case) -> Any:
    client_id = bytes.fromhex(case.get("clientId", ""))
    match case["op"]:
        case "header":
            auth = rpc.Auth.SIMPLE if case["auth"] in ("simple", "none") else rpc.Auth.SASL
            return {"hex": rpc.connection_header(auth).hex()}
        case "context":
            frame = rpc.connection_context(
                client_id, case["protocol"], case.get("effectiveUser"), case.get("realUser")
            )
        case "updateNodeResource":
            updates = [
                rpc.NodeUpdate(
                    NodeId(node["host"], node["port"]),
                    YarnResource(node["vcores"], node["memoryMB"]),
                    node.get("overCommitTimeout"),
                )
                for node in case["nodes"]
            ]
            frame = rpc.update_node_resource(client_id, case["callId"], updates)
        case "getClusterNodes":
            states = case.get("states", case.get("nodeStates")) or ()
            named = [rpc.NODE_STATES[each - 1] if isinstance(each, int) else each for each in states]
            frame = rpc.get_cluster_nodes(client_id, case["callId"], named)
        case "getServiceStatus":
            frame = rpc.get_service_status(client_id, case["callId"])
        case "response":
            return _response(case, client_id)
        case "digest":
            challenge = sasl.Challenge(case["realm"], case["nonce"], case["protocol"], case["serverId"])
            token = (bytes.fromhex(case["identifier"]), bytes.fromhex(case["password"]))
            return msgspec.to_builtins(sasl.answer(*token, challenge, case["cnonce"]))
        case op:
            raise ValueError(op)
    return {"hex": frame.hex()}


def _response(case: Case, client_id: bytes) -> Any:
    found = rpc.parse(bytes.fromhex(case["hex"]), client_id)
    if found.status is not rpc.RpcStatus.SUCCESS:
        return {
            "ok": False,
            "status": found.status.value,
            "exception": found.exception or None,
            "detail": found.detail,
            "standby": found.exception == "org.apache.hadoop.ipc.StandbyException",
        }
    if case["kind"] == "getServiceStatus":
        return {"ok": True, "state": rpc.service_state(found.result)}
    if case["kind"] == "getClusterNodes":
        return {"ok": True, "nodes": [_rpc_node(node) for node in rpc.ReportReader().read(found.result)]}
    return {"ok": True}


def _rpc_node(node: rpc.NodeReport) -> Case:
    return {
        "host": node.host,
        "port": node.port,
        "state": node.state,
        "usedVcores": node.used.vcores,
        "usedMemoryMB": node.used.memory_mb,
        "totalVcores": node.total.vcores,
        "totalMemoryMB": node.total.memory_mb,
    }


ADAPTERS = {
    "yarn-config": config,
    "yarn-node-resource": node_resource,
    "yarn-batch-subtract": batch_subtract,
    "yarn-evict-order": evict_order,
    "yarn-rpc": rpc_case,
}

COMPARE = {"yarn-rpc": subset}
