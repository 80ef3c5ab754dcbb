"""What becomes of claims between the choice of their devices and the binding of their pod."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from koordinator.api.dra import FINALIZER, ResourceClaim
from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugins.dynamic_resources.claim_allocations import (
    TRIES_MAX,
    ClaimInUse,
    ClaimWriter,
)
from tests.scheduler.dynamic_resources.bench import Bench
from tests.scheduler.dynamic_resources.builders import (
    Json,
    claim,
    device,
    device_class,
    exactly,
    resource_slice,
    user_of,
)
from tests.scheduler.fake_cluster import FakeCluster

KEY = ("default", "c")
ALLOCATED = {"devices": {"results": []}}
US, OTHER = ({"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in ("p", "other"))


def claim_of(*, uid: str = "uid-c", leaves: bool = False, **status: Any) -> Json:
    body: Json = claim("c", exactly())
    body["metadata"] = {**body["metadata"], "namespace": "default", "uid": uid, "finalizers": [FINALIZER]}
    if leaves:
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {**body, "status": status}


class Desk:
    """A pod `p` that is on its way with claim `c`, whose device is promised (or which has one already)."""

    def __init__(self, *, has_promise: bool) -> None:
        self.api = FakeCluster(FixedClock(1_700_000_000.0))
        self.bench = Bench()
        self.bench.node("a")
        self.bench.classes(device_class())
        self.bench.slices(resource_slice("a", device("a0"), node="a"))
        self.bench.claims(claim_of())
        placed = self.bench.place(user_of("p", "c"))
        assert isinstance(placed, Placed)
        self.pod = placed.pod
        [promise] = self.bench.books.promises
        handle: Any = SimpleNamespace(cluster=self.api, clock=self.api.clock)
        self.writer = ClaimWriter(handle, self.bench.books, 600.0)
        self.writer.book(self.pod, [ClaimInUse(KEY, "uid-c", promise if has_promise else None)])

    def now(self, live: Json | None) -> None:
        """Meanwhile the claim has become this, as everybody has seen."""
        if live is None:
            self.bench.remove(ResourceClaim, "c")
        else:
            self.bench.put(ResourceClaim, live)
            self.api.put("ResourceClaim", live)

    def write(self) -> str:
        """Write all claims; why that did not succeed."""
        return asyncio.run(self.writer.write(self.pod)).message

    def users(self) -> list[str]:
        """Pods for which the patches of the status reserve the claim."""
        return [
            user["name"]
            for _, patch in self.api.patches
            for user in patch.get("status", {}).get("reservedFor", ())
        ]


@pytest.mark.parametrize(
    ("live", "message"),
    [
        pytest.param(claim_of(), "", id="as it was"),
        pytest.param(None, "claim default/c got deleted in the meantime", id="gone"),
        pytest.param(
            claim_of(uid="uid-next"), "claim default/c got deleted in the meantime", id="another one"
        ),
        pytest.param(
            claim_of(leaves=True), "claim default/c got deleted in the meantime", id="being deleted"
        ),
        pytest.param(
            claim_of(allocation=ALLOCATED),
            "claim default/c got allocated elsewhere in the meantime",
            id="taken",
        ),
    ],
)
def test_a_promised_device_is_given_to_the_claim_that_it_was_promised_to(
    live: Json | None, message: str
) -> None:
    desk = Desk(has_promise=True)
    desk.now(live)

    assert desk.write() == message

    assert desk.users() == ["p"] * (not message)
    assert len(desk.api.patches) == (not message), "nothing else is written"


@pytest.mark.parametrize(
    ("live", "message", "users"),
    [
        pytest.param(claim_of(allocation=ALLOCATED), "", ["p"], id="nobody else uses it"),
        pytest.param(
            claim_of(allocation=ALLOCATED, reservedFor=[OTHER]), "", ["other", "p"], id="another one uses it"
        ),
        pytest.param(claim_of(allocation=ALLOCATED, reservedFor=[US]), "", [], id="it is reserved already"),
        pytest.param(
            claim_of(allocation=ALLOCATED, reservedFor=[{**US, "uid": "uid-former"}]),
            "",
            ["p", "p"],
            id="a former pod of that name uses it",
        ),
        pytest.param(
            claim_of(allocation=ALLOCATED, reservedFor=[{**OTHER, "uid": str(n)} for n in range(256)]),
            "claim default/c is used by too many pods",
            [],
            id="too many use it",
        ),
        pytest.param(
            claim_of(), "claim default/c got deallocated in the meantime", [], id="without a device"
        ),
        pytest.param(None, "claim default/c got deleted in the meantime", [], id="gone"),
        pytest.param(
            claim_of(uid="uid-next", allocation=ALLOCATED),
            "claim default/c got deleted in the meantime",
            [],
            id="another one",
        ),
        pytest.param(
            claim_of(uid="uid-next", allocation=ALLOCATED, reservedFor=[US]),
            "claim default/c got deleted in the meantime",
            [],
            id="another one that is reserved for the pod",
        ),
    ],
)
def test_a_claim_that_has_its_device_is_shared_with_one_more_pod(
    live: Json | None, message: str, users: list[str]
) -> None:
    desk = Desk(has_promise=False)
    desk.now(live)

    assert desk.write() == message
    assert desk.users() == users


@pytest.mark.parametrize("conflicts", [0, 1, TRIES_MAX - 1, TRIES_MAX])
def test_a_claim_that_others_change_is_written_at_the_fifth_try_or_never(conflicts: int) -> None:
    desk = Desk(has_promise=False)
    desk.now(claim_of(allocation=ALLOCATED))
    desk.api.fail_next["patch"] = [errors.Conflict("changed") for _ in range(conflicts)]

    is_late = conflicts == TRIES_MAX
    assert desk.write() == ("claim default/c is changed by others all the time" if is_late else "")
    assert desk.users() == ["p"] * (not is_late)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_write_without_an_answer_counts_where_it_was_carried_out(
    is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(has_promise=True)
    desk.now(claim_of())
    patch = desk.api.patch
    answers = iter([False])

    async def cut_off(view: type[Any], name: str, body: Any, *rest: Any, **options: Any) -> Any:
        if next(answers, True):
            return await patch(view, name, body, *rest, **options)
        if is_written:
            await patch(view, name, body, *rest, **options)
        raise errors.Timeout("no answer")

    monkeypatch.setattr(desk.api, "patch", cut_off)

    assert desk.write() == ""
    assert desk.users() == ["p"], "written once"
