"""A conversation with a correction goes through all services, and the released weights serve it: real everything."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from deploy.local.process import wait_until
from experiments.homework.watch import Facts, Watch
from libs.contracts import (
    ExchangeClassified,
    PolicyRelease,
    Sample,
    TrafficRaw,
    TrainingBatch,
    TurnJudged,
    TurnMatched,
    decode,
)
from tests.e2e.conftest import MODEL, Starter
from tests.e2e.oracle import Oracle

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

SCENARIO = "correction"
SYSTEM = "You are a helpful homework assistant. Give clear, well-structured, step-by-step answers."
QUESTIONS = ["What are the steps of the water cycle?", "What are the steps of the scientific method?"]
COMPLAINT = "No, keep the steps, just stop formatting everything as bulleted lists."
HEADERS = {"x-reef-scenario": SCENARIO}
TOKENS = 40


def client_of(gateway: str) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{gateway}/v1",
        api_key="e2e",
        max_retries=0,
        timeout=300,
        http_client=DefaultAsyncHttpxClient(trust_env=False),
    )


async def converse(client: AsyncOpenAI, number: int, question: str) -> list[dict[str, str]]:
    """Ask, get a reply, complain, get another; returns the messages of the complaint's request."""
    headers = HEADERS | {"x-reef-tag-session": f"s{number}"}
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    first = await client.chat.completions.create(
        model="policy", messages=messages, max_tokens=TOKENS, seed=number, extra_headers=headers
    )
    messages += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": COMPLAINT},
    ]
    await client.chat.completions.create(
        model="policy", messages=messages, max_tokens=8, seed=number, extra_headers=headers
    )
    return messages


def read(raw: Path, topic: str, kind: type[Any]) -> list[Any]:
    return [decode(line, kind) for line in (raw / f"{topic}.jsonl").read_bytes().splitlines()]


def served(batch_samples: list[Sample]) -> list[tuple[Sample, list[int], list[int], torch.Tensor]]:
    """Each sample with its prompt, response and captured candidates [R, K]."""
    found = []
    for s in batch_samples:
        ids = torch.tensor(s.capture.topk_ids.values()).reshape(s.capture.topk_ids.shape)
        found.append((s, list(s.capture.prompt_token_ids.values()), list(s.capture.response_token_ids.values()), ids))
    return found  # type: ignore[return-value]


def test_a_correction_changes_the_weights_that_serve_the_next_request(
    start: Starter, tmp_path: Path, models: Path
) -> None:
    with start({"CLAWBACK_BATCHER_BATCH_SIZE": "2"}) as stack:
        event, probe = asyncio.run(live(stack.gateway_url, stack.kafka_bootstrap_servers, tmp_path / "raw"))
        oracle = Oracle(models / MODEL)
        assert event.weights is not None
        batches = read(tmp_path / "raw", "training.batches", TrainingBatch)
        samples = next(b.samples for b in batches if b.batch_id == event.batch_id)
        assert {s.feedback_id for s in samples} == set(event.trained)
        check_served_is_released(oracle, event, probe)
        check_direction(oracle, event, samples)
        check_status(stack.services["monitor"].url, tmp_path / "raw")


def check_status(monitor: str, raw: Path) -> None:
    """The figures that `clawback status` shows agree with a plain count over the topics' records."""
    classified = {r.exchange_id: r for r in read(raw, "exchanges.classified", ExchangeClassified)}
    bound = {r.turn_id for r in read(raw, "turns.matched", TurnMatched)}
    turn_of = {r.feedback_id: r.turn_id for r in read(raw, "turns.judged", TurnJudged)}
    events = {r.batch_id: r for r in read(raw, "policy.releases", PolicyRelease)}
    trained = {turn_of[feedback] for event in events.values() for feedback in event.trained}
    main = [r for r in classified.values() if r.exchange_class == "main"]
    assert len(bound) == len(trained) == 2 and len(main) == 5

    def agree() -> bool:
        with urllib.request.urlopen(f"{monitor}/api/status", timeout=5) as response:
            shown = json.load(response)["scenarios"].get(SCENARIO, {}).get("windows", {}).get("all", {})
        # both conversations were corrected: every turn that had an answer was bound to it
        return (shown.get("match_rate"), shown.get("signal_rate")) == (1.0, len(trained) / len(main))

    assert wait_until(agree, 30.0)


