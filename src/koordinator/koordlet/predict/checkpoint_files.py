"""The directory of prediction models: one file each, replaced as a whole, none of them worth a crash.

A disk that is full or read-only is told once, and once more when writing works again; what is learnt stays in memory.
Source: behaviour/koordlet-observe 11.3.
"""

import contextlib
import logging
import os

from koordinator.host.files import FileFailure, FileProblem, problem_of

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 1024 * 1024
"""A model has some 3 kB; whatever is larger is none."""

_TEMPORARY = ".tmp"


class CheckpointFiles:
    """Files named like the models; an empty directory name keeps nothing, `is_read_only` changes nothing."""

    def __init__(self, directory: str, *, is_read_only: bool = False) -> None:
        self._directory = directory
        self._is_read_only = is_read_only
        self.problem: FileProblem | None = None
        """Why the last write failed; None when it worked."""

    def read(self) -> dict[str, bytes]:
        """Contents by name; removes what an interrupted write left."""
        if not self._directory:
            return {}
        try:
            names = sorted(os.listdir(self._directory))
        except OSError as error:
            if problem_of(self._directory, error).failure is not FileFailure.GONE:
                log.warning("checkpoints not read", extra={"path": self._directory, "problem": str(error)})
            return {}
        found = {}
        for name in names:
            if name.endswith(_TEMPORARY):
                self.remove(name)
            elif (content := self._content(name)) is not None:
                found[name] = content
        return found

    def write(self, name: str, content: bytes) -> bool:
        """Replace a model's file; False when that failed, the old file stays then."""
        path = os.path.join(self._directory, name)
        temporary = path + _TEMPORARY
        if not self._directory or self._is_read_only or os.path.basename(path) != name:
            return False
        try:
            os.makedirs(self._directory, exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # half a file only fills the disk
            self._failed(problem_of(path, error))
            return False
        if self.problem is not None:
            log.info("checkpoints are written again", extra={"path": self._directory})
            self.problem = None
        return True

    def remove(self, name: str) -> None:
        """Forget a model; one that has no file is fine."""
        if not self._directory or self._is_read_only:
            return
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._directory, name))

    def _content(self, name: str) -> bytes | None:
        path = os.path.join(self._directory, name)
        if not os.path.isfile(path):
            return None
        try:
            with open(path, "rb") as file:
                return file.read(FILE_BYTES_MAX)
        except OSError as error:
            log.warning("checkpoint not read", extra={"path": path, "problem": str(error)})
            return None

    def _failed(self, problem: FileProblem) -> None:
        if self.problem is None or self.problem.failure is not problem.failure:
            log.warning("checkpoints not written, models are kept in memory", extra={"problem": str(problem)})
        self.problem = problem
