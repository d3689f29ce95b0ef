"""The commands, a module for each subject; loaded when they are run, or listed by `--help`."""
