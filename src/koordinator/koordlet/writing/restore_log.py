"""Remember what files said before a strategy changed them, so that it can be put back even after a kill -9.

A record is written ahead of the change, to a file below /run: it lives exactly as long as the kernel's values do. Each
record names the file's identity and what we wrote last. A file that has another identity, or says something else than
we wrote, was made or changed by somebody else: no record lets us touch it.

A changed file is put back by pure functions of its record.
"""

import os
from collections.abc import Iterable, Sequence

import msgspec

from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import DEVICE_KNOBS, UNLIMITED, UNSET_BY_DISK, V1, Knob, Merge
from koordinator.host.files import FileFailure, FileProblem, Identity, problem_of
from koordinator.host.resctrl import schemata_needs_write
from koordinator.koordlet.writing import update_plan
from koordinator.koordlet.writing.update_plan import ID_KNOBS, Update, WriteOutcome

LINES_SPARED = 1_000
"""The journal is rewritten when it has this many lines more than twice the records."""
RECORDS_MAX = 65_536


class RestoreRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One changed file (or one disk's line in it): texts as the file has them."""

    key: str
    """Path, with `#<disk>` for one disk's line."""
    path: str
    owners: tuple[str, ...]
    """Owners that want the present value, the newest last."""
    before: str
    wrote: str
    identity: Identity
    group: str = ""
    knob: str = ""
    """Empty for files that are no knobs of a group."""
    was: str = ""
    """Content when `wrote` was about to be written: a kill in between leaves it so."""


class _Line(msgspec.Struct, omit_defaults=True):
    """A line of the journal: the boot that it belongs to, a record, or the key of one that is done."""

    boot: str | None = None
    record: RestoreRecord | None = None
    done: str | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Line).decode


class RestoreLog:
    """Records by key, kept in `path` (empty: in memory only). Without a readable journal nothing is known.

    With `is_read_only` the file stays as it is: another process may be keeping it.
    """

    def __init__(self, path: str = "", boot_id: str = "", *, is_read_only: bool = False) -> None:
        self._path = path
        self._is_read_only = is_read_only
        self._boot_id = boot_id
        self._records: dict[str, RestoreRecord] = {}
        self._line_count = 0
        self.problem: FileProblem | None = None
        """Reason for which the journal could not be written last; records are in memory all the same."""
        self._load()

    @property
    def count(self) -> int:
        """Records that are kept."""
        return len(self._records)

    def get(self, key: str) -> RestoreRecord | None:
        """Return the record of a file."""
        return self._records.get(key)

    def of_owner(self, owner: str) -> list[RestoreRecord]:
        """Records of files that an owner has changed, by path."""
        found = (record for record in self._records.values() if owner in record.owners)
        return sorted(found, key=lambda record: record.key)

    def all(self) -> list[RestoreRecord]:
        """Return all records, by path."""
        return [record for _, record in sorted(self._records.items())]

    def note(self, record: RestoreRecord, *, is_foreign: bool = False) -> None:
        """Keep a record before the file is changed; its `before` is what the file says now.

        The text from before our first change stays, unless somebody else has changed it since (`is_foreign`).
        """
        old = self._records.get(record.key)
        if old is not None and old.identity == record.identity:
            owners = (*(owner for owner in old.owners if owner not in record.owners), *record.owners)
            before = record.before if is_foreign else old.before
            record = msgspec.structs.replace(record, before=before, was=record.before, owners=owners)
        elif old is None and len(self._records) >= RECORDS_MAX:
            self.problem = FileProblem(self._path, FileFailure.FULL)
            return
        if record != old:
            self._records[record.key] = record
            self._append(_Line(record=record))

    def leave(self, key: str, owner: str) -> None:
        """Note that an owner needs the value no more; with the last one the record goes."""
        old = self._records.get(key)
        if old is None:
            return
        owners = tuple(each for each in old.owners if each != owner)
        if owners:
            self._records[key] = msgspec.structs.replace(old, owners=owners)
            self._append(_Line(record=self._records[key]))
        else:
            self.drop([key])

    def drop(self, keys: Iterable[str]) -> None:
        """Forget records: put back, or of files that are gone."""
        for key in keys:
            if self._records.pop(key, None) is not None:
                self._append(_Line(done=key))

    def _load(self) -> None:
        if not self._path:
            return
        try:
            with open(self._path, "rb") as file:
                lines = file.read().splitlines()
        except OSError as error:
            problem = problem_of(self._path, error)
            self.problem = None if problem.failure is FileFailure.GONE else problem
            lines = []
        is_this_boot = False
        for data in lines:
            try:
                line = _decode(data)
            except msgspec.MsgspecError:
                continue  # torn by a kill in the middle of a write; its change was not begun then
            if line.boot is not None:
                is_this_boot = line.boot == self._boot_id
                self._records.clear()
            elif is_this_boot and line.record is not None:
                self._records[line.record.key] = line.record
            elif is_this_boot and line.done is not None:
                self._records.pop(line.done, None)
        self._rewrite()

    def _append(self, line: _Line) -> None:
        if not self._path or self._is_read_only:
            return
        if self.problem is not None or self._line_count > 2 * len(self._records) + LINES_SPARED:
            self._rewrite()  # holds what this line says, too
            return
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                # A line torn by a full disk ends here; the next one starts afresh.
                os.write(fd, _encode(line) + b"\n")
            finally:
                os.close(fd)
            self._line_count += 1
        except OSError as error:
            self.problem = problem_of(self._path, error)

    def _rewrite(self) -> None:
        """Write the same records in a new file, which takes the old one's place at once."""
        if self._is_read_only:
            return
        lines = [_Line(boot=self._boot_id), *(_Line(record=record) for record in self._records.values())]
        temporary = self._path + ".tmp"
        try:
            os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(b"".join(_encode(line) + b"\n" for line in lines))
            os.replace(temporary, self._path)
        except OSError as error:
            self.problem = problem_of(self._path, error)
            return
        self._line_count = len(lines)
        self.problem = None


PRESENT, ABSENT = "present", "absent"
"""State of a claimed name before the claim."""
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
    `NO_`."""
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


def matches(record: RestoreRecord, content: str, text: str) -> bool:
    """Return whether the file still says a text of the record."""
    if _is_part(record):
        return _part_matches(record, content, text)
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
    before: the work of others, or an earlier write of ours."""
    return any(
        matches(record, content, text) for text in (record.wrote, record.before, record.was or record.before)
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
    return f"{disk} {UNSET_BY_DISK[knob]}"


def _is_part(record: RestoreRecord) -> bool:
    return not record.knob and record.key != record.path


def _part_matches(record: RestoreRecord, content: str, text: str) -> bool:
    if os.path.basename(record.path) == _SCHEMATA:
        return not schemata_needs_write(content, text)
    return text in content.split()
