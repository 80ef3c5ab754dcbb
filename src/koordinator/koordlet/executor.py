"""All writes to the host go through here: in order, only where needed, verified, recorded, or only told.

`update_plan` decides which files are written with what. Here they are read, written and read again; what the kernel
refuses because the groups have changed meanwhile is planned anew; what remains is a reason in the result, and the next
round of the strategy is the next try. Nothing here waits, so updates of strategies never mix.
Source: spec 11, section 3.
"""

import functools
import logging
import os
from collections.abc import Callable, Iterable, Sequence

import msgspec

from koordinator.api import cpuset
from koordinator.clock import Clock
from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import Knob, Merge
from koordinator.host.cgroups import Cgroups
from koordinator.host.errors import UnsupportedError
from koordinator.host.files import Failure, Problem
from koordinator.koordlet import restoring, update_plan
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.restore_log import Record, RestoreLog
from koordinator.koordlet.update_plan import Cache, CacheEntry, Contents, Outcome, Result, Update, UpdatePlan

log = logging.getLogger(__name__)

TRIES_MAX = 3
"""The first and two with fresh contents; children that come and go meanwhile make the kernel refuse."""
AUDIT_LEVEL = 3
_AGAIN = frozenset((Failure.INVALID, Failure.BUSY, Failure.FULL, Failure.DENIED))
"""How the kernel refuses what does not fit parents or children."""
_WARNINGS_MAX = 4_096
_SHADOW_MAX = 65_536
_FAILED = frozenset((Outcome.FAILED, Outcome.NOT_HELD))

_Plan = Callable[[Sequence[Sequence[Update]], Contents, int, Cache, float], UpdatePlan]
_Key = tuple[str, Knob]


class PlannedWrite(msgspec.Struct, frozen=True):
    """What a dry run would have written, by whom and why."""

    path: str
    before: str
    text: str
    owner: str
    reason: str

    def __str__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return f"{self.path}: {self.before!r} -> {self.text!r} ({self.owner}{why})"


class Restored(msgspec.Struct, frozen=True):
    """What became of one changed file that was to be put back, and why if it was not."""

    record: Record
    outcome: Outcome
    problem: str = ""


