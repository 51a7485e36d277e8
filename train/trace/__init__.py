"""From a training step to its sequences and documents, and back; and whether a run trained on what its order says (G4, G12)."""
