"""Text that programs write in a person's place: the one table of patterns.

Two uses. `person_words` takes out of user text what a program wrote into it (reminders, environment blocks, command
output), so that it never counts as a person's words. `side_kind` tells requests that an agent makes for itself
(titles, summaries, memory, heartbeats) from turns of the conversation. General conventions only, no agent by name.
"""

from __future__ import annotations

import re
from typing import Literal

from libs.matching.standing import judges_standing, standing_question

SideKind = Literal[
    "title", "compaction", "memory", "heartbeat", "suggestion", "review", "classifier", "commit", "transcript", "probe"
]

# A block <some-tag ...>...</some-tag>: people do not write tags with a dash or underscore, or these words.
_TAG = (
    r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)+"
    r"|reminder|context|environment|notification|metadata|caveat|attachment|attachments|heartbeat|permissions"
    r"|instructions?|skills?|memory|memories|stdout|stderr|timestamp"
)
_BLOCK = re.compile(rf"<({_TAG})(?: [^<>]{{0,300}})?>.*?</\1>", re.DOTALL)
_EMPTY = re.compile(rf"<(?:{_TAG})(?: [^<>]{{0,300}})?/>")
# [2026-11-29 18:00], [Sat Nov 29 2026 ...]: a stamp before the words.
_STAMP = re.compile(r"^\s*\[[^\[\]\n]{0,60}\b(?:\d{4}-\d{2}-\d{2}|\d{1,2}:\d{2})[^\[\]\n]{0,60}\]\s*")
# Lines in brackets or with a label that announce a program's message.
_MACHINE_HEAD = re.compile(
    r"^\s*(?:\[?(?:system|automated|internal|background)[ _-]?(?:notification|message|event|note|reminder|notice)\b"
    r"|\[(?:request|operation|response|turn|tool use|stream)[^\]\n]{0,40}(?:interrupted|cancell?ed|aborted|truncated)"
    r"|\[(?:background|async|delegated|sub-?agent)[^\]\n]{0,80}\]"
    r"|\[(?:image|file|attachment|previous|earlier|old|conversation|context)[^\]\n]{0,80}"
    r"(?:removed|omitted|cleared|truncated|compressed)[^\]\n]{0,40}\]\s*$"
    r"|note: the current (?:date|time)\b|current (?:date|time|working directory)\b\s*(?:is|:))",
    re.IGNORECASE,
)


def person_words(text: str) -> str:
    """User text without what a program wrote into it; "" when nothing of a person is left."""
    if "<" in text:
        text = _EMPTY.sub("", _BLOCK.sub("", text))
    if "[" in text[:80]:
        text = _STAMP.sub("", text)
    return "" if _MACHINE_HEAD.match(text) else text.strip("\n") if text.strip() else ""


