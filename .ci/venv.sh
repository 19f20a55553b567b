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
log=$venv/install.log

# What is installed is told by the content of these two files, so a branch with another lock brings the
# environment up to date and one with the same lock doesn't, whatever the files' dates say.
stamp=$venv/installed-$(cat requirements.lock pyproject.toml | cksum | tr ' ' '-')
up_to_date() {
    [ -e "$stamp" ] && "$venv/bin/python" -c "$supported" 2>/dev/null
}
up_to_date && exit

# One at a time: the lock belongs to this open file, so it ends with this process, however that ends.
exec 9<.ci/venv.sh
lock='
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB * (sys.argv[1] == "try"))
except BlockingIOError:
    sys.exit(1)
except OSError:
    pass  # a file system without locks
'
python=$venv/bin/python
"$python" -c "$supported" 2>/dev/null || python=$(choose_python)
if ! "$python" -c "$lock" try; then
    echo "waiting for another process that sets $venv up"
    "$python" -c "$lock" wait
fi
up_to_date && exit

# pip's own account is long and goes to a file; every few seconds a line says how far it is.
packages=$(grep -c '^[a-z]' requirements.lock)
progress() {
    local site info now='s/^ *(Collecting|Downloading|Processing) ([^ ]*\/)?([^ ]+)( \([0-9.]+ [kMG]B\))?.*/\3\4/p'
    while sleep 10 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        if grep -q '^Obtaining file:' "$log"; then
            echo "  $SECONDS s: adding hfta_nb itself, and what this build of torch asks for"
        elif grep -q '^Installing collected packages' "$log"; then
            site=("$venv"/lib/python*/site-packages)
            info=("${site[0]}"/*.dist-info)
            echo "  $SECONDS s: unpacking, ${#info[@]} of about $packages packages"
        else
            echo "  $SECONDS s: fetching," \
                "$(grep -cE '^(Collecting|Processing|Requirement already satisfied:) ' "$log") of $packages packages;" \
                "now $(sed -nE "$now" "$log" | tail -n 1)"
        fi
    done
}

run_pip() {
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off --no-compile "$@" \
        >>"$log" 2>&1; then
        tail -n 20 "$log" >&2
        fail "pip failed; its last lines are above, all of them in $log; the next make goes on from here"
    fi
}

if ! "$venv/bin/python" -c "$supported" 2>/dev/null || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    [ "$python" != "$venv/bin/python" ] || python=$(choose_python)
    echo "creating $venv with $("$python" --version) ($python)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
rm -f "$venv"/installed-*
# pip writes INSTALLER after a package's files: one without was interrupted, and pip would take it for installed.
for info in "$venv"/lib/python*/site-packages/*.dist-info; do
    [ -e "$info/INSTALLER" ] || rm -rf "$info"
done

echo "installing $packages packages at locked versions: 2 to 4 minutes with the CPU build of torch (200 of 450 MB)," \
    "longer with CUDA's libraries (3 GB); what is there already stays; pip's output is in $log"
: >"$log"
progress 9<&- &
trap "kill $! 2>/dev/null" EXIT
# The lock names all that is needed (so no dependencies are looked for) but for the CUDA libraries of a build of torch,
# which the second call finds. Without --no-compile, half of the time would go into bytecode that is never loaded.
run_pip --no-deps --requirement requirements.lock
run_pip --no-build-isolation --constraint requirements.lock --editable .
# Earlier locks had a torchvision, which keeps timm and transformers from being imported where it doesn't fit torch.
if [ -n "$(compgen -G "$venv/lib/python*/site-packages/torchvision-*.dist-info")" ] &&
    ! "$venv/bin/python" -c 'import torchvision' 2>/dev/null; then
    echo "removing torchvision, which can't be imported with this torch"
    "$venv/bin/python" -m pip uninstall --yes torchvision >>"$log" 2>&1
fi
# Else the first run of each kind of model waits for them (without a compiler there are none, and nothing is missing).
"$venv/bin/python" -c 'from hfta_nb.engine.kernels.native.build import make_all; print("kernels:", *make_all())' >>"$log" 2>&1 || true
touch "$stamp"
echo "done in $((SECONDS / 60)) min $((SECONDS % 60)) s"
