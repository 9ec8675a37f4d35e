"""The application: commands, exit status, and one line for every error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import typer

from jko.cli.compare import compare
from jko.cli.exits import EXIT_BAD_INPUT, EXIT_DAMAGED, INTERRUPTED, Interrupts
from jko.cli.headless import headless
from jko.cli.info import info
from jko.cli.paper import paper
from jko.cli.plot import plot
from jko.cli.resume import resume
from jko.cli.run import run
from jko.cli.sweep import sweep
from jko.cli.verify import verify
from jko.errors import JKOError, RunDamaged

__all__ = ["app", "main"]

_ABORTED = 130
"""What typer returns for an interrupt, whichever signal it was and without a word."""
# Older versions of typer bring the classes of click, newer ones have copies of their own; this is the root of both.
_UsageError: type[BaseException] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    # Brackets in help texts are escaped for it.
    rich_markup_mode="rich",
    help="Minimizing movements (JKO steps) of Wasserstein gradient flows, next to their explicit peers.",
    epilog="Exit status: 0 done, 1 a checked statement failed, 2 bad input, 3 numerical failure (run saved), "
    "4 files of a run are missing or damaged, "
    "130 or 143 interrupted (what is complete is saved).",
)


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"jko {version('jko')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options of `jko` itself."""


app.command()(compare)
app.command()(run)
app.command()(resume)
app.command()(sweep)
app.command()(info)
app.command()(plot)
app.command()(verify)
app.command()(paper)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with the status that the help of `jko` lists.

    Args:
        arguments: without the name of the program; None means those of the process.
    """
    command = typer.main.get_command(app)
    words = list(sys.argv[1:] if arguments is None else arguments)
    with headless(), Interrupts() as interrupts:
        try:
            status = command.main(words, prog_name="jko", standalone_mode=False)
            if status == INTERRUPTED:
                status = interrupts.status
            elif interrupts.seen and status == _ABORTED:
                status = _nothing_saved(interrupts)
        except (KeyboardInterrupt, typer.Abort):
            status = _nothing_saved(interrupts)
        except (JKOError, _UsageError) as error:
            status = _refuse(error, given=_given(error, words))
        except Exception as error:
            # An import that is interrupted may turn the interrupt into an error of its own.
            if interrupts.seen:
                status = _nothing_saved(interrupts)
            elif _is_out_of_memory(error):
                status = _refuse(error, "out of memory; take fewer tokens, heads or saved states, or a larger tau: ")
            elif isinstance(error, OSError):
                # A disk that is full, a folder that may not be read: what was written before is whole.
                status = _refuse(error)
            else:
                raise
    sys.exit(status or 0)


def _nothing_saved(interrupts: Interrupts) -> int:
    print("interrupted before there was anything to save", file=sys.stderr)
    return interrupts.status


def _is_out_of_memory(error: Exception) -> bool:
    # PyTorch has a class of its own for CUDA alone; on the CPU it is known by its text.
    told = ("out of memory", "allocate memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(part in str(error) for part in told)
    )


def _given(error: BaseException, words: list[str]) -> str:
    """What was given for the option that the error is about."""
    names = getattr(getattr(error, "param", None), "opts", [])
    values = [word for option, word in pairwise(words) if option in names]
    values += [value for name, sign, value in (word.partition("=") for word in words) if sign and name in names]
    return ", ".join(values)


def _refuse(error: BaseException, prefix: str = "", given: str = "") -> int:
    text = prefix + getattr(error, "format_message", lambda: str(error))()
    text = text.removesuffix(": ")
    if given and given not in text:
        text = f"{text} (given: {given})"
    if text:
        print(f"error: {' '.join(text.split())}", file=sys.stderr)
    return EXIT_DAMAGED if isinstance(error, RunDamaged) else EXIT_BAD_INPUT
