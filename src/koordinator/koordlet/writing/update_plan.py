"""Plan which files are written, with what and in which order: pure. Source: behaviour/koordlet-act 3.5 to 3.7.

The executor reads what is there, asks here, and writes. Values are in v1 terms, texts are what the file holds.
A parent must never be narrower than its children while a change is under way, so a leveled change has two
passes: parents are widened first, from the top; then everything gets its exact value, from the leaves up.
"""

import enum
from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from koordinator.api import cpuset
from koordinator.api.cpuset import CPUSetError
from koordinator.api.scalars import ScalarError
from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import (
    COUNT_MAX,
    DEVICE_KNOBS,
    UNLIMITED,
    UNLIMITED_BYTES_MIN,
    V1,
    Knob,
    Merge,
)
from koordinator.host.errors import ContentError, KnobValueError, UnsupportedError
from koordinator.host.files import FileFailure, FileProblem

FORCE_UPDATE_S = 60.0
"""A file is compared again when this time is over, even if the wanted value has not changed."""
CACHE_S_MAX = 120.0
"""Entries of files that nobody asks for any more are dropped after this time."""

_CPU_MAX_KNOBS = frozenset((Knob.CPU_QUOTA, Knob.CPU_PERIOD))
ID_KNOBS = frozenset((Knob.TASKS, Knob.PROCS))
_PAGE_KNOBS = frozenset((Knob.MEMORY_LIMIT, Knob.MEMORY_MIN, Knob.MEMORY_LOW, Knob.MEMORY_HIGH))
PAGE_BYTES = 4096
_AGAIN = frozenset((FileFailure.INVALID, FileFailure.BUSY, FileFailure.FULL, FileFailure.DENIED))
"""Failures by which the kernel refuses what does not fit parents or children."""
_UNLIMITED_TEXTS = ("max", str(UNLIMITED))


class WriteOutcome(enum.Enum):
    """The fate of one wanted value."""

    WRITTEN = "the file is written"
    UNCHANGED = "the file says so already"
    SKIPPED = "it was so a short while ago, the file is not even read"
    MISSING = "the group or the file does not exist"
    UNSUPPORTED = "this kernel has no such file"
    REFUSED = "the kernel would refuse the value"
    UNREADABLE = "the file does not say what it should"
    FAILED = "the kernel refused the write"
    NOT_HELD = "the file says something else after the write"
    KEPT = "the group is idle and takes no shares: it gets them once it is idle no more"
    WOULD_WRITE = "the file would be written, but this is a dry run"
    FOREIGN = "somebody else has changed the file since, so it is left alone"
    SHARED = "another owner still needs its value there"


HELD = frozenset(
    (WriteOutcome.WRITTEN, WriteOutcome.UNCHANGED, WriteOutcome.SKIPPED, WriteOutcome.WOULD_WRITE)
)
FAILED = frozenset((WriteOutcome.FAILED, WriteOutcome.NOT_HELD))
NOT_TAKEN = FAILED | {WriteOutcome.REFUSED}
"""Outcomes of values that the kernel did not take, or would not."""


class Update(msgspec.Struct, frozen=True):
    """A value that a group should have; `reason` goes to the audit log."""

    group: str
    knob: Knob
    value: str
    reason: str = ""


UpdateKey = tuple[str, Knob, str]
"""Group, knob, and the disk where a file has a line for each: such a file has as many values as disks."""


def key_of(update: Update) -> UpdateKey:
    """Return what tells the value that an update is about from all others."""
    disk = update.value.partition(" ")[0] if update.knob in DEVICE_KNOBS else ""
    return update.group, update.knob, disk


class FileWrite(msgspec.Struct, frozen=True):
    """A text for a file; `path` is relative to the cgroup root."""

    path: str
    text: str
    update: Update


class Result(msgspec.Struct, frozen=True):
    """The decision on one update, and why if it is no success."""

    update: Update
    outcome: WriteOutcome
    problem: str = ""


def are_settled(results: Iterable[Result], running: Container[str]) -> bool:
    """Return whether another try is not worth it: nothing has failed, and no group is missing of those that run."""
    return not any(
        each.outcome in FAILED or (each.outcome is WriteOutcome.MISSING and each.update.group in running)
        for each in results
    )


class UpdatePlan(msgspec.Struct, frozen=True):
    """Writes in order; a result for each update; what the cache should hold once all is written."""

    writes: tuple[FileWrite, ...]
    results: tuple[Result, ...]
    cached: dict[str, str]


class CacheEntry(msgspec.Struct, frozen=True):
    """A value that a file had at that time."""

    value: str
    at_s: float


Cache = Mapping[str, CacheEntry]
"""Path → what we last knew."""
Contents = Mapping[str, str]
"""Path → text of the file, trailing newline trimmed; files that do not exist are missing."""


