"""Second looks at what a pattern alone cannot decide. A false alarm costs a training signal, a miss costs privacy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import phonenumbers

_MAX_CARD_DIGITS, _MIN_CARD_DIGITS = 19, 13


def card(text: str) -> bool:
    """A card number: 13 to 19 digits whose Luhn check digit is right (ISO/IEC 7812-1), not all the same digit."""
    digits = [int(c) for c in text if c.isdigit()]
    if not _MIN_CARD_DIGITS <= len(digits) <= _MAX_CARD_DIGITS or len(set(digits)) < 3:
        return False
    doubled = (d * 2 - 9 * (d > 4) for d in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def phone(text: str, regions: Sequence[str]) -> bool:
    """A number that some country's plan allows: with +, or written with separators as in one of `regions`."""
    if not text.startswith("+") and text.isdigit():
        return False  # a bare run of digits is far more often an id, a time or a size
    for region in [None] if text.startswith("+") else regions:
        try:
            if phonenumbers.is_valid_number(phonenumbers.parse(text, region)):
                return True
        except phonenumbers.NumberParseException:
            continue
    return False


def assigned(text: str) -> bool:
    """A value rather than a variable's name: letters and digits both, as passwords and keys have them."""
    return any(c.isdigit() for c in text) and any(c.isalpha() for c in text)


def verifiers(phone_regions: Sequence[str]) -> dict[str, Callable[[str], bool]]:
    """The check per kind; kinds that are missing here count as found by their pattern."""
    return {"card": card, "phone": lambda text: phone(text, phone_regions), "assigned": assigned}
