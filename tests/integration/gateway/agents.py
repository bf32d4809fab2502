"""How each real agent is pointed at the gateway, by the very lines of docs/agents.md, and asked its two questions."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).parents[3] / "docs" / "agents.md"
FIRST = "What does notes.txt say? Use the shell."
SECOND = "No, shorter please."
KEY = "sk-canary-Zq8Rt5Wm2Xv9Lk4Pj7Hd3"  # the agent's credential; must show up nowhere

Env = dict[str, str]


Words = tuple[str, ...]


@dataclass(frozen=True)
class Agent:
    """`connect` takes the agent's lines out of docs/agents.md; `unattended` is what a run without a person needs."""

    name: str
    title: str  # its heading in docs/agents.md
    binary: str  # under CLAWBACK_AGENTS_DIR
    connect: Callable[[Path, str], tuple[Env, Words]]
    ask: Words
    correct: Words
    hint: str | None  # the header or body field that names its session
    path: str
    unattended: tuple[tuple[str, str], ...] = ()

    def configured(self, home: Path, url: str) -> tuple[Env, Words]:
        """Environment, and arguments that come before the question's own, exactly as the document says."""
        env, words = self.connect(home, documented(self.title, url))
        return {**env, **dict(self.unattended)}, words


def documented(title: str, url: str) -> str:
    """The first code block under a heading of docs/agents.md, its placeholders filled in."""
    section = DOCUMENT.read_text(encoding="utf-8").split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    block = section.split("```\n", 2)[1]
    for placeholder, value in (("GATEWAY", url), ("KEY", KEY), ("MODEL", "scripted")):
        block = re.sub(rf"\b{placeholder}\b", value, block)
    return block


def _shell(_home: Path, block: str) -> tuple[Env, Words]:
    """`export` lines, and the arguments of the command if the block has one."""
    env, words = {}, []
    for line in block.splitlines():
        first, *rest = shlex.split(line)
        if first == "export":
            env.update(word.split("=", 1) for word in rest)
        else:
            words += rest
    return env, tuple(words)


def _opencode(_home: Path, block: str) -> tuple[Env, Words]:
    unattended = {"autoupdate": False, "share": "disabled", "permission": {"*": "allow"}}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps({**json.loads(block), **unattended})}, ()


def _hermes(home: Path, block: str) -> tuple[Env, Words]:
    (home / ".hermes").mkdir(exist_ok=True)
    (home / ".hermes" / "config.yaml").write_text(block)
    return {}, ()


_NPM = "npm/node_modules/.bin/"
_CODEX = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
_HERMES = ("chat", "-Q", "--yolo")
_CLAUDE = (("IS_SANDBOX", "1"), ("DISABLE_TELEMETRY", "1"), ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"))

AGENTS = (
    Agent(
        name="claude-code",
        title="Claude Code",
        binary=_NPM + "claude",
        connect=_shell,
        ask=("-p", FIRST, "--dangerously-skip-permissions"),
        correct=("-p", "--continue", SECOND, "--dangerously-skip-permissions"),
        hint="x-claude-code-session-id",
        path="/v1/messages",
        unattended=_CLAUDE,
    ),
    Agent(
        name="codex",
        title="Codex",
        binary=_NPM + "codex",
        connect=_shell,
        ask=(*_CODEX, FIRST),
        correct=(*_CODEX, "resume", "--last", SECOND),
        hint="session-id",
        path="/v1/responses",
    ),
    Agent(
        name="opencode",
        title="opencode",
        binary=_NPM + "opencode",
        connect=_opencode,
        ask=("run", FIRST),
        correct=("run", "--continue", SECOND),
        hint="x-session-id",
        path="/v1/chat/completions",
    ),
    Agent(
        name="qwen-code",
        title="Qwen Code",
        binary=_NPM + "qwen",
        connect=_shell,
        ask=("--yolo", "-p", FIRST),
        correct=("--yolo", "--continue", "-p", SECOND),
        hint=None,
        path="/v1/chat/completions",
    ),
    Agent(
        name="hermes",
        title="Hermes",
        binary="venv/hermes/bin/hermes",
        connect=_hermes,
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
