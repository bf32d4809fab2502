"""The built-in server's tokens per second beside transformers' own. Writes runs/bench-serve.json.

served      the whole server over HTTP, every request with its capture (K = 4), prompts not reused between requests
adapter     the same with a LoRA adapter of rank 32 on every linear layer, beside the base weights
generate    transformers' generate: one left-padded batch, sampling, no log-probs
continuous  transformers' continuous batching (paged attention), sampling, no log-probs

All arms sample exactly `--tokens` tokens per request (no end token). They run in turns, several rounds; a figure is the
median over rounds, and ratios are taken within a round, so that other load on the machine hits both sides. The slow
continuous arm runs in the last round only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import aiohttp
import torch
from aiohttp import web
from transformers import AutoModelForCausalLM, GenerationConfig

from libs.contracts import Adapter
from libs.learning.engine.chat import ChatTokenizer
from libs.learning.engine.decoder import Decoder
from libs.learning.engine.engine import Engine, Limits
from libs.learning.engine.release import full_digest, load_release
from libs.learning.engine.sequence import Release
from libs.learning.engine.weights import load_weights
from services.policy.app import PolicyApp
from services.policy.scenarios import Scenarios
from services.policy.server import load_weights_of
from services.policy.worker import EngineWorker

ROOT = Path(__file__).parents[2]
SYSTEM = "You are a helpful homework assistant. Give clear, well-structured, step-by-step answers."
TOPICS = ("the water cycle", "how plants make food", "seasons", "the causes of the First World War", "kinds of plastic")


def questions(count: int) -> list[list[dict[str, str]]]:
    """Conversations of somewhat different lengths."""
    return [
        [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Question {i}: explain {TOPICS[i % len(TOPICS)]}" + " in detail" * (i % 4)},
        ]
        for i in range(count)
    ]


class Transformers:
    """generate and continuous batching on one model."""

    def __init__(self, directory: Path, tokens: int) -> None:
        self._load = partial(AutoModelForCausalLM.from_pretrained, directory, dtype=torch.float32)
        self.model: Any = self._load().eval()
        self._paged: Any = None
        self._tokens = tokens

    def _config(self) -> GenerationConfig:
        return GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=self._tokens,
            min_new_tokens=self._tokens, eos_token_id=None, pad_token_id=0, bos_token_id=1,
        )  # fmt: skip

    def generate(self, prompts: list[list[int]]) -> int:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        with torch.inference_mode():
            out = self.model.generate(input_ids=ids, attention_mask=mask, generation_config=self._config())
        return int(out.shape[0] * (out.shape[1] - longest))

    def continuous(self, prompts: list[list[int]]) -> int:
        if self._paged is None:
            self._paged = self._load(attn_implementation="sdpa").eval()
        out = self._paged.generate_batch(inputs=prompts, generation_config=self._config(), progress_bar=False)
        return sum(len(o.generated_tokens) for o in out.values())


class Server:
    """The policy server of services/policy in this process, on a port of its own."""

    def __init__(self, directory: Path, batch: int, tokens: int, adapter: Adapter | None) -> None:
        self._weights = load_weights(directory)
        self._tokenizer = ChatTokenizer(directory)
        self._batch, self._tokens, self._adapter = batch, tokens, adapter
        self.url = ""

    async def start(self) -> None:
        limits = Limits(max_batch=self._batch, prefix_budget_tokens=0)
        engine = Engine(self._weights, self._tokenizer.decode, limits)
        self._worker = EngineWorker(engine, 1000)
        decoder = Decoder(self._weights)
        base = Release("base", decoder)
        if self._adapter is not None:  # every request is served with it
            base = load_release("adapter", self._adapter, decoder).release
        policy = PolicyApp(
            model_name="bench",
            tokenizer=self._tokenizer,
            engine=engine,
            worker=self._worker,
            scenarios=Scenarios(base, partial(load_weights_of, decoder), budget_bytes=1),
            stop_ids=frozenset(),  # every arm samples the same number of tokens
            default_max_tokens=self._tokens,
        )
        app = web.Application()
        policy.routes(app)
        self._worker.start()
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()
        await self._worker.stop()

    async def ask_all(self, conversations: list[list[dict[str, str]]]) -> int:
        async with aiohttp.ClientSession(self.url) as http:
            return sum(await asyncio.gather(*(self._ask(http, messages) for messages in conversations)))

    async def _ask(self, http: aiohttp.ClientSession, messages: list[dict[str, str]]) -> int:
        body = {"messages": messages, "max_tokens": self._tokens, "temperature": 1.0}
        async with http.post("/v1/chat/completions", json=body, headers={"x-clawback-capture": "4"}) as answer:
            value = await answer.json()
            assert value["clawback"]["capture"]["topk_ids"]["shape"] == [self._tokens, 4]
            return int(value["usage"]["completion_tokens"])


def write_adapter(directory: Path, target: Path) -> Adapter:
    """An untrained adapter of the trainer's default size: what it computes does not change the time."""
    from peft import LoraConfig, get_peft_model

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    config = LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM")
    get_peft_model(model, config).save_pretrained(str(target))
    weights = target / "adapter_model.safetensors"
    return Adapter(kind="lora", uri=str(target), digest=full_digest([weights]))