_I = re.IGNORECASE | re.DOTALL
_CHAT = r"(?:conversation|chat|thread|session|dialog(?:ue)?|discussion|transcript|messages?|history|exchange)"
# What each kind of request asks the model for.
_ASKS: tuple[tuple[SideKind, re.Pattern[str]], ...] = (
    (
        "compaction",
        re.compile(
            rf"\b(?:summar(?:y|ies|i[sz]e|i[sz]ing|i[sz]ation)|compact(?:ion|ing)?|condens(?:e|ing|ation)|checkpoint"
            rf"|handoff|hand-off|compress(?:ion|ing)?|extract\w* .{{0,60}}context)\b.{{0,400}}\b(?:{_CHAT}|context"
            rf"|work so far|so far|above)\b"
            rf"|\b{_CHAT}\b.{{0,200}}\b(?:summar(?:y|i[sz]e|i[sz]ing|i[sz]er)|compact(?:ion|ed)?|condense[ds]?)\b"
            rf"|<summary>|\bprompt for continuing our conversation\b",
            _I,
        ),
    ),
    (
        "memory",
        re.compile(
            r"\b(?:memory (?:flush|extraction|update|consolidation)|(?:durable|long[- ]term) memor(?:y|ies)"
            r"|(?:sav(?:e|ing)|store|extract|record|persist|write|capture)\b.{0,120}\b(?:memor(?:y|ies)|facts?\b.{0,60}"
            r"\b(?:user|remember)|preferences|learnings?|worth (?:saving|remembering|keeping)))\b",
            _I,
        ),
    ),
    (
        "title",
        re.compile(
            rf"\btitle (?:generator|generation|case conventions)\b|\bthread title\b"
            rf"|\b(?:titles?|name|headline|description of this session|topic)\b.{{0,60}}\b(?:for|of|summari[sz]ing"
            rf"|describing|about)\b.{{0,60}}\b{_CHAT}\b|\b{_CHAT} (?:title|name)\b"
            rf"|\b{_CHAT}\b.{{0,80}}\b(?:title|emoji)\b",
            _I,
        ),
    ),
    ("review", re.compile(r"\brecap\b.{0,200}\b(?:words?|sentences?)\b", _I)),
    ("heartbeat", re.compile(r"\bheart_?beat\b|\bkeep[- ]?alive\b|\bscheduled (?:check|wake-?up)\b", _I)),
    (
        "suggestion",
        re.compile(
            rf"\b(?:suggest(?:ion)?s?|predict|generate|propose)\b.{{0,160}}\b(?:follow[- ]?ups?|next (?:message|prompt"
            rf"|input|question)|user (?:might|would|will|could) (?:\w+ )?(?:type|ask|say|want)|broad tags"
            rf"|(?:search )?quer(?:y|ies)|autocomplete|completions?)\b|\btags\b.{{0,80}}\b{_CHAT}\b",
            _I,
        ),
    ),
    (
        "review",
        re.compile(
            rf"\b(?:review|reflect (?:on|upon)|evaluate|assess|critique|audit)\b.{{0,80}}\b(?:the |this |our |above )"
            rf"{{0,2}}{_CHAT}\b",
            _I,
        ),
    ),
    (
        "classifier",
        re.compile(
            rf"\b(?:classif(?:y|ier)|categori[sz]e|determine|decide|analy[sz]e|detect|judge)\b.{{0,200}}\b(?:new (?:"
            rf"{_CHAT} )?topic|who should speak|next speaker|intent|safe(?:ty)?\b.{{0,30}}\bcontent|command prefix"
            rf"|speak next|whether (?:the|this|to))\b",
            _I,
        ),
    ),
)
# How a program words what it asks: each counts once.
_STYLE = tuple(
    re.compile(p, _I)
    for p in (
        r"\b(?:respond|reply|answer|return|output|provide|write|produce)\b.{0,40}\b(?:only|json|exactly|with|nothing)\b",
        r"\b(?:do not|don't|never|must not|must|avoid)\b",
        r"\b(?:your (?:sole |only )?(?:task|objective|job|goal|role)|you are (?:an?|the|now|performing|nearing)\b)",
        r"(?m:^\s*#{1,4} \S)|<[a-z_-]+>|(?m-i:^[A-Z][A-Z ]{5,}:?)|\b(?-i:CRITICAL|IMPORTANT|NOTE|TASK|RULES?)\b:?",
        r"(?m:^\s*(?:[-*]|\d+[.)]) \S.*\n\s*(?:[-*]|\d+[.)]) \S)",
        r"\b(?:conversation|dialog(?:ue)?|discussion|messages?|transcript|history)\b.{0,20}"
        r"\b(?:above|below|so far|to (?:summarize|date))\b",
        r"\bthe user(?:'s)?\b|\b(?:this|the) session\b",
        r"\b\d+ ?(?:-|to|–|or) ?\d+ (?:words?|sentences?|characters)\b|\b(?:words|characters) or (?:less|fewer)\b",
    )
)
# Words that only programs use for what they want.
_TERMS = re.compile(
    r"\b(?:memory (?:flush|extraction|consolidation)|pre-?compaction|heart_?beat|context window|[A-Z]+_(?:OK|REPLY)"
    r"|(?:go|going|carry|continued?|resumed?|proceed)\b.{0,40}\bfrom (?:your|the|this) summary"
    r"|successor (?:agent|model|assistant|instance|session|context)|hand-?off (?:memo|note|summary|document)"
    r"|(?:another|the next|a fresh|a new) (?:agent|model|assistant|instance|llm) (?:that |who |which )?(?:will|can|must"
    r"|to|takes?) )\b",
    re.IGNORECASE,
)
_SYSTEM_ROLE = re.compile(
    r"\b(?:writ(?:e|es|er)|generat(?:e|es|or)|summari[sz](?:e|es|er|ation)|compact(?:s|ion|or)?"
    r"|condens(?:e|es|er|ation)|compress(?:es|or|ion)|classif(?:y|ies|ier)|extract(?:s|or)?|assistant tasked with)\b",
    _I,
)


# A program's message that brings news (a finished task), rather than asking for something.
_NEWS = re.compile(
    r"\b(?:notification|background[- ](?:task|process|command|job)|(?:task|agent|process|job|command)\b.{0,40}"
    r"\b(?:completed|finished|failed|exited|is done))\b",
    _I,
)


# Without one of these no pattern of _ASKS fits; looking for them first keeps ordinary turns cheap.
_STEMS = (
    *("conversation", "chat", "thread", "session", "dialog", "discussion", "transcript", "message", "history"),
    *("exchange", "context", "so far", "above", "summar", "memor", "fact", "preference", "learning", "worth", "title"),
    *(
        "heart",
        "keep-alive",
        "keepalive",
        "keep alive",
        "scheduled",
        "follow",
        "next",
        "user ",
        "user'",
        "customer",
        "human",
        "assistant",
        "tags",
        "quer",
    ),
    *("autocomplete", "completion", "topic", "speaker", "intent", "safe", "command prefix", "whether", "recap"),
)


def _speaks_of_it(text: str) -> bool:
    low = text.lower()
    for stem in _STEMS:  # noqa: SIM110 - any() takes twice as long, and this is asked of every turn
        if stem in low:
            return True
    return False