async def live(gateway: str, bootstrap: str, raw: Path) -> tuple[PolicyRelease, TrafficRaw]:
    """Two conversations with a correction each; returns the release they led to and the exchange it served next."""
    async with client_of(gateway) as client, Watch(bootstrap, SCENARIO, raw) as watch:
        await asyncio.gather(*(converse(client, n, question) for n, question in enumerate(QUESTIONS)))

        def released(facts: Facts) -> bool:
            return any(event.event == "released" for event in facts.events.values())

        assert await watch.until(released, 240), f"no release: {watch.facts.reasons}, {watch.facts.events}"
        event = next(e for e in watch.facts.events.values() if e.event == "released")
        await probe_until_served(client, event.release_id)
        marker = await ask(client, "What is a leaf?", 12)
        assert marker == event.release_id
        assert await watch.until(lambda facts: bool(probes(raw)) and len(facts.classified) == 5, 60)
        return event, probes(raw)[-1]


def probes(raw: Path) -> list[TrafficRaw]:
    found = read(raw, "traffic.raw", TrafficRaw)
    return [r for r in found if r.request["messages"][-1]["content"] == "What is a leaf?"]


async def ask(client: AsyncOpenAI, text: str, tokens: int, recorded: bool = True) -> str:
    """The release that answered."""
    headers = HEADERS | ({} if recorded else {"x-clawback-record": "off"})
    raw = await client.chat.completions.with_raw_response.create(
        model="policy", messages=[{"role": "user", "content": text}], max_tokens=tokens, seed=1, extra_headers=headers
    )
    return str(raw.headers.get("x-clawback-release", ""))


async def probe_until_served(client: AsyncOpenAI, release_id: str, timeout_seconds: float = 60.0) -> None:
    """Ask until the release serves: each answer is the event that is waited for."""
    deadline = time.monotonic() + timeout_seconds
    while (serving := await ask(client, "Hello", 1, recorded=False)) != release_id:
        assert time.monotonic() < deadline, f"{release_id} was published, {serving} still serves"


def check_served_is_released(oracle: Oracle, event: PolicyRelease, probe: TrafficRaw) -> None:
    """The log-probs that the server captured are those of the released weights, not of the base."""
    assert probe.capture is not None and probe.release_id == event.release_id and event.weights is not None
    prompt = [int(i) for i in probe.capture.prompt_token_ids.values()]
    response = [int(i) for i in probe.capture.response_token_ids.values()]
    captured = torch.tensor(probe.capture.logprobs.values())
    index = torch.tensor(response)[:, None]
    released = oracle.logprobs(prompt, response, event.weights.uri).gather(1, index)[:, 0]
    base = oracle.logprobs(prompt, response).gather(1, index)[:, 0]
    torch.testing.assert_close(captured, released, atol=2e-3, rtol=0)
    assert (captured - base).abs().max() > 0.02


def check_direction(oracle: Oracle, event: PolicyRelease, samples: list[Sample]) -> None:
    """The rejected replies lose; of the candidates, those that the hinted model prefers gain on the others."""
    assert event.weights is not None
    lost, preferred, others = [], [], []
    for sample, prompt, response, candidates in served(samples):
        assert sample.reward == -1 and sample.hints
        hinted = [dict(m) for m in sample.request["messages"]]
        hinted[-1]["content"] += f"\n\n{sample.hints[0]}"
        before = oracle.logprobs(prompt, response)
        after = oracle.logprobs(prompt, response, event.weights.uri)
        teacher = oracle.logprobs(oracle.prompt_ids(hinted), response)
        index = torch.tensor(response)[:, None]
        lost.append((after - before).gather(1, index).mean().item())
        wish = (teacher - before).gather(1, candidates)
        change = (after - before).gather(1, candidates)
        preferred += change[wish > 0.5].tolist()
        others += change[wish < -0.5].tolist()
    assert all(change < 0 for change in lost), lost
    assert preferred and others, (len(preferred), len(others))
    gain, rest = sum(preferred) / len(preferred), sum(others) / len(others)
    print(f"rejected replies {lost}, preferred candidates {gain:+.3f} ({len(preferred)}), others {rest:+.3f}")
    assert gain > 0 and gain > rest, (gain, rest)
