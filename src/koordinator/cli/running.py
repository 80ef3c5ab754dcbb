"""Run a component as a process until it gets SIGTERM."""

import asyncio
import contextlib
import importlib
import signal
import threading
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from koordinator.api.errors import KoordinatorError
from koordinator.cli import logs
from koordinator.cluster.errors import ConnectionFailed, Forbidden, Unauthorized

_LIVE_S = 2.0  # for the server of an earlier kubeconfig to answer
_EXTRA_OF = {
    "kubernetes_asyncio": "local",
    "plotly": "simulate",
    "grpc": "node",
    "hpack": "node",
    "pynvml": "gpu",
}
"""Package → the extra of pyproject.toml that brings it."""


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run until it ends or a signal asks to stop (SIGINT, SIGTERM)."""
    run_to_its_end(_until_signal(work))


def run_to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where that is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def cause_of(error: Exception) -> Exception:
    """Return the error inside the task groups that it came through."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def work_of(module: str, function: str, asked: Mapping[str, Any]) -> None:
    """Carry out a command: what it works with is imported only now, as `--help` does not need these seconds."""
    logs.keep_quiet()
    work = getattr(importlib.import_module(module), function)
    work(**asked)


def import_meanwhile(package: str) -> None:
    """Begin to import a package while other imports go on: aiohttp has OpenSSL read all certificate authorities first,
    which another core does as well."""
    threading.Thread(target=importlib.import_module, args=(package,), daemon=True).start()


class Failed(click.ClickException):
    """A command ends because of what its message says."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc] # of the instance, as click reads it


def words_of(error: Exception) -> str:
    """Return what is wrong, and what to do next where that is known."""
    if isinstance(error, ConnectionFailed):
        return f"{error}; is the API server running? `koordinator up` starts one, --kubeconfig names another"
    if isinstance(error, Unauthorized):
        return f"{error}: is the token in the kubeconfig still valid? (kubectl auth whoami)"
    if isinstance(error, Forbidden):
        return (
            f"{error}; somebody with more rights can grant this one (kubectl auth can-i --list shows yours)"
        )
    if isinstance(error, OSError) and not isinstance(error, KoordinatorError) and error.strerror:
        return ": ".join(str(part) for part in (error.filename, error.strerror.lower()) if part)
    return str(error)


@contextlib.contextmanager
def one_line_errors(exit_code: int = 1) -> Iterator[None]:
    """Tell a person why a command ends, without a traceback where that is an expected end: a wrong flag, a lost
    lease, a port that is taken, a package that is not installed.

    Raises: click.ClickException, which ends with `exit_code`; what nobody expects, as it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_package(error) from error
    except (KoordinatorError, OSError, ExceptionGroup) as error:
        cause = cause_of(error)
        if not isinstance(cause, KoordinatorError | OSError) or isinstance(cause, BrokenPipeError):
            raise  # click knows what to do when nobody reads on
        raise Failed(words_of(cause), exit_code) from error


def missing_package(error: ModuleNotFoundError) -> Exception:
    """Return an error that says what to install; the error itself when the missing module is ours."""
    package = (error.name or "").partition(".")[0]
    if package in ("", __package__.partition(".")[0]):
        return error
    extra = _EXTRA_OF.get(package, "all")
    return click.ClickException(
        f"this needs the package {package}: in the checkout of koordinator, pip install '.[{extra}]'"
    )


def live_server(kubeconfig: Path) -> str:
    """Return the address in a kubeconfig at which a server answers; empty without such a file or such a server."""
    import http.client
    import ssl
    import urllib.error
    import urllib.request

    from koordinator.api import user_files, yaml_text

    try:
        config = yaml_text.load(user_files.read_text(kubeconfig))
        url = str(config["clusters"][0]["cluster"]["server"])
    except (OSError, user_files.FileError, yaml_text.YamlError, KeyError, IndexError, TypeError):
        return ""
    trust = ssl._create_unverified_context()  # whoever answers is enough: nothing is told or believed
    try:
        with urllib.request.urlopen(f"{url}/livez", timeout=_LIVE_S, context=trust):
            return url
    except urllib.error.HTTPError:
        return url
    except (OSError, ValueError, http.client.HTTPException):
        return ""


async def _until_signal(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
