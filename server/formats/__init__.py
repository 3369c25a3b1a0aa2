"""Pure renderings: what a generation yields becomes bodies and stream frames. No sockets, no clocks."""
