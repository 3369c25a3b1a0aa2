"""The HTTP paths: each reads a request, asks for its generation and hands the result to a format."""
