"""Options of `koordinator up` that give hollow nodes cards."""

import re

import click

from koordinator.api import duration
from koordinator.api.errors import KoordinatorError
from koordinator.cli import options

CARDS_MAX = 64
_MODEL = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


def read_gpus(text: str) -> tuple[int, str]:
    """Return number and model (empty: a usual one) of `N[:MODEL]`. Raises: BadParameter."""
    number, colon, model = text.partition(":")
    if not (number.isascii() and number.isdigit() and int(number) <= CARDS_MAX):
        raise click.BadParameter(f"{number!r} is no number from 0 to {CARDS_MAX}; write 8 or 8:A100")
    if colon and not _MODEL.fullmatch(model):
        raise click.BadParameter(f"{model!r} cannot be a label, as models of GPUs are; write 8:A100")
    return int(number), model


def read_age(text: str) -> float | None:
    """Return the seconds of a duration such as 24h, None for no text. Raises: BadParameter."""
    if not text:
        return None
    try:
        age_s = duration.parse(text)
    except KoordinatorError as error:
        raise click.BadParameter(str(error)) from error
    if age_s <= 0:
        raise click.BadParameter(f"{text} is not above 0; write 24h, or 20s to see it soon")
    return age_s


cards = options.together(
    click.option(
        "--gpus",
        default="0",
        metavar="N[:MODEL]",
        callback=lambda context, option, value: read_gpus(value),
        help="GPUs of each hollow node, such as 8 or 4:H100; its Device object and the node's resources tell of them.",
    ),
    click.option(
        "--rdma",
        default=0,
        type=click.IntRange(0, CARDS_MAX),
        help="RDMA cards of each hollow node, with four virtual functions each.",
    ),
    click.option(
        "--partitions",
        is_flag=True,
        help="NVSwitches join the GPUs of each hollow node: they are given out in partitions of 1, 2, 4 or 8.",
    ),
    click.option(
        "--lend-gpus",
        default="",
        show_default="off",
        metavar="AGE",
        callback=lambda context, option, value: read_age(value),
        help="Agents of hollow nodes predict services of this age (24h, 20s) and lend what they leave of GPUs to "
        "batch pods, which go when it is wanted back (gate BatchGPU of agents, docs/devices.md).",
    ),
)
