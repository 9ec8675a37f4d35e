"""Animations: GIF always, MP4 where ffmpeg is installed."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jko.errors import InvalidInput, MissingDependency, RunFolderError
from jko.storage import write_bytes

__all__ = ["check_animation", "save_animation"]


def check_animation(path: str | Path) -> None:
    """Refuse what cannot be written, before any frame is drawn.

    Raises:
        InvalidInput: for another suffix than .gif or .mp4.
        MissingDependency: for .mp4 without ffmpeg.
    """
    name = Path(path)
    if name.suffix not in (".gif", ".mp4"):
        raise InvalidInput(f"an animation is a .gif or a .mp4 file, got {name.name!r}")
    if name.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise MissingDependency(
            f"{name.name} needs the program ffmpeg, which is not on the PATH; install it, or write "
            f"{name.with_suffix('.gif').name}, which needs nothing"
        )


def save_animation(
    figure: Figure, update: Callable[[int], None], frames: int, path: str | Path, *, rate: int = 12, dpi: int = 80
) -> str:
    """Write an animation, atomically, and return the name of its file.

    Args:
        figure: what is drawn; it has a canvas that draws pixels, see `new_figure`.
        update: moves the figure to frame number k = 0, ..., frames - 1.
        frames: number of frames, at least 1.
        path: ends in .gif or .mp4.
        rate: frames per second.
        dpi: pixels per inch.

    Raises:
        InvalidInput, MissingDependency: see `check_animation`.
        RunFolderError: when the file cannot be written.
    """
    check_animation(path)
    if frames < 1:
        raise InvalidInput(f"an animation needs at least one frame, got {frames}")
    target = Path(path)
    if target.suffix == ".gif":
        write_bytes(target, _gif(_pictures(figure, update, frames, dpi), rate))
    else:
        write_bytes(target, _mp4(figure, update, frames, rate, dpi))
    return target.name


def _pictures(figure: Figure, update: Callable[[int], None], frames: int, dpi: int) -> Iterator[np.ndarray[Any, Any]]:
    figure.set_dpi(dpi)
    canvas = figure.canvas
    if not isinstance(canvas, FigureCanvasAgg):
        canvas = FigureCanvasAgg(figure)
    for k in range(frames):
        update(k)
        canvas.draw()  # type: ignore[no-untyped-call]
        # The first frame has laid the figure out; a layout that moves from frame to frame shakes.
        figure.set_layout_engine("none")
        pixels = canvas.buffer_rgba()  # type: ignore[no-untyped-call]
        yield np.asarray(pixels)[..., :3].copy()


def _gif(pictures: Iterator[np.ndarray[Any, Any]], rate: int) -> bytes:
    from PIL import Image

    # A palette for each frame: a shared one moves white to a neighbor.
    images = [Image.fromarray(picture).quantize(colors=128, dither=Image.Dither.NONE) for picture in pictures]
    buffer = io.BytesIO()
    images[0].save(
        buffer, format="GIF", save_all=True, append_images=images[1:], duration=round(1000 / rate), loop=0, disposal=1
    )
    return buffer.getvalue()


def _mp4(figure: Figure, update: Callable[[int], None], frames: int, rate: int, dpi: int) -> bytes:
    import subprocess

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "animation.mp4"
        pictures = _pictures(figure, update, frames, dpi)
        first = next(pictures)
        height, width = (2 * (size // 2) for size in first.shape[:2])
        command = ["ffmpeg", "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24"]
        command += ["-s", f"{width}x{height}", "-r", str(rate), "-i", "-", "-pix_fmt", "yuv420p", str(file)]
        # The frames come from a file: a pipe would need a second one for the messages, and a thread.
        raw = Path(folder) / "frames.rgb"
        with raw.open("wb") as stream:
            for picture in (first, *pictures):
                stream.write(picture[:height, :width].tobytes())
        with raw.open("rb") as stream:
            done = subprocess.run(command, stdin=stream, capture_output=True, check=False)
        if done.returncode != 0 or not file.is_file():
            reason = done.stderr.decode(errors="replace").strip().splitlines()
            raise RunFolderError(f"ffmpeg could not write the animation: {reason[-1] if reason else 'no reason given'}")
        return file.read_bytes()
