"""`python -m onnxopt`."""

from onnxopt.cli.main import main

if __name__ == "__main__":
    main()
