"""Admission webhooks answered in this process: the review protocol word for word, only without a socket."""

import random
from collections.abc import Mapping

from koordinator.api import kinds
from koordinator.local.admission import WebhookAdmission
from koordinator.local.admission.client import INPROC
from koordinator.local.registry import ObjectRegistry
from koordinator.manager.webhooks import configuration, review

_NAME = "koord-manager"


async def admit_by(
    handlers: Mapping[str, review.Handler], registry: ObjectRegistry, rng: random.Random
) -> None:
    """Ask `handlers` (by path) whatever the manager's webhook configurations say, from now on."""
    admission = WebhookAdmission.on(registry, rng)
    for path, handler in handlers.items():
        admission.register_handler(f"{_NAME}{path}", _answering(handler))
    registry.admission = admission
    for wanted in configuration.configurations(f"{INPROC}://{_NAME}", paths=handlers.keys()):
        group, _, _ = wanted["apiVersion"].rpartition("/")
        resource = kinds.by_kind(group, wanted["kind"])
        assert resource is not None, wanted
        await registry.create(resource, "", wanted)


def _answering(handler: review.Handler) -> review.Answering:
    async def answer(body: bytes) -> bytes:
        return await review.review(handler, body)

    return answer
