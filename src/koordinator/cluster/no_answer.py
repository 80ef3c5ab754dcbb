"""Say why a request got no answer, in the words of networks rather than those of libraries."""

import os
import re
import socket
import ssl
from collections.abc import Iterator

_NUMBER = re.compile(r"\[Errno (\d+)\]")


def reason_of(error: BaseException) -> str:
    """Return what went wrong between us and a server: `connection refused`, say. Text of the error itself where
    nothing better is known.
    """
    chain = list(_chain(error))
    for each in chain:
        if isinstance(each, ssl.SSLCertVerificationError):
            hint = "is certificate-authority or tls-server-name right?"
            return f"its certificate is not trusted: {getattr(each, 'verify_message', each)} ({hint})"
    for each in chain:
        if isinstance(each, socket.gaierror):
            return "its host name is not known"
        if isinstance(each, ssl.SSLError):
            return "it does not answer in TLS (does it speak plain http?)"
    for each in chain:
        if isinstance(each, TimeoutError):
            return "no answer in time"
        if number := _errno_of(each):
            return os.strerror(number).lower()
    return str(error) or "the connection ended before the answer"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it came from."""
    seen: BaseException | None = error
    for _ in range(8):
        if seen is None:
            return
        yield seen
        inner = getattr(seen, "os_error", None)  # as aiohttp wraps it
        seen = inner if isinstance(inner, BaseException) and inner is not seen else seen.__cause__


def _errno_of(error: BaseException) -> int:
    if not isinstance(error, OSError):
        return 0
    if error.errno is not None and error.errno > 0:
        return error.errno
    # Where a name has several addresses, asyncio tells of all in one text.
    found = _NUMBER.search(str(error))
    return int(found[1]) if found else 0
