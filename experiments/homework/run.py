"""The experiment in quick form: measure the base, hold sessions in waves while the loop trains, measure again.

Between waves it waits, woken by the topics' records, until what the wave taught has reached the serving weights.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from experiments.homework import report
from experiments.homework.progress import Progress
from experiments.homework.questions import HELDOUT, STREAM
from experiments.homework.remembered import Remembered
from experiments.homework.sessions import Sampling, SessionResult, Shape, first_replies, run_session
from experiments.homework.student import PLAIN, SYSTEM_PROMPT, Preference
from experiments.homework.watch import Facts, Watch

DEFAULT_TTL_SECONDS = 86_400.0  # the matcher's and the monitor's default
REQUEST_TIMEOUT_SECONDS = 300.0
MEMORY_LINES = 6  # a memory file is kept short: it is paid for in every prompt
WAVE = 4  # sessions held at once
SETTLE_TIMEOUT_SECONDS = 300.0  # a wave's feedback is usually consumed within seconds; a stuck loop must not hang us


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `batch_size` is the batcher's: fewer turns than that stay waiting and are not waited for."""

    directory: Path
    seed: int = 0
    sessions: int = 24
    wave: int = WAVE
    batch_size: int = 4
    heldout: int = len(HELDOUT)
    shape: Shape = field(default_factory=Shape)
    ttl_seconds: float = DEFAULT_TTL_SECONDS
    preference: Preference = PLAIN
    sampling: Sampling = field(default_factory=Sampling)
    scenario: str = "homework"
    memory: bool = False  # write complaints into a memory file that later prompts carry
    unrelated: Sequence[str] = ()  # asked greedily before and after, to see what else changed
    base_replies: Path | None = None  # where the base model's replies are kept for runs that ask it the very same


