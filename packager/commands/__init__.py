"""The packager's subcommands. Only `package` needs torch; `inspect` and `sign` work in the base installation."""
