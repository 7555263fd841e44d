"""The control side, in the Spark driver: listens to workers and people, and carries out what control/ decides."""
