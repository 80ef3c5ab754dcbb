"""`GET /apis/v1/plugins/LoadAwareScheduling/node/<name>`: how a node's load is estimated.

Source: behaviour/scheduler I7.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from koordinator import clock
from koordinator.api import resource_vector
from koordinator.scheduler.plugins.load_aware.load import NodeLoad, Share
from koordinator.scheduler.table.pod_info import PodInfo


def describe(load: NodeLoad, pods: Mapping[str, PodInfo], names: Sequence[str]) -> dict[str, Any]:
    """The pods that count, oldest first, and with a report the sums and who is in them.

    `pods` are those on the node by uid; `names` are the resources of the vectors.
    """
    assigned = [(found.since_s, pod) for uid, pod in pods.items() if (found := load.pod(uid)) is not None]
    assigned.sort(key=lambda each: (each[0], each[1].key))
    body: dict[str, Any] = {
        "pods": [{"timestamp": clock.rfc3339(since_s), "pod": pod.pod} for since_s, pod in assigned]
    }
    if load.report is None:
        return body
    sums = {
        "prodUsage": load.prod_usage,
        "nodeDelta": load.node_delta,
        "prodDelta": load.prod_delta,
        "nodeEstimated": load.node_estimated,
    }
    for name, amounts in sums.items():
        body[name] = {
            resource: resource_vector.amount_text(resource, amount)
            for resource, amount in zip(names, amounts, strict=True)
        }
    shares = load.shares

    def who(part: Callable[[Share], Sequence[int]]) -> list[str]:
        return sorted(pod.key for uid, pod in pods.items() if uid in shares and any(part(shares[uid])))

    body["nodeDeltaPods"] = who(lambda share: share.node_delta)
    body["prodDeltaPods"] = who(lambda share: share.prod_delta)
    body["nodeEstimatedPods"] = who(lambda share: share.estimated)
    return body
