"""Media of requests: fetched, decoded in processes of their own, planned, handed to the worker."""
