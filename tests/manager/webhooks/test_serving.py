"""Webhooks truly called over TLS: what users see when they answer, and when they do not."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from koordinator.api.admission import MutatingWebhookConfiguration
from koordinator.api.core import Secret
from koordinator.cluster.errors import InternalError
from koordinator.manager.webhooks import certificates, configuration, serving, sync, table
from koordinator.manager.webhooks.configuration import CertWriter, WebhookSettings
from koordinator.manager.webhooks.review import AdmissionRequest, AdmissionVerdict
from koordinator.manager.webhooks.serving import Webhooks, WebhookStartError
from tests.manager.webhooks.world import HOST, SERVICE, World, allowing, labelling, until

CREATE_FAILED = (
    'Internal error occurred: failed calling webhook "mpod-create.koordinator.sh": failed to call webhook: '
)


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(sync, "PROPAGATION_S", 0.2)
    found = World(tmp_path)
    await found.install()
    yield found
    await found.close()


async def set_entries(world: World, **fields: Any) -> None:
    """Change the installed template, as a new version of the manifests would."""
    view = MutatingWebhookConfiguration
    entries = [{**entry, **fields} for entry in configuration.configurations(SERVICE)[0]["webhooks"]]
    patch = {"metadata": {"annotations": {"template": msgspec.json.encode(entries).decode()}}}
    await world.client.patch(view, configuration.MUTATING_NAME, patch)


async def secret_of(world: World) -> Secret:
    return await world.client.get(Secret, "koordinator-webhook-certs", SERVICE.namespace)


def test_pages_are_served_only_where_it_is_said_who_may_not_see_them() -> None:
    serving.WebhookServer({}, synced=asyncio.Event())
    with pytest.raises(AssertionError, match="pages for everybody"):
        serving.WebhookServer({}, synced=asyncio.Event(), pages={"/quotas": lambda: b"{}"})


# When they answer


async def test_a_pod_is_admitted_through_the_service_with_the_ca_of_the_secret(world: World) -> None:
    async with world.serving() as webhooks:
        pod = await world.create_pod("web")

        assert pod.metadata.labels["asked"] == "yes"
        assert await webhooks.check() == ""
        mutating, validating = await world.lists()
        ca = (await secret_of(world)).data["ca-cert.pem"]
        assert {entry.client_config.ca_bundle for entry in (*mutating, *validating)} == {ca}
        assert [entry.name for entry in mutating] == [
            "mpod-create.koordinator.sh",
            "mpod-update.koordinator.sh",
        ]


async def test_pages_are_not_for_strangers(world: World) -> None:
    async with (
        world.serving(pages={"/elasticQuota": lambda: b"{}"}) as webhooks,
        aiohttp.ClientSession(f"https://{HOST}:{webhooks.port}") as http,
    ):
        codes = [
            (await http.get(path, headers=headers, ssl=False)).status
            for path, headers in (
                ("/elasticQuota", {}),
                ("/elasticQuota", {"Authorization": "Bearer made-up"}),
                ("/healthz", {}),
            )
        ]
        assert codes == [403, 401, 200]


async def test_a_second_replica_shares_the_certificates_and_changes_nothing(world: World) -> None:
    async with world.serving():
        before = (await secret_of(world), await world.lists())
        async with world.serving() as second:
            await world.create_pod("web")

            assert (await secret_of(world), await world.lists()) == before
            assert await second.check() == ""


async def test_with_a_host_it_is_called_by_address_and_keeps_its_certificates_in_files(
    world: World, tmp_path: Path
) -> None:
    settings = WebhookSettings(host=HOST, port=0, cert_dir=tmp_path / "own", writer=CertWriter.FS)
    async with world.serving(settings=settings) as webhooks:
        await world.create_pod("web")

        mutating, _ = await world.lists()
        assert mutating[0].client_config.url == f"https://{HOST}:{webhooks.port}{table.MUTATE_POD}"
        assert mutating[0].client_config.service is None
        assert (
            base64.b64decode(mutating[0].client_config.ca_bundle)
            == (tmp_path / "own/ca-cert.pem").read_bytes()
        )


async def test_a_gate_that_is_off_drops_the_entry_and_no_handler_at_all_empties_the_lists(
    world: World,
) -> None:
    async with world.serving({table.VALIDATE_POD: allowing}):
        mutating, validating = await world.lists()
        assert (mutating, [entry.name for entry in validating]) == (
            [],
            ["vpod.koordinator.sh", "vpodresize.koordinator.sh"],
        )
    async with world.serving({}) as webhooks:
        assert await world.lists() == ([], [])
        assert await webhooks.check() == ""
    async with world.serving():
        assert (await world.create_pod("web")).metadata.labels["asked"] == "yes"


async def test_a_configuration_edited_by_hand_is_repaired(world: World) -> None:
    async with world.serving():
        right = await world.lists()
        view, name = MutatingWebhookConfiguration, configuration.MUTATING_NAME
        for edit in ([], [{**configuration.configurations(SERVICE)[0]["webhooks"][0], "timeoutSeconds": 3}]):
            await world.client.patch(view, name, {"webhooks": edit})

            async def is_right() -> bool:
                return await world.lists() == right

            await until(is_right)


# When they do not


async def test_a_webhook_that_is_down_refuses_or_lets_pass_as_its_policy_says(world: World) -> None:
    async with world.serving() as webhooks:
        port = webhooks.port
    with pytest.raises(InternalError) as caught:
        await world.create_pod("refused")
    assert caught.value.message == (
        f'{CREATE_FAILED}Post "https://koordinator-webhook-service.koordinator-system.svc:443/mutate-pod?timeout=10s": '
        f"dial tcp 127.0.0.1:{port}: connect: connection refused"
    )

    await set_entries(world, failurePolicy="Ignore")
    async with world.serving({table.MUTATE_POD: labelling}):
        pass
    assert "asked" not in (await world.create_pod("ignored")).metadata.labels


async def test_a_webhook_that_is_too_slow_is_given_up(world: World) -> None:
    over = asyncio.Event()

    async def slow(request: AdmissionRequest) -> AdmissionVerdict:
        await over.wait()
        return await labelling(request)

    await set_entries(world, timeoutSeconds=1)
    async with world.serving({table.MUTATE_POD: slow}):
        with pytest.raises(InternalError, match=r"/mutate-pod\?timeout=1s\": context deadline exceeded"):
            await world.create_pod("web")
        over.set()


async def test_requests_that_come_before_caches_are_filled_wait_or_are_told_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "CACHES_WAIT_S", 0.1)
    async with world.serving(synced=False) as webhooks:
        assert await webhooks.check() == "caches are not filled yet"
        with pytest.raises(
            InternalError, match="koord-manager cannot answer yet: its caches are being filled"
        ):
            await world.create_pod("early")

        monkeypatch.setattr(serving, "CACHES_WAIT_S", 10)
        waiting = asyncio.create_task(world.create_pod("patient"))
        await asyncio.sleep(0.05)
        webhooks._synced.set()
        assert (await waiting).metadata.labels["asked"] == "yes"


async def test_a_broken_certificate_is_replaced_and_trusted_at_once(world: World) -> None:
    async with world.serving() as webhooks:
        before = await secret_of(world)
        broken = base64.b64encode(b"no certificate").decode()
        await world.client.patch(
            Secret, before.metadata.name, {"data": {"cert.pem": broken, "tls.crt": broken}}, SERVICE.namespace
        )

        async def is_mended() -> bool:
            return (await secret_of(world)).data["cert.pem"] not in (before.data["cert.pem"], broken)

        await until(is_mended)
        assert (await secret_of(world)).data["ca-cert.pem"] == before.data["ca-cert.pem"]
        await world.create_pod("web")
        assert await webhooks.check() == ""


async def test_no_request_fails_while_everything_is_exchanged_under_load(world: World) -> None:
    async with world.serving(), world.serving() as second:
        before = await secret_of(world)
        created, stopping = 0, asyncio.Event()

        async def load(worker: int) -> None:
            nonlocal created
            while not stopping.is_set():
                assert (await world.create_pod(f"web-{worker}-{created}")).metadata.labels["asked"] == "yes"
                created += 1

        async def is_exchanged() -> bool:
            ca = (await secret_of(world)).data["ca-cert.pem"]
            certs = second._certs
            return (
                certs is not None
                and base64.b64decode(ca) == certs.ca_cert
                and ca != before.data["ca-cert.pem"]
            )

        async with asyncio.TaskGroup() as group:
            for worker in range(4):
                group.create_task(load(worker))
            await asyncio.sleep(0.1)
            await world.client.delete(
                Secret, before.metadata.name, SERVICE.namespace
            )  # a new CA for everybody
            await asyncio.sleep(0.05)
            lists = await world.lists()
            await until(is_exchanged)
            await asyncio.sleep(0.1)
            stopping.set()

        assert created > 20
        bundles = {
            base64.b64decode(entry.client_config.ca_bundle).count(b"BEGIN")
            for entry in (*lists[0], *lists[1])
        }
        assert bundles == {2}, "both CAs are trusted before the new one is presented"


async def test_without_configurations_the_manager_says_what_to_do(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "START_S", 0.3)
    await world.client.delete(MutatingWebhookConfiguration, configuration.MUTATING_NAME)

    with pytest.raises(ExceptionGroup) as caught:
        async with world.serving():
            pass

    (error,) = caught.value.exceptions
    assert isinstance(error, WebhookStartError)
    assert str(error) == (
        "webhooks not set up after 0.3 s: MutatingWebhookConfiguration koordinator-mutating-webhook-configuration does "
        "not exist: apply the manager's manifests (`koordinator install --apply`), or name another one by "
        "MUTATING_WEBHOOK_NAME"
    )


async def test_a_replica_that_is_told_to_stop_answers_until_nobody_asks_it_any_more(world: World) -> None:
    async with world.serving(drain_s=0.3) as webhooks:
        port = webhooks.port
        stopping = asyncio.create_task(world.stopped(webhooks))
        await asyncio.sleep(0.05)

        assert await webhooks.check() == "stopping"
        assert (await world.create_pod("late")).metadata.labels["asked"] == "yes"
        await stopping

    with pytest.raises(InternalError, match=f"dial tcp 127.0.0.1:{port}: connect: connection refused"):
        await world.create_pod("too-late")


# The server by itself


async def ask(webhooks: Webhooks, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
    assert webhooks._certs is not None
    context = ssl.create_default_context(cadata=webhooks._certs.ca_cert.decode())
    url = f"https://localhost:{webhooks.port}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, data=body, ssl=context) as answer,
    ):
        return answer.status, await answer.text()


async def test_what_is_not_served_is_told_apart(world: World) -> None:
    async with world.serving() as webhooks:
        assert await ask(webhooks, "GET", "/healthz") == (200, "ok")
        assert await ask(webhooks, "POST", "/validate-node", b"{}") == (
            404,
            "/validate-node is not served; is its feature gate on?\n",
        )
        assert (await ask(webhooks, "GET", table.MUTATE_POD))[0] == 405
        assert (await ask(webhooks, "POST", table.MUTATE_POD, b" " * (serving.BODY_BYTES_MAX + 1)))[0] == 413


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_both_versions_of_reviews_are_answered_in_kind(world: World, version: str) -> None:
    review = {
        "apiVersion": f"admission.k8s.io/{version}",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "operation": "CREATE", "object": {"metadata": {"name": "p"}}},
    }
    async with world.serving() as webhooks:
        _, text = await ask(webhooks, "POST", table.MUTATE_POD, json.dumps(review).encode())

    answer = json.loads(text)
    assert (answer["apiVersion"], answer["response"]["uid"]) == (review["apiVersion"], "u")
    assert json.loads(base64.b64decode(answer["response"]["patch"])) == [
        {"op": "add", "path": "/metadata/labels", "value": {"asked": "yes"}}
    ]


async def test_conversions_are_identities_or_refused(world: World) -> None:
    def review(version: str) -> bytes:
        request = {
            "uid": "u",
            "desiredAPIVersion": "slo.koordinator.sh/v1alpha1",
            "objects": [{"apiVersion": version}],
        }
        body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request}
        return json.dumps(body).encode()

    async with world.serving() as webhooks:
        same = json.loads((await ask(webhooks, "POST", "/convert", review("slo.koordinator.sh/v1alpha1")))[1])
        other = json.loads((await ask(webhooks, "POST", "/convert", review("slo.koordinator.sh/v1")))[1])

    assert same["response"] == {
        "uid": "u",
        "convertedObjects": [{"apiVersion": "slo.koordinator.sh/v1alpha1"}],
        "result": {"status": "Success"},
    }
    assert other["response"]["result"]["status"] == "Failure"
    assert "from slo.koordinator.sh/v1 to slo.koordinator.sh/v1alpha1 is not supported" in str(other)


async def test_a_pair_that_does_not_fit_is_not_presented(world: World) -> None:
    async with world.serving() as webhooks:
        other = certificates.renewed(None, "localhost", world.clock.now())
        assert webhooks._server is not None and webhooks._certs is not None
        with pytest.raises(ssl.SSLError):
            webhooks._server.present(msgspec.structs.replace(other, key=webhooks._certs.key))

        assert await webhooks.check() == ""
