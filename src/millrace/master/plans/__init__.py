"""Distribution of plans: to the coordination store and to the agents."""
