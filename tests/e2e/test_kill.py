"""kill -9 of each service in the middle of the stream: after the restart no turn is lost and none is trained twice.

The model is a small random one: delivery does not depend on what is said, and each kill costs a restart, not minutes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAIError

from deploy.local import stack as local
from deploy.local import state
from deploy.local.process import wait_until
from experiments.homework.watch import Facts, Watch
from libs.contracts import TrafficRaw, TurnMatched
from tests.e2e.conftest import Starter
from tests.e2e.test_loop import client_of, read

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SCENARIO = "killed"
BATCH = 4
WORKERS = 3
TOKENS = 24  # bytes of a random model: so many that some are letters, since a reply of control bytes alone says nothing
BEFORE_KILL = 2  # exchanges that are acknowledged before each kill
DURING_KILL = 6  # further ones that are sent while the service is away; bounded, so that the trainer can keep up
RETRY_SECONDS = 0.3


@dataclass
class Traffic:
    """What the clients did. An exchange counts as acknowledged when the client holds the whole answer."""

    client: AsyncOpenAI
    acknowledged: list[str] = field(default_factory=list)  # the newest user text of each exchange
    answers: dict[str, str] = field(default_factory=dict)  # newest user text -> the reply that it answers
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    stopping: bool = False
    sessions: int = 0
    sent: int = 0
    allowed: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    async def worker(self) -> None:
        while not self.stopping:
            self.sessions += 1
            await self.session(self.sessions)

    async def session(self, number: int) -> None:
        texts = [
            f"Question {number}: what are the steps of photosynthesis?",
            f"No, that is wrong. Stop using lists in answer {number}.",
            f"Still wrong: please don't use bullet points in answer {number}.",
        ]
        messages: list[dict[str, str]] = []
        for text in texts:
            if messages:
                self.answers[text] = messages[-1]["content"]
            messages.append({"role": "user", "content": text})
            reply = await self.ask(number, messages)
            messages.append({"role": "assistant", "content": reply})
            async with self.changed:
                self.acknowledged.append(text)
                self.changed.notify_all()

    async def ask(self, number: int, messages: list[Any]) -> str:
        """One exchange, sent again like any client does until an answer is there."""
        headers = {"x-reef-scenario": SCENARIO, "x-reef-tag-session": f"k{number}"}
        async with self.changed:
            await self.changed.wait_for(lambda: self.stopping or self.sent < self.allowed)
            self.sent += 1
        while True:
            try:
                completion = await self.client.chat.completions.create(
                    model="policy", messages=messages, max_tokens=TOKENS, seed=number, extra_headers=headers, timeout=60
                )
                return completion.choices[0].message.content or ""
            except OpenAIError as error:
                self.failures[type(error).__name__] += 1
                await asyncio.sleep(RETRY_SECONDS)

    async def more(self, count: int, extra: int = 0) -> None:
        """Let `count` + `extra` more exchanges be sent, and wait until `count` more are acknowledged."""
        goal = len(self.acknowledged) + count
        async with self.changed:
            self.allowed = len(self.acknowledged) + count + extra
            self.changed.notify_all()
            await self.changed.wait_for(lambda: len(self.acknowledged) >= goal)

    async def finish(self) -> None:
        """Let the open sessions come to their end, and no new ones begin."""
        async with self.changed:
            self.stopping = True
            self.changed.notify_all()


def kill_and_wait(home: Path, name: str) -> None:
    """kill -9, then wait until the supervisor has it back and it says that it is ready."""
    before = state.read(home)
    assert before is not None
    entry = before.services[name]
    os.kill(entry.pid, signal.SIGKILL)

    def back() -> bool:
        now = state.read(home)
        if now is None or now.services[name].restarts <= entry.restarts:
            return False
        return local.readiness(now.services[name].url, 2.0)[0]

    assert wait_until(back, 180.0), f"{name} did not come back"


def completed(raw: Path) -> set[str]:
    """The newest user text of every exchange on the topic that was answered; failed attempts are on it as well."""
    found = read(raw, "traffic.raw", TrafficRaw)
    return {r.request["messages"][-1]["content"] for r in found if r.outcome == "completed"}


async def drive(home: Path, gateway: str, bootstrap: str, raw: Path) -> tuple[Traffic, Facts]:
    async with client_of(gateway) as client, Watch(bootstrap, SCENARIO, raw) as watch:
        traffic = Traffic(client)
        workers = [asyncio.create_task(traffic.worker()) for _ in range(WORKERS)]
        for name in local.NAMES:
            await traffic.more(BEFORE_KILL, DURING_KILL)
            await asyncio.to_thread(kill_and_wait, home, name)
        await traffic.more(BEFORE_KILL)
        await traffic.finish()
        await asyncio.gather(*workers)

        def settled(facts: Facts) -> bool:
            texts = completed(raw)
            answered = {m.next_state[-1].text for m in read(raw, "turns.matched", TurnMatched)}
            return (
                set(traffic.acknowledged) <= texts
                and set(traffic.answers) <= answered
                and not facts.unjudged
                and facts.waiting < BATCH
                and not facts.open_batches
            )

        started = time.monotonic()
        done = await watch.until(settled, 240)
        state_line = f"waiting {watch.facts.waiting}, open {watch.facts.open_batches}, unjudged {watch.facts.unjudged}"
        print(f"settled {done} after {time.monotonic() - started:.0f} s: {state_line}; {dict(traffic.failures)}")
        return traffic, watch.facts


def test_no_turn_is_lost_and_none_trained_twice(start_small: Starter, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    with start_small({"CLAWBACK_BATCHER_BATCH_SIZE": str(BATCH)}) as stack:
        home = Path(stack.home)
        traffic, facts = asyncio.run(drive(home, stack.gateway_url, stack.kafka_bootstrap_servers, raw))
        now = state.read(home)
        assert now is not None and all(entry.restarts >= 1 for entry in now.services.values())
    check_nothing_lost(raw, traffic, facts)
    check_trained_once(facts)


def check_nothing_lost(raw: Path, traffic: Traffic, facts: Facts) -> None:
    assert set(traffic.acknowledged) - completed(raw) == set()
    bound = {m.next_state[-1].text: m.reply for m in read(raw, "turns.matched", TurnMatched)}
    assert set(traffic.answers) - set(bound) == set()
    wrong = {text for text, reply in traffic.answers.items() if bound[text].strip() != reply.strip()}
    assert wrong == set()
    assert facts.unjudged == 0


def check_trained_once(facts: Facts) -> None:
    steps = facts.steps
    assert len(steps) >= 2
    times = Counter(feedback for step in steps for feedback in step.trained)
    assert max(times.values()) == 1
    numbers = [step.number for step in steps]
    assert numbers == sorted(set(numbers)), "one chain: no release number twice"
    ended = {f for ids in facts.batches.values() for f in ids}
    assert len(facts.to_train.keys() - ended) < BATCH
    assert not facts.open_batches
