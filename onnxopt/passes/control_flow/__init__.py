"""If, Loop, Scan and sequences: without the bodies, or with less in them."""
