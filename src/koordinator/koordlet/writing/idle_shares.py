"""Idle groups forget their CPU shares: here they are kept, and those that are wanted meanwhile.

While `cpu.idle` is 1 the kernel shows shares of 3 (v1) or a weight of 0 (v2) and refuses others; then the group gets
the kernel's default, not what it had. The shares that it had, or that somebody wants it to have meanwhile, are kept in
a record of their own (`<path>#idle`) and written when it is idle no more. Measured on Linux 6.18 (v1) and 6.1 (v2).
"""

import msgspec

from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.koordlet.writing import restore_log
from koordinator.koordlet.writing.restore_log import RestoreLog, RestoreRecord
from koordinator.koordlet.writing.update_plan import Update

_OF_IDLE = {V1: "3", V2: "0"}
_DEFAULT = {V1: "1024", V2: "100"}


def keep(cgroups: Cgroups, records: RestoreLog, group: str, owner: str) -> None:
    """Write ahead the shares of a group that is about to become idle."""
    path = cgroups.path(Knob.CPU_SHARES, group)
    content, identity = cgroups.files.read(path), cgroups.files.identity(path)
    if content is None or identity is None or _is_idle(cgroups, group):
        return
    update = Update(group, Knob.CPU_SHARES, "")
    kept = restore_log.record(update, path, owner, content, content, identity)
    records.note(msgspec.structs.replace(kept, key=_record_key(path)))


def is_refused(cgroups: Cgroups, update: Update, content: str) -> bool:
    """Return whether the kernel refuses these shares because the group is idle; `content` is what their file says."""
    if update.knob is not Knob.CPU_SHARES or content.strip() != _OF_IDLE[cgroups.version]:
        return False
    return _is_idle(cgroups, update.group)


def want(cgroups: Cgroups, records: RestoreLog, update: Update, owner: str) -> None:
    """Note which shares an owner wants an idle group to have once it is idle no more.

    The record says that the owner changed them, so that they can be put back. Raises: KnobValueError when they are
    none.
    """
    path = cgroups.path(Knob.CPU_SHARES, update.group)
    text = cgroup_knobs.encode(update.knob, cgroups.version, update.value)
    kept, identity = records.get(_record_key(path)), cgroups.files.identity(path)
    if kept is None or identity is None or kept.identity != identity or kept.before == text:
        return  # somebody else made it idle, and nobody gives back what it had
    records.note(restore_log.record(update, path, owner, kept.before, text, identity))
    records.note(msgspec.structs.replace(kept, before=text), is_foreign=True)


def put_back(records: RestoreLog, record: RestoreRecord) -> bool:
    """Give an idle group the former shares of a record for later; return False where that is not the case at hand."""
    if record.knob != Knob.CPU_SHARES or record.key != record.path:
        return False
    kept = records.get(_record_key(record.path))
    if kept is None or kept.identity != record.identity or kept.before != record.wrote:
        return False
    records.note(msgspec.structs.replace(kept, before=record.before), is_foreign=True)
    return True


def give_back(cgroups: Cgroups, records: RestoreLog, group: str) -> tuple[str, str] | None:
    """Put the shares back that a group should have when it is idle no more, unless somebody gave it others meanwhile.

    Answers path and text when they were written; what the kernel refuses is tried again next time.
    """
    path = cgroups.path(Knob.CPU_SHARES, group)
    record = records.get(_record_key(path))
    if record is None:
        return None
    content, identity = cgroups.files.read(path), cgroups.files.identity(path)
    is_due = content is not None and content.strip() == _DEFAULT[cgroups.version]
    is_due = is_due and identity == record.identity
    if is_due and cgroups.files.write(path, record.before) is not None:
        return None
    records.drop([record.key])
    return (path, record.before) if is_due else None


def _is_idle(cgroups: Cgroups, group: str) -> bool:
    return (cgroups.read(Knob.CPU_IDLE, group) or "").strip() == "1"


def _record_key(path: str) -> str:
    return f"{path}#idle"
