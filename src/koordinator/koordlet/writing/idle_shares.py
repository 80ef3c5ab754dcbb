"""The kernel forgets the CPU shares of a group that becomes idle: here they are kept, and given back afterwards.

While `cpu.idle` is 1 the kernel shows shares of 3 (v1) or a weight of 0 (v2) and refuses others; then the group gets
the kernel's default, not what it had. Measured on Linux 6.18 (v1) and 6.1 (v2).
"""

import msgspec

from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.koordlet.writing import restoring
from koordinator.koordlet.writing.restore_log import RestoreLog
from koordinator.koordlet.writing.update_plan import Update

_OF_IDLE = {V1: "3", V2: "0"}
_DEFAULT = {V1: "1024", V2: "100"}


def keep(cgroups: Cgroups, records: RestoreLog, group: str, owner: str) -> None:
    """Write ahead the shares of a group that is about to become idle."""
    path = cgroups.path(Knob.CPU_SHARES, group)
    content, identity = cgroups.files.read(path), cgroups.files.identity(path)
    if content is None or identity is None or content.strip() == _OF_IDLE[cgroups.version]:
        return
    update = Update(group, Knob.CPU_SHARES, "")
    kept = restoring.record(update, path, owner, content, content, identity)
    records.note(msgspec.structs.replace(kept, key=_key(path)))


def give_back(cgroups: Cgroups, records: RestoreLog, group: str) -> tuple[str, str] | None:
    """Put the shares back that a group had before it was idle, unless somebody gave it others meanwhile.

    Answers path and text when they were written; what the kernel refuses is tried again next time.
    """
    path = cgroups.path(Knob.CPU_SHARES, group)
    record = records.get(_key(path))
    if record is None:
        return None
    content, identity = cgroups.files.read(path), cgroups.files.identity(path)
    is_due = content is not None and content.strip() == _DEFAULT[cgroups.version]
    is_due = is_due and identity == record.identity
    if is_due and cgroups.files.write(path, record.before) is not None:
        return None
    records.drop([record.key])
    return (path, record.before) if is_due else None


def _key(path: str) -> str:
    return f"{path}#idle"
