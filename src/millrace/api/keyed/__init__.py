"""Keyed state: the mappings that bolts keep by key, plain, paged or expiring."""
