"""Reading a cluster and a dump: once, with gaps instead of failures."""

import asyncio
import contextlib
import ssl
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from koordinator.api.core import Node, Secret
from koordinator.api.groups import Lease
from koordinator.api.meta import to_wire
from koordinator.api.node_metric import NodeMetric
from koordinator.cli.doctor import main
from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.cluster.protocol import Page
from koordinator.doctor import gather, inquiries
from koordinator.doctor.checks.all import BY_NAME, examine
from koordinator.doctor.finding import FindingSeverity
from koordinator.doctor.snapshot import KINDS, NOT_SERVED
from koordinator.manager.webhooks import certificates
from tests.doctor import builders
from tests.doctor.builders import NAMESPACE, NOW_S, healthy


class Healthy:
    """A cluster with the objects of a healthy installation; some kinds may not be listed."""

    def __init__(self, **refusals: errors.ApiError) -> None:
        self.clock = FixedClock(NOW_S)
        self.objects = healthy()
        self.refusals = refusals
        self.requests: list[str] = []

    async def list(self, view: Any, namespace: str = "", **_: str) -> Page[Any]:
        self.requests.append(view.resource.plural)
        if view.resource.plural in self.refusals:
            raise self.refusals[view.resource.plural]
        items = [each for each in self.objects[view] if namespace in ("", each.metadata.namespace)]
        return Page(items, "1")

    async def request(self, method: str, path: str, body: Any = None, params: Any = None) -> dict[str, Any]:
        self.requests.append(path)
        if path == "/version":
            return {"gitVersion": "v1.32.0"}
        if path.endswith("/pods"):
            if body["metadata"]["labels"]["koordinator.sh/qosClass"] == "LS":
                raise errors.BadRequest('admission webhook "vpod.koordinator.sh" denied the request: no')
            body["metadata"]["annotations"] = {"node.koordinator.sh/extended-resource-spec": "{}"}
            return dict(body)
        return {"status": {"allowed": True}}


async def look(cluster: Healthy, **more: Any) -> Any:
    return await gather.from_cluster(cluster, NAMESPACE, **more)  # type: ignore[arg-type]


async def test_a_healthy_cluster_is_read_once_and_has_no_findings() -> None:
    cluster = Healthy()

    report = examine(await look(cluster))

    assert list(report.findings) == []
    assert report.not_done == []
    listed = [each for each in cluster.requests if not each.startswith("/")]
    assert sorted(listed) == sorted([view.resource.plural for view in (*KINDS, Secret)])


async def test_nothing_is_sent_for_trial_when_that_is_not_wanted() -> None:
    cluster = Healthy()

    found = await look(cluster, tries_admission=False, asks_permissions=False)

    assert (found.admission, found.access) == (None, None)
    assert [each for each in cluster.requests if each.startswith("/")] == ["/version"]
    assert examine(found).not_done == ["access", "admission"]


async def test_forbidden_kinds_become_notices_that_name_the_checks_left_out() -> None:
    refused = errors.Forbidden('nodes is forbidden: User "eve" cannot list resource "nodes"')

    report = examine(await look(Healthy(nodes=refused)))

    assert list(report.not_done) == [
        "batch",
        "isolation",
        "leftovers",
        "reports",
        "runtimes",
        "tidal-pools",
        "topology",
        "yarn-operator",
    ]
    (notice,) = report.findings
    assert notice.severity is FindingSeverity.NOTICE
    assert notice.remedy == ("kubectl auth can-i list nodes -A",)


async def test_kinds_that_are_not_served_are_reported_by_the_check_of_crds_only() -> None:
    found = await look(
        Healthy(nodemetrics=errors.NotFound("the server could not find the requested resource"))
    )

    assert found.gap(NodeMetric) == NOT_SERVED
    assert list(examine(found, ["reports"]).findings) == []


async def test_an_api_server_that_does_not_answer_ends_it() -> None:
    with pytest.raises(errors.ConnectionFailed):
        await look(Healthy(nodes=errors.ConnectionFailed("refused")))


def dumped(folder: Path) -> str:
    objects = healthy()
    items = [to_wire(each) for view in KINDS for each in objects[view]]
    path = folder / "dump.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(path)


def test_a_dump_is_read_as_a_cluster_at_the_time_of_its_newest_report(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--dump", dumped(tmp_path), "-o", "json"])

    body = msgspec.json.decode(done.stdout)
    assert done.exit_code == 0, done.output
    assert body["counts"] == {"error": 0, "warning": 0, "notice": len(body["findings"])}
    assert {"config", "reports", "webhooks", "profiles"} - set(body["passed"]) <= {"profiles"}


def test_kinds_that_a_dump_lacks_are_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    path.write_bytes(msgspec.json.encode(to_wire(builders.node())))

    done = CliRunner().invoke(main, ["--dump", str(path), "-o", "yaml"])

    body = yaml.safe_load(done.stdout)
    assert done.exit_code == 0, done.output
    assert {each["severity"] for each in body["findings"]} == {"notice"}
    assert "config" in body["notDone"]


def test_text_names_object_reason_and_next_step_and_the_exit_code_tells_the_worst(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_bytes(msgspec.json.encode(to_wire(builders.config(colocation_config="{"))))

    done = CliRunner().invoke(main, ["--dump", str(path), "--check", "config"])

    assert done.exit_code == 2
    assert "ConfigMap koordinator-system/slo-controller-config: colocation-config: not JSON" in done.stdout
    assert "→ kubectl -n koordinator-system edit configmap slo-controller-config" in done.stdout
    assert "1 error" in done.stdout


def test_no_cluster_and_no_dump_are_reported_in_one_line_with_code_3(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--kubeconfig", str(tmp_path / "none")])

    assert done.exit_code == 3
    assert "Error:" in done.output
    assert "Traceback" not in done.output


def test_all_checks_are_listed_by_name() -> None:
    done = CliRunner().invoke(main, ["--list-checks"])

    assert [line.split()[0] for line in done.stdout.splitlines()] == list(BY_NAME)


@contextlib.asynccontextmanager
async def tls_server(certs: certificates.CertificateSet) -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        cert, key = Path(folder, "c"), Path(folder, "k")
        cert.write_bytes(certs.cert)
        key.write_bytes(certs.key)
        context.load_cert_chain(cert, key)

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_handshake_tells_trust_distrust_and_silence_apart() -> None:
    import time

    certs = certificates.renewed(None, "127.0.0.1", time.time())
    async with tls_server(certs) as url:
        assert await inquiries.shake(f"{url}/mutate-pod", certs.ca_cert) == inquiries.Handshake(reached=True)
        stranger = await inquiries.shake(url, builders.certificate().ca_cert)
        assert stranger.reached
        assert "certificate" in stranger.problem
    assert not (await inquiries.shake(url, certs.ca_cert)).reached
    assert not (await inquiries.shake("https://127.0.0.1:1", b"junk")).reached


def test_the_builders_cover_every_kind_that_is_read() -> None:
    assert set(healthy()) == {*KINDS, Secret}
    assert healthy()[Lease]
    assert healthy()[Node]
