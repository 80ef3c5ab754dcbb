"""Merging of container resources: hook answers into requests, update requests into checkpoints.

Pure. A field that is 0 or empty is as good as absent (proto3), so each kind of merge says what such a field
means. Source: behaviour/koordlet-act 23.3 and 23.4.
"""

from collections.abc import Mapping

import msgspec

from koordinator.host import protobuf_messages
from koordinator.host.cri_messages import LinuxContainerResources
from koordinator.host.protobuf_messages import Entries

OOM_SCORE_ADJ_MAX = 1000
"""The kernel accepts −1000 to 1000 (proc(5), oom_score_adj)."""


def with_answer(
    current: LinuxContainerResources | None, answer: LinuxContainerResources | None
) -> LinuxContainerResources | None:
    """Return what goes to the runtime after a hook answered; cpusets are always taken, so empty text clears them.

    An answer cannot add resources to a request that has none, and hugepages stay as they are.
    """
    if current is None or answer is None:
        return current
    score = answer.oom_score_adj
    return msgspec.structs.replace(
        _with_amounts(current, answer),
        cpu_quota=answer.cpu_quota or current.cpu_quota,
        oom_score_adj=score if abs(score) <= OOM_SCORE_ADJ_MAX else current.oom_score_adj,
        cpuset_cpus=answer.cpuset_cpus,
        cpuset_mems=answer.cpuset_mems,
        unified={**current.unified, **answer.unified},
    )


def with_update(
    cached: LinuxContainerResources | None, request: LinuxContainerResources | None
) -> LinuxContainerResources | None:
    """Return the checkpoint after an UpdateContainerResources request: what the hook is then told.

    The OOM score is not the request's to change; a hook may.
    """
    if cached is None or request is None:
        return cached
    return msgspec.structs.replace(
        _with_amounts(cached, request),
        cpu_quota=request.cpu_quota or cached.cpu_quota,
        cpuset_cpus=request.cpuset_cpus or cached.cpuset_cpus,
        cpuset_mems=request.cpuset_mems or cached.cpuset_mems,
        unified={**cached.unified, **request.unified},
    )


def with_docker_update(
    cached: LinuxContainerResources | None, request: LinuxContainerResources | None
) -> LinuxContainerResources | None:
    """Merge as `with_update` does, for Docker's update call: only positive numbers and cpusets that are not empty."""
    if cached is None or request is None:
        return cached
    return msgspec.structs.replace(
        _with_amounts(cached, request),
        cpu_quota=request.cpu_quota if request.cpu_quota > 0 else cached.cpu_quota,
        cpuset_cpus=request.cpuset_cpus or cached.cpuset_cpus,
        cpuset_mems=request.cpuset_mems or cached.cpuset_mems,
    )


def merged(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Labels or annotations of a request with those of an answer: by key, the answer wins."""
    return {**old, **new}


def entries_merged(old: Entries, new: Entries) -> Entries:
    """Merge as `merged` does; what is the same stays as it came. Raises: ContentError, for damaged entries."""
    if _is_nothing_new(old, new):
        return old
    return protobuf_messages.entries(merged(protobuf_messages.texts(old), protobuf_messages.texts(new)))


def variables(old: Entries, new: Entries) -> Entries:
    """Return the environment that an answer has, if it has one: known variables first, in their order.

    Raises: ContentError, for damaged entries.
    """
    if _is_nothing_new(old, new):
        return old
    wanted = protobuf_messages.texts(new)
    known = [name for name in protobuf_messages.texts(old) if name in wanted]
    return protobuf_messages.entries({name: wanted[name] for name in (*known, *wanted)})


def _is_nothing_new(old: Entries, new: Entries) -> bool:
    """Return whether an answer says nothing, or the same; the order of entries is of no account (Go has none)."""
    return not new or new == old or sorted(new) == sorted(old)


def _with_amounts(old: LinuxContainerResources, new: LinuxContainerResources) -> LinuxContainerResources:
    """Return the amounts that follow one rule everywhere: taken when positive."""
    return msgspec.structs.replace(
        old,
        cpu_period=_positive(new.cpu_period, old.cpu_period),
        cpu_shares=_positive(new.cpu_shares, old.cpu_shares),
        memory_limit_in_bytes=_positive(new.memory_limit_in_bytes, old.memory_limit_in_bytes),
        memory_swap_limit_in_bytes=_positive(new.memory_swap_limit_in_bytes, old.memory_swap_limit_in_bytes),
    )


def _positive(new: int, old: int) -> int:
    return new if new > 0 else old
