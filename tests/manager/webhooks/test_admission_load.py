"""What the benchmark of pod admission sends is what the handlers are for: pods that they change and let pass."""

import asyncio
import base64

import msgspec
import pytest
from benchmarks import admission

from koordinator.manager.manager import Manager
from koordinator.manager.webhooks import review


@pytest.mark.parametrize("kind", ["small", "large"])
def test_the_pods_of_the_benchmark_are_made_batch_pods_and_pass(kind: str) -> None:
    async def main() -> None:
        manager = await admission.manager(admission.Scene(name="test", profiles=5, matching=2))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(manager.run())
            await manager.synced.wait()
            await _ask(manager, kind)
            task.cancel()

    asyncio.run(main())


async def _ask(manager: Manager, kind: str) -> None:
    pair = admission.requests_of(kind, 1)[0]
    mutate, validate = (request.partition(b"\r\n\r\n")[2] for request in pair)

    changed = msgspec.json.decode(await review.review(manager.handlers["/mutate-pod"], mutate))["response"]
    checked = msgspec.json.decode(await review.review(manager.handlers["/validate-pod"], validate))[
        "response"
    ]

    assert checked["allowed"] and changed["allowed"]
    operations = msgspec.json.decode(base64.b64decode(changed["patch"]))
    assert "/spec/containers/0/resources/requests" in {operation["path"] for operation in operations}
