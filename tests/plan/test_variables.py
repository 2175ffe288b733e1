"""Which environment variables an experiment may set."""

from __future__ import annotations

import pytest

from orchestrator.errors import ConfigError
from orchestrator.plan.variables import check_variable


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "NCCL-ALGO",
            "--env: expected a variable name of letters, digits and '_', got 'NCCL-ALGO'",
        ),
        (
            "RANK",
            "--env: expected a variable that orch does not set itself, got RANK. use --nodes, --gpus or --shape",
        ),
        (
            "ORCH_RUN_ID",
            "--env: expected a variable that orch does not set itself, got ORCH_RUN_ID. use another name",
        ),
    ],
)
def test_variables_that_orch_sets_itself_are_refused(name: str, message: str) -> None:
    check_variable("NCCL_ALGO", "--env")
    with pytest.raises(ConfigError) as caught:
        check_variable(name, "--env")
    assert str(caught.value) == message
