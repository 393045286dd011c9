"""What the original is fed: values that it takes, and that tell another model from it.

`plan` is all that a worker has to know of the file: `uses` says what becomes of each input's numbers, `hints` and
`windows` which sizes prove something, `edges` where an operator changes what it does. `feeding` finds by trying what is
taken, `values` draws it and `wide` what says more; `limits` and `rows` say what only the second of two models shows.
`footprint` tells what a run would need. `cases` and `datasets` are what `onnxopt verify` may be asked for instead.
"""
