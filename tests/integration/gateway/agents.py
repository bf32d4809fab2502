"""How each real agent is pointed at the gateway and asked its two questions. docs/agents.md shows the same lines."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FIRST = "What does notes.txt say? Use the shell."
SECOND = "No, shorter please."
KEY = "sk-canary-Zq8Rt5Wm2Xv9Lk4Pj7Hd3"  # the agent's credential; must show up nowhere

Env = dict[str, str]


@dataclass(frozen=True)
class Agent:
    """`configure` writes what the agent reads under its home; the two commands ask and then correct."""

    name: str
    binary: str  # under CLAWBACK_AGENTS_DIR
    configure: Callable[[Path, str], Env]
    ask: tuple[str, ...]
    correct: tuple[str, ...]
    hint: str | None  # the header or body field that names its session
    path: str


def _claude(home: Path, url: str) -> Env:
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "IS_SANDBOX": "1",
        "DISABLE_TELEMETRY": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def _codex(home: Path, url: str) -> Env:
    config = home / ".codex"
    config.mkdir()
    (config / "config.toml").write_text(
        'model = "scripted"\nmodel_provider = "clawback"\n[model_providers.clawback]\nname = "clawback"\n'
        f'base_url = "{url}/v1"\nenv_key = "CLAWBACK_KEY"\nwire_api = "responses"\n'
    )
    return {"CODEX_HOME": str(config), "CLAWBACK_KEY": KEY}


def _opencode(home: Path, url: str) -> Env:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "clawback",
        "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
        "models": {"scripted": {"name": "scripted", "tool_call": True}},
    }
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": "clawback/scripted",
        "small_model": "clawback/scripted",
        "provider": {"clawback": provider},
        "permission": {"*": "allow"},
    }
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}


def _qwen(home: Path, url: str) -> Env:
    return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": KEY, "OPENAI_MODEL": "scripted"}


def _hermes(home: Path, url: str) -> Env:
    config = home / ".hermes"
    config.mkdir()
    (config / "config.yaml").write_text(
        f"model:\n  default: scripted\n  provider: custom\n  base_url: {url}/v1\n  api_key: {KEY}\n"
    )
    return {"HERMES_HOME": str(config)}


_NPM = "npm/node_modules/.bin/"
_CODEX = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
_QWEN = ("--auth-type", "openai", "--yolo")
_HERMES = ("chat", "-Q", "--yolo")

AGENTS = (
    Agent(
        name="claude-code",
        binary=_NPM + "claude",
        configure=_claude,
        ask=("-p", FIRST, "--dangerously-skip-permissions"),
        correct=("-p", "--continue", SECOND, "--dangerously-skip-permissions"),
        hint="x-claude-code-session-id",
        path="/v1/messages",
    ),
    Agent(
        name="codex",
        binary=_NPM + "codex",
        configure=_codex,
        ask=(*_CODEX, FIRST),
        correct=(*_CODEX, "resume", "--last", SECOND),
        hint="session-id",
        path="/v1/responses",
    ),
    Agent(
        name="opencode",
        binary=_NPM + "opencode",
        configure=_opencode,
        ask=("run", FIRST),
        correct=("run", "--continue", SECOND),
        hint="x-session-id",
        path="/v1/chat/completions",
    ),
    Agent(
        name="qwen-code",
        binary=_NPM + "qwen",
        configure=_qwen,
        ask=(*_QWEN, "-p", FIRST),
        correct=(*_QWEN, "--continue", "-p", SECOND),
        hint=None,
        path="/v1/chat/completions",
    ),
    Agent(
        name="hermes",
        binary="venv/hermes/bin/hermes",
        configure=_hermes,
        ask=(*_HERMES, "-q", FIRST),
        correct=(*_HERMES, "--continue", "-q", SECOND),
        hint=None,
        path="/v1/chat/completions",
    ),
)


def directory() -> Path | None:
    """Where install_agents.sh put them."""
    given = os.environ.get("CLAWBACK_AGENTS_DIR")
    return Path(given) if given else None


async def run(command: list[str], env: Env, cwd: Path, timeout_seconds: float = 110.0) -> str:
    """Run one agent command to its end; its output, both streams."""
    full = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "NO_COLOR": "1", **env}
    child = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env=full,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(child.communicate(), timeout_seconds)
    except TimeoutError:
        child.kill()
        raise
    return out.decode("utf-8", "replace")
