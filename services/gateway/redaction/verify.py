"""Second looks at what a pattern alone cannot decide. A false alarm costs a training signal, a miss costs privacy."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import phonenumbers

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


def assigned(text: str) -> bool:
    """A value rather than a variable's name: letters and digits both, as passwords and keys have them."""
    return any(c.isdigit() for c in text) and any(c.isalpha() for c in text)


def verifiers(phone_regions: Sequence[str]) -> dict[str, Callable[[str], bool]]:
    """The check per kind; kinds that are missing here count as found by their pattern."""
    return {"card": card, "phone": lambda text: phone(text, phone_regions), "assigned": assigned}
