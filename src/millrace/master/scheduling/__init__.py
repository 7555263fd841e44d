"""The scheduling loop, and the process that runs schedulers."""
