"""The project's own load programs: `python -m bench`. What each figure means is in README.md."""
