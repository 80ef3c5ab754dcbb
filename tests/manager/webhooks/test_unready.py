"""Who creates what nothing acts on yet is told so at once: by admission, and by `koordinator doctor`."""

import asyncio

import pytest

from koordinator.api import unready
from koordinator.api.meta import Object
from koordinator.api.unready import Recommendation
from koordinator.install import configs
from koordinator.install.values import Values
from koordinator.manager.webhooks import configuration, review, table
from koordinator.manager.webhooks.all import warn
from tests.doctor.builders import decoded, findings, healthy, snapshot

KINDS = sorted(unready.KINDS, key=lambda view: view.resource.kind)


def asked(view: type[Object], operation: str = "CREATE") -> review.AdmissionVerdict:
    resource = review.GroupVersionResource(view.resource.group, view.resource.version, view.resource.plural)
    return asyncio.run(warn(review.AdmissionRequest(resource=resource, operation=operation, object={})))


@pytest.mark.parametrize("view", KINDS, ids=lambda view: view.resource.kind)
def test_creating_a_kind_that_nothing_acts_on_is_allowed_with_a_warning(view: type[Object]) -> None:
    verdict = asked(view)
    assert verdict.allowed
    (warning,) = verdict.warnings
    assert warning.startswith(f"{view.resource.kind}: this version of Koordinator does not act on it yet: ")
    assert not asked(view, "UPDATE").warnings

    (entry,) = [
        entry
        for entry in configuration.configurations(configuration.WebhookService())[1]["webhooks"]
        if entry["rules"][0]["resources"] == [view.resource.plural]
    ]
    assert entry["clientConfig"]["service"]["path"] == table.WARN_UNREADY
    assert entry["failurePolicy"] == "Ignore"
    assert entry["name"] not in configs.failure_policies(Values().webhook_configuration.failure_policy)


def test_doctor_finds_what_nothing_acts_on() -> None:
    objects = healthy()
    objects[Recommendation] = [decoded(Recommendation, {}, name=name) for name in ("a", "b")]

    found = findings("unready", snapshot(objects))

    assert [each.object for each in found] == ["2 Recommendations"]
    assert all("does not act on it yet" in each.problem for each in found)
    assert not findings("unready", snapshot())
