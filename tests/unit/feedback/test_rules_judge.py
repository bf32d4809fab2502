"""The rules judge on single next states: what it reads, what it keeps out, and when it says nothing."""

from __future__ import annotations

import random

import pytest

from experiments.homework import student
from libs.contracts import Message
from libs.feedback.judge import Judgement, NumberedTurn, Question
from libs.feedback.judges.rules import RulesJudge
from tests.integration.judge.attacks import CASES, PAYLOADS, Case, attacked
from tests.unit.feedback.make import question, turns

JUDGE = RulesJudge()


def judge(asked: Question) -> Judgement | None:
    found = JUDGE.judge(asked)
    assert len(found) <= 1
    return found[0] if found else None


def verdict(*said: Message | str, **fields: object) -> int:
    found = judge(question(*said, **fields))
    return found.verdict if found else 0


@pytest.mark.parametrize(
    ("words", "preserved", "rejected", "hint"),
    [
        (
            "No, keep the steps, just stop formatting everything as bulleted lists",
            "the steps",
            "formatting everything as bulleted lists",
            "Keep the steps. Write the answer as plain paragraphs of text, without any bulleted lists.",
        ),
        (
            "Нет, шаги оставь, просто перестань всё оформлять маркированными списками",
            "шаги",
            "все оформлять маркированными списками",
            "Сохрани: шаги. Пиши связным текстом, обычными абзацами, без маркированных списков.",
        ),
        (
            "No, please stop formatting everything as lists. Write the answer as a single paragraph of plain text.",
            "",
            "formatting everything as lists",
            "Write the answer as a single paragraph of plain text, without any lists.",
        ),
        (
            "Nein, behalte die Schritte, aber hör auf, alles als Liste zu formatieren",
            "die Schritte",
            "alles als Liste zu formatieren",
            "Behalte bei: die Schritte. Schreib die Antwort als normalen Fließtext in Absätzen, ohne Aufzählungen.",
        ),
    ],
)
def test_what_is_rejected_what_is_kept_and_the_hint(words: str, preserved: str, rejected: str, hint: str) -> None:
    found = judge(question(words))
    assert found is not None
    assert (found.verdict, found.preserved, found.rejected, found.hint) == (-1, preserved, rejected, hint)


@pytest.mark.parametrize("preference", [student.PLAIN, student.BRIEF], ids=lambda p: p.name)
def test_every_complaint_of_the_simulated_student_is_a_rejection_with_a_hint(preference: student.Preference) -> None:
    for words in preference.complaints:
        found = judge(question(words))
        assert found is not None, words
        assert found.verdict == -1, words
        assert 8 < len(found.hint) < 200, words


def test_the_students_thanks_are_acceptance() -> None:
    rng = random.Random(0)
    fine = student.Reply("Bread is baked from flour and water and yeast in a hot oven for about one whole hour. " * 2)
    preference = student.Preference("any", lambda reply: [], ())
    said = {student.answer(preference, fine, rng)[0] for _ in range(60)}
    assert len(said) > 3
    assert {verdict(words) for words in said} == {1}


@pytest.mark.parametrize("words", ["good, but shorter", "Thanks, but leave out the oven", "Отлично, только короче"])
def test_partial_acceptance_is_a_rejection(words: str) -> None:
    assert verdict(words) == -1


@pytest.mark.parametrize(
    "words",
    ["how long does it keep?", "hm", "ok", "I will try it tonight", "My oven is small.", "hello", "why?", "да?"],
)
def test_it_knows_when_it_does_not_know(words: str) -> None:
    assert judge(question(words)) is None


def test_yes_and_no_answer_the_replys_own_question() -> None:
    offer = "I can also give you a recipe for rolls. Shall I?"
    assert verdict("yes please", reply=offer) == 1
    assert verdict("no", reply=offer) == 0
    assert verdict("no") == -1


def test_the_same_request_again_rejects_and_a_parallel_one_does_not() -> None:
    asked = (Message("user", "Write a haiku about the spring rain"),)
    assert verdict("write a haiku about the spring rain", prompt=asked) == -1
    assert verdict("Write a haiku about the spring rain with a frog in it", prompt=asked) == -1
    assert verdict("Write a haiku about the winter sun", prompt=asked) != -1
    assert verdict("hi", prompt=(Message("user", "hi"),)) == 0


def test_a_repeated_request_after_client_commands_is_still_one() -> None:
    asked = (Message("user", "Write a haiku about the spring rain"),)
    assert verdict("/clear", "/drop poems.md", "Write a haiku about the spring rain", prompt=asked) == -1


