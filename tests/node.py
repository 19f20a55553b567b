"""Runs scripts of the front end in Node.js, which Playwright brings."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from playwright._impl._driver import compute_driver_executable

ROOT = Path(__file__).resolve().parent.parent
FRONT = ROOT / "hfta_nb" / "ui" / "front"


def node(*arguments: str, given: str = "") -> str:
    """What Node.js, called with these arguments, writes; it must end well."""
    command = [compute_driver_executable()[0], *arguments]
    ran = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def result(module: str, call: str, given: Any = None) -> Any:
    """The value of an expression of `module`, a file of the front end, and `given`."""
    code = f"""
import {{ readFileSync }} from "node:fs";
import * as module from {json.dumps((FRONT / module).as_uri())};
const given = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify({call}));
"""
    return json.loads(node("--input-type=module", "--eval", code, given=json.dumps(given)))
