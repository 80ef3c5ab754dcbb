"""The executor over a tree: order, cache, verification, retries, dry runs, and what is put back."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.clock import FixedClock
from koordinator.host import cgroups
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import FileFailure, FileProblem, HostRoots
from koordinator.host.host import TreeFiles
from koordinator.koordlet.audit import AuditLog, decode
from koordinator.koordlet.node_pods import GroupOwner
from koordinator.koordlet.writing import update_plan
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.file_writer import PlannedWrite
from koordinator.koordlet.writing.restore_log import RestoreLog
from koordinator.koordlet.writing.update_plan import Result, Update, WriteOutcome
from tests.host import host_tree

BE = "kubepods/besteffort"
POD = f"{BE}/pod1"


class Node:
    """A tree with the best-effort group and a pod, and an executor over it."""

    def __init__(
        self, root: Path, version: int = V1, *, dry_run: bool = False, force_update_s: float = 60
    ) -> None:
        self.root, self.version = root, version
        self.clock = FixedClock()
        if not (root / "sys").exists():
            if version == V2:
                host_tree.group(root, version, "")
            for each in ("kubepods", BE, POD):
                host_tree.group(root, version, each, vendor=True)
        self.files = TreeFiles()
        self.cgroups = Cgroups(self.files, cgroups.detect(self.files, HostRoots.below(str(root))))
        self.audit = AuditLog(self.clock)
        self.records = RestoreLog(str(root / "run/koordlet/restore.jsonl"), "boot-1")
        self.dry_run_writes: list[PlannedWrite] = []
        self.updates: list[tuple[str, bool]] = []
        """Kind of each change, and whether it succeeded."""
        self.executor = Executor(
            self.cgroups,
            self.clock,
            self.audit,
            self.records,
            force_update_s=force_update_s,
            on_dry_run=self.dry_run_writes.append if dry_run else None,
            on_update=lambda kind, is_success, _: self.updates.append((kind, is_success)),
            owner_of={POD: GroupOwner("default", "web")}.get,
        )

    def path(self, knob: Knob, group: str = BE) -> str:
        return self.cgroups.path(knob, group)

    def write(self, knob: Knob, value: str, group: str = BE, *, owner: str = "suppress") -> Result:
        (result,) = self.executor.update([Update(group, knob, value, "because")], owner=owner)
        return result

    def says(self, knob: Knob, group: str = BE) -> str:
        return (self.files.read(self.path(knob, group)) or "gone").strip()


@pytest.mark.parametrize("version", host_tree.VERSIONS)
def test_a_value_is_written_once_verified_and_audited(tmp_path: Path, version: int) -> None:
    node = Node(tmp_path, version)
    assert node.cgroups.version == version

    first = node.write(Knob.CPU_QUOTA, "50000")
    second = node.write(Knob.CPU_QUOTA, "50000")

    assert (first.outcome, second.outcome) == (WriteOutcome.WRITTEN, WriteOutcome.SKIPPED)
    assert node.cgroups.quota_us(BE) == 50_000
    assert len(node.files.written) == 1
    (event,) = map(decode, node.audit.newest_first())
    assert (event.type, event.level, event.reason) == ("group", 3, "because")
    assert node.path(Knob.CPU_QUOTA) in event.message


def test_after_the_forced_time_the_file_is_looked_at_again(tmp_path: Path) -> None:
    node = Node(tmp_path, force_update_s=10)
    node.write(Knob.CPU_SHARES, "2")
    node.files.write(node.path(Knob.CPU_SHARES), "1024")

    node.clock.now_s += 10
    assert node.write(Knob.CPU_SHARES, "2").outcome is WriteOutcome.SKIPPED
    node.clock.now_s += 1
    assert node.write(Knob.CPU_SHARES, "2").outcome is WriteOutcome.WRITTEN
    assert node.says(Knob.CPU_SHARES) == "2"


def test_what_is_done_to_a_pod_is_audited_under_its_name_and_a_value_given_in_two_steps_once(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    for group in (POD, BE):
        node.files.write(node.path(Knob.CPUSET, group), "0-1")
    node.files.written.clear()
    levels = [[Update(group, Knob.CPUSET, "2-3", "moved")] for group in (BE, POD)]

    node.executor.update_leveled(levels, owner="suppress")

    assert [text for _, text in node.files.written] == ["0-3", "0-3", "2-3", "2-3"]
    events = [decode(line) for line in node.audit.newest_first()]
    assert sorted((each.type, each.namespace, each.name) for each in events) == [
        ("group", "", node.path(Knob.CPUSET)),
        ("pod", "default", "web"),
    ]
    assert all(each.message.endswith("cpuset.cpus to 2-3") for each in events)

    node.executor.restore("suppress")
    back = [decode(line) for line in node.audit.newest_first()][:2]
    assert sorted((each.type, each.name) for each in back) == [
        ("group", node.path(Knob.CPUSET)),
        ("pod", "web"),
    ]


def test_a_kernel_that_refuses_what_a_probe_asks_has_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    path = node.path(Knob.CPU_BURST)
    probe = [Update(BE, Knob.CPU_BURST, "500000")]
    node.files.refusals[path] = [FileProblem(path, FileFailure.INVALID)] * 2

    (answer,) = node.executor.update(probe, owner="burst", is_probe=True)
    assert (answer.outcome, node.updates, caplog.messages) == (WriteOutcome.FAILED, [], [])

    node.executor.update(probe, owner="burst")
    assert node.updates == [("cgroup", False)]
    assert caplog.messages == ["cgroup not updated"]


def test_changes_are_counted_as_those_of_groups_and_all_others(tmp_path: Path) -> None:
    """The values of the label `type` that dashboards of the reference know."""
    node = Node(tmp_path)
    setting = tmp_path / "proc/sys/vm/min_free_kbytes"
    host_tree.write(tmp_path, {"proc/sys/vm/min_free_kbytes": "1"})

    node.write(Knob.CPU_SHARES, "3")
    node.executor.write_file(str(setting), "2", owner="system")
    node.executor.make_directory(str(tmp_path / "resctrl"), owner="resctrl")
    node.executor.restore("suppress")
    node.executor.restore("system")

    kinds = ["cgroup", "default", "default", "cgroup", "default"]
    assert node.updates == [(kind, True) for kind in kinds]


def test_an_uncached_write_makes_the_next_cached_one_look(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(Knob.CPU_QUOTA, "50000")
    node.executor.update([Update(BE, Knob.CPU_QUOTA, "-1")], owner="suppress", cacheable=False)

    assert node.write(Knob.CPU_QUOTA, "50000").outcome is WriteOutcome.WRITTEN
    assert node.says(Knob.CPU_QUOTA) == "50000"


def test_a_group_that_is_gone_is_missing_and_stops_nobody_else(tmp_path: Path) -> None:
    node = Node(tmp_path)
    host_tree.remove_group(tmp_path, V1, POD)

    results = node.executor.update(
        [Update(POD, Knob.CPU_SHARES, "2"), Update(BE, Knob.CPU_SHARES, "2")], owner="suppress"
    )

    assert [each.outcome for each in results] == [WriteOutcome.MISSING, WriteOutcome.WRITTEN]


def test_a_group_that_vanishes_between_read_and_write_is_missing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    path = node.path(Knob.CPU_SHARES)
    node.files.refusals[path] = [FileProblem(path, FileFailure.GONE, 19)]

    result = node.write(Knob.CPU_SHARES, "2")

    assert result.outcome is WriteOutcome.MISSING
    assert node.write(Knob.CPU_SHARES, "2").outcome is WriteOutcome.WRITTEN


@pytest.mark.parametrize("failure", [FileFailure.BUSY, FileFailure.INVALID, FileFailure.DENIED])
def test_what_the_kernel_refuses_is_planned_anew_then_a_reason(
    tmp_path: Path, failure: FileFailure, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    path = node.path(Knob.CPU_QUOTA)
    node.files.refusals[path] = [FileProblem(path, failure)]
    assert node.write(Knob.CPU_QUOTA, "20000").outcome is WriteOutcome.WRITTEN

    node.files.refusals[path] = [FileProblem(path, failure)] * 9
    results = [node.write(Knob.CPU_QUOTA, "30000") for _ in range(3)]

    assert {result.outcome for result in results} == {WriteOutcome.FAILED}
    assert failure.value in results[0].problem
    assert len(caplog.records) == 1, "said once, not every second"
    node.files.refusals.clear()
    assert node.write(Knob.CPU_QUOTA, "30000").outcome is WriteOutcome.WRITTEN, "a failure is not cached"


def test_a_limit_that_the_kernel_cannot_reclaim_to_is_tried_once_a_round(tmp_path: Path) -> None:
    node = Node(tmp_path)
    path = node.path(Knob.MEMORY_LIMIT)
    node.files.refusals[path] = [FileProblem(path, FileFailure.BUSY)] * 2

    assert node.write(Knob.MEMORY_LIMIT, "8192").outcome is WriteOutcome.FAILED
    assert len(node.files.refusals[path]) == 1


@pytest.mark.parametrize(
    ("knob", "text", "content"),
    [
        (Knob.NET_CLASS, "0x10002", "65538"),
        (
            Knob.BLKIO_QOS,
            "8:0 enable=1 ctrl=user rpct=95",
            "8:0 enable=1 ctrl=user rpct=95.00 rlat=3000 min=1.00",
        ),
        (Knob.MEMORY_LIMIT, "10000", "8192"),
    ],
)
def test_values_in_the_kernels_own_words_are_held(knob: Knob, text: str, content: str) -> None:
    assert update_plan.holds(knob, content, text)


def test_a_value_that_does_not_stay_is_reported(tmp_path: Path) -> None:
    node = Node(tmp_path)
    original = node.files.read
    path = node.path(Knob.CPU_SHARES)
    node.files.read = lambda each: "1024\n" if each == path else original(each)  # type: ignore[method-assign]

    result = node.write(Knob.CPU_SHARES, "2")

    assert result.outcome is WriteOutcome.NOT_HELD
    assert "reads '1024'" in result.problem


def test_a_memory_limit_rounded_to_pages_counts_as_held(tmp_path: Path) -> None:
    node = Node(tmp_path)
    original = node.files.read
    path = node.path(Knob.MEMORY_LIMIT)
    node.files.read = lambda each: "8192\n" if each == path else original(each)  # type: ignore[method-assign]

    assert node.write(Knob.MEMORY_LIMIT, "10000").outcome is WriteOutcome.WRITTEN


def test_a_period_for_cpu_max_keeps_the_quota(tmp_path: Path) -> None:
    node = Node(tmp_path, V2)
    node.write(Knob.CPU_QUOTA, "30000")

    node.write(Knob.CPU_PERIOD, "50000")

    assert node.says(Knob.CPU_QUOTA) == "30000 50000"


def test_limits_of_one_disk_leave_the_others_alone(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(Knob.BLKIO_READ_BPS, "8:0 100")
    node.write(Knob.BLKIO_READ_BPS, "8:16 200")
    assert node.says(Knob.BLKIO_READ_BPS) == "8:0 100\n8:16 200"

    node.write(Knob.BLKIO_READ_BPS, "8:0 0")
    assert node.says(Knob.BLKIO_READ_BPS) == "8:16 200"

    node.executor.restore("suppress")
    assert node.says(Knob.BLKIO_READ_BPS) == ""


CPUS = st.frozensets(st.integers(0, 3), min_size=1).map(lambda cpus: ",".join(map(str, sorted(cpus))))


@settings(max_examples=40, deadline=None)
@given(st.lists(CPUS, min_size=1, max_size=5))
def test_leveled_changes_never_meet_a_refusal_of_the_kernel(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    node = Node(tmp_path_factory.mktemp("node"))

    for wanted in steps:
        levels = [[Update(each, Knob.CPUSET, wanted)] for each in (BE, POD)]
        results = node.executor.update_leveled(levels, owner="suppress")
        assert not [each for each in results if each.outcome in (WriteOutcome.FAILED, WriteOutcome.NOT_HELD)]
        assert node.cgroups.cpus(BE) == node.cgroups.cpus(POD)

    node.executor.restore("suppress")
    assert (node.says(Knob.CPUSET), node.says(Knob.CPUSET, POD)) == ("0-3", "0-3")


# Dry run


@pytest.mark.parametrize("version", host_tree.VERSIONS)
def test_a_dry_run_writes_nothing_and_tells_each_change_once(tmp_path: Path, version: int) -> None:
    node = Node(tmp_path, version, dry_run=True)

    outcomes = [node.write(Knob.CPU_QUOTA, value).outcome for value in ("50000", "50000", "40000")]
    node.executor.write_file(node.path(Knob.PROCS), "7", owner="x", restorable=False)

    assert outcomes == [WriteOutcome.WOULD_WRITE, WriteOutcome.SKIPPED, WriteOutcome.WOULD_WRITE]
    assert node.files.written == []
    assert node.records.count == 0
    assert [(each.text, each.owner, each.reason) for each in node.dry_run_writes] == [
        ("50000", "suppress", "because"),
        ("40000", "suppress", "because"),
        ("7", "x", ""),
    ]
    assert node.dry_run_writes[1].before.startswith("50000"), "as if the first had been written"


def test_groups_and_tasks_of_resctrl_are_made_or_only_reported(tmp_path: Path) -> None:
    host_tree.resctrl(tmp_path)
    group = str(tmp_path / "sys/fs/resctrl/BE")
    dry, wet = Node(tmp_path, dry_run=True), Node(tmp_path)

    for _ in range(2):
        assert dry.executor.make_directory(group, owner="Resctrl") is None
        assert dry.executor.write_file(f"{group}/schemata", "L3:0=f\n", owner="Resctrl") is None
        assert dry.executor.add_tasks(f"{group}/tasks", [7], owner="Resctrl") == {}
    assert [(each.path.removeprefix(group), each.text.strip()) for each in dry.dry_run_writes] == [
        ("", "directory"),
        ("/schemata", "L3:0=f"),
        ("/tasks+7", "7"),
    ]
    assert not Path(group).exists()

    assert wet.executor.make_directory(group, owner="Resctrl") is None
    host_tree.resctrl_group(tmp_path, "BE")
    assert (
        wet.executor.write_file(
            f"{group}/schemata", "L3:0=f\n", owner="Resctrl", is_held=lambda text: "0=f;" in text
        )
        is None
    )
    assert wet.executor.add_tasks(f"{group}/tasks", [7, 8], owner="Resctrl") == {}
    assert Path(group, "tasks").read_text().split() == ["7", "8"]
    assert [decode(line).message.split()[-1] for line in wet.audit.newest_first()] == ["L3:0=f", "directory"]


class Faults:
    """What the kernel does at each write, drawn at random: takes it, refuses it, or the group goes."""

    def __init__(self, node: Node, draws: list[int]) -> None:
        self.node, self.draws = node, draws
        self.original = node.files.write

    def write(self, path: str, text: str) -> FileProblem | None:
        draw = self.draws.pop() if self.draws else 0
        if draw == 1:
            return FileProblem(path, FileFailure.BUSY)
        if draw == 2:
            return FileProblem(path, FileFailure.INVALID)
        if draw == 3 and POD in path:
            host_tree.remove_group(self.node.root, V1, POD)
        return self.original(path, text)


QUOTAS = st.sampled_from(["-1", "20000", "50000", "90000"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(QUOTAS, CPUS), min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=30))
def test_whatever_the_kernel_refuses_nothing_raises_and_the_next_calm_round_is_right(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]], draws: list[int]
) -> None:
    node = Node(tmp_path_factory.mktemp("node"))
    node.files.write = Faults(node, draws).write  # type: ignore[method-assign]

    for quota, cpus in steps:
        levels = [
            [Update(each, Knob.CPU_QUOTA, quota), Update(each, Knob.CPUSET, cpus)] for each in (BE, POD)
        ]
        results = node.executor.update_leveled(levels, owner="suppress")
        assert len(results) == 4
        assert all(
            result.problem
            for result in results
            if result.outcome in (WriteOutcome.FAILED, WriteOutcome.NOT_HELD)
        )
        if node.cgroups.exists(POD):
            assert (node.cgroups.cpus(POD) or frozenset()) <= (node.cgroups.cpus(BE) or frozenset())

    draws.clear()
    node.executor.update_leveled(levels, owner="suppress")
    assert node.says(Knob.CPU_QUOTA) == quota
    assert node.says(Knob.CPUSET).split(",") and node.cgroups.cpus(BE) == update_plan.cpuset.parse(cpus)
    node.executor.restore("suppress")
    assert (node.says(Knob.CPU_QUOTA), node.says(Knob.CPUSET)) == ("-1", "0-3")


# Putting back


@pytest.mark.parametrize("version", host_tree.VERSIONS)
@pytest.mark.parametrize(
    ("knob", "value"),
    [
        (Knob.CPU_QUOTA, "50000"),
        (Knob.CPU_SHARES, "2"),
        (Knob.CPUSET, "1"),
        (Knob.CPU_BURST, "5000"),
        (Knob.MEMORY_LIMIT, "8192"),
    ],
)
def test_what_was_changed_is_put_back_exactly(tmp_path: Path, version: int, knob: Knob, value: str) -> None:
    node = Node(tmp_path, version)
    before = node.files.read(node.path(knob))
    if knob is Knob.CPUSET:
        node.write(knob, value, POD)
    node.write(knob, value)
    node.write(knob, "0-3" if knob is Knob.CPUSET else str(int(value) + 4096))

    after_restart = Node(tmp_path, version)
    restored = after_restart.executor.restore("suppress")

    assert {each.outcome for each in restored} == {WriteOutcome.WRITTEN} or knob is Knob.CPUSET
    assert (node.files.read(node.path(knob)) or "").strip() == (before or "").strip()
    assert after_restart.executor.owners() == []
    assert Node(tmp_path, version).executor.owners() == [], "the journal knows, too"


def test_what_somebody_else_changed_since_is_left_alone(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(Knob.CPU_QUOTA, "50000")
    node.files.write(node.path(Knob.CPU_QUOTA), "77000")

    (restored,) = node.executor.restore("suppress")

    assert restored.outcome is WriteOutcome.FOREIGN
    assert node.says(Knob.CPU_QUOTA) == "77000"


def test_what_another_owner_needs_stays_until_that_one_leaves(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(Knob.CPU_QUOTA, "50000", owner="burst")
    node.write(Knob.CPU_QUOTA, "60000", owner="normalization")

    (first,) = node.executor.restore("burst")
    assert (first.outcome, node.says(Knob.CPU_QUOTA)) == (WriteOutcome.SHARED, "60000")

    (second,) = node.executor.restore("normalization")
    assert (second.outcome, node.says(Knob.CPU_QUOTA)) == (WriteOutcome.WRITTEN, "-1")


def test_a_new_group_of_the_same_name_keeps_its_own_values(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(Knob.CPU_QUOTA, "50000", POD)
    keeper = (tmp_path / "keeps-the-inode").open("w")  # so that the new file cannot get the same inode
    Path(node.path(Knob.CPU_QUOTA, POD)).rename(tmp_path / "old")
    host_tree.group(tmp_path, V1, POD, {"cpu.cfs_quota_us": "50000"})
    keeper.close()

    (restored,) = node.executor.restore("suppress")

    assert restored.outcome is WriteOutcome.MISSING
    assert node.says(Knob.CPU_QUOTA, POD) == "50000"


def test_records_of_another_boot_are_never_used(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(Knob.CPU_QUOTA, "50000")

    assert RestoreLog(str(tmp_path / "run/koordlet/restore.jsonl"), "boot-2").all() == []


def test_a_torn_last_line_costs_nothing_else(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(Knob.CPU_QUOTA, "50000")
    journal = tmp_path / "run/koordlet/restore.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"record":{"key":"/sys')

    assert [record.before for record in RestoreLog(str(journal), "boot-1").all()] == ["-1"]


def test_records_of_groups_that_are_gone_are_dropped(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(Knob.CPU_QUOTA, "50000", POD)
    host_tree.remove_group(tmp_path, V1, POD)

    node.executor.expire()

    assert node.records.count == 0


def test_a_journal_that_cannot_be_written_does_not_stop_protection(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where a directory should be")
    node = Node(tmp_path)

    assert node.write(Knob.CPU_QUOTA, "50000").outcome is WriteOutcome.WRITTEN
    assert node.records.problem is not None
    assert [each.outcome for each in node.executor.restore("suppress")] == [WriteOutcome.WRITTEN]


def test_the_journal_stays_short_and_keeps_the_first_value(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for number in range(2_500):
        node.write(Knob.CPU_QUOTA, str(10_000 + number))

    journal = tmp_path / "run/koordlet/restore.jsonl"
    assert len(journal.read_text().splitlines()) < 1_100
    (record,) = RestoreLog(str(journal), "boot-1").all()
    assert (record.before, record.wrote) == ("-1", "12499")


def test_files_of_the_kernel_are_written_where_they_differ_and_put_back(tmp_path: Path) -> None:
    node = Node(tmp_path)
    sysctl = str(tmp_path / "proc/sys/vm/min_free_kbytes")
    host_tree.write(tmp_path, {"proc/sys/vm/min_free_kbytes": "67584"})

    assert node.executor.write_file(sysctl, "90000", owner="SystemConfig") is None
    assert node.executor.write_file(sysctl, "90000", owner="SystemConfig") is None
    assert node.files.written == [(sysctl, "90000")]
    missing = node.executor.write_file(str(tmp_path / "proc/sys/vm/none"), "1", owner="SystemConfig")
    assert missing is not None
    assert missing.failure is FileFailure.GONE

    Node(tmp_path).executor.restore("SystemConfig")
    assert (node.files.read(sysctl) or "").strip() == "67584"


@pytest.mark.parametrize(
    ("both_bytes", "wanted_bytes", "becomes_bytes"),
    [(128, 256, 256), (128, 64, 64), (200, 256, 256), (512, 256, 512), (-1, 256, -1), (128, -1, -1)],
    ids=["raised", "lowered", "no room", "room enough", "no limit of swap", "no limit any more"],
)
def test_the_limit_of_memory_and_swap_stays_that_of_memory_where_it_was(
    tmp_path: Path, both_bytes: int, wanted_bytes: int, becomes_bytes: int
) -> None:
    node = Node(tmp_path)
    both = Path(node.path(Knob.MEMORY_LIMIT)).with_name("memory.memsw.limit_in_bytes")
    mebi = 1 << 20

    def bytes_of(amount: int) -> str:
        return str(amount if amount < 0 else amount * mebi)

    Path(node.path(Knob.MEMORY_LIMIT)).write_text(f"{bytes_of(128)}\n")
    both.write_text(f"{bytes_of(both_bytes)}\n")

    results = node.executor.update([Update(BE, Knob.MEMORY_LIMIT, bytes_of(wanted_bytes))], owner="test")

    assert [each.outcome for each in results] == [WriteOutcome.WRITTEN]
    assert Path(node.path(Knob.MEMORY_LIMIT)).read_text().strip() == bytes_of(wanted_bytes)
    assert both.read_text().strip() == bytes_of(becomes_bytes)
