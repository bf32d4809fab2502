"""The content key of a question: equal key, equal answer to expect."""

from __future__ import annotations

import hashlib

import msgspec

from libs.feedback.judge import Judge, Question
from libs.feedback.votes import Rules


def question_key(judge: Judge, question: Question, rules: Rules) -> str:
    """Hex digest over the judge with its version, the number of votes and all that the judge is shown."""
    asked = msgspec.json.encode((judge.name, judge.version, rules.votes, rules.needed, question))
    return hashlib.sha256(asked).hexdigest()
