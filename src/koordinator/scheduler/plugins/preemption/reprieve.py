"""Which pods of many nodes may stay, where resources are all that decides. Pure.

The same answer as `victims.select` gives for one node and one question at a time. Source: behaviour/scheduler B7 (4).
"""

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.resource_vector import I64

NOBODY = -1

Mask = npt.NDArray[np.bool_]


class Room(msgspec.Struct, frozen=True):
    """Nodes without their less important pods, and what the preemptor wants of them.

    `used` and `capacity` are (resources, nodes), only of resources that the preemptor wants; `pods` and
    `pods_max` are (nodes,); `wanted` is (resources,).
    """

    used: I64
    capacity: I64
    pods: I64
    pods_max: I64
    wanted: I64


def victims_of(order: I64, amounts: I64, room: Room) -> Mask:
    """(nodes, ranks): the pods that have to go; each stays if the preemptor still fits beside it and those that
    stay already.

    `order` (nodes, ranks) tells who is asked in turn, as an index into `amounts` (resources, pods), `NOBODY`
    where a node has fewer pods.
    """
    used, pods = room.used.copy(), room.pods.copy()
    must_go = np.zeros(order.shape, np.bool_)
    for rank in range(order.shape[1]):
        who = order[:, rank]
        is_there = who != NOBODY
        more = np.where(is_there, amounts[:, who], 0)
        fits = (used + more + room.wanted[:, None] <= room.capacity).all(axis=0)
        stays = is_there & fits & (pods + 2 <= room.pods_max)
        used += np.where(stays, more, 0)
        pods += stays
        must_go[:, rank] = is_there & ~stays
    return must_go


class Losses(msgspec.Struct, frozen=True):
    """What `victims.rank` compares, per node: each (nodes,)."""

    violations: I64
    top: I64
    priorities: I64
    counts: I64
    earliest_s: npt.NDArray[np.float64]


def losses_of(
    order: I64,
    must_go: Mask,
    priorities: I64,
    starts_s: npt.NDArray[np.float64],
    is_protected: Mask,
    priority_offset: int,
) -> Losses:
    """What each node loses. `priorities`, `starts_s` and `is_protected` are per pod."""
    prio = np.where(must_go, priorities[order], np.iinfo(np.int64).min)
    top = prio.max(axis=1)
    is_top = must_go & (prio == top[:, None])
    return Losses(
        violations=(must_go & is_protected[order]).sum(axis=1),
        top=top,
        priorities=np.where(must_go, priorities[order] + priority_offset, 0).sum(axis=1),
        counts=must_go.sum(axis=1),
        earliest_s=np.where(is_top, starts_s[order], np.inf).min(axis=1),
    )


def in_ranks(node_of: I64, keys: tuple[npt.NDArray[np.generic], ...], node_count: int) -> I64:
    """(nodes, ranks): pods by node, each node's sorted by `keys` (the first counts most), equal ones as given.

    `node_of` (pods,) numbers the nodes from 0.
    """
    sorted_pods = np.lexsort((*reversed(keys), node_of))
    counts = np.bincount(node_of, minlength=node_count)
    first = np.cumsum(counts) - counts
    order = np.full((node_count, int(counts.max(initial=0))), NOBODY, np.int64)
    nodes = node_of[sorted_pods]
    order[nodes, np.arange(sorted_pods.size) - first[nodes]] = sorted_pods
    return order
