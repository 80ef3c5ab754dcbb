"""A realm of Kerberos on loopback: MIT's KDC with a database of its own, and keytabs."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from tests.real.processes import end_with_us

REALM = "TEST"
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local")


def why_missing() -> str:
    """Empty when a realm can be made here; else a line that names what is missing and what helps."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    return (
        f"no {', '.join(missing)}: install MIT Kerberos (Debian: krb5-kdc, krb5-admin-server)"
        if missing
        else ""
    )


class Realm:
    """`settings` is its krb5.conf."""

    def __init__(self, folder: Path) -> None:
        self.settings = folder / "krb5.conf"
        self._folder = folder

    def keytab(self, *principals: str) -> Path:
        """Make principals, and a file with their keys."""
        path = self._folder / f"{principals[0].replace('/', '-')}.keytab"
        for each in principals:
            self._admin(f"addprinc -randkey {each}")
            self._admin(f"ktadd -k {path} {each}")
        return path

    def _admin(self, query: str) -> None:
        subprocess.run(
            ["kadmin.local", "-r", REALM, "-q", query], env=self._environment, check=True, capture_output=True
        )

    @property
    def _environment(self) -> dict[str, str]:
        profile = str(self._folder / "kdc.conf")
        return {**os.environ, "KRB5_CONFIG": str(self.settings), "KRB5_KDC_PROFILE": profile}

    def lay_out(self, port: int) -> None:
        self._folder.mkdir(parents=True)
        kdc = f"kdc_listen = 127.0.0.1:{port}\n kdc_tcp_listen = 127.0.0.1:{port}\n"
        files = f" database_name = {self._folder}/principal\n key_stash_file = {self._folder}/stash\n"
        (self._folder / "kdc.conf").write_text(f"[kdcdefaults]\n {kdc}[realms]\n {REALM} = {{\n {files} }}\n")
        # UDP first: the KDC of a test answers on both.
        self.settings.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_canonicalize_hostname = false\n"
            f" rdns = false\n[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
            f"[domain_realm]\n localhost = {REALM}\n"
        )
        create = ["kdb5_util", "create", "-s", "-r", REALM, "-P", "secret"]
        subprocess.run(create, env=self._environment, check=True, capture_output=True)

    async def started(self) -> asyncio.subprocess.Process:
        out = (self._folder / "kdc.log").open("wb")
        with out:
            return await asyncio.create_subprocess_exec(
                *("krb5kdc", "-n", "-r", REALM),
                env=self._environment,
                stdout=out,
                stderr=out,
                preexec_fn=end_with_us,
            )


@contextlib.asynccontextmanager
async def realm(folder: Path) -> AsyncIterator[Realm]:
    """A realm whose KDC ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = Realm(folder)
    made.lay_out(port)
    kdc = await made.started()
    try:
        yield made
    finally:
        kdc.kill()
        await kdc.wait()
