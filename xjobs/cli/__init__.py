"""The `xjobs` command."""
