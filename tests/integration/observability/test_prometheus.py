"""A real Prometheus over a whole stack under traffic: queries return data, alerts fire in faults and never in health.

The tests share one stack and run in the order of the file: health first, then one fault after another, and the broker's
stop, which nothing survives, last.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from deploy.grafana.panels import DASHBOARDS
from deploy.local.stack import readiness
from libs.contracts import Adapter, Array, Record, encode
from libs.streams.config import ServiceSettings
from libs.streams.producer import KafkaProducer
from libs.streams.types import Output
from tests.integration.observability.world import PROMETHEUS, RULES, World, chat, running, until
from tests.monitor_records import CAPTURE, TOPIC_OF, Talk, batch, release

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed (Debian: prometheus)"),
]
CORRECTION = ["Tell me about tides.", "No lists please, plain prose.", "Thanks, that is good."]

# Series that a healthy system without a model server as judge does not have. Everything else must return data.
FAULTS_ONLY = {
    "clawback_retries_total",
    "clawback_dead_letters_total",
    "clawback_dead_letters_seen_total",
    "clawback_window_unmatched_exchanges",
    "clawback_gateway_dropped_total",
    "clawback_gateway_untrainable_total",
    "clawback_gateway_rejected_total",
    "clawback_gateway_upstream_retries_total",
    "clawback_gateway_redactions_total",
    "clawback_sessions_closed_total",
    "clawback_judge_abstentions_total",
    "clawback_judge_cache_total",
    "clawback_judge_tokens_total",
    "clawback_batcher_dropped_total",
    "clawback_trainer_not_released_total",
    "clawback_trainer_commands_total",
    "clawback_policy_releases_refused_total",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("observability")) as found:
        yield found


def produce(world: World, records: list[Record | tuple[str, bytes]]) -> None:
    """Write records to the topics as the services would."""

    async def send() -> None:
        settings = ServiceSettings(
            kafka_bootstrap_servers=world.stack.kafka_bootstrap_servers, kafka_idempotent_producer=False
        )
        producer = KafkaProducer(settings)
        outputs = [
            Output(*(r[0], "k", r[1])) if isinstance(r, tuple) else Output(TOPIC_OF[type(r)], "k", encode(r))
            for r in records
        ]
        try:
            assert not await producer.send_all(outputs)
        finally:
            await producer.stop()

    asyncio.run(send())


def in_grafana(query: str) -> str:
    """A panel's query as Grafana would send it."""
    return query.replace("$__rate_interval", "1m").replace("$scenario", ".*").replace("$window", "1h")


def metrics_in(query: str) -> set[str]:
    return {re.sub(r"_(bucket|sum|count)$", "", n) for n in re.findall(r"\bclawback_[a-z0-9_]+", query)}


def fires(world: World, alert: str) -> None:
    until(lambda: alert in world.firing(), why=f"{alert} fires; firing: {world.firing()}")


# --- health ----------------------------------------------------------------------------------------------------------


def test_every_panel_and_rule_returns_data_and_no_alert_fires_in_health(world: World) -> None:
    for i in range(8):
        chat(world.gateway, f"s{i}", CORRECTION)
    status = f"{world.stack.services['monitor'].url}/api/status"

    def trained() -> Any:
        with urllib.request.urlopen(status, timeout=10) as answer:
            counts = json.load(answer)["total"]["1h"]
        return counts["trained"] >= 4 and counts["matched"] == 16

    until(trained, why="corrections reach a step")
    queries = {in_grafana(q) for panels in DASHBOARDS.values() for p in panels for q in p.queries.values()}
    expected = {q for q in queries if not metrics_in(q) & FAULTS_ONLY}
    assert len(expected) > 0.7 * len(queries)

    def without_data() -> list[str]:
        return [q for q in expected if not world.query(q)]

    until(lambda: not without_data(), why="every panel has data")
    rules = yaml.safe_load(RULES.read_text())["groups"]
    for rule in (r for g in rules for r in g["rules"]):
        # Without its comparison a rule's expression must find series; those of faults alone are tried below.
        for name in metrics_in(rule["expr"]) - FAULTS_ONLY:
            assert world.query(name if name.endswith("_total") or not _histogram(name) else f"{name}_count"), rule
    seen = world.evaluations()
    for _ in range(5):  # a rule that is pending would fire by then: every `for` is two seconds here
        seen = until(lambda was=seen: (now := world.evaluations()) != was and now, why="rules are evaluated")
        assert world.firing() == set()


