"""Inputs for the original: accepted values that distinguish a different model.

`plan` is the worker's knowledge of the file, made by `planning`: `uses` follows numbers of inputs, `sizes` and
`windows` find informative sizes. `feeding` searches accepted inputs, `values` draws them. `cases` are recipes by name.
"""
