#!/usr/bin/env bash
# Creates a virtual environment at the versions of requirements.lock, with the project itself installed editable.
#
# Usage: .ci/venv.sh .venv       create it, or bring it up to date; does nothing where that is done
#        .ci/venv.sh --python    print the interpreter that would be used
#
# PYTHON names an interpreter; without it the first suitable one on the path is taken.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    echo "error: $*" >&2
    exit 1
}

supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'

choose_python() {
    local candidate without_pip=""
    if [ -n "${PYTHON:-}" ]; then
        "$PYTHON" -c "$supported" 2>/dev/null ||
            fail "PYTHON=$PYTHON is not a Python 3.11, 3.12 or 3.13 that runs; unset PYTHON or name another"
        "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || without_pip=$PYTHON
        [ -n "$without_pip" ] || { echo "$PYTHON" && return; }
    else
        for candidate in python3 python python3.13 python3.12 python3.11; do
            "$candidate" -c "$supported" 2>/dev/null || continue
            if "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
                echo "$candidate"
                return
            fi
            without_pip=${without_pip:-$candidate}
        done
    fi
    [ -z "$without_pip" ] ||
        fail "$without_pip can't create virtual environments (no venv or ensurepip); on Debian or Ubuntu install" \
            "python$("$without_pip" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv," \
            "or name another interpreter, for example: make PYTHON=python3.12"
    fail "no Python 3.11, 3.12 or 3.13 found; install one, or name it, for example: make PYTHON=/opt/python3.12/bin/python3"
}

if [ "${1:-}" = --python ]; then
    choose_python
    exit
fi

venv=${1:?usage: .ci/venv.sh FOLDER}
# What is installed is told by the content of these two files, so a branch with another lock brings the
# environment up to date and one with the same lock doesn't, whatever the files' dates say.
stamp=$venv/installed-$(cat requirements.lock pyproject.toml | cksum | tr ' ' '-')
[ -e "$stamp" ] && "$venv/bin/python" -c "$supported" 2>/dev/null && exit

if ! "$venv/bin/python" -c "$supported; import pip" 2>/dev/null; then
    python=$(choose_python)
    echo "creating $venv with $("$python" --version) ($python)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
rm -f "$venv"/installed-*
"$venv/bin/python" -m pip install --requirement requirements.lock
"$venv/bin/python" -m pip install --no-deps --no-build-isolation --editable .
touch "$stamp"
