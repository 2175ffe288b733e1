"""The page of frameworks: every folder, every name that a template sees, and an example that is
sound.
"""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.inventory import open_inventory
from orchestrator.inventory.hosts import Host
from orchestrator.logs.parse import parse
from orchestrator.logs.steps import StepSample
from orchestrator.plan import folders as library
from orchestrator.plan.bench import plan_run
from orchestrator.plan.spec import resolve
from tests.plan.third_party_runs import PORT, launch

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_shows_every_folder_every_name_and_an_example_that_is_sound(
    tmp_path: Path,
) -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    assert [name for name in library.frameworks() if f"`{name}`" not in page] == []
    inventory, example = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "cluster.yaml").write_text(inventory)
    assert {
        host.vars["nanogpt_dir"] for host in open_inventory(str(tmp_path / "cluster.yaml")).hosts
    } == {"/opt/nanoGPT"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "framework.yaml").write_text(example)
    table = page.partition("| a template sees | |")[2].partition("\n\n")[0]
    names = {
        name
        for row in table.splitlines()[2:]
        for name in re.findall(r"`([a-z_]+)", row.split("|")[1])
    }
    (tmp_path / "mine" / "launch.sh.j2").write_text(
        "".join(f"# {{{{ {name} is defined }}}} {name}\n" for name in sorted(names))
    )
    folder = library.open_framework("mine", (tmp_path,))
    spec = resolve(folder.framework, "resnet50", device="cuda", choices={"nodes": 1, "gpus": 1})
    host = Host("node1", "10.11.0.2", gpus=1, vars={"my_dir": "/opt/mine"})
    script = launch(plan_run(folder, spec, [host], run_id="b1.001", repeat=1, port=PORT), 0)
    assert len(names) > 12 and re.findall(r"# false (.*)", script) == []
    assert parse(b"step 7 took 0.25 s\n", folder.framework.log).samples == (
        StepSample(7, step_time_s=0.25),
    )
