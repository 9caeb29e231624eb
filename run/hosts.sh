#!/usr/bin/env bash
# Starts a command on several hosts, with the MPI of this environment: MPICH or Open MPI.
# NOT RUN HERE: it was written without a cluster at hand and has never started more than one host.
#
#   bash run/hosts.sh HOSTFILE RANKS python -m mpisgd.train --quant 1 --warmup 50000
#
# HOSTFILE holds one host a line, with the number of its ranks: "node1 4". The hosts need ssh without
# a password between them, and this folder (with .venv in it) at the same path.
set -euo pipefail

if [ $# -lt 3 ]; then
    echo "usage: bash run/hosts.sh HOSTFILE RANKS COMMAND..." >&2
    exit 2
fi
hostfile=$1 ranks=$2
shift 2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -x "$root/.venv/bin/mpiexec" ]; then
    export PATH=$root/.venv/bin:$PATH
fi
if ! command -v mpiexec >/dev/null; then
    echo "hosts.sh: there is no mpiexec; run bash run/quickstart.sh once, or load an MPI module" >&2
    exit 1
fi
if [ ! -r "$hostfile" ]; then
    echo "hosts.sh: cannot read $hostfile; it holds one host a line: NAME RANKS" >&2
    exit 1
fi

# Both take one file, in spellings of their own.
own=$(mktemp)
trap 'rm -f "$own"' EXIT
if mpiexec --version 2>&1 | grep -qi "open.*mpi\|prte\|openrte"; then
    awk 'NF && $1 !~ /^#/ { print $1 " slots=" ($2 ? $2 : 1) }' "$hostfile" >"$own"
    mpiexec --hostfile "$own" -n "$ranks" -x PATH "$@"
else
    awk 'NF && $1 !~ /^#/ { print $1 ":" ($2 ? $2 : 1) }' "$hostfile" >"$own"
    mpiexec -f "$own" -n "$ranks" -genvlist PATH "$@"
fi
