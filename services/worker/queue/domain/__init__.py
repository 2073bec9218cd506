"""The rules of work items: pure functions over values. No I/O, no clock, no ids."""
