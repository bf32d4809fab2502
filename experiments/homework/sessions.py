"""One homework session: the student asks, reads, complains at most twice, says thanks. With the plain `openai` client.

The client's shape decides what the matcher gets to see: the tag header, the whole history, a window of it, a summary.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import cast

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from experiments.homework.student import MAX_COMPLAINTS, SYSTEM_PROMPT, Preference, Reply, answer

TAG_HEADER = "x-reef-tag-session"
SCENARIO_HEADER = "x-reef-scenario"
RECORD_HEADER = "x-clawback-record"  # "off": answered like any other request, but no part of the traffic
RELEASE_HEADER = "x-clawback-release"
CLOSING_TOKENS = 16  # nobody reads what is said after "thanks"
COMPACT_PROMPT = "Summarize the conversation so far in a few sentences, so that it can go on from your summary."

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Shape:
    """How the student's client sends its history. `think_seconds` is reading time before an answer (--ttl)."""

    tagged: bool = True
    window: int | None = None  # newest messages kept, the system prompt aside
    compact: bool = False  # before an answer, history is replaced by a summary that the model writes
    think_seconds: float = 0.0
    recorded: bool = True  # off: the same talk, but no part of the traffic, so that nothing is learned from it


@dataclass(frozen=True, slots=True)
class Sampling:
    """How replies are sampled. The log-probs that train are taken at temperature 1 whatever is set here.

    0.8 and not 1: this model samples word salad at 1 after a few updates (docs/decisions/local-homework.md).
    """

    model: str = "policy"
    max_tokens: int = 96
    temperature: float = 0.8
    top_p: float = 1.0
    seed: int = 0


@dataclass(slots=True)
class SessionResult:
    """What became of one session. `faults` and `passed` are of the FIRST reply only."""

    number: int
    question: str
    first_reply: str = ""
    whole: bool = True  # the first reply ended by itself, not at the token limit
    faults: list[str] = field(default_factory=list)
    passed: bool = False
    release_id: str = ""
    complaints: list[str] = field(default_factory=list)
    answers_sent: int = 0  # the student's words that answer a reply: what the matcher should bind
    exchanges: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Conversation:
    """The client side of one session: its history, and how much of it each request carries."""

    def __init__(
        self, client: AsyncOpenAI, *, scenario: str, session: str, shape: Shape, sampling: Sampling, system: str
    ) -> None:
        self._client, self._shape, self._sampling = client, shape, sampling
        self._system: Message = {"role": "system", "content": system}
        self._history: list[Message] = []
        self._headers = {SCENARIO_HEADER: scenario}
        if shape.tagged:
            self._headers[TAG_HEADER] = session
        if not shape.recorded:
            self._headers[RECORD_HEADER] = "off"
        self.release_id = ""
        self.exchanges = self.prompt_tokens = self.completion_tokens = 0

    async def say(self, text: str, *, max_tokens: int | None = None) -> Reply:
        """Send `text` after the history; returns the assistant's reply."""
        if self._shape.compact and self._history:
            await self._compact()
        self._history.append({"role": "user", "content": text})
        reply = await self._ask(self._visible(), max_tokens)
        self._history.append({"role": "assistant", "content": reply.text})
        return reply

    def _visible(self) -> list[Message]:
        kept = self._history[-self._shape.window :] if self._shape.window else self._history
        return [self._system, *kept]

    async def _compact(self) -> None:
        summary = await self._ask([*self._visible(), {"role": "user", "content": COMPACT_PROMPT}], None)
        self._history = [{"role": "user", "content": f"Summary of the conversation so far:\n{summary.text}"}]

    async def _ask(self, messages: list[Message], max_tokens: int | None) -> Reply:
        s = self._sampling
        raw = await self._client.chat.completions.with_raw_response.create(
            model=s.model,
            messages=cast(list[ChatCompletionMessageParam], messages),
            max_tokens=max_tokens or s.max_tokens,
            temperature=s.temperature,
            top_p=s.top_p,
            seed=s.seed + self.exchanges,
            extra_headers=self._headers,
        )
        completion: ChatCompletion = raw.parse()
        self.exchanges += 1
        self.release_id = raw.headers.get(RELEASE_HEADER, "")
        if completion.usage:
            self.prompt_tokens += completion.usage.prompt_tokens
            self.completion_tokens += completion.usage.completion_tokens
        choice = completion.choices[0]
        return Reply(choice.message.content or "", finished=choice.finish_reason == "stop")


async def run_session(
    client: AsyncOpenAI,
    *,
    number: int,
    question: str,
    scenario: str,
    preference: Preference,
    shape: Shape,
    sampling: Sampling,
    rng: random.Random,
    system: str = SYSTEM_PROMPT,
) -> SessionResult:
    """Hold one session. Raises openai.OpenAIError when a request fails."""
    session = f"{scenario}-{number:03d}"
    talk = Conversation(
        client, scenario=scenario, session=session, shape=shape, sampling=sampling, system=system
    )  # fmt: skip
    result = SessionResult(number=number, question=question)
    reply = await talk.say(question)
    result.first_reply, result.whole, result.release_id = reply.text, reply.finished, talk.release_id
    result.faults = preference.faults(reply)
    result.passed = not result.faults
    for _ in range(MAX_COMPLAINTS):
        if shape.think_seconds:
            await asyncio.sleep(shape.think_seconds)
        text, content = answer(preference, reply, rng)
        result.answers_sent += 1
        result.complaints += [] if content else [text]
        reply = await talk.say(text, max_tokens=CLOSING_TOKENS if content else None)
        if content:
            break
    result.exchanges = talk.exchanges
    result.prompt_tokens, result.completion_tokens = talk.prompt_tokens, talk.completion_tokens
    return result


async def first_replies(
    client: AsyncOpenAI,
    questions: list[str],
    *,
    scenario: str,
    preference: Preference,
    sampling: Sampling,
    concurrency: int,
    system: str | None = SYSTEM_PROMPT,
) -> list[SessionResult]:
    """Ask each question once, off the record: it measures the policy and teaches it nothing."""
    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    gate = asyncio.Semaphore(concurrency)

    async def one(number: int, question: str) -> SessionResult:
        async with gate:
            raw = await client.chat.completions.with_raw_response.create(
                model=sampling.model,
                messages=cast(list[ChatCompletionMessageParam], [*opening, {"role": "user", "content": question}]),
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                seed=sampling.seed + number,
                extra_headers={SCENARIO_HEADER: scenario, RECORD_HEADER: "off"},
            )
        completion: ChatCompletion = raw.parse()
        choice = completion.choices[0]
        reply = Reply(choice.message.content or "", finished=choice.finish_reason == "stop")
        faults = preference.faults(reply)
        tokens = completion.usage
        return SessionResult(
            number=number,
            question=question,
            first_reply=reply.text,
            whole=reply.finished,
            faults=faults,
            passed=not faults,
            release_id=raw.headers.get(RELEASE_HEADER, ""),
            exchanges=1,
            prompt_tokens=tokens.prompt_tokens if tokens else 0,
            completion_tokens=tokens.completion_tokens if tokens else 0,
        )

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number, question)) for number, question in enumerate(questions)]
    return [task.result() for task in tasks]
