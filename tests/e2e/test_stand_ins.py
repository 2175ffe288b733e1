"""Programs that cannot be installed here, launched for real: a stand-in keeps what it was given and
says what they say.

Two nodes with two GPUs each go through `orch bench`, `collect` and `summarize`. Stand-ins are the
interpreter that has the framework, the text of the program and nvidia-smi; the folders with their
probes, SSH and the node runner are the real ones.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.rig import Controller

TOP = "/root/stand-in"  # where everything lies, seen from a node
NODES = {
    "node1": ("10.11.0.2", "0,1"),
    "node2": ("10.11.0.3", "7,6"),
}  # addresses, and the devices that the run must see

RUNNER = '#!/bin/sh\nPATH={top}/bin:$PATH exec {python} "$@"\n'
NVIDIA_SMI = """\
#!/bin/sh
[ "$*" = "-q -x" ] || exit 2
echo "<nvidia_smi_log><driver_version>450.80.02</driver_version>"
for gpu in 0 1 2 3 4 5 6 7; do echo "<gpu><product_name>Stand-in</product_name></gpu>"; done
echo "</nvidia_smi_log>"
"""
PYTHON = '''\
#!{python}
"""Answer a probe by what is installed; otherwise keep what was given, print the log, and end only where the program does."""
import json, os, socket, sys, time
from pathlib import Path
top = Path({top!r})
if sys.argv[1] == "-c":
    os.execve({python!r}, [{python!r}, *sys.argv[1:]], dict(os.environ, PYTHONPATH=str(top / "site")))
program = Path(next(word for word in sys.argv if word.endswith(".py")))
address = socket.gethostbyname(socket.gethostname())
record = dict(argv=sys.argv[1:], env=dict(os.environ), address=address, program=program.read_text())
(top / ("record-%d" % os.getpid())).write_text(json.dumps(record))
log = (top / "log").read_text()
if "paddle.distributed.fleet.launch" in sys.argv:
    for worker in range(2):
        Path("logs/workerlog.%d" % worker).write_text(log)
    time.sleep(1000)
print(log, end="", flush=True)
time.sleep(0.5)  # a run takes longer than the steps that it prints
'''
SHAPE = ("--nodes", "2", "--gpus", "2", "--batch-size", "32", "--repeats", "1", "--no-baseline")
TEXT = "loader(batch_size=16)\ndist_strategy = make()\ndist_strategy.nccl_comm_num = 1\n"


@dataclass(frozen=True, slots=True)
class Case:
    """One program: where the inventory finds it, what each node must give it, what it says and what
    speed that is.
    """

    variable: str
    program: str
    package: str
    words: tuple[str, ...]
    argv: str
    env: dict[str, str]
    log: str
    samples_per_s: float
    silent: str = "node2"
    text: str = TEXT


PADDLE_MODELS = Case(
    "paddle_models_dir", "PaddleCV/image_classification/train.py", "paddlepaddle", ("resnet50", "-f", "paddle_models"),
    "-u -m paddle.distributed.launch --cluster_node_ips={ips} --node_ip={own} --started_port={port} {program} "
    "--model=ResNet50 --batch_size=64 --image_shape 3 224 224 --class_dim=1000 --total_images=651468 --print_step=1 "
    "--max_iter=120 --save_step=10000 --validate=False --data_dir={top}/data --lr_strategy=piecewise_decay --lr=0.064 "
    "--momentum_rate=0.875 --l2_decay=0.000030518 --warm_up_epochs=1 --use_mixup=False --use_label_smoothing=True "
    "--label_smoothing_epsilon=0.1 --model_save_dir=output",
    {"FLAGS_fraction_of_gpu_memory_to_use": "0.98"},
    "".join(
        f"INFO:root: [Pass 0, train batch {batch}] \tloss 7.03121, acc1 0.00098, acc5 0.00488, lr 0.00341, "
        f"elapse {0.098 if batch < 20 else 0.004:2.4f} sec\n"
        for batch in range(120)
    ),
    32000.0,  # 32 x 2 GPUs x 2 nodes in 4 ms
)  # fmt: skip
FLEETX = Case(
    "fleetx_dir", "benchmark/paddle/vgg_benchmark.py", "paddlepaddle", ("vgg16", "-f", "fleetx", "--dtype", "fp16"),
    "-u -m paddle.distributed.fleet.launch --ips={ips} --gpus={gpus} --log_dir=logs vgg_benchmark.py",
    {"FLAGS_sync_nccl_allreduce": "1", "FLAGS_START_PORT": "{port}"},
    "".join(
        f"epoch id: 0, step{step}, train_loss: 6.951232, total time cost = {0.09 + 0.0025 * (step - 20):f}, "
        f"step per second: {(step - 10) / (0.09 + 0.0025 * (step - 20)):f}, speed: 4.000000\n"
        for step in range(11, 121)
    ),
    51200.0,  # 32 in 2.5 ms, four times
    silent="",
    text="loader(batch_size=32)\ndist_strategy = make()\ndist_strategy.amp = True\ndist_strategy.nccl_comm_num = 1\n",
)  # fmt: skip
ONEFLOW = Case(
    "oneflow_cnns_dir", "of_cnn_train_val.py", "oneflow", ("resnet50", "-f", "oneflow"),
    "-u {program} --model=resnet50 --num_nodes=2 --gpu_num_per_node=2 --node_ips={ips} --ctrl_port={port} "
    "--batch_size_per_device=32 --val_batch_size_per_device=125 --num_examples=15360 --num_epochs=1 "
    "--loss_print_every_n_iter=20 --learning_rate=0.001 --train_data_dir={top}/data/train --train_data_part_num=32 "
    "--log_dir=output --model_save_dir=output/snapshots",
    {"NCCL_LAUNCH_MODE": "PARALLEL", "PYTHONUNBUFFERED": "1"},
    "num_nodes = 2\n" + "".join(
        f"train: epoch 0, iter {step}, loss: 7.104512, top_1: 0.000000, top_k: 0.000000, "
        f"samples/s: 999.000 {1597933942.5 + step / 512}\n"
        for step in range(20, 140, 20)
    ),
    65536.0,  # 128 in a 512th of a second by its clock, whatever rate it prints
)  # fmt: skip


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def folder_of(controller: Controller, name: str) -> Path:
    """A node's folder of stand-ins, seen from outside."""
    return controller.lab.node(name).home / Path(TOP).name


