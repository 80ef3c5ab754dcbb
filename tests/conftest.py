"""What holds for all tests."""

import gc
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no fault of the code: `timeout` in pyproject.toml ends what hangs.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")

# Tests hold what thousands of files defined: looking through all of it for garbage takes a seventh of their time.
gc.set_threshold(100_000, 20, 50)

# The address of a Unix socket is a path of at most 107 bytes, of which `tmp_path` may take about half.
_FOLDER_BYTES_MAX = 16
if len(os.fsencode(tempfile.gettempdir())) > _FOLDER_BYTES_MAX:
    for _folder in ("/tmp", "/var/tmp", "/run", "/dev/shm"):
        if os.access(_folder, os.W_OK | os.X_OK):
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _folder)
            break


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the test's own, with a name that leaves room for those of sockets."""
    name = request.node.originalname if isinstance(request.node, pytest.Function) else request.node.name
    return tmp_path_factory.mktemp(name.removeprefix("test_")[:10])


@pytest.fixture(scope="module")
def folders_of_examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Temporary folders that examples of a search make for themselves go when pytest's own go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("examples")))
        yield


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that runs in the test's own process sets up logging for the whole process: the next test finds it as
    before."""
    root = logging.getLogger()
    own = _own_levels()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    for name in own.keys() | _own_levels().keys():
        logging.getLogger(name).setLevel(own.get(name, logging.NOTSET))


def _own_levels() -> dict[str, int]:
    known = logging.root.manager.loggerDict.items()
    return {name: each.level for name, each in known if isinstance(each, logging.Logger) and each.level}
