"""What PostFilter plugins say to users, and what they suggest: behind the other texts, the first one counts."""

import asyncio
from typing import Any

import pytest

from koordinator.scheduler.explain.decide import explain
from koordinator.scheduler.observe.debugging import diagnose
from koordinator.scheduler.plugin.framework import (
    Diagnosis,
    Outlook,
    Plugin,
    PostFilterPlugin,
    PostFilterResult,
)
from koordinator.scheduler.plugin.status import (
    SKIP,
    SUCCESS,
    Suggestion,
    SuggestionType,
    unresolvable,
    unschedulable,
)
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.extending import Desk
from tests.scheduler.world import pod

TEXT = "Suggestion: {type: EvictWorkloadSelf, message: it is its own neighbour}"


class Suggesting(PostFilterPlugin[None]):
    name = "Suggesting"

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        diagnosis.suggest(SuggestionType.EVICT_WORKLOAD_SELF, "it is its own neighbour")
        diagnosis.suggest(SuggestionType.DELETE_CONFLICT_PVC, "too late")
        return PostFilterResult(unschedulable("no luck"))

    def outlook(self, pod: PodInfo, diagnosis: Diagnosis) -> Outlook:
        return Outlook(self.post_filter(pod, diagnosis))


class Silent(PostFilterPlugin[None]):
    name = "Silent"

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        return PostFilterResult(SKIP)


def test_the_first_suggestion_stands_at_the_end_of_the_message() -> None:
    found = Desk(Suggesting).nodes("a", cpu="1").refuse(pod("p", cpu="2"))

    assert found.status.message.endswith(f"no luck, {TEXT}")
    assert found.suggestion == Suggestion(SuggestionType.EVICT_WORKLOAD_SELF, "it is its own neighbour")


def test_the_diagnosis_and_explanations_hold_the_suggestion() -> None:
    desk = Desk(Suggesting).nodes("a", cpu="1")
    found = desk.refuse(pod("p", cpu="2"))

    info = desk.info(pod("p", cpu="2"))
    assert diagnose(info, found, desk.table, 0.0).suggestion == found.suggestion
    assert explain(desk.engine, info).message == found.status.message


class InVain(Silent):
    name = "InVain"

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        return PostFilterResult(unschedulable("in vain"))

    def outlook(self, pod: PodInfo, diagnosis: Diagnosis) -> Outlook:
        return Outlook(self.post_filter(pod, diagnosis))


class MakesRoom(InVain):
    name = "MakesRoom"

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        return PostFilterResult(SUCCESS, nominated_node="a")


class MakesRoomLater(InVain):
    name = "MakesRoomLater"

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        async def later() -> PostFilterResult:
            return PostFilterResult(SUCCESS, nominated_node="a")

        return PostFilterResult(unschedulable("asks"), later=later)


class Hopeless(InVain):
    name = "Hopeless"

    def post_filter(self, pod: PodInfo, diagnosis: Diagnosis) -> PostFilterResult:
        return PostFilterResult(unresolvable("nobody can"))


@pytest.mark.parametrize(
    ("plugins", "reported"),
    [
        ((InVain,), "in vain"),
        ((Silent, InVain), "in vain"),
        ((InVain, MakesRoom), ""),
        ((InVain, MakesRoomLater), ""),
        ((InVain, Hopeless), "nobody can"),
        ((MakesRoom, InVain), ""),
    ],
)
def test_who_ends_the_questions_after_filters_speaks_alone(
    plugins: tuple[type[Plugin[Any]], ...], reported: str
) -> None:
    desk = Desk(*plugins).nodes("a", cpu="1")
    desk.profile.post_filters = [desk.plugin(each.name) for each in plugins]
    found = desk.refuse(pod("p", cpu="2"))
    if found.later is not None:
        found = asyncio.run(found.later())

    assert found.post_filter_message == reported
    assert found.status.message.endswith(f"Insufficient cpu. {reported}".rstrip())
    assert explain(desk.engine, desk.info(pod("p", cpu="2"))).message.endswith(reported)


def test_without_a_suggestion_nothing_is_added() -> None:
    found = Desk(Silent).nodes("a", cpu="1").refuse(pod("p", cpu="2"))

    assert found.suggestion is None and "Suggestion" not in found.status.message