def _histogram(name: str) -> bool:
    from libs.telemetry.document import declared

    return declared()[name]._type == "histogram"


# --- faults, each with its alert -------------------------------------------------------------------------------------


def test_traffic_without_matches(world: World) -> None:
    for i in range(20):
        body = [
            {"role": "user", "content": f"Question {i}?"},
            {"role": "assistant", "content": f"An answer that this gateway never served, number {i}."},
            {"role": "user", "content": "And?"},
        ]
        request = urllib.request.Request(
            f"{world.gateway}/v1/chat/completions",
            json.dumps({"model": "tiny", "messages": body, "max_tokens": 4}).encode(),
            {"content-type": "application/json", "x-reef-scenario": "elsewhere"},
        )
        urllib.request.urlopen(request, timeout=60).read()
    fires(world, "ClawbackTrafficWithoutMatches")
    assert world.query('clawback_window_unmatched_exchanges{scenario="elsewhere",reason="reply_not_served"}')


def test_ttl_cuts_answers(world: World) -> None:
    now = time.time()
    late = [Talk(f"late{i}", ["a", "b"], now - 30 * 3600, "slow", gap=30 * 3600 - 60) for i in range(3)]
    produce(world, [talk.raw(i) for talk in late for i in (0, 1)])
    fires(world, "ClawbackTtlCutsAnswers")


def test_capture_missing(world: World) -> None:
    now = time.time()
    talks = [Talk(f"nocap{i}", ["a", "b"], now - 100 + i, "hosted", captured=False) for i in range(11)]
    produce(world, [talk.raw(i) for talk in talks for i in (0, 1)])
    fires(world, "ClawbackCaptureMissing")


def test_dead_letters(world: World) -> None:
    produce(world, [("turns.matched", b'{"not": "a turn"}'), ("traffic.raw", b"\x00")])
    fires(world, "ClawbackDeadLetters")
    assert world.query("clawback_dead_letters_total")


def test_drift(world: World) -> None:
    """The engine claims log-probabilities that the trainer cannot confirm."""
    wrong = msgspec.structs.replace(CAPTURE, logprobs=Array.floats([-40.0]))
    talk = Talk("drift", ["a", "b"], time.time() - 60, "drifting", verdicts={0: -1})
    made = batch("drift-batch", [talk.judged(0, -1)], time.time())
    samples = [msgspec.structs.replace(s, capture=wrong) for s in made.samples]
    produce(world, [msgspec.structs.replace(made, samples=samples)])
    fires(world, "ClawbackDrift")


def test_release_held_and_policy_behind(world: World) -> None:
    talk = Talk("held", ["a", "b"], time.time() - 60, "gated", verdicts={0: -1})
    made = batch("held-batch", [talk.judged(0, -1)], time.time())
    weights = Adapter(kind="lora", uri=str(world.home / "nowhere"), digest="0" * 64)
    held = msgspec.structs.replace(release(made, 1, time.time(), event="held", reason="repetition"), weights=weights)
    produce(world, [held])
    fires(world, "ClawbackReleaseHeld")
    lost = msgspec.structs.replace(release(made, 2, time.time()), weights=weights, scenario="unreadable")
    produce(world, [lost])
    fires(world, "ClawbackPolicyBehind")
    assert world.query("clawback_policy_releases_refused_total")


def test_verdicts_without_steps(world: World) -> None:
    world.process("trainer").signal(signal.SIGSTOP)
    try:
        for i in range(5):
            chat(world.gateway, f"stuck{i}", CORRECTION, "untrained")
        fires(world, "ClawbackVerdictsWithoutSteps")
    finally:
        world.process("trainer").signal(signal.SIGCONT)


def test_judge_stopped_is_no_verdicts_lag_and_a_service_down(world: World) -> None:
    world.process("judge").signal(signal.SIGSTOP)
    try:
        fires(world, "ClawbackServiceDown")
        fires(world, "ClawbackJudgeDown")
        for i in range(3):
            chat(world.gateway, f"unjudged{i}", CORRECTION, "unjudged")
        fires(world, "ClawbackMatchesWithoutVerdicts")
        talk = Talk("flood", ["a", "b"], time.time() - 60, "flood")
        match = talk.matched(1)
        produce(world, [msgspec.structs.replace(match, turn_id=f"flood-{i}") for i in range(501)])
        fires(world, "ClawbackLag")
    finally:
        world.process("judge").signal(signal.SIGCONT)


