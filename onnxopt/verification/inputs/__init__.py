"""What the original is fed: values that it takes, and that tell another model from it.

`plan` is all that a worker has to know of the file: `uses` says what becomes of each input's numbers, `sizes` and
`windows` which sizes prove something, `limits` what only one of two models shows. `feeding` finds by trying what is
taken, `values` draws it and `wide` what says more. `footprint` tells what a run would need. `cases` and `datasets` are
what `onnxopt verify` may be asked for instead.
"""