def rate(work: Callable[[], int]) -> tuple[float, float]:
    """Tokens per second, and per second of processor time over all threads, which other load hardly touches."""
    started, used = time.perf_counter(), time.process_time()
    tokens = work()
    return tokens / (time.perf_counter() - started), tokens / (time.process_time() - used)


def measure(directory: Path, batch: int, tokens: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """What `rate` gives for every arm, one pair a round."""
    conversations = questions(batch)
    prompts = [ChatTokenizer(directory).prompt_ids(messages) for messages in conversations]
    theirs = Transformers(directory, tokens)
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as loop:
        servers = {
            "served": Server(directory, batch, tokens, None),
            "adapter": Server(directory, batch, tokens, write_adapter(directory, Path(folder) / "adapter")),
        }
        for server in servers.values():
            loop.run(server.start())
        arms: dict[str, Callable[[], int]] = {
            "served": lambda: loop.run(servers["served"].ask_all(conversations)),
            "generate": lambda: theirs.generate(prompts),
            "adapter": lambda: loop.run(servers["adapter"].ask_all(conversations)),
            "continuous": lambda: theirs.continuous(prompts),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
        for number in range(rounds + 1):
            for name, work in arms.items():
                if name == "continuous" and number != rounds:
                    continue  # on a CPU it is several times slower than the others: one round is enough to tell
                speed = rate(work)
                if number:  # the first round warms up
                    found[name].append(speed)
                print(f"round {number} {name}: {speed[0]:.1f} tokens/s, {speed[1]:.1f} per CPU second", file=sys.stderr)
        for server in servers.values():
            loop.run(server.stop())
    return found


def figures(found: dict[str, list[tuple[float, float]]]) -> dict[str, float]:
    """Medians, and medians of the ratios within a round."""

    def over(ours: str, their: str, kind: int = 0) -> float:
        pairs = zip(found[ours][-len(found[their]) :], found[their], strict=True)
        return statistics.median(a[kind] / b[kind] for a, b in pairs)

    return {
        **{f"{name}_tokens_per_second": round(statistics.median(p[0] for p in v), 2) for name, v in found.items()},
        **{f"{name}_tokens_per_cpu_second": round(statistics.median(p[1] for p in v), 2) for name, v in found.items()},
        "serve_over_generate_by_cpu": round(over("served", "generate", 1), 3),
        "adapter_over_served_by_cpu": round(over("adapter", "served", 1), 3),
        "serve_over_generate": round(over("served", "generate"), 3),
        "serve_over_continuous": round(over("served", "continuous"), 3),
        "adapter_over_generate": round(over("adapter", "generate"), 3),
        "adapter_over_served": round(over("adapter", "served"), 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    home = Path(os.environ.get("CLAWBACK_HOME", ROOT / ".clawback"))
    parser.add_argument("--model", type=Path, default=home / "models" / "smollm2-135m-instruct")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    found = measure(args.model, args.batch, args.tokens, args.rounds)
    result: dict[str, Any] = {
        **figures(found), "batch": args.batch, "tokens": args.tokens, "threads": torch.get_num_threads(),
        "rounds": found,
    }  # fmt: skip
    (ROOT / "runs").mkdir(exist_ok=True)
    (ROOT / "runs" / "bench-serve.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
