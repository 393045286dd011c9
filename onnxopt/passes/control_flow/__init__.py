"""If, Loop, Scan and sequences: removed, or with smaller bodies."""
