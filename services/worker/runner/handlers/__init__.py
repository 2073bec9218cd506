"""What a runner answers over gRPC."""
