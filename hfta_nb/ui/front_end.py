"""Scripts and style sheets of the widgets, as a browser takes them.

The scripts are ES modules in `front/`, one per topic, which import each other. anywidget takes a script in one piece:
its modules are joined here, each after those that it imports, without a tool that others would have to install.
"""

from __future__ import annotations

import re
from pathlib import Path

_HERE = Path(__file__).parent
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w/]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default )", re.MULTILINE)


def source(name: str) -> str:
    """A style sheet of this folder, or a script of `front/` with all that it imports."""
    if not name.endswith(".js"):
        return (_HERE / name).read_text("utf-8")
    modules = [(_HERE / "front" / module).read_text("utf-8") for module in imported(name)]
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", module)) for module in modules)


def imported(name: str) -> list[str]:
    """The files of `front/` of which a script is made: each after those that it imports, itself last."""
    found: list[str] = []

    def add(module: str) -> None:
        for other in _IMPORT.findall((_HERE / "front" / module).read_text("utf-8")):
            if other not in found:
                add(other)
        found.append(module)

    add(name)
    return found
