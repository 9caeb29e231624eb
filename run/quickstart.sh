#!/usr/bin/env bash
# Trains a ResNet-20 on four ranks with 1-bit gradients after a 32-bit warm start, on a data set
# that comes with scikit-learn. Makes its environment first; the second call reuses it.
#
#   bash run/quickstart.sh [more options of mpisgd.train]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

ensure_environment
echo "+ mpiexec -n 4 python -m mpisgd.train --quant 1 --warmup 50000 $*"
exec mpiexec -n 4 python -m mpisgd.train --quant 1 --warmup 50000 "$@"
