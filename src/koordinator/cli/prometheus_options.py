"""Options about a Prometheus that knows the past."""

import click

from koordinator.cli import options

DAYS_MAX = 92.0
prometheus = options.together(
    options.text_option(
        "--prometheus",
        "prometheus_url",
        words="Ask this Prometheus (or Thanos, Mimir, VictoriaMetrics) what containers used.",
        metavar="URL",
    ),
    click.option(
        "--days",
        type=options.FiniteRange(0.04, DAYS_MAX),
        default=7.0,
        help="With --prometheus: how far back to look.",
    ),
    options.text_option(
        "--prometheus-selector",
        words="With --prometheus: more label matchers, where it knows several clusters: 'cluster=\"prod\"'.",
        metavar="MATCHERS",
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
