"""Everything that is said to a node: requests, files, checks, logs that come back.

May use `inventory`, `plan`, `checks`, `record` and `transport`. Hands on nothing, because that
would load paramiko: import `node`, `cluster`, `fanout`, `preflight`, `deploy`, `collect` and `headroom` by name.
"""
