"""Does a webhook server answer over TLS, with a certificate that the API server will trust?

Only webhooks with a URL can be tried from outside of the cluster; services are reached by the API server only.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

TIMEOUT_S = 5.0


class Handshake(msgspec.Struct, frozen=True, kw_only=True):
    """The result of connecting. `reached` is False when nothing answered; `problem` is then why, else why the
    certificate is not trusted (empty when it is).
    """

    reached: bool
    problem: str = ""


async def shake_all(targets: Iterable[tuple[str, bytes]]) -> dict[str, Handshake]:
    """Return a handshake for each (URL, PEM certificates to trust), by `https://host:port`."""
    chosen = {address(url): (url, ca) for url, ca in targets}
    done = await asyncio.gather(*(shake(url, ca) for url, ca in chosen.values()))
    return dict(zip(chosen, done, strict=True))


def address(url: str) -> str:
    """`https://host:port` of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


async def shake(url: str, ca: bytes) -> Handshake:
    """Connect, check the certificate against `ca`, hang up."""
    parts = urlsplit(url)
    try:
        context = ssl.create_default_context(cadata=ca.decode("ascii") if ca else None)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as Go, which API servers are written in
        port = parts.port or 443
    except (ssl.SSLError, ValueError) as error:
        return Handshake(reached=False, problem=f"not tried: {error}")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, writer = await asyncio.open_connection(
                parts.hostname, port, ssl=context, server_hostname=parts.hostname
            )
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    except ssl.SSLCertVerificationError as error:
        return Handshake(reached=True, problem=error.verify_message or str(error))
    except ssl.SSLError as error:
        return Handshake(reached=True, problem=str(error))
    except TimeoutError:
        return Handshake(reached=False, problem=f"no answer within {TIMEOUT_S:g} s")
    except OSError as error:
        return Handshake(reached=False, problem=error.strerror or str(error))
    return Handshake(reached=True)
