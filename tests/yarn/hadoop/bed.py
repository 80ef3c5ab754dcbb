"""ZooKeeper, ResourceManagers and NodeManagers as JVMs on loopback, and what they say of themselves over REST.

    async with hadoop(folder, managers=2, nodes=[NodeSize(4, 2048)]) as bed: ...

`bed.configuration` is a Hadoop configuration folder as an operator mounts it. Containers are plain processes: the
native launcher that puts them in groups is not published as a jar.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import aiohttp

from tests.real.processes import end_with_us
from tests.yarn.hadoop import jars

HOST = "localhost"
_STARTED_S = 120.0  # a JVM takes 5 s on an idle machine
_LOOK_S = 0.2
_JVM = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Djava.net.preferIPv4Stack=true"),
    *("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED"),
)
_RM = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NM = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_ZOOKEEPER = "org.apache.zookeeper.server.ZooKeeperServerMain"
_STATE_STORE = "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore"
_SLEEP = "org.apache.hadoop.mapreduce.SleepJob"
_LOG = """log4j.rootLogger=INFO,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""

Properties = Mapping[str, str]


class NodeSize(NamedTuple):
    """What a NodeManager says that it has when it registers."""

    vcores: int = 1
    memory_mb: int = 1024


class Daemon:
    """One JVM; its output is in `log`."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name, self.log = name, log
        self._command = tuple(command)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        assert not self.is_running, self.name
        with self.log.open("ab") as out:
            # A group of its own; containers are in sessions of theirs, see `_end_containers`.
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdout=out,
                stderr=out,
                stdin=asyncio.subprocess.DEVNULL,
                process_group=0,
                preexec_fn=end_with_us,
            )

    async def kill(self) -> None:
        """As a machine that loses power."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    def pause(self) -> None:
        """It answers nobody, and its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class ResourceManager(NamedTuple):
    """`web`, `admin` and `client` are host:port."""

    id: str
    daemon: Daemon
    web: str
    admin: str
    client: str


class NodeManager(NamedTuple):
    """`node_id` as YARN names it; `web` is host:port of `/ws/v1/node`."""

    node_id: str
    daemon: Daemon
    web: str
    local: Path


class Bed:
    """A running YARN."""

    def __init__(self, folder: Path, session: aiohttp.ClientSession) -> None:
        self.folder = folder
        self.configuration = folder / "conf"
        """The clients': with the addresses of all ResourceManagers."""
        self.managers: list[ResourceManager] = []
        self.nodes: list[NodeManager] = []
        self.jobs: list[Daemon] = []
        self._session = session

    async def get(self, path: str, manager: ResourceManager | None = None) -> Any:
        """What the active ResourceManager (or this one) says at /ws/v1/cluster/PATH."""
        where = manager or await self.active()
        url = f"http://{where.web}/ws/v1/cluster/{path}"
        async with self._session.get(url, headers={"Accept": "application/json"}) as response:
            response.raise_for_status()
            return await response.json()

    async def active(self) -> ResourceManager:
        """The ResourceManager that leads, awaited. Raises: TimeoutError."""
        found: list[ResourceManager] = []

        async def leads() -> bool:
            found.extend(await self.leaders())
            return bool(found)

        await until(leads, "no ResourceManager is active")
        return found[0]

    async def leaders(self) -> list[ResourceManager]:
        """Those that say now that they lead."""
        return [each for each in self.managers if each.daemon.is_running and await self._leads(each)]

    async def _leads(self, manager: ResourceManager) -> bool:
        url = f"http://{manager.web}/ws/v1/cluster/info"
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status != 200:
                    return False
                info = (await response.json())["clusterInfo"]
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return False
        return bool(info["haState"] == "ACTIVE")

    async def reported(self) -> dict[str, dict[str, Any]]:
        """Nodes by id, as the active ResourceManager's REST answer has them."""
        listed = (await self.get("nodes"))["nodes"] or {}
        return {node["id"]: node for node in listed.get("node", [])}

    async def totals(self) -> dict[str, NodeSize]:
        """What each running node may give out."""
        return {
            name: NodeSize(
                node["usedVirtualCores"] + node["availableVirtualCores"],
                node["usedMemoryMB"] + node["availMemoryMB"],
            )
            for name, node in (await self.reported()).items()
            if node["state"] == "RUNNING"
        }

    async def used(self) -> dict[str, NodeSize]:
        """What each node has given out."""
        return {
            name: NodeSize(node["usedVirtualCores"], node["usedMemoryMB"])
            for name, node in (await self.reported()).items()
        }

    async def sleep_job(
        self, tasks: int, seconds: float, *, vcores: int = 1, memory_mb: int = 256, priority: int = 0
    ) -> Daemon:
        """A MapReduce job, submitted: an ApplicationMaster (1 vcore, 256 MB), and a container per sleeping task."""
        options = {
            "mapreduce.map.memory.mb": memory_mb,
            "mapreduce.map.cpu.vcores": vcores,
            "mapreduce.job.priority": priority,
        }
        given = [f"-D{name}={value}" for name, value in options.items()]
        name = f"job-{len(self.jobs)}"
        command = _java(self.configuration, 128, _SLEEP, *given)
        command += ("-m", str(tasks), "-r", "0", "-mt", str(int(seconds * 1000)))
        job = Daemon(name, command, self.folder / f"{name}.log")
        self.jobs.append(job)
        await job.start()
        return job

    @property
    def daemons(self) -> list[Daemon]:
        """All JVMs but ZooKeeper's."""
        return [
            *self.jobs,
            *(each.daemon for each in self.nodes),
            *(each.daemon for each in self.managers),
        ]


