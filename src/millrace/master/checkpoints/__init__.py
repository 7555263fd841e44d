"""Manifests: written, collected, resumed from and shown."""
