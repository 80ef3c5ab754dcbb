"""The kubeconfig file of the local cluster."""

import base64
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

NAME = "koordinator"


def content(
    *,
    server: str,
    ca_certificate: bytes | None = None,
    token: str = "",
    extension: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the kubeconfig of one cluster. Answers are not compressed: client and server share the machine.

    `extension` is what else our own commands need to know, kept where kubectl ignores it.
    """
    cluster: dict[str, Any] = {"server": server, "disable-compression": True}
    if ca_certificate is not None:
        cluster["certificate-authority-data"] = base64.b64encode(ca_certificate).decode()
    if extension:
        cluster["extensions"] = [{"name": NAME, "extension": dict(extension)}]
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
        "preferences": {},
        "users": [{"name": NAME, "user": {"token": token} if token else {}}],
    }


def write(
    path: Path,
    *,
    server: str,
    ca_certificate: bytes | None = None,
    token: str = "",
    extension: Mapping[str, str] | None = None,
) -> None:
    """Write the file at once and for its owner only (mode 0600): a reader never sees half of it.

    Raises: OSError.
    """
    body = content(server=server, ca_certificate=ca_certificate, token=token, extension=extension)
    text = yaml.safe_dump(body, sort_keys=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # made with mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
