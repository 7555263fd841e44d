"""The steps that every tuple takes one by one, compiled where a compiler was there."""
