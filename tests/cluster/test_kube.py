"""`KubeCluster` against a server scripted for faults."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from koordinator.cluster import errors, transport
from koordinator.cluster.backoff import LOST_RACE_OR_CONNECTION, Rate, retry_on_conflict
from koordinator.cluster.config import from_url
from koordinator.cluster.informer import Informer
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.protocol import PatchType
from tests.cluster.fake_backend import PodView
from tests.cluster.scripted_pods import connected, pod, pod_list
from tests.cluster.scripted_server import (
    ok,
    reset,
    scripted,
    slow,
    status,
    text,
)

pytestmark = pytest.mark.usefixtures("short_pauses")


# Requests


async def test_get_decodes_the_view_and_says_who_we_are() -> None:
    async with scripted(ok(pod("a", nodeName="n1"))) as server:
        async with connected(server, component="koord-scheduler") as cluster:
            found = await cluster.get(PodView, "a", "shop")

        assert found.spec.node_name == "n1"
        assert server.asked[0].path == "/api/v1/namespaces/shop/pods/a"
        assert server.asked[0].headers["User-Agent"].startswith("koord-scheduler/")


async def test_a_name_with_odd_characters_cannot_leave_its_place_in_the_path() -> None:
    async with scripted(ok(pod("a"))) as server, connected(server) as cluster:
        await cluster.get(PodView, "a?b#c d", "shop")

        assert server.asked[0].raw_path == "/api/v1/namespaces/shop/pods/a%3Fb%23c%20d"


async def test_objects_of_a_list_are_transformed_page_by_page() -> None:
    seen: list[tuple[str, int]] = []
    async with scripted(ok(pod_list(pod("a"), more="x")), ok(pod_list(pod("b")))) as server:

        def noted(obj: PodView) -> PodView:
            seen.append((obj.metadata.name, len(server.asked)))
            return msgspec.structs.replace(obj, spec=msgspec.structs.replace(obj.spec, node_name="n"))

        async with connected(server) as cluster:
            page = await cluster.list(PodView, transform=noted)

    assert seen == [("a", 1), ("b", 2)], "the first page is transformed before the second is asked for"
    assert [item.spec.node_name for item in page.items] == ["n", "n"]


async def test_an_informer_tells_of_its_first_list_page_by_page_and_of_nothing_twice() -> None:
    told: list[tuple[str, str, int]] = []
    first = ok(pod_list(pod("a"), pod("gone"), more="x"))
    async with scripted(first, status(403, "Forbidden"), ok(pod_list(pod("a"), pod("b")))) as server:

        def teller(what: str) -> Callable[[PodView], None]:
            return lambda obj: told.append((what, obj.metadata.name, len(server.asked)))

        async with connected(server) as cluster:
            informer = Informer(cluster, PodView, rng=random.Random(1))
            informer.add_handler(teller("add"), lambda _, new: teller("update")(new), teller("delete"))
            task = asyncio.create_task(informer.run())
            await informer.synced.wait()
            task.cancel()
            await asyncio.wait([task])

    assert told == [("add", "a", 1), ("add", "gone", 1), ("delete", "gone", 3), ("add", "b", 3)]


async def test_writes_carry_media_type_guards_and_options() -> None:
    async with scripted() as server, connected(server) as cluster:
        server.otherwise = ok(pod("a"))
        await cluster.create(PodView, {"metadata": {"name": "a"}}, "shop")
        await cluster.patch(PodView, "a", {"spec": {}}, "shop", subresource="status")
        await cluster.patch(
            PodView, "a", {"spec": {}}, "shop", patch_type=PatchType.APPLY, field_manager="koordlet"
        )
        await cluster.delete(PodView, "a", "shop", uid="u", grace_period_s=0, propagation="Background")
        await cluster.bind("shop", "a", "n1", uid="u")
        await cluster.evict("shop", "a", uid="u")
        own = {"dryRun": ["All"], "preconditions": {"resourceVersion": "7"}}
        await cluster.evict("shop", "a", uid="u", options=own)
        await cluster.delete(PodView, "a", "shop", uid="u", options=own)

        create, patch, apply, delete, bind, evict, *optional = server.asked
        guarded = {"dryRun": ["All"], "preconditions": {"uid": "u", "resourceVersion": "7"}}
        assert optional[0].body["deleteOptions"] == guarded
        assert optional[1].body == {"apiVersion": "v1", "kind": "DeleteOptions", **guarded}
        assert create.body == {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
        assert patch.path.endswith("/pods/a/status")
        assert patch.headers["Content-Type"] == "application/merge-patch+json"
        assert apply.query == {"fieldManager": "koordlet", "force": "true"}
        assert delete.body["preconditions"] == {"uid": "u"}
        assert (delete.body["gracePeriodSeconds"], delete.body["propagationPolicy"]) == (0, "Background")
        assert bind.body["target"]["name"] == "n1"
        assert evict.path == "/api/v1/namespaces/shop/pods/a/eviction"
        assert evict.body["apiVersion"] == "policy/v1"


async def test_failures_become_the_error_class_of_the_status() -> None:
    async with scripted(status(409, "AlreadyExists"), status(404, "NotFound"), status(403, "Forbidden")) as s:
        async with connected(s) as cluster:
            with pytest.raises(errors.AlreadyExists, match="scripted AlreadyExists"):
                await cluster.create(PodView, {"metadata": {"name": "a"}}, "shop")
            with pytest.raises(errors.NotFound):
                await cluster.get(PodView, "a", "shop")
            with pytest.raises(errors.Forbidden):
                await cluster.get(PodView, "a", "shop")
        assert len(s.asked) == 3


async def test_answers_that_are_no_json_name_what_came() -> None:
    answers = [text("<html>a proxy"), text("down for tea", 418)]
    async with scripted(*answers) as server, connected(server) as cluster:
        with pytest.raises(errors.InternalError, match="a proxy"):
            await cluster.get(PodView, "a", "shop")
        with pytest.raises(errors.ApiError, match="HTTP 418: down for tea"):
            await cluster.get(PodView, "a", "shop")


async def test_an_object_that_does_not_fit_names_object_and_field() -> None:
    async with scripted(ok(pod("a", priority="high"))) as server, connected(server) as cluster:
        with pytest.raises(errors.Unreadable, match=r"Pod shop/a: \$\.spec\.priority: Expected `int`"):
            await cluster.get(PodView, "a", "shop")


async def test_nulls_mean_not_set() -> None:
    answer = ok(pod_list(pod("a", nodeName=None) | {"status": None}))
    async with scripted(answer) as server, connected(server) as cluster:
        page = await cluster.list(PodView)
        assert page.items[0].spec.node_name == ""
        assert page.unreadable == ()


# Retries


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(status(500, "InternalError"), id="500"),
        pytest.param(status(503, "ServiceUnavailable"), id="503"),
        pytest.param(status(429, "TooManyRequests"), id="429"),
        pytest.param(text("bad gateway", 502), id="a proxy's 502"),
        pytest.param(reset, id="a reset connection"),
        pytest.param(slow(5, {}), id="a body that does not come"),
    ],
)
async def test_reads_and_declarative_patches_survive_two_faults(fault: Any) -> None:
    async with scripted(fault, fault, ok(pod("a")), fault, ok(pod("a"))) as server:
        async with connected(server, timeout_s=0.1) as cluster:
            await cluster.get(PodView, "a", "shop")
            await cluster.patch(PodView, "a", {"metadata": {"labels": {"x": "y"}}}, "shop")

        assert [asked.method for asked in server.asked] == ["GET"] * 3 + ["PATCH"] * 2


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(status(500, "InternalError"), id="500"),
        pytest.param(status(504, "Timeout"), id="504"),
        pytest.param(reset, id="a reset connection"),
    ],
)
async def test_a_create_that_may_have_happened_is_not_repeated(fault: Any) -> None:
    async with scripted(fault, ok(pod("a"))) as server, connected(server) as cluster:
        with pytest.raises(errors.ApiError):
            await cluster.create(PodView, {"metadata": {"name": "a"}}, "shop")
        assert len(server.asked) == 1


async def test_a_create_that_was_not_taken_in_hand_is_repeated() -> None:
    faults = [status(429, "TooManyRequests"), status(503, "ServiceUnavailable")]
    async with scripted(*faults, ok(pod("a"))) as server, connected(server) as cluster:
        await cluster.create(PodView, {"metadata": {"name": "a"}}, "shop")
        assert len(server.asked) == 3


async def test_a_delete_is_repeated_only_when_its_uid_guards_a_successor() -> None:
    async with scripted(reset, ok({}), reset, ok({})) as server, connected(server) as cluster:
        await cluster.delete(PodView, "a", "shop", uid="u")
        with pytest.raises(errors.ConnectionFailed):
            await cluster.delete(PodView, "a", "shop")


async def test_retry_after_is_obeyed() -> None:
    async with scripted(status(429, "TooManyRequests", Retry_After="1"), ok(pod("a"))) as server:
        async with connected(server) as cluster:
            await cluster.get(PodView, "a", "shop")
        assert server.asked[1].at_s - server.asked[0].at_s >= 1.0


async def test_waits_for_the_own_rate_limit_and_retries_are_reported() -> None:
    waited: list[tuple[str, bool]] = []
    retried: list[tuple[str, str]] = []
    unwell = status(503, "ServiceUnavailable", Retry_After="0")
    rate = Rate(per_s=1000.0, burst=1)
    async with scripted(unwell, ok(pod("a"))) as server, connected(server, rate=rate) as cluster:
        cluster.transport.on_limited = lambda method, seconds: waited.append((method, seconds > 0))
        cluster.transport.on_retry = lambda method, code: retried.append((method, code))
        await cluster.get(PodView, "a", "shop")
    assert retried == [("GET", "503")]
    assert [method for method, _ in waited] == ["GET", "GET"]


async def test_a_long_retry_after_is_left_to_the_caller() -> None:
    async with scripted(status(429, "TooManyRequests", Retry_After="600")) as server:
        async with connected(server) as cluster:
            with pytest.raises(errors.TooManyRequests) as caught:
                await cluster.get(PodView, "a", "shop")
        assert caught.value.details.retry_after_seconds == 600
        assert len(server.asked) == 1


async def test_an_eviction_that_a_budget_forbids_is_not_repeated() -> None:
    refusal = status(429, "TooManyRequests", causes=("DisruptionBudget",), Retry_After="10")
    async with scripted(refusal) as server, connected(server) as cluster:
        with pytest.raises(errors.TooManyRequests):
            await cluster.evict("shop", "a", uid="u")
        assert len(server.asked) == 1


async def test_a_server_that_stays_down_ends_in_the_last_error() -> None:
    async with scripted() as server, connected(server) as cluster:
        server.otherwise = status(503, "ServiceUnavailable")
        with pytest.raises(errors.ServiceUnavailable):
            await cluster.get(PodView, "a", "shop")
        assert len(server.asked) == transport.TRIES_MAX


async def test_nobody_listening_is_a_failed_connection_that_names_the_request() -> None:
    async with scripted() as server:
        url = server.url
    async with KubeCluster(from_url(url), rng=random.Random(1)) as cluster:
        with pytest.raises(errors.ConnectionFailed, match=r"POST /api/v1/.*/pods: .*127\.0\.0\.1"):
            await cluster.create(PodView, {"metadata": {"name": "a"}}, "shop")
        assert cluster.transport.request_count == transport.TRIES_MAX


async def test_the_client_keeps_its_own_rate() -> None:
    async with scripted() as server, connected(server, rate=Rate(per_s=50, burst=2)) as cluster:
        server.otherwise = ok(pod("a"))
        begun_s = asyncio.get_running_loop().time()
        await asyncio.gather(*(cluster.get(PodView, "a", "shop") for _ in range(12)))

        # The burst is free, each of the other ten waits for its turn; a busy machine only makes that later.
        assert server.asked[-1].at_s - begun_s >= 10 / 50


async def test_retry_on_conflict_reads_afresh_up_to_four_times() -> None:
    tries: list[float] = []

    async def attempt() -> str:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) < 3:
            raise errors.Conflict("changed")
        return "written"

    assert await retry_on_conflict(attempt, random.Random(1)) == "written"
    assert tries[1] - tries[0] >= 0.01
    assert tries[2] - tries[1] >= 0.05

    async def always() -> None:
        tries.append(0)
        raise errors.Conflict("changed")

    tries.clear()
    with pytest.raises(errors.Conflict):
        await retry_on_conflict(always, random.Random(1))
    assert len(tries) == 4


async def test_retry_on_conflict_gives_up_on_a_lost_connection_unless_reported() -> None:
    tries: list[int] = []

    async def attempt() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise errors.ConnectionFailed("reset")

    with pytest.raises(errors.ConnectionFailed):
        await retry_on_conflict(attempt, random.Random(1))
    await retry_on_conflict(attempt, random.Random(1), on=LOST_RACE_OR_CONNECTION)
    assert len(tries) == 3


async def test_raw_requests_return_the_body() -> None:
    async with scripted(ok({"gitVersion": "v1.33.0"}), text("[]")) as server, connected(server) as cluster:
        assert await cluster.request("GET", "/version") == {"gitVersion": "v1.33.0"}
        with pytest.raises(errors.InternalError, match="no JSON object"):
            await cluster.request("GET", "/version")
