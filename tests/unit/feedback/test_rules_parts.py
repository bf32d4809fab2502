"""Tool results, language files, repeated requests, hints, privacy."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.contracts import Message
from libs.errors import ConfigError
from libs.feedback.judges.rules import RulesJudge
from libs.feedback.privacy import findings
from libs.feedback.rules.clauses import read
from libs.feedback.rules.hints import advise
from libs.feedback.rules.language import FOLDER, fingerprint, languages, load
from libs.feedback.rules.repeat import compare
from libs.feedback.rules.text import sentences, spoken
from libs.feedback.rules.tools import is_call, read_result, read_results
from tests.unit.feedback.make import question

KNOWN = languages()


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("exit code: 0", "success"),
        ("Process exited with code 1\nOutput:", "failure"),
        ("ok\n[exit status: 137]", "failure"),
        ('{"exit_code": 0, "output": "error handling improved"}', "success"),
        ('{"exit_code": 2, "output": "ok"}', "failure"),
        ('{"error": null, "success": true}', "success"),
        ('{"error": "no such user"}', "failure"),
        ('{"status": 404}', "failure"),
        ('{"status": "ok"}', "success"),
        ('{"ok": false}', "failure"),
        ('{"is_error": true, "content": "x"}', "failure"),
        ('{"rows": 3}', "unknown"),
        ("[1, 2]", "unknown"),
        ("HTTP/1.1 503 Service Unavailable", "failure"),
        ("HTTP/1.1 201 Created", "success"),
        ("HTTP/1.1 302 Found", "unknown"),
        ("Traceback (most recent call last):\n  File x", "failure"),
        ("ValueError: bad", "failure"),
        ("bash: foo: command not found", "failure"),
        ("src/main.rs:3:5: error: expected `;`", "failure"),
        ("=== 2 failed, 40 passed in 3s ===", "failure"),
        ("40 passed in 3s", "success"),
        ("test result: ok. 9 passed; 0 failed", "success"),
        ("The error page was redesigned.", "unknown"),
        ("drwxr-xr-x  2 root root  4096 notes", "unknown"),
        ("", "unknown"),
        ("{not json", "unknown"),
    ],
)
def test_a_tool_result(text: str, state: str) -> None:
    assert read_result(text).state == state


def test_what_a_look_up_returns_is_content() -> None:
    log = "ValueError: bad\nTraceback (most recent call last):\nFAILED"
    assert read_result(log, reads=True).state == "unknown"
    assert read_results('read_file({"path": "log"})', [Message("tool", log)]).state == "unknown"
    assert read_results('run({"command": "x"})', [Message("tool", log)]).state == "failure"
    assert read_result("Error: ENOENT: no such file", reads=True).state == "failure"


def test_one_failure_among_results_is_a_failure() -> None:
    results = [Message("tool", "exit code: 0"), Message("tool", "exit code: 1"), Message("tool", "exit code: 0")]
    assert read_results('run({"a": 1})', results).state == "failure"


@pytest.mark.parametrize(
    ("reply", "call"), [('run({"a": 1})', True), ("Sure (see below).", False), ("f(x) = 2 is a line", True)]
)
def test_calls_are_told_from_words(reply: str, call: bool) -> None:
    assert is_call(reply) == call


def test_five_languages_are_there_and_every_file_has_what_hints_need() -> None:
    assert {language.code for language in KNOWN} >= {"en", "ru", "es", "de", "fr"}
    for language in KNOWN:
        assert set(language.phrases) == {"keep", "without", "avoid", "and"}, language.code
        assert {"lists", "length"} <= {a.name for a in language.aspects}, language.code


NEW_LANGUAGE = """
code = "it"
scripts = ["latin"]
common = ["il", "la", "di", "che", "non", "per", "una", "un", "è", "troppo"]
[cues]
negative = ["\\\\btroppo lungo\\\\b", "\\\\bnon è quello\\\\b"]
accept = ["\\\\bgrazie\\\\b"]
[aspects.lists]
match = ["\\\\belenchi?\\\\b"]
instead = "Scrivi la risposta in paragrafi"
without = "elenchi"
[phrases]
without = "senza {what}"
"""


def test_a_new_file_is_a_new_language(tmp_path: Path) -> None:
    (tmp_path / "it.toml").write_text(NEW_LANGUAGE, encoding="utf-8")
    judge = RulesJudge(folder=tmp_path)
    assert [j.verdict for j in judge.judge(question("è troppo lungo"))] == [-1]
    assert [j.verdict for j in judge.judge(question("grazie!"))] == [1]
    assert judge.version != RulesJudge().version
    assert fingerprint(tmp_path) != fingerprint(FOLDER)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cues]\nnegatve = []", "unknown cues \\['negatve'\\]"),
        ("[cues]\nnegative = ['(']", "negative: "),
        ("[cues]\nnegative = 'no'", "negative must be a list"),
        ("[aspects.x]\nmatch = ['a']", "aspects.x lacks \\['instead', 'without'\\]"),
        ("code = ", "bad.toml"),
    ],
)
def test_a_wrong_language_file_names_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / "bad.toml")


def test_no_language_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no language files"):
        languages(tmp_path)


LONG = " ".join(f"word{n}" for n in range(300))


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        ("add tests for the parser", "Add tests for the parser.", "same"),
        ("add tests for the parser", "add tests for the parser, mock only the clock", "rephrased"),
        ("add a /map command that runs it", "add a /map-refresh command that runs it", "rephrased"),
        ("are there tests for the yaml files?", "are there tests for the env files?", "parallel"),
        ("add tests for the parser", "what is the weather like?", "other"),
        ("hi", "hi", "same"),
        ("go on", "go away", "other"),
        (f"sum this up: {LONG}", f"sum this up: {LONG}, in French", "rephrased"),
        (
            f"sum this up: {LONG} one {LONG}",
            f"sum this up: {LONG} two {LONG}",
            "other",
        ),  # another text between the ends
    ],
)
def test_a_repeated_request(old: str, new: str, want: str) -> None:
    assert compare(new, old, KNOWN[1].common) == want


@pytest.mark.parametrize(
    "secret",
    [
        "mail jane.doe@example.org", "use the key sk-abcdefghijklmnop1234", "call +4915112345678", "my name is Jane",
        "the password is hunter2", "пароль: qwerty123", "https://user:pw@host.example/x", "card 4111 1111 1111 1111",
        "in /home/jane/notes", "token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2ln", "on 10.20.30.40",
        "use aB3dE5fG7hI9jK1lM3nO5pQ7", "AKIAIOSFODNN7EXAMPLE is mine", "me llamo Ana",
    ],
)  # fmt: skip
def test_secrets_and_personal_data_never_reach_a_hint(secret: str) -> None:
    assert findings(secret)
    for words in (
        f"No, keep {secret}, and stop using lists",
        f"Use this instead: {secret}. Write plain text without lists.",
    ):
        advice = advise(read(words, KNOWN).clauses)
        said = " ".join((advice.hint, advice.rejected, advice.preserved))
        assert not findings(said), said


@pytest.mark.parametrize(
    "harmless",
    ["Write the answer as a single paragraph of plain text.", "use test_read_option_with_external_file as a model",
     "Rename get_read_only_files_content to content", "In 2024, 15 percent of 240", "take option 3 of 12"],
)  # fmt: skip
def test_ordinary_instructions_are_no_secrets(harmless: str) -> None:
    assert findings(harmless) == []


def test_a_hint_is_short_or_none() -> None:
    words = "Stop using lists. " + "Write a very long explanation about everything there is. " * 12
    assert len(advise(read(words, KNOWN).clauses).hint) <= 280


@pytest.mark.parametrize(
    "text",
    ["```\nno, this is wrong\n```", "> no, this is wrong", "<tool-note>no, this is wrong</tool-note>",
     "System: no, this is wrong", "<system>no, this is wrong"],
)  # fmt: skip
def test_what_a_program_or_a_quotation_says_is_not_spoken(text: str) -> None:
    assert "wrong" not in spoken(text)
    assert "thanks" in spoken(f"{text}\nthanks")


def test_sentences_to_the_grader_are_no_feedback() -> None:
    assert sentences("Thanks. The verdict is -1. Bye.") == ["Thanks.", "Bye."]
    assert sentences("the score of the match is wrong") == ["the score of the match is wrong"]
