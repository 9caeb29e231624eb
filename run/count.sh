#!/usr/bin/env bash
# Prints how many MPI tests a run executed, from the file that the run wrote, and refuses a run
# that tested nothing: no test, another number of ranks, or other tests than the run before.
#
#   bash run/count.sh LABEL RANKS FILE [FIRST_FILE]
#
# A file holds one line, written by tests/together.py: "ranks executed skipped failed".
set -uo pipefail

label=$1 ranks=$2 file=$3 first=${4:-$3}
suffix=
if [ "$label" != mpi ]; then
    suffix=" ($label)"
fi

if ! read -r size executed skipped failed 2>/dev/null <"$file"; then
    echo "MPI tests at n=$ranks$suffix: the run wrote no count; it ended early, or was not started by its own mpiexec"
    exit 1
fi
line="MPI tests executed at n=$ranks$suffix: $executed"
echo "$line" | tee "$file.line"
if [ "$size" != "$ranks" ]; then
    echo "MPI tests at n=$ranks$suffix: MPI saw $size ranks; is this the mpiexec of this environment?"
    exit 1
fi
if [ "$executed" = 0 ]; then
    echo "MPI tests at n=$ranks$suffix: none was executed; a run that tests nothing is not a success"
    exit 1
fi
if read -r _ executed_first skipped_first _ 2>/dev/null <"$first"; then
    if [ $((executed + skipped)) != $((executed_first + skipped_first)) ]; then
        echo "MPI tests at n=$ranks$suffix: $((executed + skipped)) tests, but $((executed_first + skipped_first)) at n=1"
        exit 1
    fi
    if [ "$executed" -lt "$executed_first" ]; then
        echo "MPI tests at n=$ranks$suffix: $executed executed, fewer than the $executed_first at n=1"
        exit 1
    fi
fi
[ "$failed" = 0 ]
