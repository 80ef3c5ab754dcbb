"""Lists and watches: pages of one moment, versions of the past and the future, selectors."""

import base64
import json

import pytest

from koordinator.cluster import errors
from koordinator.cluster.backend import ListOptions, RecordList
from koordinator.cluster.protocol import EventType
from koordinator.local.registry import ObjectRegistry, reading
from koordinator.local.store import HISTORY_MAX
from tests.local.registry_builders import backend, create, definition, merge, names, next_events, pod, story


async def with_pods(count: int = 5) -> ObjectRegistry:
    api = backend()
    for i in range(count):
        await create(api, "pods", pod(f"web-{i}", node=f"n{i % 2}", labels={"i": str(i)}), "default")
    return api


def page(api: ObjectRegistry, namespace: str = "", **options: object) -> RecordList:
    return api.list(api.resolve("", "v1", "pods"), namespace, ListOptions(**options))  # type: ignore[arg-type]


def shown(found: RecordList) -> list[str]:
    return [record.obj["metadata"]["name"] for record in found.records]


async def test_pages_together_are_the_list_of_one_moment() -> None:
    api = await with_pods()
    first = page(api, limit=2)
    await api.delete(api.resolve("", "v1", "pods"), "default", "web-3")
    await create(api, "pods", pod("web-2a"), "default")
    second = page(api, limit=2, continue_token=first.continue_token)
    third = page(api, limit=2, continue_token=second.continue_token)

    assert [shown(first), shown(second), shown(third)] == [["web-0", "web-1"], ["web-2", "web-3"], ["web-4"]]
    assert [first.remaining_count, second.remaining_count, third.remaining_count] == [3, 1, None]
    assert first.version == second.version == third.version
    assert third.continue_token == ""


async def test_with_a_selector_nobody_counts_what_remains() -> None:
    api = await with_pods()

    found = page(api, limit=1, label_selector="i in (1, 3)")

    assert (shown(found), found.remaining_count) == (["web-1"], None)
    assert shown(page(api, limit=1, label_selector="i in (1, 3)", continue_token=found.continue_token)) == [
        "web-3"
    ]


async def test_a_page_that_holds_all_the_rest_is_the_last() -> None:
    found = page(await with_pods(2), limit=2)

    assert (shown(found), found.continue_token) == (["web-0", "web-1"], "")


async def test_an_outlived_token_says_how_to_go_on() -> None:
    api = await with_pods()
    first = page(api, limit=2)
    for i in range(2 * HISTORY_MAX + 2):
        await merge(api, "pods", "web-0", {"metadata": {"labels": {"i": str(i)}}})

    with pytest.raises(errors.Gone, match="The provided continue parameter is too old") as refused:
        page(api, continue_token=first.continue_token)
    token = refused.value.status()["metadata"]["continue"]

    assert shown(page(api, continue_token=token)) == ["web-2", "web-3", "web-4"]


@pytest.mark.parametrize(
    "token",
    [
        "?",
        "abc",
        base64.urlsafe_b64encode(json.dumps({"v": "v2", "rv": 1, "start": "a/b"}).encode()).decode(),
        base64.urlsafe_b64encode(
            json.dumps({"v": "meta.k8s.io/v1", "rv": 0, "start": "a/b"}).encode()
        ).decode(),
    ],
)
async def test_a_made_up_token_is_refused(token: str) -> None:
    with pytest.raises(errors.BadRequest, match="continue key is not valid"):
        page(await with_pods(), continue_token=token)


async def test_an_exact_version_shows_the_past() -> None:
    api = await with_pods(2)
    then = api.store.version
    await create(api, "pods", pod("web-9"), "default")

    found = page(api, resource_version=str(then), resource_version_match="Exact")

    assert (shown(found), found.version) == (["web-0", "web-1"], then)
    assert shown(page(api, resource_version=str(then), limit=10)) == ["web-0", "web-1"]
    assert len(page(api, resource_version=str(then)).records) == 3
    assert len(page(api, resource_version="0").records) == 3


async def test_a_version_of_the_future_times_out() -> None:
    api = await with_pods(1)

    with pytest.raises(errors.Timeout, match=r"Too large resource version: 999, current: \d+") as refused:
        page(api, resource_version="999")

    assert refused.value.details is not None
    assert refused.value.details.causes[0].reason == "ResourceVersionTooLarge"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"resource_version_match": "Exact"},
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        ),
        ({"resource_version_match": "Near", "resource_version": "1"}, 'Unsupported value: "Near"'),
        (
            {"resource_version_match": "Exact", "resource_version": "0"},
            'resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
        ),
        ({"send_initial_events": True}, "sendInitialEvents is forbidden for list"),
        ({"resource_version": "x"}, 'Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax'),
        ({"label_selector": "a in"}, "unable to parse requirement: found '' expected: '('"),
        ({"field_selector": "spec.image=x"}, "field label not supported: spec.image"),
        ({"field_selector": "x"}, "invalid selector: 'x'; can't understand 'x'"),
    ],
)
async def test_a_contradictory_list_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises((errors.BadRequest, errors.Invalid)) as refused:
        page(await with_pods(1), **options)

    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("spec.nodeName=n1", ["web-1", "web-3"]),
        ("spec.nodeName!=n1", ["web-0", "web-2", "web-4"]),
        ("spec.nodeName=", []),
        ("metadata.name=web-2", ["web-2"]),
        ("metadata.name=web-2,spec.nodeName=n1", []),
        ("metadata.namespace=kube-system", []),
        ("status.phase=Pending,spec.nodeName=n0", ["web-0", "web-2", "web-4"]),
    ],
)
@pytest.mark.parametrize("namespace", ["", "default"])
async def test_field_selectors(selector: str, expected: list[str], namespace: str) -> None:
    assert names(await with_pods(), "pods", namespace, field_selector=selector) == expected


