"""`millrace bench elastic`: changes of parallelism under load, by the elastic loop and by hand."""
