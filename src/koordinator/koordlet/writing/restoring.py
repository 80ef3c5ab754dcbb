"""Put a changed file back, as pure functions of its record."""

import os
from collections.abc import Sequence

import msgspec

from koordinator.host import cgroup_knobs, schemata
from koordinator.host.cgroup_knobs import V1, Knob, Merge
from koordinator.host.cgroup_units import UNLIMITED
from koordinator.host.files import Identity
from koordinator.koordlet.writing import update_plan
from koordinator.koordlet.writing.restore_log import RestoreRecord
from koordinator.koordlet.writing.update_plan import DEVICE_KNOBS, ID_KNOBS, Update, WriteOutcome

_UNSET_LINE = {
    Knob.BLKIO_WEIGHT: "100",
    Knob.BLKIO_QOS: "enable=0",
    Knob.IO_MAX: "rbps=max wbps=max riops=max wiops=max",
    Knob.IO_WEIGHT: "default",
}
"""How a disk without a line of its own is written; limits are 0."""

PRESENT, ABSENT = "present", "absent"
"""What a claimed name was before."""
_SCHEMATA = "schemata"
_PART_MARK = "#"


class Restored(msgspec.Struct, frozen=True):
    """The fate of one changed file that was to be put back, and why if it was not."""

    record: RestoreRecord
    outcome: WriteOutcome
    problem: str = ""


def part_key(path: str, part: str) -> str:
    """Key of the record of a part of a file, or of a name within a directory."""
    return f"{path}{_PART_MARK}{part}" if part else path


def claimed(record: RestoreRecord) -> str:
    """Return the name within a directory that a record claims."""
    return record.key.rpartition(_PART_MARK)[2]


def part_of(path: str, content: str, part: str) -> str:
    """Return what a file says of a part: the line of a schemata, or a feature of the scheduler with or without
    `NO_`.
    """
    if os.path.basename(path) == _SCHEMATA:
        lines = (line.strip() for line in content.splitlines())
        return next((line for line in lines if line.partition(":")[0] == part), "")
    return next((word for word in content.split() if word.removeprefix("NO_") == part), "")


def file_record(
    path: str, part: str, owner: str, content: str, text: str, identity: Identity
) -> RestoreRecord:
    """Return the record of a change to a file that is no knob of a group; `content` is what it says now."""
    before = part_of(path, content, part) if part else content
    return RestoreRecord(part_key(path, part), path, (owner,), before, text.strip(), identity)


def text_of(record: RestoreRecord) -> str:
    """Return what is written to put a file back; a schemata takes whole lines only."""
    return f"{record.before}\n" if _is_part(record) else record.before


def is_write_only(knob: Knob) -> bool:
    """Return whether a knob takes members, or something that cannot be undone: there is nothing to put back."""
    return knob in ID_KNOBS or knob is Knob.BLKIO_MODEL


def record(
    update: Update, path: str, owner: str, content: str, text: str, identity: Identity
) -> RestoreRecord:
    """Return the record of a change to be made; `content` is what the file says now."""
    key, before = path, content.rstrip("\n")
    if update.knob in DEVICE_KNOBS:
        disk = text.partition(" ")[0]
        key, before = f"{path}#{disk}", _line_of(disk, content, update.knob)
    return RestoreRecord(key, path, (owner,), before, text, identity, update.group, update.knob)


def says(record: RestoreRecord, content: str, text: str) -> bool:
    """Return whether the file still says a text of the record."""
    if _is_part(record):
        return _part_says(record, content, text)
    if not record.knob:
        return content.strip() == text.strip()
    if text == "":
        return content.strip() == ""
    if " " in text and record.knob in (Knob.CPU_QUOTA, Knob.CPU_PERIOD):
        return content.split() == text.split()
    return update_plan.holds(Knob(record.knob), content, text)


def means_all_cpus(record: RestoreRecord) -> bool:
    """Return whether a group had no list of CPUs of its own."""
    return record.knob == Knob.CPUSET and not record.before.strip()


def is_ours(record: RestoreRecord, content: str) -> bool:
    """Return whether the file says what we made it say. Killed between record and write, it still says what it said
    before: the work of others, or an earlier write of ours.

    Killed between record and write it says what it said, be that the work of others or an earlier write of ours.
    """
    return any(
        says(record, content, text) for text in (record.wrote, record.before, record.was or record.before)
    )


def is_leveled(record: RestoreRecord, version: int) -> bool:
    """Return whether parents and children depend on each other; v2 lets every group have any list of CPUs."""
    if not record.knob:
        return False
    merge = cgroup_knobs.merge_of(Knob(record.knob))
    return merge is Merge.LARGER or (merge is Merge.UNION and version == V1)


def update_of(record: RestoreRecord, reason: str) -> Update:
    """Return the update that puts a knob of a group back, in v1 terms."""
    words = record.before.split()
    value = record.before
    if record.knob == Knob.CPU_QUOTA and words:
        value = str(UNLIMITED) if words[0] == "max" else words[0]
    return Update(record.group, Knob(record.knob), value, reason)


def levels(records: Sequence[RestoreRecord], reason: str) -> list[list[Update]]:
    """Updates by depth of their groups, top level first."""
    by_depth: dict[int, list[Update]] = {}
    for each in records:
        by_depth.setdefault(each.group.count("/"), []).append(update_of(each, reason))
    return [by_depth[depth] for depth in sorted(by_depth)]


def _line_of(disk: str, content: str, knob: Knob) -> str:
    for line in content.splitlines():
        if line.split()[:1] == [disk]:
            return line.strip()
    return f"{disk} {_UNSET_LINE.get(knob, '0')}"


def _is_part(record: RestoreRecord) -> bool:
    return not record.knob and record.key != record.path


def _part_says(record: RestoreRecord, content: str, text: str) -> bool:
    if os.path.basename(record.path) == _SCHEMATA:
        return not schemata.needs_write(content, text)
    return text in content.split()
