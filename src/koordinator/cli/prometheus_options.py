"""Options about a Prometheus that knows the past."""

import click

from koordinator.cli import options

DAYS_MAX = 92.0
prometheus = options.together(
    click.option(
        "--prometheus",
        "prometheus_url",
        default="",
        metavar="URL",
        show_default=False,
        help="Ask this Prometheus (or Thanos, Mimir, VictoriaMetrics) what containers used.",
    ),
    click.option(
        "--days",
        type=options.FiniteRange(0.04, DAYS_MAX),
        default=7.0,
        help="With --prometheus: how far back to look.",
    ),
    click.option(
        "--prometheus-selector",
        default="",
        metavar="MATCHERS",
        show_default=False,
        help="With --prometheus: more label matchers, where it knows several clusters: 'cluster=\"prod\"'.",
    ),
    click.option(
        "--prometheus-token-file",
        type=options.EXISTING_FILE,
        metavar="FILE",
        help="With --prometheus: the bearer token to ask with.",
    ),
    click.option(
        "--prometheus-ca-file",
        type=options.EXISTING_FILE,
        metavar="FILE",
        help="With --prometheus: the authority of its certificate.",
    ),
)
