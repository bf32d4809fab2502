"""The class of invisible characters is the one that Unicode names, whatever the table was written from."""

from __future__ import annotations

import sys
import unicodedata

from libs.feedback.characters import visible


def test_exactly_the_unicode_categories_except_line_breaks_and_tabs() -> None:
    gone = {c for c in map(chr, range(sys.maxunicode + 1)) if not visible(c)}
    named = {
        c
        for c in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co"} and c not in "\n\t"
    }
    assert gone >= named
    # A newer table may name code points that this Python does not know yet.
    assert {unicodedata.category(c) for c in gone - named} <= {"Cn"}
