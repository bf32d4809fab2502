"""The canonical form of messages and their digests: what has to be equal for two texts to count as the same.

Counts: role, text with white space folded, tool calls as (name, parsed JSON arguments), non-text parts by digest.
Does not count: reasoning, ids, key order, number spacing, control characters, machine-authored blocks in user text,
how consecutive messages of one role are cut.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from libs.dialects import ChatMessage, ToolCall
from libs.matching.patterns import person_words

# Lone surrogates, the mark that replaces them, and control characters come and go on the way through a client.
_NOISE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffd\ufeff\u200b]")
_THOUGHTS = re.compile(r"<(think|thinking|thought|reasoning)>.*?</\1>", re.DOTALL)
_ESCAPED_NOISE = re.compile(r"\\u00[01][0-9a-f]")
_DIGEST_BYTES = 10
SPECIFIC = 24  # characters: a text at least this long is told from others by itself
_LINE_MIN = 16  # characters of a line that is worth looking up
_LINE_SPLIT = re.compile(r"\r\n|\n|\r|\\n|\\r")
_LINE_EDGE = " \t\"'`*#>-|_.,:;<>[]{}()/\\"


def fold(text: str) -> str:
    """Text without reasoning blocks and noise, white space folded."""
    if "<th" in text or "<reasoning>" in text:
        text = _THOUGHTS.sub(" ", text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return " ".join(_NOISE.sub("", text).split())


def digest(*parts: str) -> str:
    """A short digest of parts that cannot run into one another."""
    text = "\x1f".join(f"{len(p)}:{p}" for p in parts)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=_DIGEST_BYTES).hexdigest()


def call_text(call: ToolCall) -> str:
    """A call as its name and canonical arguments: key order, spacing and number form do not count."""
    try:
        value = json.loads(call.arguments, parse_float=_number, parse_int=_number) if call.arguments else {}
        arguments = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        arguments = call.arguments
    return f"{call.name}({fold(_ESCAPED_NOISE.sub('', arguments))})"


def _number(text: str) -> object:
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


@dataclass(frozen=True, slots=True)
class Block:
    """A message in canonical form. `text` is folded; `calls` are canonical; `first` is the first line of its words."""

    role: str
    text: str
    calls: tuple[str, ...]
    media: tuple[str, ...]
    first: str
    ids: tuple[str, ...]

    @property
    def key(self) -> str:
        """Digest of all that counts."""
        media = self.media if not self.text and not self.calls else ()
        return digest(self.role, self.text, *self.calls, *media)

    @property
    def weight(self) -> int:
        """How many characters tell it from others."""
        return len(self.text) + sum(len(c) for c in self.calls)


def block(message: ChatMessage) -> Block:
    """A message in canonical form."""
    text = person_words(message.text) if message.role == "user" else message.text
    folded = fold(text)
    ids = (message.id, *(c.id for c in message.tool_calls))
    return Block(
        role=message.role,
        text=folded,
        calls=tuple(sorted(call_text(c) for c in message.tool_calls)),
        media=message.media,
        first=folded if message.role != "user" else _first_line(text),
        ids=tuple(i for i in ids if i),
    )


def _first_line(text: str) -> str:
    return next((folded for line in text.split("\n") if (folded := fold(line))), "")[:200]


def blocks(messages: Iterable[ChatMessage]) -> tuple[list[Block], list[str]]:
    """The conversation in canonical form, and the unfolded text of each part.

    Left out: system messages, and user messages that hold neither a person's words nor media.
    """
    found = [(b, m.text) for m in messages if m.role != "system" for b in (block(m),) if b.text or b.calls or b.media]
    return [b for b, _ in found], [t for _, t in found]


def chain(parts: Sequence[Block]) -> list[str]:
    """Running digests: entry i covers parts[:i], so entry 0 is the empty conversation.

    Consecutive messages of one role are one for this purpose: clients merge and split them. Tool results of one run
    count as a set, since clients order them differently.
    """
    out = [digest("")]
    before = out[0]  # digest of everything before the current run
    run: list[Block] = []
    for part in parts:
        if run and run[-1].role != part.role:
            before = out[-1]
            run = []
        run.append(part)
        out.append(_extend(before, run))
    return out


def _extend(before: str, run: Sequence[Block]) -> str:
    role = run[0].role
    if role == "tool":
        return digest(before, role, *sorted(b.text or "".join(b.media) for b in run))
    text = " ".join(b.text for b in run if b.text)
    calls = sorted(c for b in run for c in b.calls)
    media = [m for b in run for m in b.media]
    return digest(before, role, text, *calls, "|", *media)


def lines(text: str) -> list[str]:
    """The lines of a text that are long enough to be looked up, folded and without edge marks (quotes, bullets)."""
    if "<th" in text:
        text = _THOUGHTS.sub("\n", text)
    found = (fold(line).strip(_LINE_EDGE) for line in _LINE_SPLIT.split(text))
    return [line[:300] for line in found if len(line) >= _LINE_MIN]
