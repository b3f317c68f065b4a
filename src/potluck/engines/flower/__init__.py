"""The distributed engine: the same loop inside a Flower ServerApp, clients on machines of their own."""
