"""Who may come in, and speaking which contract. Decided from headers and path alone."""
