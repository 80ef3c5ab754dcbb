"""YARN clusters and their ResourceManagers, from the files of a Hadoop configuration folder.

All but `stamp` and `read_folder` is pure. `Dialect.HADOOP` reads files as Hadoop does; `Dialect.REFERENCE` as literally
as the Go operator. Source: behaviour/yarn 3.2 and 3.3.
"""

import enum
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import msgspec

from koordinator.api import user_files
from koordinator.api.errors import KoordinatorError
from koordinator.yarn.amounts import DEFAULT_CLUSTER
from koordinator.yarn.node_sync import PORT_MAX

SITE_FILE = "yarn-site.xml"
FILES = ("core-default.xml", "core-site.xml", "yarn-default.xml", SITE_FILE)
"""Files that are read for a cluster, in this order; a later file wins. Only the last one must be there."""

HA_ENABLED = "yarn.resourcemanager.ha.enabled"
RM_IDS = "yarn.resourcemanager.ha.rm-ids"
HOSTNAME = "yarn.resourcemanager.hostname"
ADDRESS = "yarn.resourcemanager.address"
ADMIN_ADDRESS = "yarn.resourcemanager.admin.address"
WEB_ADDRESS = "yarn.resourcemanager.webapp.address"
WEB_HTTPS_ADDRESS = "yarn.resourcemanager.webapp.https.address"
HTTP_POLICY = "yarn.http.policy"
AUTHENTICATION = "hadoop.security.authentication"
PRINCIPAL = "yarn.resourcemanager.principal"

DEFAULT_HOST = "0.0.0.0"
PORTS = {ADDRESS: 8032, ADMIN_ADDRESS: 8033, WEB_ADDRESS: 8088, WEB_HTTPS_ADDRESS: 8090}

_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")
_ADDRESS = re.compile(r"\S+:[0-9]{1,9}", re.ASCII)
_VARIABLE = re.compile(r"\$\{([^${}\s]+)\}")
_INCLUDE, _FALLBACK = (f"{{http://www.w3.org/2001/XInclude}}{name}" for name in ("include", "fallback"))
_INCLUSIONS_MAX = 8
_EXPANSIONS_MAX = 20  # as Hadoop: more means that variables name each other in a circle


class HadoopConfigError(KoordinatorError, ValueError):
    """A cluster's configuration cannot be used."""

    def __init__(self, cluster: str, field: str, reason: str) -> None:
        super().__init__(cluster, field, reason)
        self.cluster, self.field, self.reason = cluster, field, reason

    def __str__(self) -> str:
        return f"YARN cluster {self.cluster}: {self.field}: {self.reason}"


class Dialect(enum.Enum):
    """The leniency with which files are read."""

    HADOOP = "hadoop"  # trimmed values, hostname keys, variables
    REFERENCE = "reference"


class ResourceManager(msgspec.Struct, frozen=True):
    """One ResourceManager; `id` is empty without high availability."""

    id: str
    admin: str
    client: str
    web: str


class YarnCluster(msgspec.Struct, frozen=True):
    """A YARN cluster; `managers` in the order in which they are asked who is active."""

    id: str
    is_ha: bool
    managers: tuple[ResourceManager, ...]
    authentication: str
    web_scheme: str = "http"
    principal: str = ""
    """Principal of the ResourceManagers, with `_HOST` for the name of each."""

    @property
    def is_kerberos(self) -> bool:
        """Return whether callers prove by Kerberos who they are."""
        return self.authentication.strip().lower() == "kerberos"


class Loaded(msgspec.Struct, frozen=True):
    """All clusters of a folder, and what is wrong with the others."""

    clusters: dict[str, YarnCluster]
    errors: dict[str, HadoopConfigError]


def load(
    files: Mapping[str, str], environment: Mapping[str, str], dialect: Dialect = Dialect.HADOOP
) -> Loaded:
    """Return the clusters of a folder given as relative path → text; a bad cluster does not take the others down."""
    suffix = f".{SITE_FILE}"
    found = {path.rpartition("/")[2].removesuffix(suffix) for path in files if path.endswith(suffix)}
    loaded = Loaded({}, {})
    for cluster_id in (DEFAULT_CLUSTER, *sorted(found - {"", DEFAULT_CLUSTER})):
        try:
            loaded.clusters[cluster_id] = _load_one(cluster_id, files, environment, dialect)
        except HadoopConfigError as error:
            loaded.errors[cluster_id] = error
    return loaded


