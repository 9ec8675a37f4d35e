"""Atomic files of tensors and of strict JSON: nothing in them can run code when they are read."""

from __future__ import annotations

import json
import math
import os
import secrets
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes
from torch import Tensor

from jko.errors import InvalidInput, RunFolderError

__all__ = ["json_bytes", "read_json", "read_tensors", "write_bytes", "write_json", "write_tensors"]


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, whole, and never a part.

    Raises:
        RunFolderError: when the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not `tempfile`: its files are readable by their owner alone, whatever the umask.
        name = path.parent / f".{path.name}.{secrets.token_hex(8)}"
        try:
            with name.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            name.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RunFolderError(f"{path} could not be written: {error}") from error


def write_json(path: Path, content: Any) -> None:
    """Write strict JSON, see `json_bytes`."""
    write_bytes(path, json_bytes(content, path.name))


def json_bytes(content: Any, name: str) -> bytes:
    """Return strict JSON: non-finite numbers become null, since JSON has none.

    Raises:
        InvalidInput: for content that is no plain data.
    """
    try:
        return (json.dumps(_strict(content), indent=2, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{name} must hold plain data (numbers, text, lists, dictionaries): {error}") from None


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        RunFolderError: naming the file when it is missing or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunFolderError(f"{path} does not exist; is this a run folder?") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise RunFolderError(f"{path} is not readable as JSON: {error}") from error


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write named tensors in the safetensors format."""
    write_bytes(path, save_bytes({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read named tensors.

    Raises:
        RunFolderError: naming the file when it is missing, truncated or of another format.
    """
    try:
        return dict(load_bytes(path.read_bytes()))
    except FileNotFoundError:
        raise RunFolderError(f"{path} does not exist; is this a run folder?") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise RunFolderError(f"{path} is not a complete safetensors file: {error}") from error


def _strict(content: Any) -> Any:
    if isinstance(content, dict):
        return {str(key): _strict(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_strict(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content
