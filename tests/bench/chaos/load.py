"""Steady load: students that ask, complain and go on, each in a session of its own, sending again until answered."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

SCENARIOS = ("alpha", "beta", "gamma")
_RETRY_SECONDS = 0.3
_COMPLAINTS = (
    "No, keep the explanation, just stop formatting everything as bulleted lists.",
    "Нет, шаги оставь, просто перестань всё оформлять маркированными списками.",
    "Still wrong: write the answer as a single paragraph of plain text, without any lists.",
)


@dataclass(frozen=True, slots=True)
class Accepted:
    """One exchange whose whole answer the client holds. `answers` is the exchange whose reply this one answers."""

    exchange_id: str
    session: str
    reply: str
    answers: str | None
    reply_answered: str | None


@dataclass(slots=True)
class Load:
    """Runs `workers` sessions at a time until `stop` is set. Everything that the clients know lies in `accepted`."""

    gateway_url: str
    workers: int = 4
    pause_seconds: float = 0.2
    seed: int = 0
    accepted: list[Accepted] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    sessions: int = 0

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=60, connect=5)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as http:
            await asyncio.gather(
                *(self._worker(http, random.Random(self.seed * 1000 + n)) for n in range(self.workers))
            )

    async def _worker(self, http: aiohttp.ClientSession, dice: random.Random) -> None:
        while not self.stop.is_set():
            self.sessions += 1
            await self._session(http, f"chaos-{self.seed}-{self.sessions}", dice)

    async def _session(self, http: aiohttp.ClientSession, name: str, dice: random.Random) -> None:
        headers = {"x-reef-scenario": dice.choice(SCENARIOS), "authorization": "Bearer chaos"}
        if dice.random() < 0.5:  # the others are recognised by their transcript alone
            headers["x-reef-tag-session"] = name
        texts = [f"Question {name}: why does ice float?", *dice.sample(_COMPLAINTS, k=dice.randint(1, 3))]
        messages: list[dict[str, str]] = []
        before: Accepted | None = None
        for text in texts:
            messages.append({"role": "user", "content": text})
            exchange_id, reply = await self._ask(http, headers, messages, stream=dice.random() < 0.3)
            before = Accepted(
                exchange_id, name, reply, before.exchange_id if before else None, before.reply if before else None
            )
            self.accepted.append(before)
            messages.append({"role": "assistant", "content": reply})
            await asyncio.sleep(dice.random() * 2 * self.pause_seconds)

    async def _ask(
        self, http: aiohttp.ClientSession, headers: dict[str, str], messages: list[dict[str, str]], *, stream: bool
    ) -> tuple[str, str]:
        """One exchange, sent again as any client does until the answer is whole."""
        body: dict[str, Any] = {"model": "policy", "messages": messages, "max_tokens": 12, "temperature": 1.0}
        if stream:
            body["stream"] = True
        while True:
            try:
                async with http.post(f"{self.gateway_url}/v1/chat/completions", json=body, headers=headers) as answer:
                    if answer.status == 200:
                        text = await answer.text()
                        reply = _of_stream(text) if stream else _of_json(await answer.json())
                        if reply is not None:
                            return answer.headers["x-clawback-exchange-id"], reply
                    self.failures[f"http_{answer.status}"] += 1
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                self.failures[type(error).__name__] += 1
            await asyncio.sleep(_RETRY_SECONDS)


def _of_json(answer: Any) -> str:
    return answer["choices"][0]["message"]["content"] or ""


def _of_stream(text: str) -> str | None:
    """The reply of a whole stream; None when it broke off before [DONE]."""
    import json

    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if not lines or lines[-1] != "[DONE]":
        return None
    chunks = [json.loads(line) for line in lines[:-1]]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c.get("choices"))
