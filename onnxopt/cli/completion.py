"""`onnxopt completion SHELL`."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script for completion of commands, options and values in SHELL.

    \b
    eval "$(onnxopt completion bash)"                       in ~/.bashrc
    eval "$(onnxopt completion zsh)"                        in ~/.zshrc
    onnxopt completion fish > ~/.config/fish/completions/onnxopt.fish
    """
    from click.shell_completion import get_completion_class

    from onnxopt.cli.main import cli
    from onnxopt.cli.say import say_all

    kind = get_completion_class(shell)
    assert kind is not None
    say_all(kind(cli, {}, "onnxopt", "_ONNXOPT_COMPLETE").source())
