"""Writes requirements.lock, exact pins of everything that `make lab` and `make test` install, and a lock for the docs,
requirements-docs.lock, of what `make docs` needs besides.

Resolves the newest versions that pyproject.toml allows in a throw-away environment and then walks the
metadata of what was installed, from the project's own requirements down, once for each Python and platform that
the lock has to serve. So it also finds what is needed elsewhere only (appnope on macOS, say), and leaves out
what the machine's own build of torch happens to pull in (the CUDA libraries): torch asks for those itself.

Usage: python .ci/lock.py            (through `make lock`)
       python .ci/lock.py --installed   (pins what this interpreter has, resolves nothing)
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
TORCH = "torch==2.13.0"
EXTRAS = ("lab", "dev")
DOCS_LOCK = ROOT / "requirements-docs.lock"
DOCS_EXTRAS = (*EXTRAS, "docs")
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = {"linux": "Linux", "darwin": "Darwin"}
CUDA = ("nvidia-", "cuda-", "triton")
NOT_CUDA = ("nvidia-ml-py",)
# timm asks for it, and builds its models without it (hfta_nb/models/model_zoo/vision.py). An index's torchvision is
# often built for another torch than the index's own build; then neither timm nor transformers could be imported.
LEFT_OUT = ("torchvision",)

HEADER = """\
# Everything that `make lab` and `make test` install, at exact versions, for Python 3.11 to 3.13 on Linux and macOS.
# Written by `make lock`; don't edit by hand. No index addresses: the machine's own package index is asked, so that
# torch may be the CPU build or the CUDA build, whichever it offers, and brings its own CUDA libraries.
"""
DOCS_HEADER = """\
# What `make docs` needs besides requirements.lock, at exact versions. Written by `make lock`; don't edit by hand.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Write requirements.lock.")
    parser.add_argument("--installed", action="store_true", help="pin what this interpreter has installed")
    if parser.parse_args().installed:
        main_pins = pins(EXTRAS)
        docs_pins = [line for line in pins(DOCS_EXTRAS) if _name(line) not in set(map(_name, main_pins))]
        for path, header, lines in ((LOCK, HEADER, main_pins), (DOCS_LOCK, DOCS_HEADER, docs_pins)):
            path.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = str(Path(folder, "bin", "python"))
        subprocess.run([python, "-m", "pip", "install", TORCH, "packaging", *requirements(DOCS_EXTRAS)], check=True)
        return subprocess.run([python, __file__, "--installed"], check=False).returncode


def requirements(names: tuple[str, ...]) -> list[str]:
    """The project's requirements with these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    found = [*project["dependencies"], *(line for extra in names for line in extras[extra])]
    return [line for line in found if not line.startswith(project["name"] + "[")]


def pins(extras: tuple[str, ...]) -> list[str]:
    """One line per package, with a marker where it isn't needed everywhere."""
    places = list(itertools.product(PYTHONS, PLATFORMS))
    needed: dict[str, list[tuple[str, str]]] = {}
    for place in places:
        for name in closure(extras, *place):
            needed.setdefault(name, []).append(place)
    return [f"{name}=={version(name)}{marker(needed[name], places)}" for name in sorted(needed)]


def _name(pin: str) -> str:
    return pin.partition("==")[0]


def closure(extras: tuple[str, ...], python: str, platform: str) -> set[str]:
    """Names of all packages that the requirements lead to on one Python and platform."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": platform,
        "platform_system": PLATFORMS[platform],
        "os_name": "posix",
        "platform_machine": "x86_64",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [Requirement(line) for line in requirements(extras)]
    while todo:
        requirement = todo.pop()
        asked = requirement.extras or {""}
        if requirement.marker and not requirement.marker.evaluate({**environment, "extra": ""}):
            continue
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(asked))
        if key in seen or name in LEFT_OUT or (name.startswith(CUDA) and name not in NOT_CUDA):
            continue
        seen.add(key)
        for line in needs(name):
            child = Requirement(line)
            marker = child.marker
            if marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in (*asked, "")):
                child.marker = None
                todo.append(child)
    return {name for name, _ in seen}


def needs(name: str) -> list[str]:
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return elsewhere(name)[1]


def version(name: str) -> str:
    """The version to pin, without the local part that tells torch's builds apart."""
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return elsewhere(name)[0]


_ELSEWHERE: dict[str, tuple[str, list[str]]] = {}


def elsewhere(name: str) -> tuple[str, list[str]]:
    """Version and requirements of a package that this platform doesn't need, from the index."""
    if name not in _ELSEWHERE:
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet"]
        report = subprocess.run([*command, "--report", "-", name], check=True, capture_output=True, text=True).stdout
        metadata = json.loads(report)["install"][0]["metadata"]
        _ELSEWHERE[name] = (metadata["version"], metadata.get("requires_dist", []))
    return _ELSEWHERE[name]


def marker(needed: list[tuple[str, str]], places: list[tuple[str, str]]) -> str:
    """The environment marker that is true in just these places; none where no simple one is."""
    simple = [f'sys_platform == "{platform}"' for platform in PLATFORMS]
    simple += [f'python_version < "{python}"' for python in PYTHONS[1:]]
    simple += [f'python_version >= "{python}"' for python in PYTHONS[1:]]
    from packaging.markers import Marker

    for text in simple if needed != places else []:
        true = [p for p in places if Marker(text).evaluate({"python_version": p[0], "sys_platform": p[1]})]
        if true == needed:
            return f"; {text}"
    return ""


if __name__ == "__main__":
    raise SystemExit(main())
