"""Whether what stands behind `password=` is a password: not a variable, a placeholder, a type, or a word of prose.

A value counts when nobody would write it as a name or a word: a digit before a letter (`hunter2hunter2`), digits at the
end of a word that stands for no value (`Sommer2024`), or words joined by signs that names do not have
(`correct-horse`). Plain words stay: `password: required` and `password=letmein` cannot be told apart.
"""

from __future__ import annotations

import re

_MIN_KEY_LENGTH = 8
_MIN_LENGTH = 6  # characters of a password
_QUOTES = ("'", '"', "`")
_DIGIT_THEN_LETTER = re.compile(r"\d[^\W\d_]")
_WORD = re.compile(r"[A-ZÀ-Þ]?[^\W\d_A-ZÀ-Þ]+|[A-ZÀ-Þ]+(?![a-zß-ÿ])|[^\W\d_]")  # fooBar is foo and Bar
_SIGN = re.compile(r"[^\w.]")  # what no name in code holds
_NAME = re.compile(r"[^\W\d]\w*(?:(?:\.|::|->|\?\.)[^\W\d]\w*)*")  # a variable, an attribute
_LINKED = re.compile(r"\s(?:is|was|ist|lautet|est|es|è|é|это)\s+\W*$", re.IGNORECASE)
_COMPARED = re.compile(r"==\s*$")
# $VAR and %VAR% and @file; addresses; paths; a number with its unit.
_REFERENCE = re.compile(
    r"[$@][A-Za-z_]|%\w+%?$|[a-z+]+://|arn:|[a-z_-]+(?:/[a-z_-]*\d*){2,}$|(?:~|\.{0,2})/[\w.-]+/|\d{1,3}[a-z]+$",
    re.IGNORECASE,
)
_TECHNICAL = re.compile(
    r"(?:sha|md|utf|base|aes|hs|rs|es|ps|pbkdf|argon|oauth|bcrypt|scrypt|2fa|mfa|1password|x509|ed25519|rsa|rot|i18n|k8s"
    r"|bytes|u?int|float|varchar|iso|rfc|v)[-_]?\d*(?:i?d)?(?:$|[^\w]|_)",
    re.IGNORECASE,
)
# Words that stand for a value.
_STAND_INS_TEXT = """
password passwords passwd passwort pwd pass passphrase passcode pw secret secrets key keys token tokens api apikey auth
your my our the a an user username usr db database example sample placeholder changeme change dummy fake test foo bar
baz demo env environ var vars variable config conf settings setting args arg opts options param params input inputs
value val values str string text here enter insert put replace redacted hidden masked null none undefined nil true
false self this request req form data body process os row field fields column col item obj object result res response
node id name type bytes uint int varchar char float v vault ref file get
"""
_STAND_INS = frozenset(_STAND_INS_TEXT.split())
# Words with which prose and forms go on behind a colon.
_PROSE_TEXT = """
required optional case sensitive insensitive read only auto generated protected reset not set unset encrypted hashed
plain plaintext one time at least min max minimum maximum length off on current new old confirm forgot wrong invalid
missing empty show toggle strength policy hash hashing salt salted based less free and or must should may can is was
are no yes well long short strong weak non multi self up to date in out two factor
"""
_PROSE = _STAND_INS | frozenset(_PROSE_TEXT.split())


def password(text: str, before: str, after: str) -> int:
    """How many characters of `text` are a password, 0 for none. `before` ends with the name and what links it."""
    quoted = before.endswith(_QUOTES)
    found = text if quoted else text.rstrip(".:?")
    if len(found) < _MIN_LENGTH or _is_reference(found, before, after, quoted):
        return 0
    if any(c.isdigit() for c in found):
        return len(found) * (found.isdigit() or _has_value(found))
    tight = quoted or before.endswith((":", "=", ">"))  # "password: case-sensitive" is prose
    if not tight or _LINKED.search(before) or not _SIGN.search(found):
        return 0
    return len(found) * (not any(word in _PROSE for word in _words(found)))


def assigned_key(text: str, before: str, after: str) -> int:
    """The same for keys and tokens, which hold letters and digits both."""
    quoted = before.endswith(_QUOTES)
    found = text if quoted else text.rstrip(".:?")
    mixed = any(c.isdigit() for c in found) and any(c.isalpha() for c in found)
    if len(found) < _MIN_KEY_LENGTH or not mixed or _is_reference(found, before, after, quoted):
        return 0
    named = not _DIGIT_THEN_LETTER.search(found) and any(word in _STAND_INS for word in _words(found))
    return len(found) * (not named)  # openai_api_key_2 is a name


def _is_reference(found: str, before: str, after: str, quoted: bool) -> bool:
    """Something that stands for the value, or a mask over it."""
    if len(set(found)) <= 2 or _REFERENCE.match(found) or _TECHNICAL.match(found):
        return True
    if quoted or not _NAME.fullmatch(found):
        return False
    return (after[:1] in ("(", "[") and after != "") or bool(_COMPARED.search(before))


def _has_value(found: str) -> bool:
    """For text with digits: not only stand-ins with a number behind them."""
    if _DIGIT_THEN_LETTER.search(found):
        return True
    words = _words(found)
    return bool(words) and not all(word in _STAND_INS for word in words)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
