"""`python -m shardgym` is the `shardgym` command."""

from shardgym.cli.main import main

main()
