"""Areas `stock-topologyspread-*`, `stock-interpod-*` and `stock-volume*`: plugins that look beyond one node.

Objects of the cases reach the plugins as they do in a running scheduler: through the plugins' watches.
"""

from typing import Any

import numpy as np

from koordinator.api.apps import ReplicaSet
from koordinator.api.core import Namespace, Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from koordinator.clock import FixedClock
from koordinator.scheduler.config.config import decode_args
from koordinator.scheduler.plugin.framework import (
    FilterPlugin,
    Handle,
    Plugin,
    PreFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
)
from koordinator.scheduler.plugin.status import SUCCESS, Status
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.plugins.volumes.restrictions import DiskReason
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

Case = dict[str, Any]

KINDS = {
    "namespaces": Namespace,
    "pvcs": PersistentVolumeClaim,
    "pvs": PersistentVolume,
    "storageClasses": StorageClass,
    "csiNodes": CSINode,
    "csiDrivers": CSIDriver,
    "csiStorageCapacities": CSIStorageCapacity,
    "volumeAttachments": VolumeAttachment,
    "replicaSets": ReplicaSet,
}


def build(name: str, case: Case) -> Plugin[Any]:
    """A plugin that has heard of everything in the case."""
    table = NodeTable(ResourceRegistry())
    kind = built_in.PLUGINS[name]
    args = decode_args(name, case.get("args") or {}, kind.args)
    columns = {spec.name: table.add_column(spec) for spec in kind.columns_of(args)}
    handle = Handle(table, FixedClock(), columns=columns)
    plugin = kind(args, handle)
    if isinstance(plugin, RowKeeper):
        table.add_keeper(plugin)
    for key, view in KINDS.items():
        for body in case.get(key) or ():
            for watch in handle.watches:
                if watch.view is view:
                    watch.on_add(from_builtins(body, view))
    for node in case["nodes"]:
        table.set_node(from_builtins(node, Node))
    for pod in case.get("pods") or ():
        info = PodInfo.of(from_builtins(pod, Pod), table.registry)
        table.assign(info, info.node_name)
    return plugin


def _pod(case: Case, plugin: Plugin[Any]) -> PodInfo:
    return PodInfo.of(from_builtins(case["pod"], Pod), plugin.handle.table.registry)


_WORDS_BEFORE_1_35 = {
    DiskReason.CLAIM.status.message: (
        "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
    )
}
"""kube-scheduler changed these words; cases have the ones from before."""


def _verdict(status: Status) -> Case:
    return {"code": status.code.word, "reasons": [_WORDS_BEFORE_1_35.get(one, one) for one in status.reasons]}


def _filter(name: str, case: Case) -> Any:
    case = _with_owner(case)
    plugin = build(name, case)
    assert isinstance(plugin, FilterPlugin) and isinstance(plugin, PreFilterPlugin)
    table = plugin.handle.table
    state = plugin.prepare(_pod(case, plugin))
    answer: Case = {}
    result = plugin.pre_filter(state)
    if not result.status.is_success:
        answer["preFilter"] = _verdict(result.status)
    if result.status.is_skip:
        return {**answer, "nodes": {table.name_of(row): _verdict(SUCCESS) for row in table.rows.tolist()}}
    if not result.status.is_success:
        return answer
    codes = plugin.filter(state, table.rows)
    answer["nodes"] = {
        table.name_of(row): _verdict(plugin.refusal(state, int(code)) if code else SUCCESS)
        for row, code in zip(table.rows.tolist(), codes, strict=True)
    }
    return answer


def _score(name: str, case: Case) -> Any:
    case = _with_owner(case)
    plugin = build(name, case)
    assert isinstance(plugin, ScorePlugin) and isinstance(plugin, PreScorePlugin)
    table = plugin.handle.table
    state = plugin.prepare(_pod(case, plugin))
    if plugin.pre_score(state).is_skip:
        return {"skip": True}
    refused = set(case.get("filteredOut") or ())
    rows = np.array([row for row in table.rows.tolist() if table.name_of(row) not in refused], np.intp)
    scores = plugin.normalize_at(state, plugin.score(state, rows), rows)
    return {
        "scores": {table.name_of(row): int(score) for row, score in zip(rows.tolist(), scores, strict=True)}
    }


def _with_owner(case: Case) -> Case:
    """A case with `defaultSelector`: a ReplicaSet with that selector owns the pod."""
    selector = case.get("defaultSelector")
    if not selector:
        return case
    meta = {**case["pod"]["metadata"]}
    meta["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "controller": True}
    ]
    owner = {
        "metadata": {"name": "rs", "namespace": meta.get("namespace", "")},
        "spec": {"selector": selector},
    }
    return {**case, "pod": {**case["pod"], "metadata": meta}, "replicaSets": [owner]}


def _adapter(kind: Any, name: str) -> Any:
    return lambda case: kind(name, case)


ADAPTERS = {
    "stock-topologyspread-filter": _adapter(_filter, "PodTopologySpread"),
    "stock-topologyspread-score": _adapter(_score, "PodTopologySpread"),
    "stock-interpod-filter": _adapter(_filter, "InterPodAffinity"),
    "stock-volumebinding-filter": _adapter(_filter, "VolumeBinding"),
    "stock-volumelimits-filter": _adapter(_filter, "NodeVolumeLimits"),
    "stock-volumerestrictions-filter": _adapter(_filter, "VolumeRestrictions"),
    "stock-volumezone-filter": _adapter(_filter, "VolumeZone"),
    "stock-interpod-score": _adapter(_score, "InterPodAffinity"),
}
