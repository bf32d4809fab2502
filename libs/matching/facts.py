"""From a record to a plan: every key an exchange is looked up by, and every key it leaves for its answer.

Pure. Cost grows with the length of the request alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from libs.contracts import TrafficRaw
from libs.dialects import ChatMessage, ParsedRequest, ParsedResponse
from libs.matching.canonical import SPECIFIC, Block, apart, block, blocks, digest, lines
from libs.matching.choose import MARK
from libs.matching.identity import Identity
from libs.matching.patterns import placeholder
from libs.matching.plan import Slot

MAX_SLOTS = 8
MAX_LINES = 12
_SHORT_REPLY = 120  # characters of an acknowledgement
_LONGEST = 200_000  # characters of one message that are searched for a summary
_TOGETHER = 32  # characters of a message and its reply that tell the pair from others
_NEAR = 3  # user messages right before a reply that may be the one it answered


class Keys:
    """Keys of one space. A key never equals one of another space, kind or level."""

    def __init__(self, identity: Identity) -> None:
        self._space = identity.space
        self._session = apart(identity.session) if identity.session else ""

    def of(self, kind: str, *parts: str) -> str:
        return digest(self._space, kind, *parts)

    def reply(self, before: Sequence[Block], at: str, reply: Block) -> list[tuple[str, str]]:
        """Levels and keys of a reply that follows `before`, whose chain digest is `at`; strongest first."""
        found = [("chain", self.of("chain", at, reply.key))]
        local = self._local(before, reply)
        if local:
            found.append(("local", local))
        found.extend(("near", key) for key in self._near(before, reply))
        found.extend(("reply", key) for key in self._alone(reply))
        return found

    def _local(self, before: Sequence[Block], reply: Block) -> str:
        """The reply, what it answers, and the assistant message before that."""
        start = _newest_reply(before)
        if start < 0 or start == len(before) - 1:
            return ""
        between = before[start + 1 :]
        if before[start].weight + sum(b.weight for b in between) + reply.weight < _TOGETHER:
            return ""
        users = [b.first for b in between if b.role == "user"]
        results = sorted(b.text for b in between if b.role == "tool")
        return self.of("local", before[start].key, *users, "|", *results, "|", reply.key)

    def _near(self, before: Sequence[Block], reply: Block) -> list[str]:
        """The reply and one message right before it: the person's first line, or the results of one run of tools."""
        run: list[Block] = []
        for part in reversed(before):
            if run and part.role != run[0].role:
                break
            run.append(part)
        if not run or run[0].role == "assistant":
            return []
        results = ["\x1f".join(sorted(b.text for b in run))]
        texts = results if run[0].role == "tool" else [b.first for b in run[:_NEAR]]
        return [self.of("near", run[0].role, t, reply.key) for t in texts if len(t) + reply.weight >= _TOGETHER]

    def _alone(self, reply: Block) -> list[str]:
        """The reply by itself, its words alone and its calls alone; a common one only within its session."""
        found = []
        for form in _forms(reply):
            if form.weight >= SPECIFIC:
                found.append(self.of("reply", form.key))
            elif self._session:
                found.append(self.of("session-reply", self._session, form.key))
        return found


def _newest_reply(parts: Sequence[Block]) -> int:
    """Where the newest assistant message stands; -1 where there is none."""
    for i in range(len(parts) - 1, -1, -1):
        if parts[i].role == "assistant":
            return i
    return -1


def _forms(reply: Block) -> list[Block]:
    """A reply as it may come back: whole, without its calls, without its words."""
    forms = [reply]
    if reply.text and reply.calls:
        forms.append(Block("assistant", reply.text, (), (), reply.first))
        forms.append(Block("assistant", "", reply.calls, (), ""))
    return forms


def slot_positions(parts: Sequence[Block]) -> list[int]:
    """Where a served reply may sit, newest first.

    The newest assistant messages in a row, and older ones as long as the newer are short texts without calls, which
    may be a client's own filler.
    """
    found: list[int] = []
    for i in range(len(parts) - 1, -1, -1):
        part = parts[i]
        if part.role != "assistant":
            continue
        in_row = bool(found) and found[-1] == i + 1
        if found and not in_row and not _passable(parts[found[-1]]):
            break
        found.append(i)
        if len(found) == MAX_SLOTS:
            break
    return found


def _passable(part: Block) -> bool:
    return not part.calls and len(part.text) <= _SHORT_REPLY


def slots(
    keys: Keys, parts: Sequence[Block], at: Mapping[int, str], texts: Sequence[str], where: Sequence[int]
) -> list[Slot]:
    """The assistant messages at these positions. `texts` holds the unfolded text of each part."""
    found: list[Slot] = []
    run = 0
    for n, i in enumerate(where):
        run += n > 0 and where[n - 1] != i + 1
        pieces = [keys.of("line", line) for line in reversed(lines(texts[i])[-MAX_LINES:])]
        mark = parts[i].key[:MARK] if _passable(parts[i]) else ""
        found.append(Slot(keys.reply(parts[:i], at[i], parts[i]), mark, pieces, run, placeholder(parts[i].text)))
    return found


def brought(parts: Sequence[Block]) -> list[str]:
    """Marks of the newest short assistant texts of a request."""
    return [b.key[:MARK] for b in reversed(parts) if b.role == "assistant" and _passable(b)][:MAX_SLOTS]


def newest_run(messages: Sequence[ChatMessage]) -> tuple[list[ChatMessage], list[ChatMessage]]:
    """The newest assistant messages in a row (system messages do not cut a row), and what follows them."""
    end = next((i for i in range(len(messages) - 1, -1, -1) if messages[i].role == "assistant"), -1)
    start = end
    while start > 0 and messages[start - 1].role in ("assistant", "system"):
        start -= 1
    run = [m for m in messages[max(start, 0) : end + 1] if m.role == "assistant"]
    return run, list(messages[end + 1 :])