def refusal(update: Update, problem: FileProblem) -> tuple[Result, bool]:
    """Return what the kernel's refusal of a write means, and whether another try with fresh contents may help."""
    if problem.failure is FileFailure.GONE:
        return Result(update, WriteOutcome.MISSING, str(problem)), False
    if problem.failure is FileFailure.UNSUPPORTED:
        return Result(update, WriteOutcome.UNSUPPORTED, str(problem)), False
    # Knobs that do not depend on other groups are not tried again at once: lowering a memory limit, say, makes
    # the kernel reclaim each time.
    depends = cgroup_knobs.merge_of(update.knob) is not Merge.NONE
    return Result(update, WriteOutcome.FAILED, str(problem)), depends and problem.failure in _AGAIN


def is_fresh(cache: Cache, path: str, value: str, now_s: float) -> bool:
    """Return whether the file had this value so shortly ago that it need not be read."""
    entry = cache.get(path)
    return entry is not None and entry.value == value and now_s - entry.at_s <= FORCE_UPDATE_S


def aged(cache: Cache, force_update_s: float) -> Cache:
    """Return the cache as if entries were older, by as much as `force_update_s` is shorter than usual."""
    older_s = FORCE_UPDATE_S - force_update_s
    if older_s == 0:
        return cache
    return {path: CacheEntry(each.value, each.at_s - older_s) for path, each in cache.items()}


def unexpired(cache: Cache, now_s: float) -> dict[str, CacheEntry]:
    """Return the cache without entries that were not set for long."""
    return {path: entry for path, entry in cache.items() if now_s - entry.at_s <= CACHE_S_MAX}


def differs(knob: Knob, content: str, text: str) -> bool:
    """Return whether a file with this content must be written to hold the text.

    CPU lists are compared as sets, and only the first word of `cpu.max` counts. A limit that cannot be reached
    is the same in all its spellings: as `max`, as the largest number, and rounded down to whole pages. Of files
    with a line per disk only that disk's line counts, of lists of processes only the one.
    """
    content = content.strip()
    if content == text:
        return False
    if knob in ID_KNOBS:
        return text not in content.split()
    if knob in DEVICE_KNOBS:
        return _device_differs(content, text)
    if knob is Knob.NET_CLASS:
        return _class_id(content) != _class_id(text)
    if cgroup_knobs.merge_of(knob) is Merge.UNION:
        return not cpuset.is_equal_text(content, text)
    if knob in _CPU_MAX_KNOBS and " " in content:
        words = content.split()
        return words[0 if knob is Knob.CPU_QUOTA else -1] != text
    if knob in _PAGE_KNOBS and text == str(UNLIMITED):
        return not _is_unlimited_bytes(content)  # the kernel shows what it took for -1
    return not (_is_unlimited_bytes(content) and _is_unlimited_bytes(text))


def holds(knob: Knob, content: str, text: str) -> bool:
    """Return whether the kernel took the text over: as `differs` tells, or rounded down to whole pages."""
    if not differs(knob, content, text):
        return True
    content = content.strip()
    if knob not in _PAGE_KNOBS or not (content.isdigit() and text.isdigit()):
        return False
    return int(text) // PAGE_BYTES * PAGE_BYTES == int(content)


def widened(knob: Knob, version: int, content: str, value: str) -> str | None:
    """Return the value that the first pass writes, None when the old one is wide enough already.

    Numbers grow; sets of CPUs become the union of old and new. Raises: ContentError.
    """
    match cgroup_knobs.merge_of(knob):
        case Merge.LARGER:
            words = 2 if knob is Knob.CPU_QUOTA and version != V1 else 1
            old, new = _width(knob, content, words), _width(knob, value, 1)
            return value if new > old else None
        case Merge.UNION:
            try:
                old_cpus, new_cpus = cpuset.parse(content.strip()), cpuset.parse(value)
            except CPUSetError as error:
                raise ContentError(knob, str(error)) from error
            return None if new_cpus <= old_cpus else cpuset.text_of(old_cpus | new_cpus)
        case Merge.NONE:
            return None


def plan(
    updates: Sequence[Update], contents: Contents, version: int, cache: Cache, now_s: float
) -> UpdatePlan:
    """Exact values one by one, in the order given."""
    state = _State(contents, version, cache, now_s)
    for update in updates:
        state.exact(update)
    return state.finish()


def plan_exact(
    levels: Sequence[Sequence[Update]], contents: Contents, version: int, cache: Cache, now_s: float
) -> UpdatePlan:
    """Plan as `plan` does, for updates that came in levels."""
    return plan([update for level in levels for update in level], contents, version, cache, now_s)


def plan_leveled(
    levels: Sequence[Sequence[Update]], contents: Contents, version: int, cache: Cache, now_s: float
) -> UpdatePlan:
    """Widen from the top level to the leaves, then give exact values from the leaves to the top level.

    Groups of one level keep their order in both passes, so none may lie below another one. Knobs that do not depend
    on those of the parent are written once, on the way down.
    """
    state = _State(contents, version, cache, now_s)
    second_pass: list[list[Update]] = []
    for level in levels:
        widened_level: list[Update] = []
        for update in level:
            if cgroup_knobs.merge_of(update.knob) is Merge.NONE:
                state.exact(update)
            elif state.widen(update):
                widened_level.append(update)
        second_pass.append(widened_level)
    for level in reversed(second_pass):
        for update in level:
            state.exact(update)
    return state.finish()


