"""Questions about how the conversation stands (is it over, is the user content, what is asked for), put by programs.

People in a conversation do not ask these of it, and never in a form that a program can read.
"""

from __future__ import annotations

import re

_I = re.IGNORECASE | re.DOTALL
_START = r"(?:^|[.!?:;\n]\W{0,8})"  # of a sentence
_ABOUT = (
    r"(?:(?:the|this|our) (?:\w+ )?(?:conversation|chat|dialog(?:ue)?|discussion)"
    r"|the (?:end[- ])?(?:user|customer|human)(?:'s (?:\w+ ){0,2}(?:request|question|query|message|task|goals?|needs?"
    r"|issue|problem|intent))?|the assistant(?:'s (?:\w+ ){0,2}(?:reply|response|answer|message))?)"
)
_STANDS = (
    r"(?:(?:has|have|had|is|are|was|were|been|being|now|already|still|really|fully|clearly|yet|likely|just) ){0,3}"
    r"(?:finish(?:ed)?|done|completed?|over|end(?:s|ed)?|concluded|closed|resolved|fulfilled|satisf(?:y|ied)|met|addressed"
    r"|answer(?:ed|s)?|ongoing|on[- ]topic|happy|content|frustrated|angry|upset|confused|waiting|ask(?:s|ed|ing)?"
    r"|expect(?:s|ing)?|request(?:s|ed|ing)?|greet(?:s|ed|ing)?|leav(?:e|es|ing)|want(?:s|ed)?|need(?:s|ed)?|intends?"
    r"|chang(?:e|es|ed|ing)|switch(?:es|ed|ing)?|continue[sd]?|respond(?:s|ed)?|repl(?:y|ies|ied)|speak"
    r"|correct(?:s|ed|ing)?)"
)
_AUX = r"(?:is|are|was|has|have|had|did|does|do|should|can|could|will|would|must)"
_JUDGE = (
    r"(?:determines?|decides?|judges?|assess(?:es)?|evaluates?|checks?|detects?|tells?|states?|indicates?|says?"
    r"|classif(?:y|ies)|predicts?|verif(?:y|ies))"
)
_TOLD = rf"(?:{_START}|\byou (?:must |should |will |only )?|\b(?:task|job|goal|role|objective) is to |\bplease )"
_STATE = re.compile(
    rf"{_START}{_AUX} {_ABOUT} {_STANDS}\b[^?\n]{{0,160}}\?"
    rf"|{_TOLD}{_JUDGE}\b.{{0,20}}\b(?:whether|if) {_ABOUT} {_STANDS}\b",
    _I,
)
_SAY = (
    rf"{_START}(?:please |only |just |and )?(?:respond|reply|answer|return|output|print|say|produce)\b[^.\n]{{0,80}}?"
)
_CODED = re.compile(rf"{_SAY}(?:\bjson\b|\{{\s*[\"']?\w[\w -]{{0,40}}[\"']?\s*:)", _I)
_CHOICE = re.compile(
    rf"{_SAY}\b(?:yes|true|done|finished)\b\W{{0,6}}(?:or|and|/|\|)\W{{0,6}}\b(?:no|false|continue|not)\b", _I
)
_BARE = re.compile(
    r"\b(?:only|just|exactly|nothing (?:else|more)|no (?:other|explanation|more)|(?:one|single) (?:word|token)"
    r"|without)\b",
    _I,
)
# A person has something made that asks such questions.
_MAKE = re.compile(
    r"^\W*(?:please |can you |could you |let'?s |i want you to |now |then )*(?:implement|write|add|fix|create|build"
    r"|make|refactor|change|update|translate|explain|rewrite|improve|design|debug|why|how|what)\b",
    re.IGNORECASE,
)


def standing_question(text: str, *, service: bool = False) -> bool:
    """Does a program ask how the conversation stands, for an answer in a form that it can read?

    Yes or no alone is a form that people want, too: it counts with "only" or the like, or in a `service` role.
    """
    if len(text) > 4000 or not ("{" in text or any(word in text.lower() for word in ("json", "yes", "true", "done"))):
        return False
    if _MAKE.match(text) or not _STATE.search(text):
        return False
    if _CODED.search(text):
        return True
    return _CHOICE.search(text) is not None and (service or _BARE.search(text) is not None)


def judges_standing(system: str) -> bool:
    """A short system prompt that makes the model a judge of how the conversation stands."""
    return len(system) <= 1200 and _STATE.search(system[:300]) is not None
