"""Shapes of requests and answers. They bound and type; what a value means is judged by its service."""
