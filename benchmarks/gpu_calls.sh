#!/usr/bin/env bash
# Everything that is measured on a GPU, in three calls of at most 9 minutes, on a card of 80 GiB or more:
#   OUT=FOLDER bash benchmarks/gpu_calls.sh 1     # whether compiled steps are faster: PointNet, Transformer, BERT, DCGAN
#   OUT=FOLDER bash benchmarks/gpu_calls.sh 2     # convolutions, segmentation, one member, 32 members
#   OUT=FOLDER bash benchmarks/gpu_calls.sh 3     # tests, jax beside, graphs, precisions, memory, data
# On a fresh machine, put $OUT/caches.tgz of the last call beside this file first. Further words go to benchmarks.gpu.
set -u
cd "$(dirname "$0")/.." || exit 2
call=${1:?the number of the call, 1 to 3}
shift
exec "${PYTHON:-python3}" -m benchmarks.gpu --call "$call" --minutes 9 "$@"