def start_fails(loaded: Loaded, dialect: Dialect) -> bool:
    """Return whether the process must not start: no cluster can be used (reference: any one cannot)."""
    return not loaded.clusters if dialect is Dialect.HADOOP else bool(loaded.errors)


def refusal(cluster: YarnCluster, *, has_keytab: bool) -> str:
    """Return why the cluster cannot be talked to, or empty. `has_keytab`: there is a key for Kerberos."""
    if not cluster.is_kerberos:
        return ""
    if not has_keytab:
        return "it wants Kerberos: give --kerberos-principal and --kerberos-keytab"
    return "" if cluster.principal else f"it wants Kerberos, and {PRINCIPAL} is not set"


class _Properties:
    """The merged properties of one cluster."""

    def __init__(
        self, cluster: str, values: Mapping[str, str], environment: Mapping[str, str], dialect: Dialect
    ):
        self._cluster, self._values, self._environment = cluster, values, environment
        self.is_literal = dialect is Dialect.REFERENCE

    def text(self, key: str, default: str = "") -> str:
        raw = self._values.get(key)
        if raw is None:
            return default
        if self.is_literal:
            return raw
        return self._expanded(key, raw.strip()) or default

    def is_true(self, key: str) -> bool:
        text = self.text(key, "false")
        if not self.is_literal:
            return text.lower() == "true"
        if text not in _TRUE + _FALSE:
            raise HadoopConfigError(self._cluster, key, f"{text!r} is neither true nor false")
        return text in _TRUE

    def items(self, key: str) -> list[str]:
        items = self.text(key).split(",")
        return items if self.is_literal else [item.strip() for item in items if item.strip()]

    def address(self, key: str, manager_id: str | None) -> str:
        ending = "" if manager_id is None else f".{manager_id}"
        default = f"{DEFAULT_HOST}:{PORTS[key]}"
        if self.is_literal:
            return self.text(key + ending, default)
        if host := self.text(HOSTNAME + ending):
            default = f"{host}:{PORTS[key]}"
        address = self.text(key + ending, default)
        if ":" not in address:
            return f"{address}:{PORTS[key]}"
        if _ADDRESS.fullmatch(address) is None or int(address.rpartition(":")[2]) > PORT_MAX:
            raise HadoopConfigError(self._cluster, key + ending, f"{address!r} is not host:port")
        return address

    def _expanded(self, key: str, text: str) -> str:
        for _ in range(_EXPANSIONS_MAX):
            found = next((v for v in _VARIABLE.finditer(text) if self._variable(v[1]) is not None), None)
            if found is None:
                return text
            text = f"{text[: found.start()]}{self._variable(found[1])}{text[found.end() :]}"
        raise HadoopConfigError(
            self._cluster, key, f"more than {_EXPANSIONS_MAX} variables: do they name each other?"
        )

    def _variable(self, name: str) -> str | None:
        """Return what a variable stands for, None when unknown (it then stays as it is)."""
        if name in self._values:
            return self._values[name].strip()
        variable, dash, default = name.removeprefix("env.").partition("-")
        if dash and name.startswith("env."):  # ${env.NAME-default} and ${env.NAME:-default}
            value = self._environment.get(variable.removesuffix(":"))
            is_missing = value is None or (variable.endswith(":") and not value)
            return default if is_missing else value
        return self._environment.get(name.removeprefix("env."))