async def until(holds: Callable[[], Any], why: str, within_s: float = _STARTED_S) -> None:
    """Wait for a condition. Raises: TimeoutError with `why`."""
    try:
        async with asyncio.timeout(within_s):
            while not await holds():  # noqa: ASYNC110 - nothing tells us
                await asyncio.sleep(_LOOK_S)
    except TimeoutError as error:
        raise TimeoutError(f"{why} within {within_s:g} s") from error


@contextlib.asynccontextmanager
async def hadoop(
    folder: Path,
    *,
    managers: int = 2,
    nodes: Sequence[NodeSize] = (NodeSize(),),
    more: Properties | None = None,
) -> AsyncIterator[Bed]:
    """YARN whose active ResourceManager (of a pair when `managers` is 2) knows all nodes; it ends with the block.

    `more` are properties of all daemons and clients beside ours. Raises: Missing, TimeoutError.
    """
    jars.provide()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        bed = Bed(folder, session)
        zookeeper = _lay_out(bed, managers, nodes, {**_common(folder), **(more or {})})
        try:
            for daemon in (zookeeper, *bed.daemons):
                await daemon.start()

            async def all_run() -> bool:
                for daemon in (zookeeper, *bed.daemons):
                    assert daemon.is_running, f"{daemon.name} ended: {_tail(daemon.log)}"
                return bool(await bed.leaders()) and len(await bed.totals()) == len(nodes)

            await until(all_run, f"not all {len(nodes)} NodeManagers registered (logs: {folder})")
            yield bed
        finally:
            for daemon in (*bed.daemons, zookeeper):
                await daemon.kill()
            _end_containers(folder)


def _end_containers(folder: Path) -> None:
    """Kill what NodeManagers have started below `folder`: it outlives them, as a work-preserving restart wants."""
    mark = f"{folder}/".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def _common(folder: Path) -> dict[str, str]:
    """Properties of daemons and clients."""
    classes = f"{jars.cache_folder()}/*"
    return {
        "fs.defaultFS": "file:///",
        "hadoop.tmp.dir": str(folder / "tmp"),
        "hadoop.http.staticuser.user": "yarn",
        "ipc.client.connect.max.retries": "2",
        "yarn.resourcemanager.zk-timeout-ms": "4000",
        "yarn.resourcemanager.am.max-attempts": "2",
        "yarn.resourcemanager.recovery.enabled": "true",
        "yarn.resourcemanager.store.class": _STATE_STORE,
        "yarn.resourcemanager.fs.state-store.uri": f"file://{folder}/state",
        "yarn.resourcemanager.work-preserving-recovery.scheduling-wait-ms": "1000",
        "yarn.resourcemanager.connect.retry-interval.ms": "500",
        "yarn.client.failover-sleep-base-ms": "200",
        "yarn.client.failover-sleep-max-ms": "1000",
        "yarn.scheduler.minimum-allocation-mb": "64",
        "yarn.nm.liveness-monitor.expiry-interval-ms": "10000",
        "yarn.resourcemanager.nm.liveness-monitor.interval-ms": "1000",
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.pmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.enable": "false",
        "yarn.nodemanager.recovery.enabled": "false",
        "yarn.nodemanager.aux-services": "mapreduce_shuffle",  # without, no MapReduce task starts
        "mapreduce.shuffle.port": "0",
        "yarn.application.classpath": classes,
        "mapreduce.application.classpath": classes,
        "mapreduce.framework.name": "yarn",
        "mapreduce.job.ubertask.enable": "false",
        "mapreduce.map.speculative": "false",
        "mapreduce.map.java.opts": f"-Xmx48m {' '.join(_JVM)}",
        "yarn.app.mapreduce.am.resource.mb": "256",
        "yarn.app.mapreduce.am.command-opts": f"-Xmx160m {' '.join(_JVM)}",
        "yarn.app.mapreduce.am.staging-dir": str(folder / "staging"),
    }


