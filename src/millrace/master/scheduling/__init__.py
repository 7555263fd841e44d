"""The schedule generator at work, and the process that runs schedulers."""
