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

import msgspec

from libs.dialects import ChatMessage, ToolCall
from libs.matching.patterns import person_words

# Lone surrogates, the mark that replaces them, and control characters come and go on the way through a client.
_NOISE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffd\ufeff\u200b]")
_THOUGHTS = re.compile(r"<(think|thinking|thought|reasoning)>.*?</\1>", re.DOTALL)
_ESCAPED_NOISE = re.compile(r"\\u00[01][0-9a-f]")
_DIGEST_BYTES = 10
_NOTHING = hashlib.blake2b(digest_size=_DIGEST_BYTES)
SEPARATOR = "\x1f"  # taken out of every folded text
SPECIFIC = 24  # characters: a text at least this long is told from others by itself
_FIRST = 200  # characters of a first line that count
_LINE_MIN = 16  # characters of a line that is worth looking up
_LINE_SPLIT = re.compile(r"\r\n|\n|\r|\\n|\\r")
# What a transcript that was written out as text puts around a line: tags or a role name before it, tags behind it.
_LABEL = re.compile(
    r"(?:<[^<>]{1,60}>)+|\W{0,3}(?:assistant|ai|model|agent|bot|user|human|customer|tool)\b[^:\w]{0,3}:\s*",
    re.IGNORECASE,
)
_CLOSING = re.compile(r"(?:</[^<>]{1,30}>)+$")
_LINE_EDGE = " \t\"'`*#>-|_.,:;<>[]{}()/\\"


def fold(text: str) -> str:
    """Text without reasoning blocks and noise, white space folded."""
    if "<th" in text or "<reasoning>" in text:
        text = _THOUGHTS.sub(" ", text)
    if text.isascii() and text.isprintable() and "  " not in text:  # most texts are folded already
        return text.strip(" ")
    folded = " ".join(text.split())
    if folded.isascii():
        return folded if folded.isprintable() else " ".join(_NOISE.sub("", folded).split())
    return " ".join(_NOISE.sub("", unicodedata.normalize("NFC", folded)).split())


def digest(*parts: str) -> str:
    """A short digest of parts. They cannot run into one another: folded text never holds the separator.

    For raw text (ids, tags) use `apart`.
    """
    data = SEPARATOR.join(parts).encode("utf-8", "replace")
    running = _NOTHING.copy()  # cheaper than a new one
    running.update(data)
    return running.hexdigest()


def apart(*parts: str) -> str:
    """A digest of any parts, whatever they hold."""
    return digest(*(f"{len(p)}:{p}" for p in parts))


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


class Block(msgspec.Struct, eq=False):
    """A message in canonical form. `text` is folded; `calls` are canonical; `first` is the first line of its words."""

    role: str
    text: str
    calls: tuple[str, ...]
    media: tuple[str, ...]
    first: str
    _key: str = ""

    @property
    def key(self) -> str:
        """Digest of all that counts."""
        if not self._key:
            media = self.media if not self.text and not self.calls else ()
            self._key = digest(self.role, self.text, *self.calls, "", *media)
        return self._key

    @property
    def weight(self) -> int:
        """How many characters tell it from others."""
        return len(self.text) + sum(map(len, self.calls))


def block(message: ChatMessage) -> Block:
    """A message in canonical form."""
    user = message.role == "user"
    text = person_words(message.text) if user else message.text
    folded = fold(text)
    calls = message.tool_calls
    return Block(
        message.role,
        folded,
        tuple(sorted(call_text(c) for c in calls)) if calls else (),
        message.media,
        _first_line(text) if user and "\n" in text else folded[:_FIRST] if user else folded,
    )


def _first_line(text: str) -> str:
    return next((folded for line in text.split("\n") if (folded := fold(line))), "")[:_FIRST]


def blocks(messages: Iterable[ChatMessage]) -> tuple[list[Block], list[str]]:
    """The conversation in canonical form, and the unfolded text of each part.

    Left out: system messages, and user messages that hold neither a person's words nor media.
    """
    parts: list[Block] = []
    texts: list[str] = []
    for message in messages:
        if message.role == "system":
            continue
        part = block(message)
        if part.text or part.calls or part.media:
            parts.append(part)
            texts.append(message.text)
    return parts, texts


def chain(parts: Sequence[Block], wanted: Iterable[int]) -> dict[int, str]:
    """Digest of parts[:i] for each wanted i.

    Consecutive messages of one role are one for this purpose: clients merge and split them. Tool results of one run
    count as a set, since clients order them differently.
    """
    at = set(wanted)
    found: dict[int, str] = {}
    running = _NOTHING.copy()
    frames: list[str] = []  # ended runs that `running` does not hold yet
    run: list[Block] = []
    for i, part in enumerate(parts):
        if i in at:
            found[i] = _with(running, frames, run)
        if run and run[0].role != part.role:
            frames.append(_frame(run))
            run = []
        run.append(part)
    if len(parts) in at:
        found[len(parts)] = _with(running, frames, run)
    return found


def _with(running: hashlib.blake2b, frames: list[str], run: Sequence[Block]) -> str:
    """The digest of all frames and of a run that may go on. Moves the frames into `running`."""
    running.update("".join(frames).encode("utf-8", "replace"))
    frames.clear()
    if not run:
        return running.hexdigest()
    copied = running.copy()
    copied.update(_frame(run).encode("utf-8", "replace"))
    return copied.hexdigest()


def _frame(run: Sequence[Block]) -> str:
    """A run of messages of one role as text that ends where the next run begins."""
    one = run[0]
    if len(run) == 1 and not one.calls and not one.media:
        return f"{one.role}{SEPARATOR}{one.text}\x1e"
    if one.role == "tool":
        items = ["tool", *sorted(b.text or "".join(b.media) for b in run)]
    else:
        items = [one.role, " ".join(b.text for b in run if b.text), *sorted(c for b in run for c in b.calls)]
        items += [m for b in run for m in b.media]
    return SEPARATOR.join(items) + "\x1e"


def lines(text: str) -> list[str]:
    """The lines of a text that are long enough to be looked up, folded and without edge marks.

    Marks are quotes and bullets, and the tags or role names of a transcript that was written out as text.
    """
    if "<th" in text:
        text = _THOUGHTS.sub("\n", text)
    found = (_unlabelled(fold(line)).strip(_LINE_EDGE) for line in _LINE_SPLIT.split(text))
    return [line[:300] for line in found if len(line) >= _LINE_MIN]


def _unlabelled(line: str) -> str:
    label = _LABEL.match(line)
    if label:
        line = line[label.end() :]
    return _CLOSING.sub("", line) if line.endswith(">") else line
