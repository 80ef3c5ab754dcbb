"""Is what was configured backed by the webhooks and feature gates that it needs?"""

from collections.abc import Iterator

from koordinator.api import labels, quota_labels, resources, slo_config
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import ClusterColocationProfile, ElasticQuotaProfile
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.sigs import ElasticQuota
from koordinator.doctor.checks.quotas import BUILT_IN
from koordinator.doctor.finding import Finding, some_of
from koordinator.doctor.installation import ComponentName
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.koordlet.degradation import INTERFERENCE
from koordinator.koordlet.gpu_shares import BATCH_GPU
from koordinator.koordlet.interference.act import INTERFERENCE_CONTROL
from koordinator.koordlet.predict.hour_trainer import GATE as PEAKS_BY_HOUR
from koordinator.manager.config import addons, amplification, colocation_config, cpu_normalization
from koordinator.manager.webhooks import table


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Features that somebody configured and that cannot work as things are."""
    yield from _amplification(snapshot)
    yield from _normalization(snapshot)
    yield from _profiles(snapshot)
    yield from _quotas(snapshot)
    yield from _predictions(snapshot)
    yield from _closed_loop(snapshot)


def _gate_step(snapshot: ClusterSnapshot, gate: str) -> tuple[str, ...]:
    workload = snapshot.installation.get(ComponentName.MANAGER)
    where = f"kubectl -n {snapshot.namespace} edit deployment koord-manager    # --feature-gates={gate}=true"
    return (where if workload is not None else f"start the manager with --feature-gates={gate}=true",)


def _amplification(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    config = amplification.sync(amplification.DEFAULT_CONFIG, snapshot.slo_data).config
    amplified = []
    for node in snapshot.nodes:
        try:
            if _amplifies(config, node):
                amplified.append(node.metadata.name)
        except ProtocolError as error:
            yield Finding.error(
                node,
                f"not amplified: {error.field}: {error.reason}",
                why="the node keeps its unamplified allocatable",
                do=(f"correct {slo_config.RESOURCE_AMPLIFICATION.key}, or the annotation of the node",),
            )
    if amplified and table.MUTATE_NODE_STATUS not in snapshot.webhook_paths:
        yield Finding.error(
            ("Node", amplified),
            f"{slo_config.RESOURCE_AMPLIFICATION.key} is on, but no webhook {table.MUTATE_NODE_STATUS} is configured",
            why="the kubelet's values stay, so allocatable is not amplified",
            do=_gate_step(snapshot, "NodeMutatingWebhook"),
        )


def _amplifies(config: slo_config.ResourceAmplificationConfig, node: Node) -> bool:
    metadata = node.metadata
    return bool(amplification.node_ratios(config, metadata.name, metadata.labels, metadata.annotations))


def _normalization(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    config = cpu_normalization.sync(cpu_normalization.DEFAULT_CONFIG, snapshot.slo_data).config
    if not config.enable or not snapshot.knows(NodeResourceTopology):
        return
    unknown = [
        node.metadata.name
        for node in snapshot.nodes
        if (found := snapshot.find(NodeResourceTopology, node.metadata.name)) is None
        or labels.NODE_CPU_BASIC_INFO not in found.metadata.annotations
    ]
    if unknown:
        yield Finding.warning(
            ("Node", unknown),
            f"{slo_config.CPU_NORMALIZATION.key} is on, but no report of the CPU model exists",
            why="its CPUs count as 1.0, whatever their model",
            do=("turn on koordlet's feature gate NodeTopologyReport, which reports it",),
        )


def _profiles(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    profiles = snapshot.of(ClusterColocationProfile)
    if profiles and table.MUTATE_POD not in snapshot.webhook_paths:
        yield Finding.error(
            ("ClusterColocationProfile", [each.metadata.name for each in profiles]),
            f"no webhook {table.MUTATE_POD} is configured",
            why="profiles have no effect: pods stay as submitted",
            do=_gate_step(snapshot, "PodMutatingWebhook"),
        )
    managed = [each.metadata.name for each in profiles if labels.CONTROLLER_MANAGED in each.metadata.labels]
    if managed and snapshot.installation.manager_gate("ColocationProfileController") is False:
        yield Finding.warning(
            ("ClusterColocationProfile", managed),
            f"has label {labels.CONTROLLER_MANAGED}, but feature gate ColocationProfileController is off",
            why="only new pods get the profile, not those that are already pending",
            do=_gate_step(snapshot, "ColocationProfileController"),
        )


def _quotas(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    quotas = [each for each in snapshot.of(ElasticQuota) if each.metadata.name not in BUILT_IN]
    if quotas and table.VALIDATE_QUOTA not in snapshot.webhook_paths:
        yield Finding.warning(
            ("ElasticQuota", [each.key for each in quotas]),
            f"no webhook {table.VALIDATE_QUOTA} is configured",
            why="quotas are not validated; the scheduler uses them as they are",
            do=_gate_step(snapshot, "ElasticValidatingWebhook"),
        )
    trees = {tree for each in quotas if (tree := quota_labels.tree_id(each.metadata.labels))}
    if (
        trees
        and snapshot.of(ElasticQuotaProfile)
        and snapshot.installation.manager_gate("MultiQuotaTree") is False
    ):
        yield Finding.warning(
            "quota trees",
            f"quotas belong to trees ({some_of(trees)}), but feature gate MultiQuotaTree is off",
            why="pods are not restricted to the nodes of their tree",
            do=_gate_step(snapshot, "MultiQuotaTree"),
        )


def _predictions(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Settings that lend by predictions which the node agents do not make."""
    gates, config = snapshot.installation.agent_gates(), snapshot.colocation
    if config is None or gates is None:
        return
    cards, hours = [], []
    for node in snapshot.nodes:
        strategy = colocation_config.resource_strategy(config, colocation_config.node_strategy(config, node))
        if not strategy.enabled:
            continue
        if resources.GPU_CORE in node.status.allocatable and strategy.gpu_percent > 0:
            cards.append(node.metadata.name)
        if strategy.ahead_s > 0:
            hours.append(node.metadata.name)
    if cards and not gates.is_on(BATCH_GPU):
        yield Finding.warning(
            ("Node", cards),
            f"gpuReclaimPercent lends its GPUs, but feature gate {BATCH_GPU} of the node agent is off",
            why="nobody predicts what services leave of cards, so nothing of them is lent",
            do=_agent_gates(snapshot, f"Accelerators=true,{BATCH_GPU}=true"),
        )
    if hours and not gates.is_on(PEAKS_BY_HOUR):
        yield Finding.warning(
            ("Node", hours),
            f"lendAheadMinutes looks ahead, but feature gate {PEAKS_BY_HOUR} of the node agent is off",
            why="nobody predicts at which hours services need the node, so Batch follows what they use now",
            do=_agent_gates(snapshot, f"{PEAKS_BY_HOUR}=true"),
        )


