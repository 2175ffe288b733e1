"""The command line: words in, words out, exit codes. Heavy libraries are imported by the commands that use them."""
