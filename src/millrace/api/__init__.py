"""What users write against: components, streams, groupings, topologies. Nothing here runs anything."""
