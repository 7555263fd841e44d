"""The user API: components, streams, groupings, topologies. Declarations only; the engines run them."""
