"""gRPC between services: one server, one channel, errors that cross whole, a context that goes along."""
