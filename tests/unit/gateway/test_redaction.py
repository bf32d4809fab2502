"""Secrets and personal data go; look-alikes stay; the same text always becomes the same replacement."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from libs.errors import ConfigError
from services.gateway.config import GatewaySettings
from services.gateway.redaction import Redactor
from services.gateway.redaction.setup import redactor

SECRETS = {
    "openai": "sk-proj-Q3n5vXz8aaBbCcDdEeFfGgHhIiJj",
    "anthropic": "sk-ant-api03-Qk3n5vXz8aaBbCcDdEeFfGgHhIiJj",
    "aws": "AKIAQWERTYUIOPASDFGH",
    "github": "ghp_1234567890abcdefghijklmnopqrstuvwx12",
    "slack": "xoxb-123456789012-1234567890123-abcdefghijklmnopqrstuvwx",
    "google": "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "jwt": "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0."
    "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7\n-----END RSA PRIVATE KEY-----",
    "bearer": "Bearer 8f2c1ab04e7d4c55a9e1b3d6f0a7c2e4",
    "password": 'password = "hunter2secretXYZ!"',
    "url": "postgres://bob:s3cr3tpw9Zk@db.internal/x",
}
PERSONAL = {
    "email": "jane.doe@example.com",
    "card": "4111 1111 1111 1111",
    "card without spaces": "5500005555555559",
    "card of the newer range": "2223-0031-2200-3222",
    "card in other groups": "3782 822463 10005",
    "phone": "+1 (415) 555-2671",
    "phone elsewhere": "+49 30 901820",
    "national phone": "(415) 555-2671",
}
HARMLESS = [
    "version 1.2.3.4 at 2026-11-29 12:34:56, id 1764438712, 1795957647443 ms",
    "[Sun 2026-11-29 13:21 UTC] List what is there",
    "4111 1111 1111 1112 fails its check digit",
    "run homework-20261129-200444@00002-e0d0d530 started at 20261129200444",  # right check digit, but a time
    "41111 11111 111111 is no layout of a card, nor is 4111-1111 1111-1111",
    "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b",
    "password = get_password_from_user",
    "def login(password, api_key): return api_key == self.api_key",
    "pi is 3.141592653589793 and the speed of light 299792458",
    "see https://example.com/a?b=1 and user@localhost",
    "a1b2c3d4e5f60718293a4b5c6d7e8f9012345678 is a commit",
]


@pytest.fixture(scope="module")
def redact(tmp_path_factory: pytest.TempPathFactory) -> Redactor:
    found = redactor(GatewaySettings(gateway_redaction_key="key", gateway_spool_dir=str(tmp_path_factory.mktemp("s"))))
    assert found is not None
    return found


@pytest.mark.parametrize("name", [*SECRETS, *PERSONAL])
def test_it_goes(redact: Redactor, name: str) -> None:
    secret = {**SECRETS, **PERSONAL}[name]
    value, kinds = redact.redact({"messages": [{"content": f"Bitte: {secret} — danke"}]})
    text = value["messages"][0]["content"]
    core = max(re.findall(r"[\w+/@.-]{6,}|\d{4}", secret), key=len)
    assert core not in text
    assert text.startswith("Bitte: ") and text.endswith(" — danke")
    assert "[redacted:" in text and sum(kinds.values()) >= 1


@pytest.mark.parametrize("text", HARMLESS)
def test_it_stays(redact: Redactor, text: str) -> None:
    assert redact.redact([text]) == ([text], {})


def test_nothing_found_gives_the_same_object(redact: Redactor) -> None:
    value = {"a": ["long enough to be scanned"]}
    assert redact.redact(value)[0] is value


def test_the_same_secret_gets_the_same_mark_everywhere(redact: Redactor) -> None:
    reply, _ = redact.redact({"content": "I wrote to jane.doe@example.com today"})
    history, _ = redact.redact({"messages": [{"text": "x" * 5000}, {"text": "I wrote to jane.doe@example.com today"}]})
    assert history["messages"][1]["text"] == reply["content"]
    other, _ = redact.redact({"content": "I wrote to john.doe@example.com today"})
    assert other != reply


def test_other_keys_give_other_marks(redact: Redactor) -> None:
    again = Redactor(redact._scanner, b"other key")
    assert again.redact(["jane.doe@example.com"])[0] != redact.redact(["jane.doe@example.com"])[0]


def test_tool_arguments_field_names_and_nested_values(redact: Redactor) -> None:
    value = {
        "arguments": json.dumps({"to": "jane.doe@example.com"}),
        "jane.doe@example.com": {"deep": [["4111111111111111"]]},
    }
    clean, _ = redact.redact(value)
    assert "jane" not in json.dumps(clean) and "4111" not in json.dumps(clean)
    assert json.loads(clean["arguments"])["to"].startswith("[redacted:email:")


def test_media_and_signatures_are_left_alone(redact: Redactor) -> None:
    blob = "QUtJQVFXRVJUWVVJT1BBU0RGR0g" + SECRETS["aws"] + "AAAA"
    value = {
        "image_url": {"url": f"data:image/png;base64,{blob} {SECRETS['aws']}"},
        "source": {"type": "base64", "media_type": "image/png", "data": f" {SECRETS['aws']} "},
        "signature": f" {SECRETS['aws']} ",
    }
    assert redact.redact(value)[0] == value


def test_several_in_one_string_and_text_of_any_script(redact: Redactor) -> None:
    text = f"Пишите 📧 jane.doe@example.com, звоните {PERSONAL['phone']}; ключ {SECRETS['aws']}。"
    (clean,), kinds = redact.redact([text])
    assert sum(kinds.values()) == 3
    assert clean.startswith("Пишите 📧 [redacted:email:") and clean.endswith("。")


def test_rules_of_ones_own(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "rules:\n  - name: Badge\n    id: acme.badge\n    pattern: '(BADGE-[0-9]{5})'\n    min_entropy: 0.0\n"
        "    confidence: high\n    examples: ['BADGE-12345']\n"
    )
    own = redactor(settings(tmp_path, gateway_redaction_rules=str(rules)))
    assert own is not None
    (clean,), kinds = own.redact(["carries BADGE-12345 on duty"])
    assert kinds == {"badge": 1} and "12345" not in clean
    rules.write_text("rules: [{name: 1}]")
    with pytest.raises(ConfigError, match="CLAWBACK_GATEWAY_REDACTION_RULES"):
        redactor(settings(tmp_path, gateway_redaction_rules=f"{rules},"))


def test_the_key_is_made_once_and_kept_private(tmp_path: Path) -> None:
    first, second = redactor(settings(tmp_path)), redactor(settings(tmp_path))
    assert first and second
    assert first.redact(["jane.doe@example.com"]) == second.redact(["jane.doe@example.com"])
    assert (tmp_path / "redaction.key").stat().st_mode & 0o077 == 0


def test_off(tmp_path: Path) -> None:
    assert redactor(settings(tmp_path, gateway_redaction=False)) is None


def settings(directory: Path, **given: Any) -> GatewaySettings:
    return GatewaySettings(gateway_spool_dir=str(directory), **given)
