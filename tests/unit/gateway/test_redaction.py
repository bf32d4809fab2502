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
ASSIGNED = [
    "password=hunter2hunter2",
    '{"password":"hunter2hunter2"}',
    '{\\"password\\": \\"hunter2hunter2\\"}',
    "<password>hunter2hunter2</password>",
    "set password=correct-horse now",
    "export MYSQL_PWD=hunter2hunter2",
    "DB_PASS=Tr0ub4dor",
    "?user=x&password=Tr0ub4dor",
    "SECRET_KEY=hunter2hunter2",
    '"api_key": "live_key_83hd82hd"',
    "**Password:** hunter2hunter2",
    "--password hunter2hunter2 -h x",
    "'password' => 'Welcome123'",
    "password: 12345678",
    "my password is hunter2hunter2.",
    "Mein Passwort ist Sommer2024!",
    "passwort: hunter2",
    "mi contraseña es gato1234",
    "Пароль: qwerty123",
    "密码：Abc123456",
    "use hf_aBcDeFgHiJkLmNoPqRsTuVwXyZabcdefghij here",
    "gsk_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789aBcDeFgHiJkLmNoP",
]
IBANS = [
    "DE89 3704 0044 0532 0130 00",
    "GB29NWBK60161331926819",
    "ES91 2100 0418 4502 0005 1332",
    "FR14 2004 1010 0505 0001 3M02 606",
    "NO93 8601 1117 947",
    "de89370400440532013000",
]
# What stands where a password could, and is none.
STAND_INS = [
    "password=<your-password>",
    "password=***",
    "password=xxxxxxxx",
    "password=${VAR}",
    "password=$DB_PASSWORD1",
    'password = os.environ["DB_PASSWORD"]',
    'password = settings.DATABASES["default"]',
    '"password":"{{ vault_db_password1 }}"',
    "the password is required",
    "The password is case-sensitive.",
    "password is SHA-256 hashed",
    "password: string; password: str | None = None",
    "password: VARCHAR(255) or bytes32 hash",
    "password = user_password2",
    "const password = req.body.password2",
    "password = hash_password2(pw)",
    "if password == stored_pw2:",
    '"password": "required|min:8"',
    '{"password": "Enter your password"}',
    '"password": "current-password"',
    'type="password" name="password1"',
    "password: required-field",
    "Password: 12characters at least",
    "password: !secret mqtt_pw",
    "PWD=/home/user1/project",
    '"secret": "projects/p/secrets/db-password/versions/3"',
    "secret: kubernetes_secret_v2",
    "secretName: db-creds-7f9c",
    "api_key = openai_api_key_2",
    "api_key=your-api-key-123",
    'auth_token = response2["token"]',
    "hf_hub_download_with_progress_bars_and_more",
    "DE88 3704 0044 0532 0130 00 fails its check digits",
    "FR76 3000 6000 0112 3456 7890 188 too",
    "DE89 3704 0044 0532 0130 0012 is too long",
]
HARMLESS = [
    *STAND_INS,
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


@pytest.mark.parametrize("text", ASSIGNED)
def test_a_password_or_key_goes_wherever_it_is_given(redact: Redactor, text: str) -> None:
    (clean,), kinds = redact.redact([text])
    core = max(re.findall(r"\w*\d[\w-]*|correct-horse|hf_\w+", text), key=len)
    assert core not in clean and sum(kinds.values()) == 1, clean
    assert redact.redact([f"line before\n{text}\nline after"])[1] == kinds


@pytest.mark.parametrize("text", IBANS)
def test_an_account_number_goes_and_the_words_around_it_stay(redact: Redactor, text: str) -> None:
    (clean,), kinds = redact.redact([f"Pay {text} EUR 100"])
    assert kinds == {"iban": 1} and re.fullmatch(r"Pay \[redacted:iban:[0-9a-f]{8}\] EUR 100", clean)


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