def _lay_out(bed: Bed, managers: int, nodes: Sequence[NodeSize], common: dict[str, str]) -> Daemon:
    """Write all configuration folders; add the daemons to `bed`. Returns ZooKeeper's."""
    folder, ports = bed.folder, iter(_free_ports(1 + 5 * managers + 3 * len(nodes)))
    zookeeper_port = next(ports)
    common["yarn.resourcemanager.zk-address"] = common["hadoop.zk.address"] = f"127.0.0.1:{zookeeper_port}"
    ids = [f"rm{number + 1}" for number in range(managers)]
    where = {rm: {name: f"{HOST}:{next(ports)}" for name in _RM_ADDRESSES} for rm in ids}
    if managers > 1:
        common["yarn.resourcemanager.ha.enabled"] = "true"
        common["yarn.resourcemanager.cluster-id"] = "test"
        common["yarn.resourcemanager.ha.rm-ids"] = ",".join(ids)
    for rm, addresses in where.items():
        ending = f".{rm}" if managers > 1 else ""
        common |= {f"yarn.resourcemanager.{name}{ending}": text for name, text in addresses.items()}
    _write(bed.configuration, common)
    for rm in ids:
        conf = folder / rm
        _write(conf, {**common, **({"yarn.resourcemanager.ha.id": rm} if managers > 1 else {})})
        daemon = Daemon(rm, _java(conf, 200, _RM), folder / f"{rm}.log")
        at = where[rm]
        bed.managers.append(
            ResourceManager(rm, daemon, at["webapp.address"], at["admin.address"], at["address"])
        )
    for number, size in enumerate(nodes):
        bed.nodes.append(_node(folder / f"nm{number}", size, common, [next(ports) for _ in range(3)]))
    data = folder / "zookeeper"
    data.mkdir(parents=True)
    (data / "log4j.properties").write_text(_LOG)
    settings = {
        "clientPortAddress": "127.0.0.1",
        "clientPort": str(zookeeper_port),
        "dataDir": str(data),
        "tickTime": "500",
        "admin.enableServer": "false",
    }
    (data / "zoo.cfg").write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    return Daemon("zookeeper", _java(data, 64, _ZOOKEEPER, str(data / "zoo.cfg")), folder / "zookeeper.log")


_RM_ADDRESSES = (
    "address",
    "admin.address",
    "scheduler.address",
    "resource-tracker.address",
    "webapp.address",
)


def _node(conf: Path, size: NodeSize, common: Properties, ports: Sequence[int]) -> NodeManager:
    rpc, web, localizer = ports
    own = {
        "yarn.nodemanager.address": f"{HOST}:{rpc}",
        "yarn.nodemanager.webapp.address": f"{HOST}:{web}",
        "yarn.nodemanager.localizer.address": f"{HOST}:{localizer}",
        "yarn.nodemanager.resource.cpu-vcores": str(size.vcores),
        "yarn.nodemanager.resource.memory-mb": str(size.memory_mb),
        "yarn.nodemanager.local-dirs": str(conf / "local"),
        "yarn.nodemanager.log-dirs": str(conf / "logs"),
    }
    _write(conf, {**common, **own})
    daemon = Daemon(conf.name, _java(conf, 160, _NM), conf.with_suffix(".log"))
    return NodeManager(f"{HOST}:{rpc}", daemon, f"{HOST}:{web}", conf / "local")


def _write(conf: Path, properties: Properties) -> None:
    """A configuration folder: everything in core-site.xml and yarn-site.xml, as both are read by all."""
    conf.mkdir(parents=True, exist_ok=True)
    is_core = ("fs.", "hadoop.", "ipc.")
    for file, mine in (("core-site.xml", True), ("yarn-site.xml", False), ("mapred-site.xml", False)):
        chosen = {name: text for name, text in properties.items() if name.startswith(is_core) is mine}
        (conf / file).write_text(_xml(chosen))
    (conf / "capacity-scheduler.xml").write_text(_xml(_QUEUES))
    (conf / "log4j.properties").write_text(_LOG)


_QUEUES = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    # The scheduler's default looks at memory only.
    "yarn.scheduler.capacity.resource-calculator": "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator",
}


def _xml(properties: Properties) -> str:
    each = (
        f"<property><name>{k}</name><value>{escape(v)}</value></property>\n" for k, v in properties.items()
    )
    return f"<configuration>\n{''.join(each)}</configuration>\n"


def _java(conf: Path, heap_mb: int, main: str, *arguments: str) -> tuple[str, ...]:
    java = shutil.which("java")
    assert java is not None
    classes = f"{conf}:{jars.cache_folder()}/*"
    return (java, f"-Xmx{heap_mb}m", *_JVM, f"-Djava.io.tmpdir={conf}", "-cp", classes, main, *arguments)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
