"""Each image holds what its service imports and nothing else: every module of a service imports with only the packages
that its extra names, and the gateway's are without torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
SERVICES = ("gateway", "matcher", "judge", "batcher", "trainer", "policy", "monitor", "cli")
HEAVY = {"torch", "transformers", "peft", "safetensors", "faust-streaming"}

PROBE = '''
import importlib, json, pkgutil, sys
outside, package = set(json.loads(sys.argv[1])), sys.argv[2]

class Without:
    """What is outside of the image looks as if it were not installed."""

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in outside else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
module = importlib.import_module(package)
for found in pkgutil.walk_packages(module.__path__, package + "."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
print(json.dumps(sorted(m.split(".")[0] for m in sys.modules)))
'''


@cache
def distributions(extra: str) -> frozenset[str]:
    """What installing clawback[extra] installs, from the metadata of what is installed here."""
    pyproject = (ROOT / "pyproject.toml").read_bytes()
    import tomllib

    project = tomllib.loads(pyproject.decode())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    found: set[str] = set()
    todo = [*map(Requirement, [*project["dependencies"], *extras[extra]])]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        need = todo.pop()
        name, wants = canonicalize_name(need.name), frozenset(need.extras)
        if (name, wants) in seen:
            continue
        seen.add((name, wants))
        if name == "clawback":
            todo += [Requirement(text) for want in wants for text in extras[want]]
            continue
        found.add(name)
        for text in metadata.requires(name) or ():
            child = Requirement(text)
            if child.marker is None or any(child.marker.evaluate({"extra": e}) for e in (*wants, "")):
                try:
                    metadata.version(child.name)
                except metadata.PackageNotFoundError:
                    continue  # an alternative that the lock does not choose
                todo.append(child)
    return frozenset(found)


@cache
def import_names() -> dict[str, list[str]]:
    return {top: list(map(canonicalize_name, dists)) for top, dists in metadata.packages_distributions().items()}


def outside(extra: str) -> list[str]:
    """Top-level modules that are installed here and would not be in the image."""
    inside = distributions(extra) | {"clawback"}
    return sorted(top for top, dists in import_names().items() if not inside & set(dists))


@pytest.mark.timeout(400)  # torch and all of transformers' lazy modules on a busy machine
@pytest.mark.parametrize("service", SERVICES)
def test_every_module_imports_with_only_its_extras_packages(service: str) -> None:
    package = "libs.cli" if service == "cli" else f"services.{service}"
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(outside(service)), package],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    if service not in ("trainer", "policy"):
        assert "torch" not in json.loads(done.stdout)


@pytest.mark.parametrize("service", ["gateway", "matcher", "judge", "batcher", "monitor", "cli"])
def test_light_images_hold_no_tensor_library(service: str) -> None:
    heavy = distributions(service) & HEAVY
    assert heavy == ({"faust-streaming"} if service == "monitor" else set())


def test_the_heavy_images_hold_torch() -> None:
    for service in ("trainer", "policy"):
        assert {"torch", "transformers"} <= distributions(service)


def test_the_dockerfile_builds_every_service_as_a_user_that_is_not_root() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    stages = re.findall(r"^FROM .*", text, re.MULTILINE)
    assert len(stages) == 2, "the second stage has no build tools"
    assert re.search(r"^USER 10001", text, re.MULTILINE)
    assert '".[${SERVICE}]"' in text and "-c requirements.lock" in text
    for name in re.findall(r"^COPY ([\w./ -]+) \S+$", text, re.MULTILINE):
        for source in name.split():
            assert (ROOT / source).exists() or source.startswith(("--from", "/")), source
