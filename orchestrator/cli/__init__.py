"""The command line: options, output, exit codes. Heavy libraries are imported only by the commands
that use them.
"""
