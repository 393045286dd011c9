"""Inputs for the original: accepted values that distinguish a different model.

`plan` is the worker's knowledge of the file: `uses` follows numbers of inputs, `sizes` and `windows` find informative
sizes, `limits` finds sizes distinguishing two models. `feeding` searches accepted inputs, `values` and `wide` draw
them. `footprint` estimates memory and work. `cases` and `datasets` serve the options of `onnxopt verify`.
"""
