"""Second looks at what a pattern alone cannot decide. A false alarm costs a training signal, a miss costs privacy."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import phonenumbers

_DATE_OR_ADDRESS = re.compile(r"(?:19|20)\d\d[-/.]\d{1,2}[-/.]\d{1,2}(?!\d)|\d{1,3}(?:\.\d{1,3}){3}(?![\d.])")
_CARD_DIGITS = range(14, 20)  # 13 digits are a time in milliseconds far more often than a card
_CARD_FIRST = frozenset((2, 3, 4, 5, 6))  # the issuers' ranges (ISO/IEC 7812)


def card(text: str) -> bool:
    """A card number: its issuer's first digit, and a right Luhn check digit (ISO/IEC 7812-1)."""
    digits = [int(c) for c in text if c.isdigit()]
    if len(digits) not in _CARD_DIGITS or digits[0] not in _CARD_FIRST or len(set(digits)) < 2:
        return False
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
