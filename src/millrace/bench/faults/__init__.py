"""`millrace bench faults`: break a running word count and its driver repeatedly, then check every word."""