class _State:
    """Contents as they will be while the writes are carried out."""

    def __init__(self, contents: Contents, version: int, cache: Cache, now_s: float) -> None:
        self._contents = dict(contents)
        self._version = version
        self._cache = cache
        self._now_s = now_s
        self._writes: list[FileWrite] = []
        self._outcomes: dict[UpdateKey, Result] = {}
        self._cached: dict[str, str] = {}

    def exact(self, update: Update) -> None:
        """Give the group exactly this value."""
        found = self._checked(update)
        if found is None:
            return
        path, text = found
        if differs(update.knob, self._contents[path], text):
            self._write(path, _with_quota(update.knob, self._version, self._contents[path], text), update)
        elif key_of(update) not in self._outcomes:
            self._settle(update, WriteOutcome.UNCHANGED)
        self._cached[path] = update.value

    def widen(self, update: Update) -> bool:
        """Make the group at least as wide as this value; false when it is settled already."""
        found = self._checked(update)
        if found is None:
            return False
        path, _ = found
        try:
            wider = widened(update.knob, self._version, self._contents[path], update.value)
        except ContentError as error:
            self._settle(update, WriteOutcome.UNREADABLE, str(error))
            return False
        if wider is not None:
            self._write(path, cgroup_knobs.encode(update.knob, self._version, wider), update)
        return True

    def finish(self) -> UpdatePlan:
        return UpdatePlan(tuple(self._writes), tuple(self._outcomes.values()), self._cached)

    def _checked(self, update: Update) -> tuple[str, str] | None:
        """Path and text, None when the update is settled without looking at the file."""
        try:
            path = cgroup_knobs.path(update.knob, self._version, update.group)
            if is_fresh(self._cache, path, update.value, self._now_s):
                self._settle(update, WriteOutcome.SKIPPED)
                return None
            text = cgroup_knobs.encode(update.knob, self._version, update.value)
        except UnsupportedError as error:
            self._settle(update, WriteOutcome.UNSUPPORTED, str(error))
            return None
        except KnobValueError as error:
            self._settle(update, WriteOutcome.REFUSED, str(error))
            return None
        if path not in self._contents:
            self._settle(update, WriteOutcome.MISSING)
            return None
        return path, text

    def _write(self, path: str, text: str, update: Update) -> None:
        self._writes.append(FileWrite(path, text, update))
        self._contents[path] = _content_after(update.knob, self._version, self._contents[path], text)
        self._settle(update, WriteOutcome.WRITTEN)

    def _settle(self, update: Update, outcome: WriteOutcome, problem: str = "") -> None:
        self._outcomes[key_of(update)] = Result(update, outcome, problem)


def _with_quota(knob: Knob, version: int, content: str, text: str) -> str:
    """Return a period for `cpu.max` needs the quota before it, which is kept; alone it would be taken for the quota."""
    words = content.split()
    return f"{words[0]} {text}" if version != V1 and knob is Knob.CPU_PERIOD and words else text


def _content_after(knob: Knob, version: int, content: str, text: str) -> str:
    """Return what the file will say; a quota written to `cpu.max` keeps the period, other disks their lines."""
    if knob in ID_KNOBS:
        return f"{content}\n{text}"
    if knob in DEVICE_KNOBS:
        device = text.partition(" ")[0]
        return "\n".join([line for line in content.splitlines() if line.split()[:1] != [device]] + [text])
    if version != V1 and knob is Knob.CPU_QUOTA and " " in content:
        return f"{text} {content.split()[-1]}"
    return text


def _device_differs(content: str, text: str) -> bool:
    """Return whether the line of the disk that the text names says something else; no line is no limit and no
    weight.

    The kernel adds settings that were not written, and decimals to those that were.
    """
    device, _, value = text.partition(" ")
    lines = dict(line.strip().partition(" ")[::2] for line in content.splitlines())
    have = lines.get(device)
    if have is None:
        return not cgroup_knobs.is_unset(value)
    settings = dict(word.partition("=")[::2] for word in have.split())
    wanted = dict(word.partition("=")[::2] for word in value.split())
    return any(name not in settings or not _is_same(settings[name], wanted[name]) for name in wanted)


def _is_same(a: str, b: str) -> bool:
    """Return whether two texts are equal, or the same number."""
    try:
        return a == b or float(a) == float(b)
    except ValueError:
        return False


def _class_id(text: str) -> int | str:
    """Return a class of network packets, written as a number in either form."""
    try:
        return int(text.strip(), 0)
    except ValueError:
        return text.strip()


def _width(knob: Knob, content: str, words_expected: int) -> int:
    """Return a number that grows as the knob gets looser."""
    words = content.split()
    if len(words) != words_expected:
        raise ContentError(knob, f"{content[:40]!r} is not a number")
    if words[0] in _UNLIMITED_TEXTS:
        return COUNT_MAX
    try:
        return cgroup_knobs.number(words[0])
    except ScalarError as error:
        raise ContentError(knob, str(error)) from error


def _is_unlimited_bytes(text: str) -> bool:
    return text == "max" or (text.isascii() and text.isdigit() and int(text) >= UNLIMITED_BYTES_MIN)