def _closed_loop(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """The closed loop is asked for in one of two places only, or knows nothing of services."""
    gates = snapshot.installation.agent_gates()
    if gates is None:
        return
    key = addons.INTERFERENCE.key
    try:
        config = addons.INTERFERENCE.parse(snapshot.slo_data)
    except ProtocolError:
        return  # told with the other keys that cannot be read
    asked = [
        node.metadata.name
        for node in snapshot.nodes
        if (addons.INTERFERENCE.of_node(config, node) or {}).get("enable") is True
    ]
    missing = [gate for gate in (INTERFERENCE, INTERFERENCE_CONTROL) if not gates.is_on(gate)]
    if asked and missing:
        yield Finding.warning(
            ("Node", asked),
            f"{key} is on, but feature gates of the node agent are off: {', '.join(missing)}",
            why="batch follows the fixed threshold, whatever services feel",
            do=_agent_gates(
                snapshot, ",".join(f"{gate}=true" for gate in (INTERFERENCE, INTERFERENCE_CONTROL))
            ),
        )
    elif not asked and gates.is_on(INTERFERENCE_CONTROL):
        yield Finding.warning(
            "closed loop",
            f"feature gate {INTERFERENCE_CONTROL} of the node agent is on, but {key} is on for no node",
            why="batch follows the fixed threshold, whatever services feel",
            do=(f'set {key} to {{"clusterStrategy": {{"enable": true}}}} in slo-controller-config',),
        )


def _agent_gates(snapshot: ClusterSnapshot, gates: str) -> tuple[str, ...]:
    return (f"kubectl -n {snapshot.namespace} edit daemonset koordlet    # --feature-gates={gates}",)
