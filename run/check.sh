#!/usr/bin/env bash
# Checks everything: ruff, mypy, unit tests, launches, and the MPI tests at 1, 2, 3 and 4 ranks.
# Makes its environments first; the second call reuses them. Exit code 0: all stages passed.
#
#   bash run/check.sh           what continuous integration runs
#   bash run/check.sh --all     also the MPI tests with Open MPI
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

EVERYTHING=no
case "${1:-}" in
    "") ;;
    --all) EVERYTHING=yes ;;
    *)
        complain "unknown option '$1'; wanted nothing, or --all"
        exit 2
        ;;
esac

cd "$ROOT" || exit 1
exec </dev/null
# One thread a rank: four ranks on two cores are crowded enough.
export OMP_NUM_THREADS=1
# Open MPI gives its first rank a terminal; the output is for logs all the same.
export PY_COLORS=0 TERM=dumb
STAGES=()  # "seconds verdict name", in order
FAILED=()

# stage NAME COMMAND...: run it, note its time and verdict, and go on in any case.
stage() {
    local name=$1 started=$SECONDS verdict=passed
    shift
    printf '\n=== %s\n' "$name"
    "$@" || verdict=FAILED
    STAGES+=("$(printf '%5d s  %s  %s' $((SECONDS - started)) "$verdict" "$name")")
    if [ "$verdict" = FAILED ]; then
        FAILED+=("$name")
    fi
}

COUNTS=$(mktemp -d)
trap 'rm -rf "$COUNTS"' EXIT

# mpi_tests LABEL N PYTHON MPIEXEC: the MPI tests on N ranks, and the count that the run itself wrote.
mpi_tests() {
    local label=$1 n=$2 python=$3 mpiexec=$4 file=$COUNTS/$1-$2 verdict=0
    MPISGD_TEST_COUNT=$file timeout -k 10 300 \
        "$mpiexec" -n "$n" "$python" -m pytest --with-mpi -m mpi tests/mpi || verdict=$?
    bash run/count.sh "$label" "$n" "$file" "$COUNTS/$label-1" && [ "$verdict" = 0 ]
}

openmpi_tests() {
    # A subshell: these settings are Open MPI's alone.
    (source run/env.openmpi && mpi_tests openmpi "$1" "$OPENMPI_VENV/bin/python" "$OPENMPI_VENV/bin/mpiexec")
}

launches() {
    MPISGD_OPENMPI_PYTHON=$OPENMPI_VENV/bin/python timeout -k 10 400 python -m pytest tests/launch
}

ensure_environment test || exit 1
INSTALLED=$SECONDS

stage "environment with Open MPI" ensure_openmpi_environment
stage "ruff check" ruff check .
stage "ruff format" ruff format --check .
stage "mypy" mypy
stage "unit tests" timeout -k 10 400 python -m pytest tests/unit
stage "tests of the tests" timeout -k 10 300 python -m pytest tests/meta
stage "launches" launches
for n in 1 2 3 4; do
    stage "MPI tests, n=$n" mpi_tests mpi "$n" python mpiexec
done
if [ "$EVERYTHING" = yes ]; then
    for n in 2 3; do
        stage "MPI tests with Open MPI, n=$n" openmpi_tests "$n"
    done
fi

printf '\n=== Summary (%d s, and %d s for the environment)\n' $((SECONDS - INSTALLED)) "$INSTALLED"
printf '%s\n' "${STAGES[@]}"
cat "$COUNTS"/*.line 2>/dev/null
if [ ${#FAILED[@]} -gt 0 ]; then
    printf 'FAILED: %s\n' "${FAILED[@]}"
    exit 1
fi
echo "All stages passed."
