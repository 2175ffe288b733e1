"""An inventory of four hosts that do not exist."""

from __future__ import annotations

INVENTORY = """\
schema: 1
defaults: {gpus: 8, vars: {interface: ib0, python: /opt/py/bin/python}, env: {NCCL_IB_DISABLE: "0"}}
groups: {pair: [no1, no2]}
hosts:
  "no[1-4]": {address: "nowhere-[1-4].invalid"}
"""
