"""The import arrows of the design: who may import whom. Read from the source, so that nothing needs importing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPONENTS = {"matching", "feedback", "learning"}
COMPONENTS_OF = {
    "gateway": {"dialects"},
    "matcher": {"matching"},
    "judge": {"feedback"},
    "trainer": {"learning", "dialects"},  # the teacher's prompt is rendered from any dialect's request
    "policy": {"learning"},
}
SHARED = {"errors", "contracts", "streams", "telemetry"}
TORCH = {"torch", "transformers", "peft", "safetensors"}


def sources() -> list[Path]:
    return sorted(p for top in ("libs", "services", "experiments", "deploy") for p in (ROOT / top).rglob("*.py"))


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by full name, not relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found


def second(name: str, top: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == top and len(parts) > 1 else None


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_arrows(path: Path) -> None:
    top, *rest = path.relative_to(ROOT).parts
    names = imports(path)
    libs = {s for n in names if (s := second(n, "libs"))}
    services = {s for n in names if (s := second(n, "services"))}
    externals = {n.split(".")[0] for n in names}
    where = rest[0].removesuffix(".py")
    if top == "services":
        assert services <= {where}, "services never import services"
        allowed = SHARED | COMPONENTS_OF.get(where, set())
        assert libs <= allowed, (
            f"a service imports streams, telemetry, contracts, errors and its component: {libs - allowed}"
        )
    elif top == "libs":
        assert not services, "libraries never import services"
        if where in COMPONENTS:
            assert not libs & (COMPONENTS - {where}), "component libraries never import each other"
            assert "streams" not in libs, "component libraries do no I/O"
        if where != "matching" and where in COMPONENTS:
            assert "dialects" not in libs, "of the components only matching reads dialects"
        if where == "contracts":
            assert libs <= {"contracts", "errors"}
        if where == "dialects":
            assert libs <= {"dialects", "contracts", "errors"}
    if not (top == "libs" and where == "cli") and top != "experiments":
        assert "cli" not in libs, "nothing imports the command line"
    if externals & TORCH:
        assert (top == "libs" and where == "learning") or (top == "services" and where in {"trainer", "policy"}), (
            "torch only in learning, trainer and policy"
        )
    if externals & {"faust", "mode"}:
        assert top == "services" and where == "monitor", "faust only in monitor"
