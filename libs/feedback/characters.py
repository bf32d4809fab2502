"""Characters that show nothing: controls, format marks, surrogates, private use (Unicode Cc, Cf, Cs, Co).

They hide words from a reader and from patterns, so texts are read without them; line breaks and tabs stay.
"""

from __future__ import annotations

import re

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e"
    "\u2060-\u2064\u2066-\u206f\ud800-\uf8ff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f\U000f0000-\U000ffffd"
    "\U00100000-\U0010fffd]"
)


def visible(text: str) -> str:
    """The text without characters that show nothing."""
    return _INVISIBLE.sub("", text)
