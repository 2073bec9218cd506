"""Pure rules of the scheduler."""
