"""Continuous batching: who runs when, what a seed gives, what is shared and what never is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from libs.contracts import Adapter
from libs.learning.engine.engine import Limits
from libs.learning.engine.release import load_release
from libs.learning.engine.sampling import Sampling
from libs.learning.engine.sequence import State
from tests.tiny_model import write_model
from tests.unit.learning_engine.support import Bench, expected, logprobs, write_adapter

PROMPT = list(b"A system prompt of some length that everyone shares. Question: ")
SAMPLED = Sampling(temperature=1.0)
CLOSE = 2e-5


def test_a_seed_gives_the_same_reply_alone_and_in_any_company(model_dir: Path) -> None:
    alone = Bench(model_dir)
    wanted = alone.ask(PROMPT, sampling=SAMPLED, seed="7", max_new_tokens=30)
    alone.run()
    crowd = Bench(model_dir, Limits(prefill_tokens=16))
    others = [crowd.ask(PROMPT[i:], sampling=SAMPLED, seed=str(i), max_new_tokens=5 + i) for i in range(6)]
    crowd.step()
    again = crowd.ask(PROMPT, sampling=SAMPLED, seed="7", max_new_tokens=30)
    crowd.run()
    assert again.generated == wanted.generated
    assert all(other.generated != wanted.generated for other in others)


def test_without_a_seed_replies_differ(model_dir: Path) -> None:
    bench = Bench(model_dir)
    pair = [bench.ask(PROMPT, sampling=SAMPLED, seed=None, max_new_tokens=20) for _ in range(2)]
    bench.run()
    assert pair[0].generated != pair[1].generated


def test_a_late_request_joins_a_running_batch(model_dir: Path) -> None:
    bench = Bench(model_dir)
    first = bench.ask(PROMPT, max_new_tokens=20)
    bench.step()
    second = bench.ask(list(b"Hi"), max_new_tokens=3)
    bench.step()
    assert bench.engine.running == 2
    while second.state is not State.DONE:
        bench.step()
    assert first.state is State.DECODING, "the short one left while the long one went on"
    bench.run()
    assert len(first.generated) == 20


def test_a_shared_beginning_is_computed_once_and_changes_nothing(model_dir: Path) -> None:
    bench = Bench(model_dir)
    first, second = bench.ask([*PROMPT, 65]), bench.ask([*PROMPT, 66, 67])
    steps = bench.run()
    assert first.reused == 0
    assert second.reused == len(PROMPT), "it waited for the running prompt and took its keys and values"
    for sequence in (first, second):
        torch.testing.assert_close(
            torch.tensor(logprobs(steps[sequence])), expected(model_dir, sequence)[0], atol=CLOSE, rtol=0
        )


def test_the_next_turn_of_a_conversation_reuses_the_reply_too(model_dir: Path) -> None:
    bench = Bench(model_dir)
    first = bench.ask(PROMPT)
    bench.run()
    longer = [*PROMPT, *first.generated, 65, 66]
    second = bench.ask(longer)
    steps = bench.run()
    assert second.reused == len(PROMPT) + len(first.generated) - 1, "all but the last token has keys and values"
    torch.testing.assert_close(
        torch.tensor(logprobs(steps[second])), expected(model_dir, second)[0], atol=CLOSE, rtol=0
    )


def test_a_new_release_never_reads_keys_and_values_of_another(model_dir: Path, tmp_path: Path) -> None:
    bench = Bench(model_dir)
    bench.ask(PROMPT)
    bench.run()
    release = bench.release("a", write_adapter(model_dir, tmp_path / "a", seed=0))
    sequence = bench.ask(PROMPT, release)
    steps = bench.run()
    assert sequence.reused == 0
    wanted = expected(model_dir, sequence, tmp_path / "a")[0]
    torch.testing.assert_close(torch.tensor(logprobs(steps[sequence])), wanted, atol=CLOSE, rtol=0)


def test_a_running_reply_ends_on_the_release_it_began_with(model_dir: Path, tmp_path: Path) -> None:
    bench = Bench(model_dir)
    release = bench.release("a", write_adapter(model_dir, tmp_path / "a", seed=0))
    old = bench.ask(PROMPT, max_new_tokens=12)
    for _ in range(4):
        bench.step()
    new = bench.ask(PROMPT, release, max_new_tokens=12)
    bench.engine.forget_releases([release])
    steps = bench.run()
    for sequence, adapter in ((old, None), (new, tmp_path / "a")):
        torch.testing.assert_close(
            torch.tensor(logprobs(steps[sequence])), expected(model_dir, sequence, adapter)[0], atol=CLOSE, rtol=0
        )


def test_full_weights_run_beside_the_base(model_dir: Path, tmp_path: Path) -> None:
    from tests.unit.learning_engine.support import digest

    other = write_model(tmp_path, seed=5)
    bench = Bench(model_dir)
    adapter = Adapter(kind="full", uri=str(other), digest=digest(other / "model.safetensors"))
    release = load_release("full", adapter, bench.base.decoder).release
    pair = [(bench.ask(PROMPT), model_dir), (bench.ask(PROMPT, release), other)]
    steps = bench.run()
    for sequence, directory in pair:
        torch.testing.assert_close(
            torch.tensor(logprobs(steps[sequence])), expected(directory, sequence)[0], atol=CLOSE, rtol=0
        )


def test_forgotten_releases_leave_no_prompt_behind(model_dir: Path, tmp_path: Path) -> None:
    bench = Bench(model_dir)
    release = bench.release("a", write_adapter(model_dir, tmp_path / "a", seed=0))
    bench.ask(PROMPT, release)
    bench.run()
    held = bench.engine._prefixes.tokens_held
    bench.engine.forget_releases([bench.base])
    assert held > 0
    assert bench.engine._prefixes.tokens_held == 0


def test_cancelled_requests_end_and_free_their_memory(model_dir: Path) -> None:
    bench = Bench(model_dir, Limits(max_batch=1))
    running, waiting = bench.ask(PROMPT, max_new_tokens=50), bench.ask(PROMPT)
    bench.step()
    running.cancelled = waiting.cancelled = True
    steps = bench.run()
    assert [steps[s][-1].finish for s in (running, waiting)] == ["cancelled", "cancelled"]
    assert bench.engine.kv_tokens == 0


def test_queues_are_served_in_turn(model_dir: Path) -> None:
    bench = Bench(model_dir, Limits(max_batch=1))
    many = [bench.ask(PROMPT, queue="busy", max_new_tokens=1) for _ in range(5)]
    one = bench.ask(PROMPT, queue="quiet", max_new_tokens=1)
    ended = list(bench.run())
    assert ended.index(one) == 1, "one request of a quiet scenario does not wait for a busy one's whole queue"
    assert [s for s in ended if s in many] == many


def test_memory_bounds_the_batch_and_everyone_is_served(model_dir: Path) -> None:
    bench = Bench(model_dir, Limits(kv_budget_tokens=600))
    sequences = [bench.ask(PROMPT, max_new_tokens=4) for _ in range(5)]
    bench.step()
    most = 0
    while not bench.engine.idle:
        most = max(most, bench.engine.kv_tokens)
        bench.step()
    assert most == 512, "two slots of 256 tokens fit, never a third"
    assert all(len(s.generated) == 4 for s in sequences)


def test_requests_that_can_never_run_are_refused(model_dir: Path) -> None:
    bench = Bench(model_dir)
    assert not bench.engine.fits(500, 13), "the context is 512"
    with pytest.raises(ValueError, match="cannot run"):
        bench.ask(PROMPT, max_new_tokens=1000)


def test_sequences_move_down_when_most_of_a_pool_is_empty(model_dir: Path) -> None:
    bench = Bench(model_dir, Limits(prefix_budget_tokens=0))
    sequences = [bench.ask([*PROMPT, i], max_new_tokens=30 if i == 11 else 2 + i % 3) for i in range(12)]
    steps = bench.run()
    last = sequences[11]
    assert last.slot == 0, "it took the lowest free slot"
    torch.testing.assert_close(torch.tensor(logprobs(steps[last])), expected(model_dir, last)[0], atol=CLOSE, rtol=0)


def test_lengths_and_ends(model_dir: Path) -> None:
    bench = Bench(model_dir)
    greedy = bench.ask(PROMPT, max_new_tokens=10)
    bench.run()
    third = greedy.generated[2]
    bench = Bench(model_dir)
    stopped = bench.ask(PROMPT, max_new_tokens=10, stop_ids=frozenset([third]))
    cut = bench.ask(PROMPT, max_new_tokens=3)
    steps = bench.run()
    first = greedy.generated.index(third)
    assert stopped.generated == greedy.generated[: first + 1], "the end token counts as sampled"
    assert steps[stopped][-1].finish == "stop"
    assert steps[stopped][-1].text == "", "the end token has no text"
    assert steps[cut][-1].finish == "length"


def test_a_stop_string_ends_the_reply_before_it(model_dir: Path) -> None:
    bench = Bench(model_dir)
    greedy = bench.ask(PROMPT, max_new_tokens=10)
    bench.run()
    text = "".join(chr(i) for i in greedy.generated)
    bench = Bench(model_dir)
    stopped = bench.ask(PROMPT, max_new_tokens=10, stops=[text[3:5]])
    steps = bench.run()[stopped]
    assert "".join(s.text for s in steps) == text[: text.index(text[3:5])]
    assert steps[-1].finish == "stop"
    assert stopped.generated == greedy.generated[: text.index(text[3:5]) + 2], "what was sampled stays captured"


def test_weights_that_give_no_numbers_end_the_reply_with_an_error(model_dir: Path) -> None:
    bench = Bench(model_dir)
    bench.weights.norm.fill_(float("nan"))
    sequence = bench.ask(PROMPT)
    assert [s.finish for s in bench.run()[sequence]] == ["error"]


def test_after_an_abort_the_engine_serves_on(model_dir: Path) -> None:
    bench = Bench(model_dir, Limits(max_batch=1))
    lost = [bench.ask(PROMPT) for _ in range(2)]
    bench.step()
    assert {s for s, step in bench.engine.abort() if step.finish == "error"} == set(lost)
    sequence = bench.ask(PROMPT)
    assert bench.run()[sequence][-1].finish == "length"
    assert bench.engine.kv_tokens == 0
