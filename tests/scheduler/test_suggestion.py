"""What plugins suggest reaches users behind the other texts; the first suggestion counts."""

from koordinator.scheduler.explain.decide import explain
from koordinator.scheduler.framework import Diagnosis, Outlook, PostFilterPlugin, PostFilterResult
from koordinator.scheduler.pod_diagnosis import diagnose
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.status import SKIP, unschedulable
from koordinator.scheduler.suggestion import Suggestion, SuggestionType
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


def test_without_a_suggestion_nothing_is_added() -> None:
    found = Desk(Silent).nodes("a", cpu="1").refuse(pod("p", cpu="2"))

    assert found.suggestion is None and "Suggestion" not in found.status.message
