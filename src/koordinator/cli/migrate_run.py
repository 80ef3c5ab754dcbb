"""Carry out `koordinator migrate` once its command line is read."""

import asyncio
import random
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from koordinator.api import duration, labels
from koordinator.api.core import Pod
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.scalars import ScalarError
from koordinator.cli.simulate_descheduling import descheduler_config
from koordinator.cluster import connect, errors
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.protocol import Cluster
from koordinator.descheduler.config.migration import RESERVATION_FIRST
from koordinator.descheduler.migration import jobs, reservation_template
from koordinator.scheduler.config.default_plugins import read_config
from koordinator.simulate import descheduling as plans
from koordinator.simulate.descheduling import PlanError, PlanMove, PlanReport

POLL_S = 0.5
GRACE_S = 30.0
"""Extra time beyond its ttl for which a job is waited for: its controller ends it at the ttl."""
TRIGGER = "koordinator migrate"


def migrate(
    plan_file: Path,
    kubeconfig: str,
    descheduler_file: Path | None,
    config_file: Path | None,
    ttl: str,
    only_check: bool,
) -> None:
    """Check and move; the parameters are the command's options. Raises: KoordinatorError, OSError, ClickException."""
    moves, ttl_s = read_plan(plan_file).moves, _seconds(ttl)
    if not moves:
        click.echo("The plan has no moves: nothing to do.")
        return
    asyncio.run(_migrate(moves, kubeconfig, descheduler_file, config_file, ttl_s, only_check))


def read_plan(file: Path) -> PlanReport:
    """Return the plan that a simulation wrote. Raises: PlanError, OSError."""
    try:
        return msgspec.convert(yaml.safe_load(file.read_text()), PlanReport)
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise PlanError(f"{file}: it is no plan of `koordinator simulate descheduling`: {error}") from error


def _seconds(ttl: str) -> float:
    try:
        if (found := duration.parse(ttl)) > 0:
            return found
    except ScalarError as error:
        raise click.UsageError(f"--ttl: {error}") from error
    raise click.UsageError(f"--ttl: {ttl} is not above 0")


async def _migrate(
    moves: Sequence[PlanMove],
    kubeconfig: str,
    descheduler_file: Path | None,
    config_file: Path | None,
    ttl_s: float,
    only_check: bool,
) -> None:
    rng = random.Random()  # names of jobs must differ between runs
    scheduler, descheduler = read_config(config_file), descheduler_config(descheduler_file)
    async with KubeCluster(
        connect.load(kubeconfig_file=kubeconfig), rng=rng, component="koordinator"
    ) as cluster:
        dump = await plans.fetch(cluster, scheduler)
        found = await plans.check(dump, scheduler, descheduler, moves)
        if any(found):
            raise click.ClickException("\n".join(_stale(moves, found)))
        if only_check:
            click.echo(f"The plan holds: all {len(moves)} moves can be made now.")
            return
        for number, move in enumerate(moves, 1):
            click.echo(f"{number}/{len(moves)} {move.pod}: {move.source} to {move.target} ... ", nl=False)
            node = await _carry_out(cluster, move, ttl_s, rng)
            click.echo(f"it runs on {node}")


def _stale(moves: Iterable[PlanMove], found: Sequence[str]) -> Iterable[str]:
    count = sum(map(bool, found))
    yield f"the plan does not hold any more ({count} of {len(found)} moves), so nothing was moved:"
    for move, why in zip(moves, found, strict=True):
        if why:
            yield f"  {move.pod} to {move.target}: {why}"
    yield "make a new one: koordinator simulate descheduling -o yaml > plan.yaml"


async def _carry_out(cluster: Cluster, move: PlanMove, ttl_s: float, rng: random.Random) -> str:
    """Have one pod moved; its successor's node. Raises: ApiError, ClickException."""
    namespace, _, name = move.pod.partition("/")
    try:
        pod = await cluster.request("GET", Pod.resource.path(namespace, name))
    except errors.NotFound as error:
        raise click.ClickException(f"pod {move.pod} is gone") from error
    job_name = f"plan-{uuid.UUID(int=rng.getrandbits(128), version=4)}"
    await cluster.create(PodMigrationJob, _job(move, pod, job_name, ttl_s))
    end_s = cluster.clock.now() + ttl_s + GRACE_S
    while cluster.clock.now() < end_s:
        await asyncio.sleep(POLL_S)
        status = (await cluster.get(PodMigrationJob, job_name)).status
        if status.phase == jobs.SUCCEEDED:
            return status.node_name or move.target
        if status.phase and status.phase not in (jobs.PENDING, jobs.RUNNING):
            why = ": ".join(filter(None, (status.reason, status.message)))
            raise click.ClickException(
                f"job {job_name} ended as {status.phase}: {why}; what moved before stays"
            )
    await cluster.delete(PodMigrationJob, job_name)
    raise click.ClickException(
        f"nobody carried out job {job_name}, which is deleted now: is koord-descheduler running?"
    )


def _job(move: PlanMove, pod: dict[str, Any], name: str, ttl_s: float) -> dict[str, Any]:
    namespace, _, pod_name = move.pod.partition("/")
    reason = f"step {move.step + 1} of a plan: from {move.source} to {move.target}"
    return {
        "metadata": {
            "name": name,
            "annotations": {labels.EVICT_REASON: reason, labels.EVICT_TRIGGER: TRIGGER},
        },
        "spec": {
            "podRef": {"namespace": namespace, "name": pod_name, "uid": move.uid},
            "mode": RESERVATION_FIRST,
            "ttl": duration.text_of(ttl_s),
            "reservationOptions": {"template": reservation_template.bound_for(pod, move.target)},
        },
    }