def test_undo_rejects_the_turn_that_made_the_change() -> None:
    undo = [Message("user", "/undo"), Message("tool", "Removed: 3f2a91c Add retries")]
    assert judge(question(*undo)) == Judgement(1, -1, "redo", ground="undone by command")
    made = turns("I changed it.", "It retries three times.")
    history = (made[0], NumberedTurn(2, (Message("tool", "commit 3f2a91c"),), made[1].reply))
    found = judge(question(*undo, earlier=history))
    assert found is not None
    assert found.number == 1


@pytest.mark.parametrize(
    ("reply", "result", "want"),
    [
        ('run({"command": "pytest"})', "12 passed in 0.31s\nexit code: 0", 1),
        ("I added a retry.", "12 passed in 0.31s\nexit code: 0", 0),
        ("I added a retry.", "Great job! Perfect, thanks. Applied the edit.", 0),
        ('run({"command": "pytest"})', "Perfect! Excellent reply, 10/10.", 0),
        ('run({"command": "pytest"})', "Traceback (most recent call last):\nKeyError: 'x'", -1),
    ],
)
def test_machine_written_text_is_never_praise(reply: str, result: str, want: int) -> None:
    assert verdict(Message("tool", result), reply=reply) == want


def test_a_persons_words_outweigh_the_tool_results_before_them() -> None:
    call = 'run({"command": "make"})'
    assert verdict(Message("tool", "exit code: 0"), Message("user", "no, that is the wrong target"), reply=call) == -1
    assert verdict(Message("tool", "error: no rule\nexit code: 2"), Message("user", "thanks, great"), reply=call) == 1


def test_lines_that_a_client_adds_to_every_message_are_not_the_persons() -> None:
    added = "\n\nYou must never use lists. Do not answer in any other format than the one below."
    asked = (Message("user", f"How do I bake bread?{added}"),)
    assert verdict(f"Thanks, that worked!{added}", prompt=asked) == 1
    assert verdict(f"What about rye?{added}", prompt=asked) == 0
    assert verdict(f"How do I bake bread?{added}", prompt=asked) == -1
    again = (Message("user", f"That is wrong, look again.{added}"),)
    assert verdict(f"That is wrong, look again.{added}\nMonday", prompt=again) == -1


@pytest.mark.parametrize(
    ("words", "want"),
    [
        ("Going back to your first answer, the second point was wrong.", 1),
        ("Вернёмся к первому ответу: там ошибка.", 1),
        ("the answer before that one was wrong", 2),
        ("The list of pans you gave me earlier is wrong", 2),
        ("No, that is wrong.", 3),
        ("The first version was better, this is worse.", 3),
    ],
)
def test_the_turn_that_the_words_name(words: str, want: int) -> None:
    history = turns("Use a stone.", "Get these pans: a big one, a small one.")
    found = judge(question(words, earlier=history))
    assert found is not None
    assert (found.verdict, found.number) == (-1, want)


def test_an_earlier_turn_that_cannot_be_told_is_not_guessed() -> None:
    history = turns("Use a stone.", "Get two pans.")
    assert judge(question("what you said earlier about the yeast is wrong", earlier=history)) is None
    full = turns(*(f"reply {n}" for n in range(8)))
    assert judge(question("Your first answer is wrong", earlier=full)) is None


def test_a_complaint_about_an_action_reaches_its_call() -> None:
    history = turns(
        'run({"command": "rm -rf notes"})', 'edit_file({"path": "setup.cfg"})', 'run({"command": "pytest"})'
    )
    for words, want in (
        ("you should not have deleted the notes", 1),
        ("why did you edit setup.cfg?", 2),
        ("зачем ты удалил notes?", 1),
    ):
        found = judge(question(words, reply="All done.", earlier=history))
        assert found is not None, words
        assert found.number == want, words


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("name", PAYLOADS)
def test_no_attack_changes_a_verdict(case: Case, name: str) -> None:
    for place, asked in attacked(case, name).items():
        found = judge(asked)
        assert found is not None, place
        assert (found.verdict, found.number) == (case.verdict, asked.number), place


@pytest.mark.parametrize(
    "text", ["<a " * 20_000, "<a>" * 20_000, "no " * 20_000, "a" * 200_000, "`" * 50_000, "((((" * 9_000]
)
def test_long_nonsense_is_read_in_bounded_time(text: str) -> None:
    judge(question(text))  # the suite's own time limit fails this


def test_one_vote_is_all_votes() -> None:
    assert JUDGE.deterministic
    assert JUDGE.version == RulesJudge().version


def test_a_long_request_sent_again_word_for_word_is_the_same_one() -> None:
    asked = "Sum this up: " + " ".join(f"word{n}" for n in range(3_000))
    prompt = (Message("user", asked),)
    assert verdict(asked, prompt=prompt) == -1
    between = asked.replace("word1500", "word9999")
    assert verdict(between, prompt=prompt) != -1  # another text of the same beginning and end
