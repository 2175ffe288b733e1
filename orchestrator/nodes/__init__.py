"""All communication with nodes: requests, files, checks, collected logs.

May use `inventory`, `plan`, `checks`, `record` and `transport`. Exports nothing, because that would
load paramiko: import
`node`, `cluster`, `fanout`, `preflight`, `deploy`, `collect` and `headroom` by name.
"""
