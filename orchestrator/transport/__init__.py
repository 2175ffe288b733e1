"""Ways to one machine that carry bytes and know nothing of what they mean.

May use `inventory`. `ssh` is the way that every bench takes today.
"""
