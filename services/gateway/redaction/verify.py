"""Second looks at what a pattern alone cannot decide. A false alarm costs a training signal, a miss costs privacy."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import phonenumbers

from services.gateway.redaction.values import assigned_key, password

# (what the pattern found, the rest of the line before it, what follows) -> how many of its characters go, 0: none.
Check = Callable[[str, str, str], int]

_DATE_OR_ADDRESS = re.compile(r"(?:19|20)\d\d[-/.]\d{1,2}[-/.]\d{1,2}(?!\d)|\d{1,3}(?:\.\d{1,3}){3}(?![\d.])")
# Issuers' ranges and lengths (ISO/IEC 7812; Mastercard's second range is 2221-2720). 13 digits are a time in
# milliseconds far more often than a card.
_CARD_NUMBER = re.compile(
    r"4\d{15}|4\d{18}|5[1-5]\d{14}|(?:222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}|3[47]\d{13}"
    r"|3(?:0[0-5]|[68]\d)\d{11}|(?:35|6\d)\d{14,17}"
)
# In one piece, or in the groups that are printed on cards with one kind of gap: not 20261129-200444, a time.
_CARD_LAYOUT = re.compile(r"\d+|\d{4}([ -])\d{4}\1\d{4}\1\d{4}(?:\1\d{3})?|\d{4}([ -])\d{6}\2\d{4,5}")


def card(text: str) -> bool:
    """A card number: an issuer's range, the layout of cards, and a right Luhn check digit (ISO/IEC 7812-1)."""
    plain = "".join(c for c in text if c.isdigit())
    if not _CARD_LAYOUT.fullmatch(text) or not _CARD_NUMBER.fullmatch(plain):
        return False
    digits = [int(c) for c in plain]
    doubled = (d * 2 - 9 * (d > 4) for d in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def phone(text: str, regions: Sequence[str]) -> bool:
    """A number that some country's plan allows: with +, or grouped as people write it in one of `regions`."""
    if text.startswith("+"):
        return _found(text, None, phonenumbers.Leniency.VALID)
    if text.isdigit() or _DATE_OR_ADDRESS.match(text):
        return False  # a bare run of digits is far more often an id, a time or a size
    # Without strict grouping "2026-11-29 13" would be a number in Washington.
    return any(_found(text, region, phonenumbers.Leniency.STRICT_GROUPING) for region in regions)


def _found(text: str, region: str | None, leniency: int) -> bool:
    return phonenumbers.PhoneNumberMatcher(text, region, leniency=leniency).has_next()


# Registered lengths (ISO 13616, SWIFT's IBAN registry).
_IBAN_LENGTHS = {
    country: length
    for length, countries in {
        15: "NO", 16: "BE", 18: "DK FK FI FO GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU MN XK", 21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL", 24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HU LB NI PL SV",
        29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC", 33: "RU",
    }.items()
    for country in countries.split()
}  # fmt: skip


def iban(text: str) -> int:
    """The length of the account number that `text` starts with, 0 for none: country, length and check digits fit."""
    places = [i for i, c in enumerate(text) if c.isalnum()]
    length = _IBAN_LENGTHS.get(text[:2].upper(), 99)
    if len(places) < length:
        return 0
    end = places[length - 1] + 1
    plain = "".join(c for c in text[:end] if c.isalnum())
    if text[end : end + 1].isalnum() or not (plain.isupper() or plain[2:].isdigit()):
        return 0  # in the middle of a word, or letters in lower case, as hashes have them
    # ISO 7064 MOD 97-10: country and check digits go to the end, letters count as 10 to 35.
    return end if int("".join(str(int(c, 36)) for c in (plain[4:] + plain[:4]))) % 97 == 1 else 0


def verifiers(phone_regions: Sequence[str]) -> dict[str, Check]:
    """The check per kind; kinds that are missing here count as found by their pattern."""
    return {
        "card": lambda text, _before, _after: len(text) * card(text),
        "phone": lambda text, _before, _after: len(text) * phone(text, phone_regions),
        "iban": lambda text, _before, _after: iban(text),
        "password": password,
        "assigned": assigned_key,
    }
