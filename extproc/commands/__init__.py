"""The subcommands of `extproc`, one file each."""
