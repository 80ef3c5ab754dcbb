"""Rehearsals on the node table: everybody who counts hears of what is added, and all is as before in the end."""

import pytest

from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import rehearsal_of, trial_of
from tests.scheduler.explain.builders import Bench


class Listener(RowKeeper):
    """Counts pods per row; `in_trials` and `in_takes` as said."""

    def __init__(self, *, in_trials: bool, in_takes: bool) -> None:
        self.in_trials, self.in_takes = in_trials, in_takes  # type: ignore[misc]
        self.heard: list[tuple[str, str]] = []

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        self.heard.append(("came", pod.pod.metadata.name))

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        self.heard.append(("went", pod.pod.metadata.name))


def facts(table: NodeTable) -> tuple[object, ...]:
    names = [[pod.key for pod in table.pods_at(row).values()] for row in table.rows.tolist()]
    return (
        table.requested.tolist(),
        table.pod_count.tolist(),
        table.assumed_count,
        names,
        table.changes.sequence,
    )


@pytest.mark.parametrize("in_takes", [False, True])
def test_all_are_told_of_what_is_added_and_some_are_not_of_what_is_taken(in_takes: bool) -> None:
    bench = Bench().node("n")
    there = [bench.running(name, "n") for name in ("old", "older")]
    listener = Listener(in_trials=False, in_takes=in_takes)
    table = bench.engine.table
    table.add_keeper(listener)
    listener.heard.clear()
    before = facts(table)

    with rehearsal_of(table) as trial:
        trial.take(there[0])
        trial.add(bench.info("new"), "n")
        assert table.is_trial and table.changes.sequence == 2
        with trial_of(table) as inner:
            inner.add(bench.info("inner"), "n")

    assert facts(table) == before
    assert not table.is_trial
    added = [("came", "new"), ("went", "new")]
    reported = [each for each in listener.heard if each[1] != "old"]
    assert reported == added
    assert (("went", "old") in listener.heard) == in_takes


def test_evaluations_made_within_follow_what_is_added() -> None:
    bench = Bench().node("n", cpu="2")

    with rehearsal_of(bench.engine.table) as trial:
        assert bench.ask(bench.info("second", cpu="2")).feasible_count == 1
        trial.add(bench.info("first", cpu="1"), "n")
        assert bench.ask(bench.info("second", cpu="2")).feasible_count == 0

    assert bench.ask(bench.info("second", cpu="2")).feasible_count == 1