async def test_fields_that_are_absent_have_their_defaults() -> None:
    api = backend()
    await create(api, "nodes", {"metadata": {"name": "n1"}})
    await create(api, "nodes", {"metadata": {"name": "n2"}, "spec": {"unschedulable": True}})

    assert names(api, "nodes", field_selector="spec.unschedulable=false") == ["n1"]
    assert names(api, "nodes", field_selector="spec.unschedulable=true") == ["n2"]


async def test_events_are_found_by_what_they_are_about() -> None:
    api = backend()
    for name, reason in [("web-0", "Killing"), ("web-1", "Killing"), ("web-1", "Started")]:
        body = {"metadata": {"generateName": "e"}, "reason": reason, "involvedObject": {"name": name}}
        await create(api, "events", body, "default")

    assert len(names(api, "events", field_selector="involvedObject.name=web-1,reason!=Started")) == 1


async def test_a_kind_without_fields_of_its_own_says_which_there_are() -> None:
    with pytest.raises(
        errors.BadRequest, match=r'"data.x" is not a known field selector: only "metadata.name", "meta'
    ):
        names(backend(), "configmaps", field_selector="data.x=1")


async def test_custom_resources_select_the_fields_that_they_declare() -> None:
    api = backend()
    crd = definition(selectableFields=[{"jsonPath": ".spec.color"}])
    await create(api, "customresourcedefinitions", crd, api_version="apiextensions.k8s.io/v1")
    for name, color in [("a", "red"), ("b", "blue")]:
        body = {"metadata": {"name": name}, "spec": {"color": color}}
        await create(api, "widgets", body, "default", "example.com/v1")
    widgets = api.resolve("example.com", "v1", "widgets")

    found = api.list(widgets, "", ListOptions(field_selector="spec.color=blue"))
    assert shown(found) == ["b"]
    with pytest.raises(errors.BadRequest, match=r"field label not supported: spec\.size"):
        api.list(widgets, "", ListOptions(field_selector="spec.size=1"))


async def test_a_watch_without_a_version_begins_with_what_is_there() -> None:
    api = await with_pods(2)
    pods = api.resolve("", "v1", "pods")

    for version in ("", "0"):
        watch = api.watch(pods, "default", ListOptions(resource_version=version))
        assert story(await next_events(watch)) == ["ADDED web-0", "ADDED web-1"]


async def test_a_watch_from_a_version_sees_only_what_follows() -> None:
    api = await with_pods(2)
    watch = api.watch(api.resolve("", "v1", "pods"), "", ListOptions(resource_version=str(api.store.version)))
    await merge(api, "pods", "web-1", {"metadata": {"labels": {"a": "b"}}})

    assert story(await next_events(watch)) == ["MODIFIED web-1"]


async def test_a_streamed_list_ends_with_a_bookmark() -> None:
    api = await with_pods(2)
    options = ListOptions(
        send_initial_events=True, resource_version_match="NotOlderThan", allow_bookmarks=True
    )
    watch = api.watch(api.resolve("", "v1", "pods"), "", options)

    events = await next_events(watch)

    assert story(events) == ["ADDED web-0", "ADDED web-1", "BOOKMARK"]
    assert events[-1].version == api.store.version
    watch.close()


async def test_a_watch_may_decline_the_initial_state() -> None:
    api = await with_pods(1)
    options = ListOptions(send_initial_events=False, resource_version_match="NotOlderThan")
    watch = api.watch(api.resolve("", "v1", "pods"), "", options)
    await create(api, "pods", pod("late"), "default")

    assert story(await next_events(watch)) == ["ADDED late"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            ListOptions(resource_version_match="Exact", resource_version="1"),
            errors.Invalid,
            "forbidden for watch",
        ),
        (ListOptions(send_initial_events=True), errors.Invalid, "sendInitialEvents requires setting"),
        (ListOptions(resource_version="999"), errors.Timeout, "Too large resource version"),
    ],
)
async def test_a_contradictory_watch_is_refused(
    options: ListOptions, error: type[Exception], message: str
) -> None:
    api = await with_pods(1)

    with pytest.raises(error, match=message):
        api.watch(api.resolve("", "v1", "pods"), "", options)


async def test_an_idle_watch_gets_bookmarks_if_it_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BOOKMARK_S", 0.01)
    api = await with_pods(1)
    options = ListOptions(resource_version=str(api.store.version), allow_bookmarks=True)
    watch = api.watch(api.resolve("", "v1", "pods"), "", options)
    await create(api, "configmaps", {"metadata": {"name": "c"}}, "default")

    (event,) = await next_events(watch)

    assert (event.type, event.version) == (EventType.BOOKMARK, api.store.version)
    watch.close()


async def test_a_watch_shows_the_version_that_was_asked_for() -> None:
    api = backend()
    crd = definition(versions=("v1", "v2"))
    await create(api, "customresourcedefinitions", crd, api_version="apiextensions.k8s.io/v1")
    old = api.watch(api.resolve("example.com", "v1", "widgets"), "", ListOptions())
    new = api.watch(api.resolve("example.com", "v2", "widgets"), "", ListOptions())
    await create(api, "widgets", {"metadata": {"name": "w"}}, "default", "example.com/v1")

    for watch, expected in ((old, "example.com/v1"), (new, "example.com/v2")):
        (event,) = await next_events(watch)
        assert event.record is not None
        assert event.record.obj["apiVersion"] == expected
