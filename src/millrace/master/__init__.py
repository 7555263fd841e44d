"""The master, in the Spark driver: serves workers and users' requests, and carries out the decisions of control/."""
