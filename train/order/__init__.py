"""Which sequence comes when: functions of numbers alone, no torch and no files (G4, G5, G6)."""
