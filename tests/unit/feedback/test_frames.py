"""Words that reject by their letters and not by their sense: a wrong sign teaches the opposite."""

from __future__ import annotations

import pytest

from libs.feedback.judge import Judgement
from libs.feedback.judges.rules import RulesJudge
from libs.feedback.rules.frames import mask, unmask
from tests.unit.feedback.make import question, turns

JUDGE = RulesJudge()
ASKED = "Day 1: the castle and the tram. Day 2: the tower. Take the train to the coast if there is time."


def judge(words: str, **fields: object) -> Judgement | None:
    found = JUDGE.judge(question(words, **({"reply": ASKED} | fields)))
    return found[0] if found else None


@pytest.mark.parametrize(
    "words",
    [
        "No, that's right.", "No no, you're correct, I misread.", "Нет-нет, ты прав, это я ошибся.",
        "Nein, nein, das stimmt schon so.", "Non non, c'est bon.", "No, no, está bien así.",
        "No notes.", "Gar nicht schlecht!", "Besser geht es nicht.", "Лучше не придумаешь!", "No está nada mal.",
        "No podría ser mejor.", "Pas mal du tout !", "Don't change anything, it's perfect.", "Ne change rien.",
        "Stop, it's already perfect!", "No cambies nada.", "Нет слов, это великолепно!", "No way, this is amazing!",
        "Без проблем, подходит.", "Kein Problem, passt so.", "Pas de souci, ça me va.", "No tengo quejas.",
        "Better than the last one, which was terrible.", "Der alte Plan war falsch, dieser ist super.",
        "My boss said the old itinerary was wrong and awful. Yours is lovely.",
        "Мой прошлый план был ужасным, а твой отличный.", "L'ancien plan était nul, celui-ci est génial.",
        "El plan anterior era malísimo, este es estupendo.", "Tests fail, but not because of your function.",
        "Wrong window, ignore that. Thanks, the plan is good.", "No, seriously, it reads great.",
    ],
)  # fmt: skip
def test_nothing_in_them_rejects_the_reply(words: str) -> None:
    found = judge(words)
    assert found is None or (found.verdict, found.hint) == (1, ""), found


@pytest.mark.parametrize(
    "words",
    [
        "Translate 'this is wrong, do it again' into Portuguese.", "How do you say «that is wrong» in Spanish?",
        "Как будет по-португальски «это неправильно»?", "Wie heißt 'das ist falsch' auf Portugiesisch?",
        "Comment dit-on « c'est faux » en portugais ?", "¿Cómo se dice «está mal» en portugués?",
        "My flight is wrong on the airline site. What is their phone number?",
        "Meine Kreditkarte ist kaputt. Wo kann ich bar zahlen?", "Undo the last commit of mine, then push.",
        "Отмени мой последний коммит и запушь.", "Annule mon dernier commit puis pousse.",
    ],
)  # fmt: skip
def test_they_are_not_about_the_reply(words: str) -> None:
    assert judge(words) is None


@pytest.mark.parametrize(
    "words",
    [
        "Toll gemacht, Sintra hast du wieder vergessen.", "Good for tourists, useless for us.",
        "Not bad, but it is far too short.", "No problem with the tone, but the result is wrong.",
        "Неплохо, но порядок неправильный.", "Nicht schlecht, aber die Reihenfolge stimmt nicht.",
        "No way, that is wrong.", "It could not be more wrong.", "The last plan was great, this one is a mess.",
        "No, that is the wrong train.", "No, no, no!", "No podría ser peor.", "There is nothing right about this.",
        "You wrote \"a nice day\", that is wrong.", "My tram stop is wrong.",
    ],
)  # fmt: skip
def test_a_frame_does_not_hide_a_rejection(words: str) -> None:
    found = judge(words)
    assert found is None or found.verdict == -1, found


def test_a_comparison_is_about_the_answered_reply() -> None:
    found = judge("The first plan was wrong, this one is great.", earlier=turns("Use a stone.", "Get pans."))
    assert found is not None
    assert (found.verdict, found.number) == (1, 3)


def test_praise_beside_a_rejecting_word_says_nothing() -> None:
    assert judge("Lovely. The museum: worthless.") is None
    assert judge("No. Great, thanks!") is None
    assert judge("It is wrong. Just kidding, excellent work!") is None


def test_of_a_third_thing_only_what_the_turn_does_not_know() -> None:
    assert judge("My printer is broken.") is None
    assert judge("My tower is wrong.", reply="The tower is in the north.") is not None


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("Sounds tasty, but leave out the lemon", "Leave out the lemon."),
        ("I never told you to push to main", ""),
        ("она не считает русские гласные", ""),
        ("ne mets pas \"haute bienveillance\", c'est ridicule", "Ne mets pas \"haute bienveillance\", c'est ridicule."),
        ("Kein Problem, aber lass die Burg weg", "Lass die Burg weg."),
    ],
)  # fmt: skip
def test_a_hint_is_an_instruction(words: str, hint: str) -> None:
    found = judge(words)
    assert found is not None
    assert (found.verdict, found.hint) == (-1, hint)


def test_quotations_come_back_into_what_is_shown() -> None:
    text, taken = mask("Say \"a nice day\" or 'it's fine now' in the boys' room, not \"it\"")
    assert taken == ['"a nice day"', "'it's fine now'"]
    assert "nice" not in text
    assert unmask(text, taken) == "Say \"a nice day\" or 'it's fine now' in the boys' room, not \"it\""
    found = judge('You wrote "a nice day", that is wrong.')
    assert found is not None
    assert found.ground == 'You wrote "a nice day", that is wrong.'
