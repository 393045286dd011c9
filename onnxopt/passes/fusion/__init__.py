"""One operator in place of its formula."""
