"""Protobuf bodies: kubectl encodes an object, the server must read what kubectl itself prints as JSON."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koordinator.api.kinds import BUILT_IN
from koordinator.api.meta import Resource
from koordinator.local.apiserver import ApiServer, protobuf
from tests.local.apiserver.fake import FakeBackend
from tests.local.apiserver.kubectl import Kubectl, needs_kubectl

CREATES = [
    "namespace team-a",
    "deployment web --image=nginx:1.27 --replicas=3 --port=8080 -- sleep 1d",
    "job once --image=busybox -- sh -c 'echo hi'",
    "cronjob nightly --image=busybox --schedule='0 3 * * *' -- date",
    "service clusterip web --tcp=80:8080",
    "service nodeport web --tcp=80:8080 --node-port=30080",
    "service externalname db --external-name=db.example.com",
    "configmap settings --from-literal=a=1 --from-literal=b=two",
    "secret generic token --from-literal=key=value",
    "serviceaccount robot",
    "quota limits --hard=cpu=2,pods=3",
    "poddisruptionbudget web --selector=app=web --min-available=50%",
    "poddisruptionbudget db --selector=app=db --max-unavailable=1",
    "priorityclass high --value=1000 --description=important",
    "priorityclass zero --value=0",
    "role reader --verb=get,list --resource=pods,deployments.apps",
    "rolebinding reader --role=reader --user=alice --serviceaccount=default:robot",
    "clusterrole reader --verb=get --resource=nodes --resource-name=a",
    "clusterrole urls --verb=get --non-resource-url=/logs",
    "clusterrolebinding reader --clusterrole=reader --group=staff",
    "ingress web --rule='example.com/path*=web:80,tls=cert' --class=nginx",
]


@pytest.mark.kubectl
@needs_kubectl
@pytest.mark.parametrize("command", CREATES, ids=lambda command: " ".join(command.split()[:3]))
async def test_what_kubectl_creates_in_protobuf_arrives_as_what_it_prints_as_json(
    command: str, server: ApiServer, backend: FakeBackend, tmp_path: Path
) -> None:
    backend.served = list(BUILT_IN)
    kubectl = Kubectl(server, tmp_path)

    head, separator, program = command.partition(" -- ")
    printed = json.loads(await kubectl(f"create {head} --dry-run=client -o json{separator}{program}"))
    await kubectl(f"create {command}")

    (record,) = backend.records.values()
    assert without_nothing(record.obj) == without_nothing(printed)


def without_nothing(value: Any) -> Any:
    """An object without what says nothing: empty members, what the fake server added."""
    if isinstance(value, dict):
        kept = {key: without_nothing(item) for key, item in value.items()}
        return {
            key: item
            for key, item in kept.items()
            if item not in (None, {}, [])
            and key not in ("creationTimestamp", "resourceVersion", "namespace", "status")
        }
    return [without_nothing(item) for item in value] if isinstance(value, list) else value


def envelope(kind: str, raw: bytes, api_version: str = "v1") -> bytes:
    """A message as Go clients wrap it."""
    type_meta = field(1, api_version.encode()) + field(2, kind.encode())
    return b"k8s\x00" + field(1, type_meta) + field(2, raw)


def field(number: int, raw: bytes) -> bytes:
    assert len(raw) < 128
    return bytes([number << 3 | 2, len(raw)]) + raw


def test_a_field_that_is_not_known_is_refused_rather_than_dropped() -> None:
    volume = field(1, b"data") + field(2, field(7, field(1, b"server")))  # an NFS volume

    with pytest.raises(protobuf.Unreadable, match="field 7 of VolumeSource"):
        protobuf.decode(envelope("Pod", field(2, field(1, volume))))


def test_a_kind_that_is_not_known_is_refused() -> None:
    with pytest.raises(protobuf.Unreadable, match="Gadget"):
        protobuf.decode(envelope("Gadget", b""))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{}", id="no envelope"),
        pytest.param(b"k8s\x00\x0a\xff", id="a length beyond the end"),
        pytest.param(b"k8s\x00" + b"\xff" * 12, id="a number of 84 bits"),
        pytest.param(b"k8s\x00\x0b", id="an unknown wire type"),
        pytest.param(envelope("Pod", field(1, field(1, b"\xff\xfe"))), id="a text that is not UTF-8"),
        pytest.param(envelope("Pod", b"\x08\x01"), id="a number for a message"),
    ],
)
def test_malformed_bytes_are_told_apart_from_unknown_messages(body: bytes) -> None:
    with pytest.raises(protobuf.Malformed):
        protobuf.decode(body)


async def test_a_kind_without_field_numbers_answers_415_so_that_clients_fall_back(
    http: aiohttp.ClientSession, backend: FakeBackend
) -> None:
    backend.served = [Resource(group="example.com", version="v1", kind="Widget", plural="widgets")]
    headers = {"Content-Type": protobuf.MEDIA_TYPE}

    async with http.post(
        "/apis/example.com/v1/namespaces/a/widgets",
        data=envelope("Widget", b"", "example.com/v1"),
        headers=headers,
    ) as response:
        status = await response.json()

    assert (response.status, status["reason"]) == (415, "UnsupportedMediaType")
    assert "application/json" in status["message"]
