"""The operator before a YARN with Kerberos: a real KDC, a real ResourceManager and NodeManager."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from koordinator.clock import SystemClock
from koordinator.yarn.connection import Login
from koordinator.yarn.hadoop_config import YarnCluster
from koordinator.yarn.kerberos import GssapiMechanism, KerberosLogin
from koordinator.yarn.resource_managers import MODES, Observe, ResourceManagers
from koordinator.yarn.rest import RestClient
from tests.yarn.hadoop import kdc
from tests.yarn.hadoop.bed import HOST, NodeSize, hadoop, until
from tests.yarn.hadoop.kdc import REALM, Realm
from tests.yarn.hadoop.test_operator import Both
from tests.yarn.world import kubernetes

pytest.importorskip("gssapi", reason="no gssapi: pip install '.[kerberos]'")
pytestmark = pytest.mark.skipif(bool(kdc.why_missing()), reason=kdc.why_missing())
RM, NM = f"rm/{HOST}", f"nm/{HOST}"


def secured(realm: Realm) -> dict[str, str]:
    """Properties of daemons and clients."""
    found = {
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "true",
        "security.resourcetracker.protocol.acl": "*",
        "yarn.acl.enable": "true",
        "yarn.admin.acl": "koord,rm",
        "yarn.resourcemanager.principal": f"rm/_HOST@{REALM}",
        "yarn.nodemanager.principal": f"nm/_HOST@{REALM}",
    }
    for part, principal in (("resourcemanager", RM), ("nodemanager", NM)):
        found[f"yarn.{part}.keytab"] = str(realm.keytab(principal))
    return found


@contextlib.asynccontextmanager
async def both(
    folder: Path, monkeypatch: pytest.MonkeyPatch, user: str, server: str = ""
) -> AsyncIterator[Both]:
    """With an operator that proves to be `user`, and takes the ResourceManager for `server`."""
    async with kdc.realm(folder / "kdc") as realm:
        monkeypatch.setenv("KRB5_CONFIG", str(realm.settings))
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={realm.settings}")
        proof = KerberosLogin(f"{user}@{REALM}", str(realm.keytab(user)))
        more = secured(realm)
        async with (
            hadoop(folder / "hadoop", managers=1, more=more) as bed,
            aiohttp.ClientSession() as session,
        ):

            def connect(cluster: YarnCluster, observe: Observe) -> ResourceManagers:
                assert cluster.is_kerberos
                login = Login(
                    user, lambda at, protocol: GssapiMechanism(proof, at, server or cluster.principal)
                )
                return ResourceManagers(cluster, login, RestClient(session, user), MODES["rpc"], observe)

            async with kubernetes(SystemClock(), bed.configuration, connect) as world:
                await world.add_node("n1")
                await world.node_manager(bed.nodes[0].node_id, "n1")
                async with world.operating():
                    yield Both(world, bed)


async def test_totals_are_told_with_a_ticket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with both(tmp_path, monkeypatch, "koord") as found:
        await found.until_total(11)

        await found.world.batch_pod("batch", 6_000)

        await found.until_total(5)


async def test_a_principal_without_the_right_changes_nothing_and_people_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with both(tmp_path, monkeypatch, "stranger") as found:

        async def told() -> bool:
            return "YarnAccessDenied" in await found.world.events()

        await until(told, "nobody was told", 60)

        assert await found.total() == NodeSize(1, 1024)
        assert "stranger" in (await found.world.events())["YarnAccessDenied"]


async def test_a_server_that_is_somebody_else_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with both(tmp_path, monkeypatch, "koord", server=f"other/_HOST@{REALM}") as found:

        async def told() -> bool:
            return "YarnUnreachable" in await found.world.events()

        await until(told, "nobody was told", 60)

        assert await found.total() == NodeSize(1, 1024)
        message = (await found.world.events())["YarnUnreachable"]
        assert f"the server is {RM}" in message and "yarn.resourcemanager.principal" in message
