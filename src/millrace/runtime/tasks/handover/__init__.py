"""A task moves: its old incarnation departs, its new one arrives, and its receivers keep their order."""
