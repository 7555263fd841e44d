"""How plans reach workers: coordination store, one agent per node, plan store."""
