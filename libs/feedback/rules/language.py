"""Language files: data, not code. One TOML file a language under libs/feedback/languages/; a new file, a new language.

Every value under [cues] is a list of regular expressions, matched without regard to case on text as `text.plain` leaves
it (straight quotes, single spaces, no dots on the Russian yo). docs/feedback.md explains each key; a wrong key or an
expression that does not compile is a ConfigError that names it.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from libs.errors import ConfigError

FOLDER = Path(__file__).parents[1] / "languages"
CUES = (
    "agrees",
    "approves",
    "idle",
    "elsewhere",
    "excuses",
    "mention",
    "own_task",
    "third",
    "bad",
    "negative",
    "fault",
    "opening_no",
    "harmless_no",
    "sarcasm",
    "avoid",
    "keep",
    "fine",
    "accept",
    "polite_only",
    "wish",
    "polite",
    "assent",
    "yes",
    "transform",
    "redo",
    "change",
    "weak",
    "alter",
    "create",
    "builds",
    "extend",
    "spoils",
    "pronoun",
    "but",
    "question",
    "doubt",
    "next",
    "greeting",
    "instead",
    "first",
    "before_last",
    "previous",
    "earlier",
    "misdeed",
    "better_before",
    "negator",
    "soften",
    "contrast",
)


@dataclass(frozen=True, slots=True)
class Aspect:
    """A property of replies that people reject. `instead` is the wish put affirmatively."""

    name: str
    match: re.Pattern[str]
    instead: str
    without: str


@dataclass(frozen=True, slots=True)
class Language:
    """One compiled file. `cues[key]` is one alternation; a key that the file leaves out never matches."""

    code: str
    scripts: frozenset[str]
    common: frozenset[str]
    cues: Mapping[str, re.Pattern[str]]
    aspects: tuple[Aspect, ...]
    actions: Mapping[str, re.Pattern[str]]
    phrases: Mapping[str, str]

    def find(self, key: str, text: str) -> re.Match[str] | None:
        return self.cues[key].search(text)

    def has(self, key: str, text: str) -> bool:
        return self.cues[key].search(text) is not None


def load(path: Path) -> Language:
    """Read one language file. Raises ConfigError naming file and key."""
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"language file {path.name}: {error}") from error
    cues = data.get("cues", {})
    unknown = sorted(set(cues) - set(CUES))
    if unknown:
        raise ConfigError(f"language file {path.name}: unknown cues {unknown}; known are {sorted(CUES)}")
    return Language(
        code=str(data.get("code", path.stem)),
        scripts=frozenset(data.get("scripts", ["latin"])),
        common=frozenset(data.get("common", [])),
        cues={key: _pattern(path, key, cues.get(key, [])) for key in CUES},
        aspects=tuple(_aspect(path, name, a) for name, a in data.get("aspects", {}).items()),
        actions={name: _pattern(path, f"actions.{name}", words) for name, words in data.get("actions", {}).items()},
        phrases=dict(data.get("phrases", {})),
    )


@cache
def languages(folder: Path = FOLDER) -> tuple[Language, ...]:
    """Every language file of a folder, by name. Raises ConfigError when there is none."""
    found = tuple(load(path) for path in sorted(folder.glob("*.toml")))
    if not found:
        raise ConfigError(f"no language files (*.toml) in {folder}")
    return found


def fingerprint(folder: Path = FOLDER) -> str:
    """Eight hex digits that change with any language file."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.toml")):
        digest.update(path.name.encode() + b"\x00" + path.read_bytes())
    return digest.hexdigest()[:8]


def _pattern(path: Path, key: str, parts: Any) -> re.Pattern[str]:
    if not isinstance(parts, list) or not all(isinstance(p, str) and p for p in parts):
        raise ConfigError(f"language file {path.name}: {key} must be a list of regular expressions")
    try:
        for part in parts:
            re.compile(part)
        # Named groups may appear once in a whole expression only, hence the numbered copies.
        joined = "|".join(re.sub(r"\(\?P<(\w+)>", rf"(?P<\1_{i}>", part) for i, part in enumerate(parts))
        return re.compile(joined or r"(?!)", re.IGNORECASE)
    except re.error as error:
        raise ConfigError(f"language file {path.name}: {key}: {error}") from error


def _aspect(path: Path, name: str, data: Mapping[str, Any]) -> Aspect:
    missing = {"match", "instead", "without"} - set(data)
    if missing:
        raise ConfigError(f"language file {path.name}: aspects.{name} lacks {sorted(missing)}")
    return Aspect(name, _pattern(path, f"aspects.{name}.match", data["match"]), data["instead"], data["without"])


def group(match: re.Match[str] | None, name: str = "what") -> str:
    """The named group of whichever alternative matched, stripped; empty when there is none."""
    if match is None:
        return ""
    return next((v.strip() for k, v in match.groupdict().items() if v and k.rsplit("_", 1)[0] == name), "")
