#!/bin/bash
# Scaling tables of the trainers on 1, 2 and 4 nodes of a lab on this machine: real training, on its CPU.
#
#     benchmarks/scaling.sh ORCH PYTHON DIR
#
# ORCH is the program, PYTHON the nodes' interpreter, which has PyTorch, TensorFlow, Paddle, DALI and Pillow; lab and runs lie in DIR.
# REPEATS runs of each cell, 2 if not said. A bench that fails has its table all the same, and the script ends with 1.
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
    # One that was refused left nothing; the latest bench is another's.
    [ "$(ls "$ORCH_PROJECT/runs" 2>/dev/null)" = "$before" ] || "$orch" summarize
}

"$orch" lab down 2>/dev/null || true
trap '"$orch" lab down >/dev/null 2>&1' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
inventory=$("$orch" lab up --nodes 4 --python "$python")
# A place for the data set: every node of a lab has a home of its own.
sed '/^  vars:/a\    data_dir: "~/images"' "${inventory#inventory: }" >"$hosts"
in_lab dataset make
in_lab deploy

table resnet50 --framework tensorflow
table resnet50 --framework paddle
table vgg16 --framework paddle
# Computed in fp32, as Paddle does on a CPU whatever it is asked for.
table resnet50 --framework paddle --dtype fp16
table vgg16 --framework paddle --dtype fp16
table resnet50 --framework pytorch --loader native
table resnet50 --framework pytorch --loader dali-cpu
echo "The run directories are in $ORCH_PROJECT/runs. CPU slots of one machine show that everything works, not how fast it is."
exit "$failed"
