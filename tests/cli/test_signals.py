"""The signals that ask a command to end."""

from __future__ import annotations

import os
import signal

import pytest

from orchestrator.cli.signals import handle_signals, interrupt_on_signal
from orchestrator.errors import Interrupted

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_command_that_is_interrupted_says_what_is_there(number: signal.Signals) -> None:
    with (
        pytest.raises(Interrupted, match="interrupted; the site is as it was") as caught,
        interrupt_on_signal("the site is as it was"),
    ):
        os.kill(os.getpid(), number)
    assert caught.value.exit_code == 128 + number


def test_a_hangup_that_nohup_has_ignored_stays_ignored() -> None:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    told: list[int] = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handle_signals(lambda number, _: told.append(number)):
            for number in NUMBERS:
                os.kill(os.getpid(), number)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])
    assert told == [signal.SIGINT, signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in NUMBERS} == before
