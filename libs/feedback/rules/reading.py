"""What was read out of a person's words: the signs for and against the reply, and the instructions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from libs.feedback.rules.frames import unmask
from libs.feedback.rules.language import Language

Wish = Literal["avoid", "keep", "fine", "change", "do"]


@dataclass(frozen=True, slots=True)
class Clause:
    """One instruction: `text` without courtesies, `what` its object (for avoid, keep and fine)."""

    wish: Wish
    text: str
    what: str
    language: Language = field(repr=False)


@dataclass(slots=True)
class Reading:
    """The signs found. Each list holds the words that made them, so that a verdict can show its ground."""

    negative: list[str] = field(default_factory=list)
    fault: list[str] = field(default_factory=list)
    sarcasm: list[str] = field(default_factory=list)
    accept: list[str] = field(default_factory=list)
    partial: list[str] = field(default_factory=list)
    assent: list[str] = field(default_factory=list)
    harmless: list[str] = field(default_factory=list)
    yes: list[str] = field(default_factory=list)
    transform: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    redo: list[str] = field(default_factory=list)
    change: list[str] = field(default_factory=list)
    alter: list[str] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)
    create: list[str] = field(default_factory=list)
    builds: list[str] = field(default_factory=list)
    pronoun: list[str] = field(default_factory=list)
    extend: list[str] = field(default_factory=list)
    onward: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    doubt: list[str] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)  # a "no" that stands alone; also among `negative`
    unsure: list[str] = field(default_factory=list)  # opens with a "no" that may as well reassure
    bad: list[str] = field(default_factory=list)
    excused: list[str] = field(default_factory=list)
    greeting: bool = False
    elsewhere: bool = False  # a clause on another thing than the reply was left out
    framed: bool = False
    clauses: list[Clause] = field(default_factory=list)

    def rejects(self) -> bool:
        """Some sign against the reply, weak ones included."""
        return any((self.negative, self.fault, self.sarcasm, self.partial, self.redo, self.change, self.alter))

    def restore(self, quotations: list[str]) -> None:
        """Put the quotations back into the words that are shown and hinted."""
        for name in self.__dataclass_fields__:
            signs = getattr(self, name)
            if isinstance(signs, list) and name != "clauses":
                setattr(self, name, [unmask(sign, quotations) for sign in signs])
        self.clauses = [
            replace(c, text=unmask(c.text, quotations), what=unmask(c.what, quotations)) for c in self.clauses
        ]

    def add(self, other: Reading) -> None:
        for name in self.__dataclass_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, mine or theirs if isinstance(mine, bool) else [*mine, *theirs])
