"""Secrets and personal data never leave in a hint. One table of patterns; what matches makes the clause unusable."""

from __future__ import annotations

import math
import re
from collections import Counter

_SECRET_WORDS = r"pass(?:word|wd|phrase)?|secret|token|api[-_ ]?key|пароль|contraseña|clave|passwort|mot de passe"
_MINE = (
    r"my name is|i am called|i live (?:at|in|on)|my (?:address|phone|number|birthday|ssn|passport)"
    r"|меня зовут|я живу|мой (?:адрес|телефон|номер|паспорт)"
    r"|me llamo|vivo en|mi (?:dirección|teléfono|número)"
    r"|ich heiße|ich wohne|meine (?:adresse|telefonnummer|nummer)"
    r"|je m'appelle|j'habite|mon (?:adresse|numéro|téléphone)"
)
_PREFIXES = "sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abprs]|AKIA|ASIA|AIza|ya29|hf|npm|pypi"
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("email", re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")),
    ("private_key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
    ("token", re.compile(rf"\b(?:{_PREFIXES})[-_]?[A-Za-z0-9_-]{{12,}}")),
    ("jwt", re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*")),
    ("url_credentials", re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/@:]+:[^\s/@]+@", re.IGNORECASE)),
    ("assigned_secret", re.compile(rf"\b(?:{_SECRET_WORDS})\b\s*(?:is|was|=|:|es|ist|est|это|-)\s*\S+", re.IGNORECASE)),
    ("card", re.compile(r"\b(?:\d[ -]?){13,19}\b")),
    ("phone", re.compile(r"(?<![\w.])\+?\d{1,3}[\s(-]{1,2}\d{2,4}[\s)-]{1,2}\d{2,4}(?:[\s-]?\d{2,4}){0,3}\b")),
    ("phone", re.compile(r"(?<!\w)\+\d{9,15}\b")),
    ("ssn", re.compile(r"\b\d{3}-\d{2}-\d{4}\b")),
    ("iban", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b")),
    ("ip_address", re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")),
    ("home_path", re.compile(r"(?:/home/|/Users/|[A-Z]:\\Users\\)[^\s/\\<]+")),
    ("name", re.compile(rf"\b(?:{_MINE})\b", re.IGNORECASE)),
)
_CANDIDATE = re.compile(r"[A-Za-z0-9+/_=-]{20,}")


def findings(text: str) -> list[str]:
    """The kinds of secrets or personal data in `text` (empty when it is safe to pass on)."""
    found = [name for name, pattern in _PATTERNS if pattern.search(text)]
    if any(_random(c) for c in _CANDIDATE.findall(text)):
        found.append("high_entropy")
    return found


def safe(text: str) -> bool:
    return not findings(text)


def _random(word: str) -> bool:
    """Looks drawn at random: mixes letters and digits, at least 3.5 bits a character (Shannon entropy)."""
    if not (re.search(r"\d", word) and re.search(r"[A-Za-z]", word)) or re.fullmatch(
        r"[a-z]+(?:[-_/][a-z0-9]+)+", word
    ):
        return False
    counts = Counter(word)
    return -sum(n / len(word) * math.log2(n / len(word)) for n in counts.values()) >= 3.5