def test_judge_abstaining(world: World, tmp_path: Path) -> None:
    """A judge whose model server answers with something else than a verdict."""
    import os
    import sys
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from deploy.local.process import spawn

    class Babble(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            body = json.dumps(
                {
                    "choices": [{"message": {"role": "assistant", "content": "hm"}}],
                    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
                }
            ).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Babble)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = {
        "CLAWBACK_JUDGE_KIND": "prm",
        "CLAWBACK_JUDGE_PRM_URL": f"http://127.0.0.1:{server.server_address[1]}/v1",
        "CLAWBACK_JUDGE_PRM_MODEL": "babble",
        "CLAWBACK_STREAM_GROUP": "clawback-judge-babble",
        "CLAWBACK_STREAM_OUTPUT_SUFFIX": ".babble",
        "CLAWBACK_KAFKA_BOOTSTRAP_SERVERS": world.stack.kafka_bootstrap_servers,
        "CLAWBACK_KAFKA_IDEMPOTENT_PRODUCER": "false",
        "CLAWBACK_KAFKA_FETCH_MAX_WAIT_MS": "20",
        "CLAWBACK_REDIS_URL": world.stack.redis_url,
        # On the address of the stack's judge, so that Prometheus scrapes it in its place.
        "CLAWBACK_HTTP_PORT": world.stack.services["judge"].url.rsplit(":", 1)[1],
    }
    stopped = world.process("judge")
    supervisor = world.stack.supervisor
    assert supervisor is not None
    supervisor.process("supervisor").signal(signal.SIGSTOP)  # it would start the judge again
    stopped.stop(20.0)
    own = spawn("judge", [sys.executable, "-m", "services.judge"], tmp_path / "judge.log", os.environ | env)
    try:
        fires(world, "ClawbackJudgeAbstaining")
    finally:
        own.stop(20.0)
        server.shutdown()
        supervisor.process("supervisor").signal(signal.SIGCONT)


def test_what_only_faults_bring_is_on_the_panels(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The series that health lacks: the faults above made some, the rest is brought about here."""
    from click.testing import CliRunner

    from libs.cli.commands import rollback

    chat(world.gateway, "mail", ["Write to jane.doe@example.com about tides."])
    talk = Talk("silent", ["a", "b"], time.time() - 60, "quiet", verdicts={0: 0})
    produce(world, [talk.judged(0, 0)])
    monkeypatch.setenv("CLAWBACK_HOME", str(world.home))
    told = CliRunner().invoke(rollback.command, ["homework"], catch_exceptions=False)
    assert "is to serve" in told.output
    until(lambda: world.query("clawback_trainer_commands_total > 0"), why="the trainer follows the rollback")
    garbled = urllib.request.Request(
        f"{world.gateway}/v1/chat/completions", b"{no json", {"content-type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError):  # served as the upstream answers, and not kept
        urllib.request.urlopen(garbled, timeout=60)
    world.process("policy").signal(signal.SIGKILL)
    with pytest.raises(urllib.error.HTTPError) as refused:  # the supervisor starts it again in a second or two
        chat(world.gateway, "refused", ["Is anybody there?"])
    assert refused.value.code == 502

    def missing() -> set[str]:
        return {m for m in FAULTS_ONLY if not world.query(f"last_over_time({m}[15m])")}

    until(lambda: not missing(), within_seconds=60, why="every other series was seen")
    until(lambda: readiness(world.stack.services["policy"].url)[0], why="the policy serves again")


def test_spool_growing_while_the_broker_is_away(world: World) -> None:
    """Last: the local broker holds everything in memory."""
    broker = world.stack.infrastructure["broker"].process("broker")
    broker.signal(signal.SIGSTOP)
    try:
        chat(world.gateway, "spooled", ["Is anybody there?"])
        fires(world, "ClawbackSpoolGrowing")
    finally:
        broker.signal(signal.SIGCONT)


def test_every_alert_has_been_made_to_fire_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert f'fires(world, "{rule["alert"]}")' in text
