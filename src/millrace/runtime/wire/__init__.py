"""Messages between processes, and the ZeroMQ sockets that carry them."""
