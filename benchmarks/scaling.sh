#!/bin/bash
# Scaling tables of the trainers on 1, 2 and 4 nodes of a lab on this machine: real training, on its CPU.
#
#     benchmarks/scaling.sh ORCH PYTHON DIR
#
# ORCH is the program, PYTHON the nodes' interpreter with PyTorch, TensorFlow, Paddle, DALI and Pillow; lab and runs are written to
# DIR. REPEATS runs of each configuration, 2 by default. A failed bench still gets its table, and the script then exits with 1.
set -euo pipefail

orch=$1 python=$2
mkdir -p "$3"
ORCH_PROJECT=$(cd "$3" && pwd)
export ORCH_PROJECT
hosts=$ORCH_PROJECT/hosts.yaml
failed=0

in_lab() { "$orch" lab exec -- env ORCH_HOSTS="$hosts" "$orch" "$@"; }

table() {
    local before
    before=$(ls "$ORCH_PROJECT/runs" 2>/dev/null) || true
    echo "== orch bench $*"
    in_lab bench "$@" --nodes 1,2,4 --repeats "${REPEATS:-2}" >/dev/null || failed=1
    # A refused bench leaves nothing behind; the latest one would be another bench.
    [ "$(ls "$ORCH_PROJECT/runs" 2>/dev/null)" = "$before" ] || "$orch" summarize
}

"$orch" lab down 2>/dev/null || true
trap '"$orch" lab down >/dev/null 2>&1' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
inventory=$("$orch" lab up --nodes 4 --python "$python")
# A path for the data set: every node of a lab has its own home directory.
sed '/^  vars:/a\    data_dir: "~/images"' "${inventory#inventory: }" >"$hosts"
in_lab dataset make
in_lab deploy

table resnet50 --framework tensorflow
table resnet50 --framework paddle
table vgg16 --framework paddle
# Computed in fp32: on a CPU Paddle ignores the requested type.
table resnet50 --framework paddle --dtype fp16
table vgg16 --framework paddle --dtype fp16
table resnet50 --framework pytorch --loader native
table resnet50 --framework pytorch --loader dali-cpu
echo "The run directories are in $ORCH_PROJECT/runs. CPU slots of one machine show that everything works, not how fast it is."
exit "$failed"