def bridge_lines(keys: Keys, parsed: ParsedRequest) -> list[str]:
    """Keys of the lines that may be a served summary, last line first.

    Only what stands after the newest real reply counts: after a summary, a reply belongs to a newer turn. A short
    acknowledgement that clients put behind a summary is no real reply. Tool results are never a summary.
    """
    texts: list[str] = []
    for message in reversed(parsed.messages):
        if message.role == "assistant" and (message.tool_calls or len(message.text) > _SHORT_REPLY):
            break
        if message.role != "tool":
            texts.append(message.text)
    return text_lines(keys, reversed(texts))


def text_lines(keys: Keys, texts: Iterable[str]) -> list[str]:
    """Keys of the lines of texts, last line first; of very many, the first and the last ones."""
    found = [line for text in texts for line in lines(text[:_LONGEST])]
    if len(found) > 8 * MAX_LINES:
        found = found[: 4 * MAX_LINES] + found[-4 * MAX_LINES :]
    return [keys.of("line", line) for line in reversed(found)]


def reply_lines(keys: Keys, replies: Iterable[ChatMessage], longest: int) -> tuple[list[str], list[str]]:
    """What a reply leaves for pieces of it: keys of its lines, and a mark of the first line of each choice.

    The lines are the first and the last (a cut text keeps one end) and the longest ones. Without the first line of a
    reply no other lines of it count.
    """
    found: list[str] = []
    first: list[str] = []
    for reply in replies:
        every = [keys.of("line", line) for line in _picked(lines(reply.text), longest)]
        found.extend(every)
        first.extend(key[:MARK] for key in every[:1])
    return list(dict.fromkeys(found))[:MAX_LINES], first


def _picked(every: list[str], longest: int) -> list[str]:
    return list(dict.fromkeys([*every[:1], *every[-1:], *sorted(every, key=len, reverse=True)[:longest]]))


def ids_of(messages: Iterable[ChatMessage]) -> set[str]:
    """Provider's ids of messages, and of their calls."""
    found = {i for m in messages for i in (m.id, *(c.id for c in m.tool_calls))}
    found.discard("")
    return found


def spawn_keys(keys: Keys, texts: Iterable[str]) -> list[str]:
    """Keys of the lines by which a delegated task is recognised."""
    found = [line for text in texts for line in lines(text)[:3]]
    return list(dict.fromkeys(keys.of("spawn", line) for line in found))[:MAX_LINES]


def reply_keys(
    keys: Keys, parts: Sequence[Block], at: Mapping[int, str], response: ParsedResponse
) -> list[tuple[str, str]]:
    """Levels and keys of every choice that was served, so that any of them can be the one the client went on with."""
    found: list[tuple[str, str]] = []
    for choice in response.choices:
        reply = block(choice)
        if reply.text or reply.calls:
            found.extend(keys.reply(parts, at[len(parts)], reply))
            found.extend(_continued(keys, parts, at, reply))
    return list(dict.fromkeys(found))


def _continued(keys: Keys, parts: Sequence[Block], at: Mapping[int, str], reply: Block) -> list[tuple[str, str]]:
    """A reply to a request that ends with an assistant message: clients send both back as one."""
    if not parts or parts[-1].role != "assistant":
        return []
    head = parts[-1]
    joined = [f"{head.text} {reply.text}".strip(), head.text + reply.text]
    whole = [Block("assistant", t, tuple(sorted(head.calls + reply.calls)), (), t) for t in dict.fromkeys(joined)]
    return [pair for w in whole for pair in keys.reply(parts[:-1], at[len(parts) - 1], w)]


def dropped_keys(keys: Keys, messages: Sequence[ChatMessage], parts: Sequence[Block]) -> list[str]:
    """Keys of the requests that this one extends by a person's words alone, with no reply between.

    A reply that hit the length limit or that the person stopped is left out of the history by some clients.
    """
    if len(parts) < 2 or parts[-1].role != "user" or parts[-2].role not in ("user", "tool"):
        return []
    if not messages or messages[-1].role != "user" or not block(messages[-1]).text:
        return []
    return [keys.of("cut", end) for end in _endings(parts[:-1])]


def cut_keys(keys: Keys, parts: Sequence[Block], response: ParsedResponse, outcome: str) -> list[str]:
    """Keys under which a reply that was cut short is found when the next request leaves it out."""
    if response.finish != "length" and outcome != "client_gone":
        return []
    return [keys.of("cut", end) for end in _endings(parts)]


def _endings(parts: Sequence[Block]) -> list[str]:
    """Digest of the newest assistant message and what follows it; nothing for an opening, which many share."""
    start = _newest_reply(parts)
    if start < 0:
        return []
    after = [b.first if b.role == "user" else b.text for b in parts[start + 1 :]]
    return [digest(parts[start].key, *after)]


def same_key(keys: Keys, whole: str, response_id: str | None) -> str:
    """Key of the whole request: equal for the same request again, whatever the model or the settings."""
    return keys.of("same", whole, apart(response_id)) if response_id else keys.of("same", whole)


__all__ = [
    "Keys",
    "TrafficRaw",
    "blocks",
    "bridge_lines",
    "brought",
    "cut_keys",
    "dropped_keys",
    "ids_of",
    "newest_run",
    "reply_keys",
    "reply_lines",
    "same_key",
    "slot_positions",
    "slots",
    "spawn_keys",
    "text_lines",
]
