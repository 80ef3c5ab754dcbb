"""`koordinator explain lent --at` asks the manager, and tells what it answers."""

import asyncio
import datetime
import json
from pathlib import Path

import click
import pytest
from aiohttp.test_utils import TestServer
from click.testing import CliRunner, Result

from koordinator.api.core import Node
from koordinator.api.meta import ObjectMeta
from koordinator.cli import explain_lent, explain_lent_text
from koordinator.cli.explain import main
from koordinator.clock import FixedClock, parse_rfc3339, rfc3339
from koordinator.manager import http
from koordinator.manager.metrics import ManagerMetrics
from koordinator.manager.noderesource.ledger_answers import LentAnswers
from koordinator.manager.noderesource.ledger_history import LedgerHistory
from koordinator.manager.noderesource.listed import NodeObjects
from tests.manager.noderesource.test_ledger_history import _plain
from tests.manager.noderesource.test_properties import NOW_S, decided, row_of

AT = rfc3339(NOW_S)
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
current-context: c
"""


def asked(folder: Path, *words: str) -> Result:
    config = folder / "config"
    config.write_text(KUBECONFIG)
    row = row_of(_plain())
    kept = LedgerHistory(hours=24, bytes_max=2**24)
    kept.take([row], decided([row]))
    list(kept.keep({"n1": row}, int(NOW_S) // 60))

    async def ask() -> Result:
        answers = LentAnswers(kept, {"n1": row}, lambda: NOW_S)
        app = http.metrics_application(ManagerMetrics(FixedClock(NOW_S)), answers)
        async with TestServer(app) as server:
            options = ["--kubeconfig", str(config), "--manager-url", str(server.make_url("/"))]
            return await asyncio.to_thread(CliRunner().invoke, main, ["lent", *words, *options])

    return asyncio.run(ask())


def test_a_node_at_a_minute_is_told_term_by_term(tmp_path: Path) -> None:
    result = asked(tmp_path, "n1", "--at", AT)

    assert result.exit_code == 0, result.output
    for words in ("Node n1 at", "Lending", "capacity", "services", "unwritten", "on the node", "d/p0"):
        assert words in result.output
    answer = json.loads(asked(tmp_path, "n1", "--at", AT, "-o", "json").output)
    assert answer["node"] == "n1" and answer["lent"][0]["terms"]


def test_sums_name_the_states_of_nodes(tmp_path: Path) -> None:
    result = asked(tmp_path, "--at", AT)

    assert result.exit_code == 0, result.output
    assert "1 Lending" in result.output and "1 nodes" in result.output and "margin" in result.output


@pytest.mark.parametrize("node", ["", "n1"])
def test_a_page_has_the_terms_and_the_hours_that_the_manager_remembers(tmp_path: Path, node: str) -> None:
    page = tmp_path / "lent.html"

    result = asked(tmp_path, *([node] if node else []), "-o", "html", "--output-file", str(page))

    assert result.exit_code == 0, result.output
    text = page.read_text()
    wanted = [
        "Batch resources, term by term",
        "over the last hours",
        "<td>margin</td>",
        "<td>lent</td>",
        AT[:16],
    ]
    wanted.append("d/p0" if node else "<td>n1</td>")
    assert not [words for words in wanted if words not in text]
    assert not [words for words in ('src="http', "@import") if words in text]


def test_a_file_is_for_pages(tmp_path: Path) -> None:
    result = asked(tmp_path, "--output-file", str(tmp_path / "lent.json"), "-o", "json")

    assert result.exit_code == 2 and "-o html" in result.output


def test_what_the_manager_cannot_answer_is_said(tmp_path: Path) -> None:
    result = asked(tmp_path, "n9", "--at", AT)

    assert result.exit_code == 1 and "nothing is kept of node n9" in result.output


@pytest.mark.parametrize("minutes_ago", [1, 600])
def test_a_time_of_day_is_the_last_such_time(minutes_ago: int) -> None:
    now_s = parse_rfc3339("2026-11-24T12:00:00Z")
    wanted_s = now_s - 60 * minutes_ago
    text = datetime.datetime.fromtimestamp(wanted_s).strftime("%H:%M")

    assert parse_rfc3339(explain_lent_text.time_of(text, now_s)) == wanted_s
    assert explain_lent_text.time_of("2026-11-24T03:15:00Z", now_s) == "2026-11-24T03:15:00Z"


def test_a_pool_that_no_node_is_of_is_said() -> None:
    node = NodeObjects([Node(metadata=ObjectMeta(name="n1", labels={"pool": "web"}))], [], [], [], None)

    with pytest.raises(click.ClickException, match="no node has the labels pool=db"):
        explain_lent._of_pool(node, "pool=db")
    assert explain_lent._of_pool(node, "pool=web") == node
