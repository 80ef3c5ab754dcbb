"""All writes to the host go through here: in order, only where needed, verified and recorded; or only printed.

`update_plan` decides which files are written with what. Here they are read, written and read again; what the kernel
refuses because the groups have changed meanwhile is planned anew; what remains is a reason in the result, and the next
round of the strategy is the next try. Nothing here waits, so updates of strategies never mix. Source:
behaviour/koordlet-act 3.

The kernel forgets the CPU shares of a group that becomes idle: `idle_shares` keeps them, and those that are wanted
meanwhile.
"""

import functools
import logging
import os
from collections.abc import Callable, Container, Iterable, Sequence

import msgspec

from koordinator.api import cpuset
from koordinator.clock import Clock
from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.errors import KnobValueError, UnsupportedError
from koordinator.host.files import FileFailure, FileProblem, Files
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.node_pods import GroupOwner
from koordinator.koordlet.writing import idle_shares, restore_log, update_plan
from koordinator.koordlet.writing.file_writer import CGROUP_UPDATE, OTHER_UPDATE, FileWriter, PlannedWrite
from koordinator.koordlet.writing.restore_log import Restored, RestoreLog, RestoreRecord
from koordinator.koordlet.writing.update_plan import (
    FAILED,
    Cache,
    CacheEntry,
    Contents,
    Result,
    Update,
    UpdateKey,
    UpdatePlan,
    WriteOutcome,
    key_of,
)

log = logging.getLogger(__name__)

TRIES_MAX = 3
"""The first and two with fresh contents; children that come and go meanwhile make the kernel refuse."""
_WARNINGS_MAX = 4_096
_SHADOW_MAX = 65_536


class _Manner(msgspec.Struct, frozen=True):
    """The way in which updates are carried out: by whom, whether what is known may be believed, and the like."""

    owner: str
    cacheable: bool = True
    records: bool = True
    is_probe: bool = False
    is_audited: bool = True


_Plan = Callable[[Sequence[Sequence[Update]], Contents, int, Cache, float], UpdatePlan]