class Executor:
    """The one writer of an agent.

    `on_dry_run` makes it a dry run: nothing is written, each change is handed to it once. `on_update` hears of
    each write: what kind of file it was, whether it succeeded, and how many seconds it took.
    """

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
    ) -> None:
        self._cgroups = cgroups
        self._files = cgroups.files
        self._clock = clock
        self._audit = audit
        self._records = records
        self._force_update_s = force_update_s
        self._on_dry_run = on_dry_run
        self._on_update = on_update
        self._cache: dict[str, CacheEntry] = {}
        self._shadow: dict[str, str] = {}
        """Dry run: what files would say now."""
        self._warned: dict[_Key, str] = {}
        """Problems that were logged, so that each is said once and not every second."""

    @property
    def is_dry_run(self) -> bool:
        """Whether nothing is written; whoever changes things in another way must ask."""
        return self._on_dry_run is not None

    # Updates of groups

    def update(self, updates: Sequence[Update], *, owner: str, cacheable: bool = True) -> list[Result]:
        """Give groups exact values, in the order given; one result per group and knob."""
        return self._run([updates], _plan_exact, owner, cacheable)

    def update_leveled(self, levels: Sequence[Sequence[Update]], *, owner: str) -> list[Result]:
        """Give groups of several levels their values, top level first: parents are never narrower than children."""
        return self._run(levels, update_plan.plan_leveled, owner, True)

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
        """A group has ended: drop what is known of it, since another may take its name."""
        directories = ("/" + group + "/", group + "/")
        for path in [
            path for path in self._cache if path.startswith(directories[1]) or directories[0] in path
        ]:
            del self._cache[path]
        self._cgroups.forget(group)

    # Other files

    def write_file(
        self,
        path: str,
        text: str,
        *,
        owner: str,
        reason: str = "",
        is_held: Callable[[str], bool] | None = None,
        restorable: bool = True,
    ) -> Problem | None:
        """Make a file of /proc, /sys or resctrl (absolute path) hold a text; None when it does.

        `is_held` tells from the content whether that is so already; without it the texts are compared. Lists that only
        take one more (`tasks`) are not `restorable`.
        """
        content = self._content(path)
        if content is None and os.path.dirname(path) in self._shadow:
            content = ""  # its directory would have been made
        if content is None:
            return self._files.why(path) or Problem(path, Failure.GONE)
        if is_held(content) if is_held is not None else content.strip() == text.strip():
            return None
        if self._on_dry_run is not None:
            self._would_write(path, content, text, owner, reason)
            return None
        if restorable:
            identity = self._files.identity(path)
            if identity is not None:
                self._keep(Record(path, path, (owner,), content, text, identity), content)
        problem = self._timed(os.path.basename(path), functools.partial(self._files.write, path, text))
        if problem is None:
            self._audited(path, text, owner, reason)
        return problem

    def add_tasks(
        self, path: str, threads: Iterable[int], *, owner: str, reason: str = ""
    ) -> dict[int, Problem]:
        """Move threads to a list such as resctrl's `tasks`, one per write; problems by thread (it may have ended)."""
        write = functools.partial(self._files.write, path)
        found = (
            (
                each,
                self.perform(f"{path}+{each}", str(each), functools.partial(write, str(each)), owner, reason),
            )
            for each in threads
        )
        return {thread: problem for thread, problem in found if problem is not None}

    def make_directory(self, path: str, *, owner: str, reason: str = "") -> Problem | None:
        """Make a directory that is a group to the kernel; one that exists is fine."""
        if self._files.exists(path):
            return None
        make = functools.partial(self._files.make_directory, path)
        return self.perform(path, "directory", make, owner, reason)

    def remove_directory(self, path: str, *, owner: str, reason: str = "") -> Problem | None:
        """Remove such a directory; one that is gone is fine."""
        if not self._files.exists(path):
            self._shadow.pop(path, None)
            return None
        remove = functools.partial(self._files.remove_directory, path)
        return self.perform(path, "no directory", remove, owner, reason)

    def perform(
        self, target: str, what: str, action: Callable[[], Problem | None], owner: str, reason: str
    ) -> Problem | None:
        """Any other change of the host that is due: done and audited, or told once by a dry run."""
        if self._on_dry_run is not None:
            if self._shadow.get(target) != what:
                self._would_write(target, self._shadow.get(target, ""), what, owner, reason)
            return None
        problem = self._timed(owner, action)
        if problem is None:
            self._audited(target, what, owner, reason)
        return problem

    # Putting back

    def owners(self) -> list[str]:
        """Who has changed something that could be put back; also from before a restart."""
        return sorted({owner for record in self._records.all() for owner in record.owners})

    def changed_by(self, owner: str) -> list[Record]:
        """What an owner has changed, with what was there before."""
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
            self._records.note(Record(path, path, (owner,), before, text, identity, group, knob))

    def restore(self, owner: str, reason: str = "restored") -> list[Restored]:
        """Put back what an owner changed, where it still says what was written and nobody else needs it."""
        restored: list[Restored] = []
        leveled: list[Record] = []
        for record in self._records.of_owner(owner):
            outcome = self._obstacle(record, owner)
            if outcome is not None:
                if self._on_dry_run is None:
                    self._records.leave(record.key, owner)
                restored.append(Restored(record, outcome))
            elif restoring.is_leveled(record, self._cgroups.version):
                leveled.append(record)
            else:
                restored.append(self._put_back(record, owner, reason))
        return restored + self._put_back_leveled(leveled, owner, reason)

    def _obstacle(self, record: Record, owner: str) -> Outcome | None:
        """Why a record is not put back; None when it is."""
        content = self._content(record.path)
        if content is None or self._files.identity(record.path) != record.identity:
            return Outcome.MISSING
        if record.owners != (owner,):
            return Outcome.SHARED
        return None if restoring.is_ours(record, content) else Outcome.FOREIGN

    def _put_back(self, record: Record, owner: str, reason: str) -> Restored:
        content = self._content(record.path) or ""
        is_no_longer_idle = record.knob == Knob.CPU_IDLE and record.before == "0"
        if restoring.says(record, content, record.before):
            self._settled(record)
            if is_no_longer_idle:
                self._give_shares_back(record.group, owner)
            return Restored(record, Outcome.UNCHANGED)
        if self._on_dry_run is not None:
            self._would_write(record.path, content, record.before, owner, reason)
            return Restored(record, Outcome.WOULD_WRITE)
        kind = record.knob or os.path.basename(record.path)
        problem = self._timed(kind, functools.partial(self._files.write, record.path, record.before))
        if problem is not None and problem.failure is Failure.FULL and restoring.means_all_cpus(record):
            problem = self._give_all_cpus(record)
        if problem is not None:
            return Restored(record, Outcome.FAILED, str(problem))
        self._audited(record.path, record.before, owner, reason)
        self._settled(record)
        if is_no_longer_idle:
            self._give_shares_back(record.group, owner)
        return Restored(record, Outcome.WRITTEN)

    def _give_all_cpus(self, record: Record) -> Problem | None:
        """On v2 an empty list means all CPUs of the parent, but not every kernel takes it where processes run."""
        cpus = self._cgroups.cpus(os.path.dirname(record.group)) or frozenset()
        return self._files.write(record.path, cpuset.text_of(cpus))

    def _put_back_leveled(self, records: Sequence[Record], owner: str, reason: str) -> list[Restored]:
        of_key = {_key(restoring.update_of(record, reason)): record for record in records}
        levels = restoring.levels(records, reason)
        results = self._run(levels, update_plan.plan_leveled, owner, True, records=False)
        restored = [Restored(of_key[_key(each.update)], each.outcome, each.problem) for each in results]
        for each in restored:
            if each.outcome not in _FAILED:
                self._settled(each.record)
        return restored

    def _settled(self, record: Record) -> None:
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
        owner: str,
        cacheable: bool,
        *,
        records: bool = True,
    ) -> list[Result]:
        now_s = self._clock.now()
        known = self._fresh() if cacheable and records else {}
        results: dict[_Key, Result] = {}
        pending = levels
        for _ in range(TRIES_MAX):
            plan = plan_of(
                pending, self._contents(pending, known, now_s), self._cgroups.version, known, now_s
            )
            refused = self._carry_out(plan, owner, records)
            for result in plan.results:
                results[_key(result.update)] = refused.get(_key(result.update), (result, False))[0]
                if result.update.knob is Knob.CPU_IDLE and result.update.value == "0":
                    self._give_shares_back(result.update.group, owner)
            self._remember(plan, refused, cacheable, now_s)
            again = {key for key, (_, is_worth_it) in refused.items() if is_worth_it}
            if not again:
                break
            pending = [[update for update in level if _key(update) in again] for level in pending]
        return self._reported(results.values(), owner)

    def _fresh(self) -> dict[str, CacheEntry]:
        """The cache as the plan sees it: made older by as much as the configured time is shorter than usual."""
        older_s = update_plan.FORCE_UPDATE_S - self._force_update_s
        if older_s == 0:
            return self._cache
        return {path: CacheEntry(each.value, each.at_s - older_s) for path, each in self._cache.items()}

    def _contents(self, levels: Sequence[Sequence[Update]], known: Cache, now_s: float) -> dict[str, str]:
        """What the files say that the plan will ask for, by path relative to the cgroup root."""
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

    def _carry_out(self, plan: UpdatePlan, owner: str, records: bool) -> dict[_Key, tuple[Result, bool]]:
        """Write; what went wrong, and whether another try may help."""
        refused: dict[_Key, tuple[Result, bool]] = {}
        last: dict[_Key, tuple[str, str]] = {}
        for write in plan.writes:
            update = write.update
            path = self._cgroups.absolute(write.path)
            if self._on_dry_run is not None:
                before = self._content(path) or ""
                self._would_write(path, before, write.text, owner, update.reason)
                refused[_key(update)] = Result(update, Outcome.WOULD_WRITE), False
                continue
            if records:
                self._note(update, path, write.text, owner)
            if update.knob is Knob.CPU_IDLE and write.text == "1":
                self._keep_shares(update.group, owner)
            problem = self._timed(update.knob, functools.partial(self._files.write, path, write.text))
            if problem is None:
                last[_key(update)] = path, write.text
                refused.pop(_key(update), None)
                self._audited(path, write.text, owner, update.reason)
            else:
                refused[_key(update)] = self._refusal(update, problem)
        for key, (path, text) in last.items():
            if key not in refused and (found := self._verified(key[1], path, text)) is not None:
                update = next(write.update for write in plan.writes if _key(write.update) == key)
                refused[key] = Result(update, found[0], found[1]), False
        return refused

    def _refusal(self, update: Update, problem: Problem) -> tuple[Result, bool]:
        if problem.failure is Failure.GONE:
            return Result(update, Outcome.MISSING, str(problem)), False
        if problem.failure is Failure.UNSUPPORTED:
            return Result(update, Outcome.UNSUPPORTED, str(problem)), False
        # Knobs that do not depend on other groups are not tried again at once: lowering a memory limit, say, makes
        # the kernel reclaim each time.
        depends = cgroup_knobs.merge_of(update.knob) is not Merge.NONE
        return Result(update, Outcome.FAILED, str(problem)), depends and problem.failure in _AGAIN

    def _verified(self, knob: Knob, path: str, text: str) -> tuple[Outcome, str] | None:
        """What is wrong after a write; None when the file says what was written."""
        content = self._files.read(path)
        if content is None:
            return Outcome.MISSING, str(self._files.why(path))
        if update_plan.holds(knob, content, text) or restoring.is_write_only(knob):
            return None
        return Outcome.NOT_HELD, f"{path}: wrote {text[:80]!r}, reads {content.strip()[:80]!r}"

    def _note(self, update: Update, path: str, text: str, owner: str) -> None:
        """Write ahead what the file says now."""
        if restoring.is_write_only(update.knob):
            return
        content, identity = self._files.read(path), self._files.identity(path)
        if content is not None and identity is not None:
            self._keep(restoring.record(update, path, owner, content, text, identity), content)

    def _keep(self, record: Record, content: str) -> None:
        old = self._records.get(record.key)
        is_foreign = old is not None and not restoring.is_ours(old, content)
        self._records.note(record, is_foreign=is_foreign)

    def _keep_shares(self, group: str, owner: str) -> None:
        """Write ahead the shares of a group that becomes idle: the kernel forgets them."""
        update = Update(group, Knob.CPU_SHARES, "")
        path = self._cgroups.path(Knob.CPU_SHARES, group)
        content, identity = self._files.read(path), self._files.identity(path)
        if content is None or identity is None or restoring.is_of_idle(content, self._cgroups.version):
            return
        kept = restoring.record(update, path, owner, content, content, identity)
        self._records.note(msgspec.structs.replace(kept, key=restoring.idle_key(path)))

    def _give_shares_back(self, group: str, owner: str) -> None:
        """Shares of a group that is no longer idle, unless somebody gave it others meanwhile."""
        path = self._cgroups.path(Knob.CPU_SHARES, group)
        record = self._records.get(restoring.idle_key(path))
        if record is None or self._on_dry_run is not None:
            return
        content, identity = self._files.read(path), self._files.identity(path)
        if (
            content is not None
            and identity == record.identity
            and restoring.is_default(content, self._cgroups.version)
        ):
            if self._files.write(path, record.before) is not None:
                return
            self._audited(path, record.before, owner, "no longer idle")
        self._records.drop([record.key])

    def _remember(
        self, plan: UpdatePlan, refused: dict[_Key, tuple[Result, bool]], cacheable: bool, now_s: float
    ) -> None:
        """Cache what holds; what was written uncached or went wrong is not known any more."""
        failed = {
            cgroup_knobs.path(knob, self._cgroups.version, group)
            for (group, knob), (result, _) in refused.items()
            if result.outcome is not Outcome.WOULD_WRITE
        }
        for path, value in plan.cached.items():
            if cacheable and path not in failed:
                self._cache[path] = CacheEntry(value, now_s)
            else:
                self._cache.pop(path, None)

    def _reported(self, results: Iterable[Result], owner: str) -> list[Result]:
        reported = list(results)
        for result in reported:
            self._warn(result, owner)
        return reported

    def _warn(self, result: Result, owner: str) -> None:
        key = _key(result.update)
        if result.outcome not in _FAILED:
            self._warned.pop(key, None)
        elif self._warned.get(key) != result.problem:
            if len(self._warned) >= _WARNINGS_MAX:
                self._warned.clear()
            self._warned[key] = result.problem
            facts = {"owner": owner, "outcome": result.outcome.name, "problem": result.problem}
            log.warning("group not updated", extra=facts)

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

    def _timed(self, kind: str, action: Callable[[], Problem | None]) -> Problem | None:
        if self._on_update is None:
            return action()
        began_s = self._clock.now()
        problem = action()
        self._on_update(kind, problem is None, max(self._clock.now() - began_s, 0.0))
        return problem

    def _audited(self, path: str, text: str, owner: str, reason: str) -> None:
        self._audit.group(AUDIT_LEVEL, path, reason or owner, f"update {path} to {text.strip()}")


def _key(update: Update) -> _Key:
    return update.group, update.knob


def _plan_exact(
    levels: Sequence[Sequence[Update]], contents: Contents, version: int, cache: Cache, now_s: float
) -> UpdatePlan:
    return update_plan.plan([update for level in levels for update in level], contents, version, cache, now_s)