@dataclass(slots=True)
class _Run:
    plan: Plan
    client: AsyncOpenAI
    watch: Watch
    progress: Progress
    results: list[SessionResult] = field(default_factory=list)
    base: dict[str, list[SessionResult]] = field(default_factory=dict)
    final: dict[str, list[SessionResult]] = field(default_factory=dict)
    memory: list[str] = field(default_factory=list)
    late: int = 0  # waves whose feedback was not consumed in time

    @property
    def questions(self) -> list[str]:
        """This seed's stream questions, in its order; they repeat when there are more sessions than questions."""
        order = list(STREAM)
        random.Random(self.plan.seed).shuffle(order)
        return [order[i % len(order)] for i in range(self.plan.sessions)]

    def system(self) -> str:
        """The system prompt, with the memory file under it where there is one."""
        if not (self.plan.memory and self.memory):
            return SYSTEM_PROMPT
        notes = "\n".join(f"- {text}" for text in self.memory[:MEMORY_LINES])
        return f"{SYSTEM_PROMPT}\n\n# Memory\nWhat the user said about earlier answers:\n{notes}"

    async def measure(self, into: dict[str, list[SessionResult]], what: str) -> None:
        plan = self.plan
        sampling = replace(plan.sampling, seed=plan.seed * 10_000 + 5_000)
        for which, questions in (("heldout", list(HELDOUT[: plan.heldout])), ("stream", self.questions)):
            self.progress.doing(f"{what}: first replies to {len(questions)} {which} questions, off the record")
            into[which] = await self._first_replies(questions, sampling, self.system(), what)
            self.progress.doing(f"{what}: {which} pass rate {report.pass_rate(into[which]):.2f}")
        if plan.unrelated:
            self.progress.doing(f"{what}: {len(plan.unrelated)} unrelated questions")
            greedy = replace(sampling, temperature=0.0)
            system = self.system() if plan.memory else None
            into["unrelated"] = await self._first_replies(list(plan.unrelated), greedy, system, what)

    async def _first_replies(
        self, questions: list[str], sampling: Sampling, system: str | None, what: str
    ) -> list[SessionResult]:
        plan = self.plan
        is_base = what == "base" or not plan.shape.recorded  # nothing recorded, nothing learned: still the base
        kept = Remembered(plan.base_replies, questions, sampling, system) if is_base else None
        if kept is not None and (results := kept.results(plan.preference)):
            return results
        results = await first_replies(
            self.client,
            questions,
            scenario=plan.scenario,
            preference=plan.preference,
            sampling=sampling,
            concurrency=len(questions),
            system=system,
        )
        if kept is not None:
            kept.keep(results)
        return results

    async def stream(self) -> None:
        questions = list(enumerate(self.questions, start=1))
        for start in range(0, len(questions), self.plan.wave):
            wave = questions[start : start + self.plan.wave]
            if self.progress.console.is_terminal:
                self.progress.doing(f"sessions {wave[0][0]} to {wave[-1][0]}")
            async with asyncio.TaskGroup() as group:
                for number, question in wave:
                    group.create_task(self._session(number, question))
            if not await self.settle():
                self.late += 1
                self.progress.doing("this wave's feedback was not consumed in time; going on")
            self.progress.show(self.results, self.watch.facts, line=True)

    async def _session(self, number: int, question: str) -> None:
        plan = self.plan
        sampling = replace(plan.sampling, seed=plan.seed * 10_000 + number * 10)
        result = await run_session(
            self.client,
            number=number,
            question=question,
            scenario=plan.scenario,
            preference=plan.preference,
            # With --ttl every other student reads too long, so that the effect stands beside its absence.
            shape=plan.shape if number % 2 else replace(plan.shape, think_seconds=0.0),
            sampling=sampling,
            rng=random.Random(plan.seed * 1_000 + number),
            system=self.system(),
        )
        self.results.append(result)
        self.memory += [text for text in result.complaints if text not in self.memory]
        self.progress.show(self.results, self.watch.facts)

    async def settle(self) -> bool:
        """Wait until what was said so far has been matched, judged and trained as far as full batches go."""
        if not self.plan.shape.recorded:
            return True
        sent = sum(r.exchanges for r in self.results)

        def consumed(facts: Facts) -> bool:
            self.progress.show(self.results, facts)
            if len(facts.classified) < sent or facts.unjudged:
                return False
            return facts.waiting < self.plan.batch_size and not facts.open_batches

        return await self.watch.until(consumed, SETTLE_TIMEOUT_SECONDS)


async def execute(plan: Plan, *, gateway_url: str, bootstrap: str, progress: Progress) -> dict[str, Any]:
    """Run the plan against a running stack; returns the summary, also when it is cancelled half-way.

    Raises openai.OpenAIError or KafkaError when a service does not answer.
    """
    started = time.monotonic()
    plan.directory.mkdir(parents=True, exist_ok=True)
    client = AsyncOpenAI(
        base_url=f"{gateway_url.rstrip('/')}/v1",
        api_key=f"homework-{plan.seed}",
        max_retries=0,
        timeout=REQUEST_TIMEOUT_SECONDS,
        http_client=DefaultAsyncHttpxClient(trust_env=False),  # the stack is local: never through a proxy
    )
    async with client, Watch(bootstrap, plan.scenario, plan.directory / "raw") as watch:
        run = _Run(plan, client, watch, progress)
        finished = False
        try:
            await run.measure(run.base, "base")
            await run.stream()
            await run.measure(run.final, "final")
            finished = True
        finally:
            summary = report.summarize(
                seed=plan.seed,
                shape=plan.shape,
                ttl_seconds=plan.ttl_seconds,
                sessions=run.results,
                base=run.base,
                final=run.final,
                facts=watch.facts,
                wall_seconds=time.monotonic() - started,
                finished=finished,
            )
            summary["waves_not_consumed_in_time"] = run.late
            report.write(plan.directory, summary, run.results, {"base": run.base, "final": run.final})
        return summary