def _load_one(
    cluster: str, files: Mapping[str, str], environment: Mapping[str, str], dialect: Dialect
) -> YarnCluster:
    prefix = "" if cluster == DEFAULT_CLUSTER else f"{cluster}."
    if prefix + SITE_FILE not in files:
        raise HadoopConfigError(cluster, prefix + SITE_FILE, "the file is missing")
    values: dict[str, str] = {}
    for name in FILES:
        if prefix + name in files:
            values.update(_parse(cluster, prefix + name, files))
    properties = _Properties(cluster, values, environment, dialect)
    is_ha = properties.is_true(HA_ENABLED)
    ids: Sequence[str | None] = properties.items(RM_IDS) if is_ha else [None]
    is_https = not properties.is_literal and properties.text(HTTP_POLICY).upper() == "HTTPS_ONLY"
    managers = (
        ResourceManager(
            manager_id or "",
            properties.address(ADMIN_ADDRESS, manager_id),
            properties.address(ADDRESS, manager_id),
            properties.address(WEB_HTTPS_ADDRESS if is_https else WEB_ADDRESS, manager_id),
        )
        for manager_id in ids
    )
    return YarnCluster(
        cluster,
        is_ha,
        tuple(managers),
        properties.text(AUTHENTICATION, "simple"),
        "https" if is_https else "http",
        properties.text(PRINCIPAL),
    )


def _parse(cluster: str, file: str, files: Mapping[str, str], depth: int = 0) -> dict[str, str]:
    """Return the properties of one file and of those that it includes; of equal names the last one counts."""
    try:
        root = ElementTree.fromstring(files[file])
    except ElementTree.ParseError as error:
        raise HadoopConfigError(cluster, file, f"not XML: {error}") from error
    if root.tag != "configuration":
        raise HadoopConfigError(cluster, file, f"the root element is {root.tag!r}, not 'configuration'")
    values: dict[str, str] = {}
    for each in root:
        if each.tag == "property":
            values[(each.findtext("name") or "").strip()] = each.findtext("value") or ""
        elif each.tag == _INCLUDE:
            values |= _included(cluster, file, each, files, depth + 1)
    return values


def _included(
    cluster: str, file: str, include: ElementTree.Element, files: Mapping[str, str], depth: int
) -> dict[str, str]:
    """Return the properties of a file of the folder that another one includes."""
    if depth > _INCLUSIONS_MAX:
        raise HadoopConfigError(
            cluster, file, f"more than {_INCLUSIONS_MAX} inclusions: do they name each other?"
        )
    wanted = include.get("href", "").removeprefix("file:").removeprefix("./")
    if wanted in files:
        return _parse(cluster, wanted, files, depth)
    if include.find(_FALLBACK) is not None:
        return {}
    raise HadoopConfigError(cluster, file, f"includes {wanted!r}, which is not in the folder")


FILES_MAX = 1_000
"""Four per cluster."""
_SUFFIX = ".xml"

Stamp = tuple[tuple[str, int, int], ...]
"""(path, nanoseconds of the last change, bytes) of each file."""


class FolderError(KoordinatorError):
    """The folder cannot be read."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder, self.reason = folder, reason

    def __str__(self) -> str:
        return f"HADOOP_CONF_DIR {self.folder or '(not set)'}: {self.reason}"


def stamp(folder: Path) -> Stamp:
    """Return what tells one state of the folder from another. Raises: FolderError."""
    try:
        return tuple(
            (str(path), (found := path.stat()).st_mtime_ns, found.st_size) for path in _files(folder)
        )
    except OSError as error:
        raise FolderError(str(folder), str(error)) from error


def read_folder(folder: Path) -> dict[str, str]:
    """Return the text of all XML files by their path in the folder. Raises: FolderError."""
    try:
        return {path.relative_to(folder).as_posix(): _text(user_files.read(path)) for path in _files(folder)}
    except (OSError, user_files.FileError) as error:
        raise FolderError(str(folder), str(error)) from error


def _text(content: bytes) -> str:
    """Return what a file says. Not all are UTF-8, and one that is not must not take the others down."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _files(folder: Path) -> Iterator[Path]:
    """All XML files, but for folders such as `..data`, in which a mounted ConfigMap keeps them a second time."""
    if folder == Path():  # the variable is not set; where the process happens to be is nobody's choice
        raise FolderError("", "name the folder with yarn-site.xml")
    if not folder.is_dir():
        raise FolderError(str(folder), "it is not a folder")
    count = 0
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith(".."))
        for name in sorted(names):
            if name.endswith(_SUFFIX):
                count += 1
                if count > FILES_MAX:
                    raise FolderError(str(folder), f"it has more than {FILES_MAX} XML files")
                yield Path(root) / name
