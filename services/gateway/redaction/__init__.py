"""Secrets and personal data leave a record before the record leaves the process.

Found by Kingfisher (secret catalogue and our rules, one pass), replaced by `[redacted:<kind>:<mark>]`. The mark is a
keyed hash of what stood there, so the same text gives the same replacement in the reply and in the request that
repeats it, and two sessions named by two addresses stay two sessions. Each string is judged by itself: what is
replaced in it never depends on what else the record holds.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import kingfisher_sdk

from libs.errors import ConfigError
from services.gateway.redaction.verify import Check

RULES = Path(__file__).with_name("rules.yaml")

# Opaque by nature: hashes, signatures and media would only give false alarms, and their change breaks them.
_OPAQUE_KEYS = frozenset({"signature", "encrypted_content", "thought_signature", "b64_json"})
_MIN_LENGTH = 6  # characters; nothing shorter is a secret or an address
_MIN_KEY_LENGTH = 12  # field names are short; an address or a secret as a name is not
_GAP = b"\n"
_CONTEXT = 64  # bytes before a finding that its check sees


class Span(NamedTuple):
    """What to replace in one string, in bytes of its UTF-8 form."""

    start: int
    end: int
    kind: str


class Scanner(Protocol):
    """A detector. Others can take Kingfisher's place."""

    def spans(self, data: bytes) -> list[Span]: ...


class KingfisherScanner:
    """Kingfisher's catalogue with our rules and further rule files; about 0.2 GB/s a core."""

    def __init__(self, extra_rules: Sequence[str], verify: Mapping[str, Check], cache_dir: str | None = None) -> None:
        """Raises ConfigError when a rule file is wrong."""
        try:
            rules = kingfisher_sdk.Rules([str(RULES), *extra_rules], cache_dir=cache_dir)
        except (ValueError, OSError, RuntimeError) as error:
            raise ConfigError(f"CLAWBACK_GATEWAY_REDACTION_RULES: {error}") from error
        self._scanner = kingfisher_sdk.Scanner(rules, base64=False)
        self._verify = verify

    def spans(self, data: bytes) -> list[Span]:
        """Verified findings, in order, without overlap: of two that overlap the one that starts first, then longest."""
        found: list[Span] = []
        for finding in self._scanner.scan(data):
            kind = finding.rule_id.rpartition(".")[2]
            if not finding.visible:
                continue
            where = finding.location
            span = Span(where["start_offset"], where["end_offset"], kind)
            if check := self._verify.get(kind):
                span = _verified(check, data, span)
            if span.end > span.start:
                found.append(span)
        found.sort(key=lambda s: (s.start, -s.end))
        kept: list[Span] = []
        for span in found:
            if not kept or span.start >= kept[-1].end:
                kept.append(span)
        return kept


def _verified(check: Check, data: bytes, span: Span) -> Span:
    """The span as far as its check confirms it; empty when it does not. A check sees one line, at most."""
    line = data[max(0, span.start - _CONTEXT) : span.start].rpartition(_GAP)[2]
    text = data[span.start : span.end].decode("utf-8", "surrogatepass")
    after = data[span.end : span.end + 4].partition(_GAP)[0]
    length = check(text, line.decode("utf-8", "replace"), after.decode("utf-8", "replace"))
    return span._replace(end=span.start + len(text[:length].encode("utf-8", "surrogatepass")))


class Redactor:
    """Redacts JSON values. `key` keys the marks; keep it secret and the same for all gateways of one deployment."""

    def __init__(self, scanner: Scanner, key: bytes) -> None:
        self._scanner, self._key = scanner, key

    def redact(self, value: Any) -> tuple[Any, Counter[str]]:
        """The value with replacements, and how many of each kind there were."""
        texts: dict[str, None] = {}
        _collect(value, texts)
        replaced: dict[str, str] = {}
        kinds: Counter[str] = Counter()
        for text in self._suspects(list(texts)):
            data = text.encode("utf-8", "surrogatepass")
            if spans := self._scanner.spans(data):
                replaced[text] = self._replace(data, spans)
                kinds.update(s.kind for s in spans)
        return (_rebuild(value, replaced) if replaced else value), kinds

    def _suspects(self, texts: list[str]) -> list[str]:
        """One scan over all strings tells which ones are worth one of their own."""
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        spans = self._scanner.spans(_GAP.join(encoded))
        suspects: list[str] = []
        at = position = 0
        for text, data in zip(texts, encoded, strict=True):
            end = at + len(data)
            while position < len(spans) and spans[position].end <= at:
                position += 1
            if position < len(spans) and spans[position].start < end:
                suspects.append(text)
            at = end + len(_GAP)
        return suspects

    def _replace(self, data: bytes, spans: list[Span]) -> str:
        out: list[bytes] = []
        at = 0
        for start, end, kind in spans:
            out += [data[at:start], f"[redacted:{kind}:{self._mark(data[start:end])}]".encode()]
            at = end
        return b"".join([*out, data[at:]]).decode("utf-8", "surrogatepass")

    def _mark(self, secret: bytes) -> str:
        return hmac.new(self._key, secret, hashlib.sha256).hexdigest()[:8]


def _collect(value: Any, texts: dict[str, None]) -> None:
    if isinstance(value, str):
        if len(value) >= _MIN_LENGTH and not _media(value):
            texts[value] = None
    elif isinstance(value, dict):
        for key, item in value.items():
            if not _opaque(key, value):
                if len(key) >= _MIN_KEY_LENGTH:
                    texts[key] = None
                _collect(item, texts)
    elif isinstance(value, list):
        for item in value:
            _collect(item, texts)


def _rebuild(value: Any, replaced: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return replaced.get(value, value)
    if isinstance(value, dict):
        return {
            replaced.get(key, key): item if _opaque(key, value) else _rebuild(item, replaced)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_rebuild(item, replaced) for item in value]
    return value


def _opaque(key: str, holder: Mapping[str, Any]) -> bool:
    return key in _OPAQUE_KEYS or (key == "data" and ("media_type" in holder or "format" in holder))


def _media(text: str) -> bool:
    return text.startswith("data:") and ";base64," in text[:128]
