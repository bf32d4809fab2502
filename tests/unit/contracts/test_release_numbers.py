"""An id is what an engine says it is: whatever it holds, reading its number never fails."""

from __future__ import annotations

import pytest

from libs.contracts.policy_releases import release_id_for, release_number
from libs.contracts.release_chain import Chain


@pytest.mark.parametrize("release_id", ["model@²-x", "model@٣-x", "model@" + "9" * 5000, "model@", "@-", "vllm", ""])
def test_ids_of_other_engines_count_as_the_base(release_id: str) -> None:
    assert release_number(release_id) == 0
    assert Chain(scenario="s").staleness(release_id) == 0


def test_our_own_ids_give_their_number_back() -> None:
    assert release_number(release_id_for("a@b", 123456, "c0ffee00aa")) == 123456
