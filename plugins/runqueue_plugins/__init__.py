"""The plugins that come with runqueue. They import its public names only."""