def prepared(controller: Controller, case: Case) -> str:
    """Put a program and what it needs on both nodes; return the inventory that names them."""
    for name in NODES:
        folder = folder_of(controller, name)
        shutil.rmtree(folder, ignore_errors=True)
        write(folder / "bin/runner", RUNNER.format(top=TOP, python=controller.lab.python))
        write(folder / "bin/python", PYTHON.format(top=TOP, python=controller.lab.python))
        write(folder / "bin/nvidia-smi", NVIDIA_SMI)
        write(folder / "programs" / case.program, TEXT)
        write(folder / "log", "" if name == case.silent else case.log)
        write(
            folder / "site" / f"{case.package}-1.8.3.dist-info/METADATA",
            f"Name: {case.package}\nVersion: 1.8.3\n",
        )
        (folder / "data").mkdir()
    text = Path(controller.lab.inventory).read_text().replace("  gpus: 0\n", "  gpus: 4\n")
    own = {"runner_python": f"{TOP}/bin/runner", "python": f"{TOP}/bin/python"}
    own |= {"data_dir": f"{TOP}/data", case.variable: f"{TOP}/programs"}
    for name, more in {"node1": {}, "node2": {"cuda_visible_devices": "7,6,5,4"}}.items():
        line = f"    address: {NODES[name][0]}\n"
        text = text.replace(line, f"{line}    vars: {json.dumps(own | more)}\n")
    write(controller.project / "with_gpus.yaml", text)
    return str(controller.project / "with_gpus.yaml")


@pytest.mark.parametrize("case", [PADDLE_MODELS, FLEETX, ONEFLOW], ids=lambda case: case.words[2])
def test_a_program_gets_its_recipe_and_its_lines_become_its_speed(
    controller: Controller, case: Case
) -> None:
    inventory = prepared(controller, case)
    done = controller.orch("bench", *case.words, *SHAPE, "-H", inventory)
    assert done.code == 0, done
    manifest = controller.manifest()
    port, run_id = manifest["placement"]["master_port"], manifest["run_id"]
    assert manifest["placement"]["world_size"] == 4
    for name, (address, gpus) in NODES.items():
        folder = folder_of(controller, name)
        (record,) = [json.loads(path.read_text()) for path in folder.glob("record-*")]
        known = {"own": address, "ips": "10.11.0.2,10.11.0.3", "gpus": gpus, "port": port}
        argv = case.argv.format(**known, top=TOP, program=f"{TOP}/programs/{case.program}")
        assert (record["address"], record["argv"]) == (address, argv.split())
        env = {key: value.format(port=port) for key, value in case.env.items()}
        env |= {"CUDA_VISIBLE_DEVICES": gpus, "NCCL_SOCKET_IFNAME": "eth0", "ORCH_RUN_ID": run_id}
        assert {key: record["env"].get(key) for key in env} == env
        assert (record["program"], (folder / "programs" / case.program).read_text()) == (
            case.text,
            TEXT,
        )
        assert manifest["facts"][name]["framework"] == {case.package: "1.8.3"}
        assert [gpu["name"] for gpu in manifest["facts"][name]["gpus"]] == ["Stand-in"] * (
            4 if name == "node2" else 8
        )

    shutil.rmtree(controller.runs[-1] / "logs")  # so that collect has something to bring
    assert controller.orch("collect").code == 0
    (row,) = controller.orch("summarize", "--json").json["rows"]
    assert (row["shape"], row["n"], row["failed"], row["world_size"], row["simulated"]) == (
        "2n2g",
        1,
        0,
        4,
        False,
    )
    assert row["median"] == pytest.approx(case.samples_per_s, rel=1e-9)
