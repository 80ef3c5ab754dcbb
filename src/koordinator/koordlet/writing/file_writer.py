"""Files of the host that belong to no group, written where needed, recorded, audited, or only told.

`executor` is built on it. Nothing here waits. Source: behaviour/koordlet-act 3.
"""

import functools
import os
from collections.abc import Callable, Iterable

import msgspec

from koordinator.clock import Clock
from koordinator.host.files import FileFailure, FileProblem, Files
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.node_pods import GroupOwner
from koordinator.koordlet.writing import restore_log
from koordinator.koordlet.writing.restore_log import RestoreLog, RestoreRecord

CGROUP_UPDATE, OTHER_UPDATE = "cgroup", "default"
"""Kinds of changes, as the reference counts them: files of groups, and everything else."""
AUDIT_LEVEL = 3
TASKS_AUDIT_LEVEL = 5


class PlannedWrite(msgspec.Struct, frozen=True):
    """The write that a dry run would have made, by whom and why."""

    path: str
    before: str
    text: str
    owner: str
    reason: str

    def __str__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return f"{self.path}: {self.before!r} -> {self.text!r} ({self.owner}{why})"


class FileWriter:
    """`on_dry_run` makes it a dry run: nothing is written, each change is handed to it once. `on_update` hears of each
    write: its kind (`CGROUP_UPDATE`, say), whether it succeeded, and how many seconds it took. `owner_of` tells whose a
    group is; what concerns a `group` is audited as done to that pod."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        audit: AuditLog,
        records: RestoreLog,
        *,
        on_dry_run: Callable[[PlannedWrite], None] | None,
        on_update: Callable[[str, bool, float], None] | None,
        owner_of: Callable[[str], GroupOwner | None] | None = None,
    ) -> None:
        self._files = files
        self._clock = clock
        self._audit = audit
        self._records = records
        self._on_dry_run = on_dry_run
        self._on_update = on_update
        self._owner_of = owner_of
        self._shadow: dict[str, str] = {}
        """Dry run: what files would say now."""

    @property
    def is_dry_run(self) -> bool:
        """Return whether nothing is written; whoever changes things in another way must ask."""
        return self._on_dry_run is not None

    def write_file(
        self,
        path: str,
        text: str,
        *,
        owner: str,
        reason: str = "",
        part: str = "",
        is_held: Callable[[str], bool] | None = None,
        restorable: bool = True,
        group: str = "",
    ) -> FileProblem | None:
        """Make a file of /proc, /sys or resctrl (absolute path) hold a text; None when it does.

        `is_held` tells from the content whether that is so already; without it the texts are compared. Where the text
        sets one of several things that the file says, `part` names it (`restore_log.part_of`): it alone is put back.
        Lists that only take one more (`tasks`) are not `restorable`.
        """
        content = self._content(path)
        if content is None and os.path.dirname(path) in self._shadow:
            content = ""  # its directory would have been made
        if content is None:
            return self._files.why(path) or FileProblem(path, FileFailure.GONE)
        if is_held(content) if is_held is not None else content.strip() == text.strip():
            return None
        if self._on_dry_run is not None:
            self._would_write(path, content, text, owner, reason)
            return None
        if restorable:
            identity = self._files.identity(path)
            if identity is not None:
                self._keep(restore_log.file_record(path, part, owner, content, text, identity), content)
        problem = self._timed(OTHER_UPDATE, functools.partial(self._files.write, path, text))
        if problem is None:
            self._audited(path, text, owner, reason, group=group)
        return problem

    def claim(self, directory: str, name: str, *, owner: str) -> None:
        """Note ahead that an owner makes or takes over what has this name in a directory, also for after a kill.

        Until `restore`, `changed_by` lists a record of it (`restore_log.claimed`); `before` tells whether it existed.
        """
        identity = self._files.identity(directory)
        if self._on_dry_run is None and identity is not None:
            before = restore_log.PRESENT if self._files.exists(f"{directory}/{name}") else restore_log.ABSENT
            key = restore_log.part_key(directory, name)
            self._records.note(RestoreRecord(key, directory, (owner,), before, restore_log.PRESENT, identity))

    def note(self, path: str, what: str, *, owner: str, group: str = "") -> None:
        """Note ahead that something about a file or group is changed which only its owner can undo.

        `changed_by` tells of it, also after a kill, until `unnote`, `restore` or the end of the file.
        """
        identity = self._files.identity(path)
        if self._on_dry_run is None and identity is not None:
            key = restore_log.part_key(path, owner)
            self._records.note(RestoreRecord(key, path, (owner,), "", what, identity, group=group))

    def unnote(self, path: str, *, owner: str) -> None:
        """It is undone."""
        self._records.drop([restore_log.part_key(path, owner)])

    def add_tasks(
        self, path: str, threads: Iterable[int], *, owner: str, reason: str = "", group: str = ""
    ) -> dict[int, FileProblem]:
        """Move threads to a list such as resctrl's `tasks`, one per write; problems by thread (it may have ended)."""
        write = functools.partial(self._files.write, path)
        found = (
            (
                each,
                self.perform(
                    f"{path}+{each}",
                    str(each),
                    functools.partial(write, str(each)),
                    owner,
                    reason,
                    level=TASKS_AUDIT_LEVEL,
                    group=group,
                ),
            )
            for each in threads
        )
        return {thread: problem for thread, problem in found if problem is not None}

    def make_directory(self, path: str, *, owner: str, reason: str = "") -> FileProblem | None:
        """Make a directory that is a group to the kernel; one that exists is fine."""
        if self._files.exists(path):
            return None
        make = functools.partial(self._files.make_directory, path)
        return self.perform(path, "directory", make, owner, reason)

    def remove_directory(self, path: str, *, owner: str, reason: str = "") -> FileProblem | None:
        """Remove such a directory; one that is gone is fine."""
        if not self._files.exists(path):
            self._shadow.pop(path, None)
            return None
        remove = functools.partial(self._files.remove_directory, path)
        return self.perform(path, "no directory", remove, owner, reason)

    def perform(
        self,
        target: str,
        what: str,
        action: Callable[[], FileProblem | None],
        owner: str,
        reason: str,
        level: int = AUDIT_LEVEL,
        *,
        group: str = "",
    ) -> FileProblem | None:
        """Any other change of the host that is due: done and audited, or told once by a dry run."""
        if self._on_dry_run is not None:
            if self._shadow.get(target) != what:
                self._would_write(target, self._shadow.get(target, ""), what, owner, reason)
            return None
        problem = self._timed(OTHER_UPDATE, action)
        if problem is None:
            self._audited(target, what, owner, reason, level, group=group)
        return problem

    def _keep(self, record: RestoreRecord, content: str) -> None:
        old = self._records.get(record.key)
        is_foreign = old is not None and not restore_log.is_ours(old, content)
        self._records.note(record, is_foreign=is_foreign)

    def _content(self, path: str) -> str | None:
        shadow = self._shadow.get(path)
        if shadow is not None:
            return shadow
        text = self._files.read(path)
        return None if text is None else text.rstrip("\n")

    def _would_write(self, path: str, before: str, text: str, owner: str, reason: str) -> None:
        assert self._on_dry_run is not None
        self._shadow[path] = text
        self._on_dry_run(PlannedWrite(path, before, text, owner, reason))

    def _timed(
        self, kind: str, action: Callable[[], FileProblem | None], *, is_probe: bool = False
    ) -> FileProblem | None:
        """Do it and count it; the refusal of a probe is an answer and no failure."""
        if self._on_update is None:
            return action()
        began_s = self._clock.now()
        problem = action()
        if is_probe and is_answer(problem):
            return problem
        self._on_update(kind, problem is None, max(self._clock.now() - began_s, 0.0))
        return problem

    def _audited(
        self, path: str, text: str, owner: str, reason: str, level: int = AUDIT_LEVEL, *, group: str = ""
    ) -> None:
        whose = self._owner_of(group) if group and self._owner_of is not None else None
        reason, message = reason or owner, f"update {path} to {text.strip()}"
        if whose is None:
            self._audit.group(level, path, reason, message)
        else:
            self._audit.pod(level, whose.namespace, whose.name, reason, message, container=whose.container)


def is_answer(problem: FileProblem | None) -> bool:
    """Return whether a kernel that was asked by a probe says that it takes no such value."""
    return problem is not None and problem.failure is FileFailure.INVALID
