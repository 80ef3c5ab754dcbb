"""Leader election on a Lease: of several copies of a component, one works.

Semantics and wire format are client-go's: whether the holder is alive is judged by how long *we* have seen
the same record, never by comparing clocks of two machines.
"""

import asyncio
import contextlib
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from koordinator import clock
from koordinator.api.errors import KoordinatorError
from koordinator.api.groups import Lease, LeaseSpec
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster, EventType, WatchEvent
from koordinator.health import Check

log = logging.getLogger(__name__)

# Candidates spread their tries over 0 to 120 % of the retry period more, as client-go does.
JITTER_RATIO = 1.2
# How long a lease may have ended before the health check of its holder fails, as upstream's watchdog.
EXPIRED_S_MAX = 20.0


def process_identity(rng: random.Random) -> str:
    """Return a name of this process as a candidate; in containers, two may have the same host name and number."""
    return f"{socket.gethostname()}_{os.getpid()}_{rng.getrandbits(32):08x}"


class ElectionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The candidate, the lease and the times of an election. Defaults are upstream's.

    A leader that could not renew for `renew_deadline_s` stops; others take over `lease_duration_s` after
    they last saw a renewal.
    """

    name: str
    namespace: str
    identity: str
    lease_duration_s: int = 15
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0

    def __post_init__(self) -> None:
        for field in ("name", "namespace", "identity"):
            if not getattr(self, field):
                raise ValueError(f"leader election: {field} is empty")
        if self.lease_duration_s <= self.renew_deadline_s:
            raise ValueError(
                f"leader election: lease duration {self.lease_duration_s} s must be above the renew "
                f"deadline {self.renew_deadline_s} s"
            )
        if self.renew_deadline_s <= JITTER_RATIO * self.retry_period_s:
            raise ValueError(
                f"leader election: renew deadline {self.renew_deadline_s} s must be above "
                f"{JITTER_RATIO} times the retry period {self.retry_period_s} s"
            )


T = TypeVar("T")


class LeaseLost(KoordinatorError):
    """We were leader and could not renew in time; the work was cancelled."""

    def __init__(self, lease: str, identity: str, why: str) -> None:
        super().__init__(f"lease {lease}: {identity} is leader no more: {why}")
        self.lease, self.identity, self.why = lease, identity, why


class LeaderElector:
    """One candidate. `rng` seeds the jitter of its tries."""

    def __init__(
        self,
        cluster: Cluster,
        config: ElectionConfig,
        *,
        rng: random.Random,
        on_slow_path: Callable[[], Any] = lambda: None,
    ) -> None:
        """`on_slow_path` hears of renewals that needed a second look at the lease."""
        self.is_leader = False
        self.leader = ""
        self._cluster = cluster
        self._config = config
        self._rng = rng
        self._observed: LeaseSpec | None = None
        self._observed_s = 0.0
        self._version = ""
        """Version of the lease as we wrote it last; "" when it may be another by now."""
        self._on_slow_path = on_slow_path
        self._kept_s = float("-inf")
        """Time of sending the last write of the lease that succeeded."""

    @property
    def may_act(self) -> bool:
        """Return whether we lead for sure: the last renewal is young enough that nobody else can have taken over, nor
        will while a request is under way. False also for a leader that was stopped for a while and has not noticed
        yet."""
        now_s = asyncio.get_running_loop().time()
        return self.is_leader and now_s < self._kept_s + self._config.renew_deadline_s

    @property
    def trouble(self) -> str:
        """Return why a leader should be restarted: its lease ended long ago and it still leads. Empty when well."""
        config = self._config
        if not self.is_leader:
            return ""
        age_s = asyncio.get_running_loop().time() - self._observed_s
        if age_s <= config.lease_duration_s + EXPIRED_S_MAX:
            return ""
        return f"failed election to renew leadership on lease {config.name}"

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait to be elected, run `work`, and give the lease up when it ends or we are cancelled.

        Raises: LeaseLost after cancelling `work` when the lease could not be kept.
        """
        await self._acquire()
        self.is_leader = True
        log.info("leadership acquired", extra=self._facts())
        working = asyncio.ensure_future(work())
        renewing = asyncio.create_task(self._renew(), name=f"lease {self._config.name}")
        try:
            done, _ = await asyncio.wait([working, renewing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.is_leader = False
            # The lease is kept until the work has really ended: nobody else may lead before.
            await _cancelled(working)
            await _cancelled(renewing)
            await self._release()
        for task in (renewing, working):
            if task in done:
                task.result()

    async def _acquire(self) -> None:
        released = asyncio.Event()
        watching = asyncio.create_task(self._watch(released), name=f"lease {self._config.name} watch")
        try:
            while not await self._try():
                jitter = 1.0 + JITTER_RATIO * self._rng.random()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._config.retry_period_s * jitter):
                        await released.wait()
                released.clear()
        finally:
            await _cancelled(watching)

    async def _watch(self, released: asyncio.Event) -> None:
        """Tell at once when the holder gives the lease up, or it is deleted: the gap is a round trip then, not a
        retry period. Without permission to watch, the retries alone have to do."""
        config = self._config
        while True:
            try:
                page = await self._cluster.list(
                    Lease, config.namespace, field_selector=f"metadata.name={config.name}"
                )
                batches = self._cluster.watch(
                    Lease,
                    config.namespace,
                    resource_version=page.resource_version,
                    field_selector=f"metadata.name={config.name}",
                )
                async for batch in batches:
                    if any(_is_free(event, config.name) for event in batch):
                        released.set()
            except errors.Forbidden as error:
                log.info(
                    "lease not watched: takeover takes up to one retry period", extra={"error": str(error)}
                )
                return
            except errors.ApiError as error:
                log.debug("lease watch ended", extra={"error": str(error)})
            await asyncio.sleep(config.retry_period_s)

    async def _renew(self) -> None:
        """Keep the lease. Raises: LeaseLost."""
        loop = asyncio.get_running_loop()
        renewed_s = loop.time()
        while True:
            await asyncio.sleep(self._config.retry_period_s)
            deadline_s = renewed_s + self._config.renew_deadline_s
            try:
                async with asyncio.timeout_at(deadline_s):
                    kept = await self._try()
            except TimeoutError:
                kept = False
            if kept:
                renewed_s = loop.time()
            elif self.leader != self._config.identity:
                raise self._lost(f"{self.leader} holds it now")
            elif loop.time() >= deadline_s:
                raise self._lost(f"not renewed for {self._config.renew_deadline_s:g} s")

    async def _try(self) -> bool:
        """Acquire or renew once; False when another holds the lease or the API cannot be reached."""
        try:
            return await self._acquire_or_renew()
        except errors.Conflict:
            log.debug("lease update conflicted", extra=self._facts())
        except errors.ApiError as error:
            log.warning("lease not renewed: %s", error, extra=self._facts() | {"error": str(error)})
        return False

    async def _within_half(self, request: Awaitable[T]) -> T:
        """One request, which gets half of the deadline: where one hangs, there is time for another.

        Raises: as the request; ConnectionFailed when there is no answer by then.
        """
        limit_s = self._config.renew_deadline_s / 2
        try:
            async with asyncio.timeout(limit_s):
                return await request
        except TimeoutError as error:
            raise errors.ConnectionFailed(f"no answer within {limit_s:g} s") from error

    async def _acquire_or_renew(self) -> bool:
        config = self._config
        now = clock.rfc3339_micro(self._cluster.clock.now())
        if await self._renew_unseen(now):
            return True
        try:
            lease = await self._within_half(self._cluster.get(Lease, config.name, config.namespace))
        except errors.NotFound:
            return await self._create(now)
        self._observe(lease.spec)
        mine = lease.spec.holder_identity == config.identity
        if not mine and lease.spec.holder_identity and not self._is_expired(lease.spec):
            return False
        transitions = lease.spec.lease_transitions or 0
        spec = self._spec(now) | {
            "acquireTime": lease.spec.acquire_time if mine else now,
            "leaseTransitions": transitions if mine else transitions + 1,
        }
        await self._patch(spec, lease.metadata.resource_version)
        return True

    async def _renew_unseen(self, now: str) -> bool:
        """Renew as if nobody wrote to the lease since we did, which is one request instead of two."""
        version, self._version = self._version, ""
        if not version or self.leader != self._config.identity or self._observed is None:
            return False
        if self._is_expired(self._observed):
            return False
        kept = {
            "acquireTime": self._observed.acquire_time,
            "leaseTransitions": self._observed.lease_transitions or 0,
        }
        try:
            await self._patch(self._spec(now) | kept, version)
        except errors.ApiError as error:
            log.debug("lease renewal retried: %s", error, extra=self._facts())
            self._on_slow_path()
            return False
        return True

    def _is_expired(self, spec: LeaseSpec) -> bool:
        duration_s = spec.lease_duration_seconds or self._config.lease_duration_s
        return asyncio.get_running_loop().time() >= self._observed_s + duration_s

    async def _create(self, now: str) -> bool:
        config = self._config
        body = {
            "metadata": {"name": config.name, "namespace": config.namespace},
            "spec": self._spec(now) | {"acquireTime": now, "leaseTransitions": 0},
        }
        try:
            sent_s = asyncio.get_running_loop().time()
            lease = await self._within_half(self._cluster.create(Lease, body, config.namespace))
        except errors.AlreadyExists:
            return False
        self._kept_s = sent_s
        self._observe(lease.spec)
        return True

    async def _patch(self, spec: dict[str, Any], version: str) -> None:
        patch = {"metadata": {"resourceVersion": version}, "spec": spec}
        sent_s = asyncio.get_running_loop().time()
        config = self._config
        lease = await self._within_half(self._cluster.patch(Lease, config.name, patch, config.namespace))
        self._kept_s = sent_s
        self._observe(lease.spec)
        self._version = lease.metadata.resource_version

    def _spec(self, now: str) -> dict[str, Any]:
        return {
            "holderIdentity": self._config.identity,
            "leaseDurationSeconds": self._config.lease_duration_s,
            "renewTime": now,
        }

    def _observe(self, spec: LeaseSpec) -> None:
        if spec != self._observed:
            self._observed = spec
            self._observed_s = asyncio.get_running_loop().time()
        self.leader = spec.holder_identity or ""

    async def _release(self) -> None:
        """Let the next candidate in at once instead of after the lease duration."""
        config = self._config
        if self.leader != config.identity:
            return
        now = clock.rfc3339_micro(self._cluster.clock.now())
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now, "acquireTime": now}
        with contextlib.suppress(TimeoutError, errors.ApiError):  # then it expires by itself
            async with asyncio.timeout(config.renew_deadline_s):
                lease = await self._cluster.get(Lease, config.name, config.namespace)
                if lease.spec.holder_identity == config.identity:
                    await self._patch(spec, lease.metadata.resource_version)

    def _lost(self, why: str) -> LeaseLost:
        return LeaseLost(f"{self._config.namespace}/{self._config.name}", self._config.identity, why)

    def _facts(self) -> dict[str, Any]:
        config = self._config
        return {"lease": f"{config.namespace}/{config.name}", "identity": config.identity}


async def lead_while_elected(
    election: LeaderElector | None, lead: Callable[[], Awaitable[None]], *, stays: bool = False
) -> None:
    """Run `lead` while elected, until cancelled; without an election this is the only instance.

    Raises: LeaseLost when the lease could not be kept. One that `stays`, since its process has more to do, is a
    candidate again instead.
    """
    if election is None:
        await lead()
        return
    while True:
        try:
            await election.run(lead)
        except LeaseLost as error:
            if not stays:
                raise
            log.warning("standing by: %s", error, extra={"lease": error.lease})


def _is_free(event: WatchEvent[Lease], name: str) -> bool:
    if event.obj is None or event.obj.metadata.name != name:
        return False
    return event.type is EventType.DELETED or not event.obj.spec.holder_identity


async def _cancelled(task: "asyncio.Future[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


def lease_check(election: LeaderElector | None) -> Check:
    """Return the check of a component's lease; always well without an election."""
    return lambda: "" if election is None else election.trouble
