"""The gateway process: HTTP in, prompts and events out; never imports torch."""
