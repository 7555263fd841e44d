"""The dataflows of the DCR and CCR experiments (Shukla, Simmhan; ICDCS 2018): Linear, Diamond, Star, Traffic and Grid."""