class Executor(FileWriter):
    """Writes for an agent, as the only one: groups in order, and other files as `FileWriter` does it."""

    def __init__(
        self,
        cgroups: Cgroups,
        clock: Clock,
        audit: AuditLog,
        records: RestoreLog,
        *,
        force_update_s: float = update_plan.FORCE_UPDATE_S,
        on_dry_run: Callable[[PlannedWrite], None] | None = None,
        on_update: Callable[[str, bool, float], None] | None = None,
        owner_of: Callable[[str], GroupOwner | None] | None = None,
    ) -> None:
        super().__init__(
            cgroups.files,
            clock,
            audit,
            records,
            on_dry_run=on_dry_run,
            on_update=on_update,
            owner_of=owner_of,
        )
        self._cgroups = cgroups
        self._force_update_s = force_update_s
        self._cache: dict[str, CacheEntry] = {}
        self._warned: dict[UpdateKey, str] = {}
        """Problems that were logged, so that each is said once and not every second."""

    # Updates of groups

    def update(
        self,
        updates: Sequence[Update],
        *,
        owner: str,
        cacheable: bool = True,
        is_probe: bool = False,
        is_audited: bool = True,
    ) -> list[Result]:
        """Give groups exact values, in the order given; one result per group and knob (and disk).

        With `is_probe` the kernel may find that the value is none: that is an answer, neither logged nor counted as a
        failure. Without `is_audited` the caller tells of the change in words of its own.
        """
        manner = _Manner(owner, cacheable=cacheable, is_probe=is_probe, is_audited=is_audited)
        return self._run([updates], update_plan.plan_exact, manner)

    def update_leveled(self, levels: Sequence[Sequence[Update]], *, owner: str) -> list[Result]:
        """Give groups of several levels their values, top level first: parents are never narrower than children."""
        return self._run(levels, update_plan.plan_leveled, _Manner(owner))

    def expire(self) -> None:
        """Forget what nobody asked for in a while, and records of groups that are gone; once a minute, say."""
        self._cache = update_plan.unexpired(self._cache, self._clock.now())
        if len(self._shadow) > _SHADOW_MAX:
            self._shadow.clear()  # each change is told once more
        gone = [
            record.key
            for record in self._records.all()
            if self._files.identity(record.path) != record.identity
        ]
        self._records.drop(gone)

    def forget(self, group: str) -> None:
        """Note that a group has ended: drop what is known of it, since another may take its name."""
        directories = ("/" + group + "/", group + "/")
        for path in [
            path for path in self._cache if path.startswith(directories[1]) or directories[0] in path
        ]:
            del self._cache[path]
        for key in [key for key in self._warned if key[0] == group or key[0].startswith(directories[1])]:
            del self._warned[key]
        self._cgroups.forget(group)

    # Putting back

    def owners(self) -> list[str]:
        """Return the owners who have changed something that could be put back; also from before a restart."""
        return sorted({owner for record in self._records.all() for owner in record.owners})

    def changed_by(self, owner: str) -> list[RestoreRecord]:
        """Return what an owner has changed, with what was there before."""
        return self._records.of_owner(owner)

    def adopt(self, knob: Knob, group: str, before: str, *, owner: str) -> None:
        """Say that a group has its present value because of a change that the owner made above it.

        A group made below a changed one starts with the changed value: nobody wrote it, yet it has to be put back to
        `before`. A group that has a record already keeps it.
        """
        path = self._cgroups.path(knob, group)
        content, identity = self._files.read(path), self._files.identity(path)
        old = self._records.get(path)
        if self._on_dry_run is not None or content is None or identity is None:
            return
        if old is None or old.identity != identity:
            text = content.rstrip("\n")
            self._records.note(RestoreRecord(path, path, (owner,), before, text, identity, group, knob))

    def restore(
        self, owner: str, reason: str = "restored", *, keys: Container[str] | None = None
    ) -> list[Restored]:
        """Put back what an owner changed, where it still says what was written and nobody else needs it.

        `keys` are those of the records to be put back, all of the owner's without.
        """
        restored: list[Restored] = []
        leveled: list[RestoreRecord] = []
        for record in self._records.of_owner(owner):
            if keys is not None and record.key not in keys:
                continue
            outcome = self._obstacle(record, owner)
            if outcome is WriteOutcome.FOREIGN and self._is_put_back_later(record):
                outcome = WriteOutcome.KEPT
            if outcome is not None:
                if self._on_dry_run is None:
                    self._records.leave(record.key, owner)
                restored.append(Restored(record, outcome))
            elif restore_log.is_leveled(record, self._cgroups.version):
                leveled.append(record)
            else:
                restored.append(self._put_back(record, owner, reason))
        return restored + self._put_back_leveled(leveled, owner, reason)

    def _obstacle(self, record: RestoreRecord, owner: str) -> WriteOutcome | None:
        """Return why a record is not put back; None when it is."""
        content = self._content(record.path)
        if content is None or self._files.identity(record.path) != record.identity:
            return WriteOutcome.MISSING
        if record.owners != (owner,):
            return WriteOutcome.SHARED
        return None if restore_log.is_ours(record, content) else WriteOutcome.FOREIGN

    def _is_put_back_later(self, record: RestoreRecord) -> bool:
        return self._on_dry_run is None and idle_shares.put_back(self._records, record)

    def _put_back(self, record: RestoreRecord, owner: str, reason: str) -> Restored:
        content = self._content(record.path) or ""
        is_no_longer_idle = record.knob == Knob.CPU_IDLE and record.before == "0"
        if restore_log.matches(record, content, record.before):
            self._settled(record)
            if is_no_longer_idle:
                self._give_shares_back(record.group, owner)
            return Restored(record, WriteOutcome.UNCHANGED)
        if self._on_dry_run is not None:
            self._would_write(record.path, content, record.before, owner, reason)
            return Restored(record, WriteOutcome.WOULD_WRITE)
        kind = CGROUP_UPDATE if record.knob else OTHER_UPDATE
        problem = self._timed(kind, functools.partial(self._write, record.knob, record.path, record.before))
        if problem is not None and problem.failure is FileFailure.FULL and restore_log.means_all_cpus(record):
            problem = self._give_all_cpus(record)
        if problem is not None:
            return Restored(record, WriteOutcome.FAILED, str(problem))
        self._audited(record.path, record.before, owner, reason, group=record.group)
        self._settled(record)
        if is_no_longer_idle:
            self._give_shares_back(record.group, owner)
        return Restored(record, WriteOutcome.WRITTEN)

    def _give_all_cpus(self, record: RestoreRecord) -> FileProblem | None:
        """On v2 an empty list means all CPUs of the parent, but not every kernel takes it where processes run."""
        cpus = self._cgroups.cpus(os.path.dirname(record.group)) or frozenset()
        return self._files.write(record.path, cpuset.text_of(cpus))

    def _put_back_leveled(self, records: Sequence[RestoreRecord], owner: str, reason: str) -> list[Restored]:
        of_key = {key_of(restore_log.update_of(record, reason)): record for record in records}
        levels = restore_log.levels(records, reason)
        results = self._run(levels, update_plan.plan_leveled, _Manner(owner, records=False))
        restored = [Restored(of_key[key_of(each.update)], each.outcome, each.problem) for each in results]
        for each in restored:
            if each.outcome not in FAILED:
                self._settled(each.record)
        return restored

    def _settled(self, record: RestoreRecord) -> None:
        if self._on_dry_run is None:
            self._records.drop([record.key])
        if record.knob:
            relative = cgroup_knobs.path(Knob(record.knob), self._cgroups.version, record.group)
            self._cache.pop(relative, None)

    # One run

    def _run(
        self,
        levels: Sequence[Sequence[Update]],
        plan_of: _Plan,
        manner: _Manner,
    ) -> list[Result]:
        now_s, owner = self._clock.now(), manner.owner
        is_cache_used = manner.cacheable and manner.records
        known = update_plan.aged(self._cache, self._force_update_s) if is_cache_used else {}
        results: dict[UpdateKey, Result] = {}
        pending = levels
        for _ in range(TRIES_MAX):
            contents = self._contents(pending, known, now_s)
            pending = [
                [each for each in level if not self._kept(each, contents, owner, results)]
                for level in pending
            ]
            plan = plan_of(pending, contents, self._cgroups.version, known, now_s)
            refused = self._carry_out(plan, manner)
            for result in plan.results:
                results[key_of(result.update)] = refused.get(key_of(result.update), (result, False))[0]
                if result.update.knob is Knob.CPU_IDLE and result.update.value == "0":
                    self._give_shares_back(result.update.group, owner)
            self._remember(plan, refused, manner.cacheable, now_s)
            again = {key for key, (_, is_worth_it) in refused.items() if is_worth_it}
            if not again:
                break
            pending = [[update for update in level if key_of(update) in again] for level in pending]
        return self._reported(results.values(), manner)

    def _contents(self, levels: Sequence[Sequence[Update]], known: Cache, now_s: float) -> dict[str, str]:
        """Return what the files say that the plan will ask for, by path relative to the cgroup root."""
        contents: dict[str, str] = {}
        for level in levels:
            for update in level:
                try:
                    relative = cgroup_knobs.path(update.knob, self._cgroups.version, update.group)
                except UnsupportedError:
                    continue
                if relative in contents or update_plan.is_fresh(known, relative, update.value, now_s):
                    continue
                text = self._shadow.get(self._cgroups.absolute(relative))
                if text is None:
                    text = self._cgroups.read(update.knob, update.group)
                if text is not None:
                    contents[relative] = text
        return contents

    def _kept(self, update: Update, contents: Contents, owner: str, results: dict[UpdateKey, Result]) -> bool:
        """Settle shares of an idle group, which the kernel refuses; return whether these are such."""
        if update.knob is not Knob.CPU_SHARES:
            return False
        content = contents.get(cgroup_knobs.path(update.knob, self._cgroups.version, update.group))
        if content is None or not idle_shares.is_refused(self._cgroups, update, content):
            return False
        try:
            if self._on_dry_run is None:
                idle_shares.want(self._cgroups, self._records, update, owner)
        except KnobValueError:
            return False  # the plan says what is wrong with it
        results[key_of(update)] = Result(update, WriteOutcome.KEPT)
        return True

    def _carry_out(self, plan: UpdatePlan, manner: _Manner) -> dict[UpdateKey, tuple[Result, bool]]:
        """Write; what went wrong, and whether another try may help. A value given in two steps is audited once."""
        owner = manner.owner
        refused: dict[UpdateKey, tuple[Result, bool]] = {}
        last: dict[UpdateKey, tuple[str, str, Update]] = {}
        for write in plan.writes:
            update = write.update
            path = self._cgroups.absolute(write.path)
            if self._on_dry_run is not None:
                before = self._content(path) or ""
                self._would_write(path, before, write.text, owner, update.reason)
                refused[key_of(update)] = Result(update, WriteOutcome.WOULD_WRITE), False
                continue
            if manner.records:
                self._note(update, path, write.text, owner)
            if update.knob is Knob.CPU_IDLE and write.text == "1":
                idle_shares.keep(self._cgroups, self._records, update.group, owner)
            write_it = functools.partial(self._write, update.knob, path, write.text)
            problem = self._timed(CGROUP_UPDATE, write_it, is_probe=manner.is_probe)
            if problem is None:
                last[key_of(update)] = path, write.text, update
                refused.pop(key_of(update), None)
            else:
                refused[key_of(update)] = update_plan.refusal(update, problem)
        for key, (path, text, update) in last.items():
            if manner.is_audited:
                self._audited(path, text, owner, update.reason, group=update.group)
            if key not in refused and (found := self._verified(key[1], path, text)) is not None:
                refused[key] = Result(update, found[0], found[1]), False
        return refused

    def _write(self, knob: str, path: str, text: str) -> FileProblem | None:
        if knob == Knob.MEMORY_LIMIT and self._cgroups.version == V1:
            return _write_memory_limit(self._files, path, text)
        return self._files.write(path, text)

    def _verified(self, knob: Knob, path: str, text: str) -> tuple[WriteOutcome, str] | None:
        """Return what is wrong after a write; None when the file says what was written."""
        content = self._files.read(path)
        if content is None:
            return WriteOutcome.MISSING, str(self._files.why(path))
        if update_plan.holds(knob, content, text) or restore_log.is_write_only(knob):
            return None
        return WriteOutcome.NOT_HELD, f"{path}: wrote {text[:80]!r}, reads {content.strip()[:80]!r}"

    def _note(self, update: Update, path: str, text: str, owner: str) -> None:
        """Write ahead what the file says now."""
        if restore_log.is_write_only(update.knob):
            return
        content, identity = self._files.read(path), self._files.identity(path)
        if content is not None and identity is not None:
            self._keep(restore_log.record(update, path, owner, content, text, identity), content)

    def _give_shares_back(self, group: str, owner: str) -> None:
        if self._on_dry_run is None and (back := idle_shares.give_back(self._cgroups, self._records, group)):
            self._audited(*back, owner, "no longer idle", group=group)

    def _remember(
        self, plan: UpdatePlan, refused: dict[UpdateKey, tuple[Result, bool]], cacheable: bool, now_s: float
    ) -> None:
        """Cache what holds; what was written uncached or went wrong is not known any more."""
        failed = {
            cgroup_knobs.path(result.update.knob, self._cgroups.version, result.update.group)
            for result, _ in refused.values()
            if result.outcome is not WriteOutcome.WOULD_WRITE
        }
        for path, value in plan.cached.items():
            if cacheable and path not in failed:
                self._cache[path] = CacheEntry(value, now_s)
            else:
                self._cache.pop(path, None)

    def _reported(self, results: Iterable[Result], manner: _Manner) -> list[Result]:
        reported = list(results)
        for result in reported:
            if not (manner.is_probe and result.outcome is WriteOutcome.FAILED):
                self._warn(result, manner.owner)
        return reported

    def _warn(self, result: Result, owner: str) -> None:
        key = key_of(result.update)
        if result.outcome not in FAILED:
            self._warned.pop(key, None)
        elif self._warned.get(key) != result.problem:
            if len(self._warned) >= _WARNINGS_MAX:
                self._warned.clear()
            self._warned[key] = result.problem
            facts = {"owner": owner, "outcome": result.outcome.name, "problem": result.problem}
            log.warning("cgroup not updated", extra=facts)


_LIMIT_WITH_SWAP = "memory.memsw.limit_in_bytes"


def _write_memory_limit(files: Files, path: str, text: str) -> FileProblem | None:
    """Write a memory limit of cgroup v1, and that of memory and swap where it is the same or leaves no room.

    The second one counts memory and swap together and is never below the first. A runtime on a node without swap gives
    a container one value for both (runc does, for containerd). They stay the same: else a limit could not be raised
    (EINVAL), and one that is lowered would let the container swap. Source: the kernel's cgroup-v1/memory.rst, 2.4.
    """
    both = f"{os.path.dirname(path)}/{_LIMIT_WITH_SWAP}"
    of_both, of_memory = (_bytes(files.read(each)) for each in (both, path))
    wanted = _bytes(text)
    moves = of_both is not None and wanted is not None and (of_both == of_memory or 0 <= of_both < wanted)
    if moves:
        files.write(both, text)  # a higher one comes first
    problem = files.write(path, text)
    if moves:
        files.write(both, text)  # a lower one afterwards
    return problem


def _bytes(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
