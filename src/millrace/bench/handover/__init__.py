"""`bench handover`: tasks move under a load that does not give way, by hand-over and by a roll-back to a wave."""