# A history that was summarised, rather than the wish to have it summarised.
_RESUMED = re.compile(
    r"\b(?:was|were|been|being|is) (?:now )?(?:compacted|summari[sz]ed|condensed|compressed|continued|truncated)\b"
    r"|\b(?:here(?:'s| is)|below is|following is|this is) (?:a|the) summary\b"
    r"|\bsummary (?:below|above|of (?:the|our) (?:conversation|work|previous|earlier)[^.\n]{0,40}:)"
    r"|\bsummary (?:produced|provided|generated|written|created|prepared)\b"
    r"|\b(?:produced|wrote|created|generated|prepared|provided) (?:a|the|this) (?:\w+ )?summary\b"
    r"|\b(?:previously|earlier) (?:we|you and i|i) (?:spoke|talked|discussed|worked)\b|\bi spoke to you previously\b",
    re.IGNORECASE,
)


def _asks(text: str) -> SideKind | None:
    return next((kind for kind, pattern in _ASKS if pattern.search(text)), None)


def program_style(text: str) -> int:
    """How many habits of program-written instructions a text shows (0 to 9)."""
    return sum(1 for p in _STYLE if p.search(text)) + (len(text) >= 400)


def instruction_kind(text: str, *, sure: bool, service: bool = False) -> SideKind | None:
    """The kind of a message that a program wrote to have something made of the conversation, else None.

    What it asks for is not enough: people ask for titles and summaries too. It must also be worded as programs do,
    the more so (`sure`) where a person's words are likely, in a conversation with history and tools; less so where the
    system prompt gives the model a `service` role.
    """
    head = text[:4000]
    if not _speaks_of_it(head):
        return None
    if standing_question(text, service=service):
        return "classifier"
    kind = None if _RESUMED.search(text[:300]) else _asks(head)
    if kind is None or (not person_words(text) and _NEWS.search(head)):
        return None
    needed = 3 if sure and len(text) < 240 else 2
    needed -= service
    return kind if program_style(head) + 3 * bool(_TERMS.search(head)) >= needed else None


_SUMMARY = re.compile(r"\b(?:summar|compact|condens|compress|context extract)", re.IGNORECASE)
_COMMIT = re.compile(
    r"\bcommit messages?\b|\bbranch names?\b|\bpull request (?:titles?|descriptions?)\b", re.IGNORECASE
)


def service_role(system: str) -> bool:
    """A system prompt that makes the model a summariser, or a judge of the conversation."""
    if len(system) > 8000:
        return False
    if _SYSTEM_ROLE.search(system[:200]) is not None and _SUMMARY.search(system[:400]):
        return True
    return judges_standing(system)


def system_kind(text: str) -> SideKind | None:
    """The kind of a request whose system prompt gives the model a service role (title generator, summariser)."""
    head = text[:600]
    if len(text) > 8000:
        return None
    kind: SideKind | None = "commit" if _COMMIT.search(head) else _asks(head[:300])
    if _SYSTEM_ROLE.search(head[:200]):
        return kind
    return kind if program_style(head) >= (1 if len(text) <= 600 else 3) else None


# A conversation written out as text: role names that open lines, or a tag around the whole.
_WRITTEN_OUT = re.compile(
    r"<(?:conversation|transcript|messages|chat_history|history|dialog(?:ue)?)\b[^<>]*>"
    r"|(?m:^\W{0,4}(?:user|human)\b\W{0,4}(?::|$)[\s\S]{0,20000}?^\W{0,4}(?:assistant|ai|model|agent|bot)\b\W{0,4}(?::|$))"
    r"|[\"'](?:role|type)[\"']?\s*[:=]\s*[\"'](?:user|human)[\"']",
    re.IGNORECASE,
)


def written_out(text: str) -> bool:
    """Does the text hold a conversation?"""
    return len(text) >= 60 and _WRITTEN_OUT.search(text[:40_000]) is not None


def transcript_kind(system: str, text: str) -> SideKind | None:
    """The kind of a request that shows the model a conversation as text and asks for something about it."""
    if not written_out(text):
        return None
    asked = system[:1000] if system else text[:1000] + "\n" + text[-1000:]
    if _SUMMARY.search(asked):
        return "compaction"
    kind = _asks(asked)
    return kind or ("transcript" if program_style(system[:2000] or text[:2000]) >= 2 else None)


# Assistant text that clients put in themselves.
_FILLER = re.compile(
    r"^\W*(?:\(?no (?:response|content|output|reply)(?: requested)?\)?|(?:request|response|turn|operation) (?:was )?"
    r"(?:interrupted|aborted|cancell?ed)(?: by user)?|continu(?:e|ing)|empty)\W*$",
    re.IGNORECASE,
)


def placeholder(text: str) -> bool:
    """Assistant text that stands where no reply was served."""
    return len(text) < 80 and _FILLER.match(text) is not None


_PROBE = re.compile(r"^\W*(?:ping|test|quota|hi|hello|ok|warm-?up|count|\.|1|x)\W*$", re.IGNORECASE)


def probe(text: str, max_tokens: int | None) -> bool:
    """A request that only tests the connection, the quota or a cache: one word, at most a few tokens wanted."""
    return max_tokens is not None and max_tokens <= 5 and _PROBE.match(text) is not None
