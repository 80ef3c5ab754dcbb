"""The certificate directory: read as a whole, replaced as a whole.

The files are links into a directory of one version, which a single rename exchanges (as the kubelet does for
mounted Secrets): who reads certificate and key through `..data` never gets halves of two pairs.
"""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from koordinator.api import user_files
from koordinator.api.errors import KoordinatorError
from koordinator.manager.webhooks.certificates import SECRET_KEYS, CertificateSet

_DATA = "..data"
_VERSION_PREFIX = "..v"


class CertificateDirError(KoordinatorError):
    """The directory cannot be used; the text names it and the variable that says where it is."""

    def __init__(self, folder: Path, problem: str) -> None:
        super().__init__(f"certificate directory {folder} (WEBHOOK_CERT_DIR): {problem}")


def read(folder: Path) -> CertificateSet | None:
    """Return what the directory holds; None when it, or one of the files, is missing. Raises: CertificateDirError."""
    try:
        return CertificateSet(*(user_files.read(Path(folder, name)) for name in SECRET_KEYS))
    except FileNotFoundError:
        return None
    except (OSError, user_files.FileError) as error:
        raise CertificateDirError(folder, str(error)) from error


def write(folder: Path, certs: CertificateSet) -> None:
    """Make the directory hold this set; nothing is written when it does. Raises: CertificateDirError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _holds(folder, certs):
            return
        version = Path(tempfile.mkdtemp(prefix=_VERSION_PREFIX, dir=folder))  # readable by us only
        data = certs.secret_data()
        for name, content in data.items():
            descriptor = os.open(version / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        _link(folder, _DATA, version.name)
        for name in data:
            _link(folder, name, f"{_DATA}/{name}")
        for old in folder.glob(f"{_VERSION_PREFIX}*"):
            if old != version:
                shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise CertificateDirError(folder, str(error)) from error


def _holds(folder: Path, certs: CertificateSet) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return all(
            Path(folder, name).read_bytes() == content for name, content in certs.secret_data().items()
        )
    return False


def _link(folder: Path, name: str, target: str) -> None:
    """Make `name` a link to `target`, in one step also when there is something of that name."""
    if (folder / name).is_symlink() and os.readlink(folder / name) == target:
        return
    temporary = folder / f"{_VERSION_PREFIX}-{name}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(folder / name)
