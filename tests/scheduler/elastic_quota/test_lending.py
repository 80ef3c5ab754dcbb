"""What people are told of quotas."""

from koordinator.api import resource_list
from koordinator.scheduler.plugins.elastic_quota.admission import LendingReport, QuotaSummary
from koordinator.scheduler.plugins.elastic_quota.plugin import ElasticQuota
from koordinator.scheduler.plugins.elastic_quota.quota import ROOT
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.elastic_quota.test_plugin import fixed, member, quota, with_args
from tests.scheduler.world import World, play


def plugin_of(world: World) -> ElasticQuota:
    [found] = [
        plugin
        for profile in world.scheduler.engine.profiles.values()
        for plugin in profile.plugins
        if isinstance(plugin, ElasticQuota)
    ]
    return found


def waiting(world: World, name: str) -> PodInfo:
    body = world.api.objects["Pod"]["default", name]
    entry = world.scheduler.queue.find(body["metadata"]["uid"])
    assert entry is not None
    return entry.pod


def figures(
    name: str, *, parent: str = ROOT, low: int = 0, used: int = 0, lends: bool = True
) -> QuotaSummary:
    return QuotaSummary(
        name=name,
        parent=parent,
        lends=lends,
        min=resource_list.of({"cpu": low}),
        max=resource_list.of({"cpu": 100}),
        used=resource_list.of({"cpu": used}),
    )


def loans(report: LendingReport, name: str) -> tuple[dict[str, str], str]:
    found, spare = report.loans(name)
    return {loan.lender: loan.amounts["cpu"].text for loan in found}, spare["cpu"].text if spare else "0"


def test_what_a_quota_uses_above_its_minimum_comes_from_siblings_that_use_less_than_theirs() -> None:
    report = LendingReport(
        [
            QuotaSummary(name=ROOT, parent=""),
            figures("ads", low=10, used=40),
            figures("search", low=30, used=10),
            figures("batch", low=10, used=5, lends=False),
        ]
    )

    assert loans(report, "ads") == ({"root/search": "20"}, "10")
    assert loans(report, "search") == ({}, "0")
    rows = {row.path: row for row in report.rows()}
    assert list(rows) == ["root", "root/ads", "root/batch", "root/search"]
    assert rows["root/ads"].borrowed == resource_list.of({"cpu": 30})
    assert rows["root/search"].lent == resource_list.of({"cpu": 20})
    assert rows["root/batch"].lent == {}


def test_what_siblings_do_not_lend_was_borrowed_further_up() -> None:
    report = LendingReport(
        [
            QuotaSummary(name=ROOT, parent=""),
            figures("ads", low=20, used=28),
            figures("search", low=30, used=0),
            figures("web", parent="ads", low=5, used=20),
            figures("mail", parent="ads", low=15, used=8),
        ]
    )

    assert loans(report, "web") == ({"root/ads/mail": "7", "root/search": "8"}, "0")


def test_lenders_give_whole_units_that_add_up() -> None:
    report = LendingReport(
        [
            figures("a", used=1),
            figures("b", used=1),
            *(figures(f"lender-{number}", low=1) for number in range(3)),
        ]
    )

    found, spare = report.loans("a")

    assert not spare
    assert sum(loan.amounts["cpu"].milli for loan in found) == 1000
    assert [loan.amounts["cpu"].text for loan in found] == ["334m", "333m", "333m"]


def test_quotas_that_are_each_others_parents_are_shown_all_the_same() -> None:
    report = LendingReport([figures("a", parent="b"), figures("b", parent="a"), figures("c", parent="gone")])

    assert sorted(row.figures.name for row in report.rows()) == ["a", "b", "c"]
    assert report.path("c") == "?/c"


def test_a_waiting_pod_learns_what_its_quota_has_and_who_lends_to_it() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        world.api.put("ElasticQuota", quota("ads", low=2, high=6))
        world.api.put("ElasticQuota", quota("search", low=6, high=8))
        for number in range(7):
            world.api.put("Pod", member(f"ads-{number}", "ads"))
        await world.settle()

        standing = plugin_of(world).standing(waiting(world, "ads-6"))

        assert standing is not None
        assert standing.text == (
            "queue at root/ads: runtime 6 cores, used 6, you ask 1; borrowed 4 from root/search"
        )
        assert standing.decision.exceeded == ("cpu",)

    play(story)


def test_pods_that_cannot_be_preempted_are_told_about_the_minimum() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        world.api.put("ElasticQuota", quota("ads", low=1, high=6))
        for number in range(2):
            world.api.put("Pod", fixed(member(f"ads-{number}", "ads")))
        await world.settle()

        standing = plugin_of(world).standing(waiting(world, "ads-1"))

        assert standing is not None
        assert standing.text == (
            "queue at root/ads: min 1 core, used by pods that cannot be preempted 1, you ask 1"
        )

    play(story)


def test_pods_that_only_make_sense_together_are_refused_together() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="100")
        world.api.put("ElasticQuota", quota("ads", low=2, high=6))
        for number in range(5):
            world.api.put("Pod", member(f"ads-{number}", "ads", cpu="2"))
        await world.settle()
        plugin = plugin_of(world)
        left = [waiting(world, f"ads-{number}") for number in (3, 4)]
        placed = list(world.scheduler.table.pods_at(0).values())

        assert plugin.room_for(placed).is_success
        status = plugin.room_for([*placed, *left])

        assert status.is_rejected
        assert status.reasons == (
            "Insufficient quotas, quotaName: ads, runtime: cpu:6, used: cpu:6, "
            "request of 2 pods together: cpu:4, exceedDimensions: [cpu]",
        )

    play(story)


def test_pods_of_several_quotas_meet_the_limit_of_their_common_ancestor_together() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="10")
        world.api.put("ElasticQuota", quota("dept", high=3, is_parent="true"))
        for name in ("x", "y"):
            world.api.put("ElasticQuota", quota(name, parent="dept", high=2, low=2))
            world.api.put("Pod", member(f"{name}-pod", name, cpu="2", nodeSelector={"no": "such"}))
        await world.settle()
        plugin = plugin_of(world)
        pods = [waiting(world, f"{name}-pod") for name in ("x", "y")]

        assert plugin.room_for(pods[:1]).is_success
        assert plugin.room_for(pods).reasons == (
            "Insufficient quotas, quotaNameTopo: [dept x], runtime: cpu:3, used: <empty>, "
            "request of 2 pods together: cpu:4, exceedDimensions: [cpu]",
        )

    play(story, with_args(enableCheckParentQuota=True, enableMinQuotaScale=False))
