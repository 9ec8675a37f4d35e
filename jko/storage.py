"""Atomic files of tensors and of strict JSON: nothing in them can run code when they are read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes
from torch import Tensor

from jko.errors import InvalidInput, RunDamaged, RunFolderError

__all__ = [
    "file_digest",
    "json_bytes",
    "read_described",
    "read_json",
    "read_sealed",
    "read_tensors",
    "write_bytes",
    "write_described",
    "write_json",
    "write_sealed",
    "write_tensors",
]

_ABOUT, _DIGEST = "jko", "digest"


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
            _sync_folder(path.parent)
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


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Write strict JSON with a digest of itself, see `read_sealed`."""
    plain = json.loads(json_bytes({key: value for key, value in content.items() if key != _DIGEST}, path.name))
    write_json(path, {**plain, _DIGEST: _seal(plain)})


def read_sealed(path: Path) -> Any:
    """Read what `write_sealed` wrote, without its digest; JSON that never had one is read as it is.

    Raises:
        RunFolderError: naming the file when it is missing.
        RunDamaged: when it is not JSON, or not what was written.
    """
    try:
        content = read_json(path)
    except RunFolderError as error:
        raise (RunDamaged(str(error)) if path.exists() else error) from None
    # The list of files came with the digest: where that alone is there, the name of the digest was changed.
    if isinstance(content, dict) and (_DIGEST in content or "written" in content):
        digest = content.pop(_DIGEST, None)
        if digest != _seal(content):
            raise RunDamaged(f"{path} is damaged: its content does not have the digest that was written with it")
    return content


def file_digest(path: Path) -> str:
    """Return the BLAKE2b digest of a file's bytes, 32 hexadecimal digits.

    Raises:
        RunFolderError: when the file cannot be read.
    """
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        raise RunFolderError(f"{path} could not be read: {error}") from error


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
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise RunDamaged(f"{path} is not a complete safetensors file: {error}") from error


def write_described(path: Path, tensors: Mapping[str, Tensor], about: dict[str, Any]) -> None:
    """Write named tensors and plain data about them in one safetensors file, with a digest of both."""
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    text = json.dumps(_strict(about), allow_nan=False)
    write_bytes(path, save_bytes(plain, metadata={_ABOUT: text, _DIGEST: _digest(plain, text)}))


def read_described(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_described` wrote.

    Raises:
        RunFolderError: naming the file when it is missing, truncated, changed, or of another format.
    """
    about, digest = _header(path)
    tensors = read_tensors(path)
    if _digest(tensors, about) != digest:
        raise RunDamaged(f"{path} is damaged: its content does not have the digest that was written with it")
    return tensors, json.loads(about)


def _header(path: Path) -> tuple[str, str]:
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            length = path.stat().st_size
            if not 0 < size <= length - 8:
                raise ValueError("its header is cut off")
            header = json.loads(file.read(size))
        about, digest = header["__metadata__"][_ABOUT], header["__metadata__"][_DIGEST]
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        if not isinstance(json.loads(about), dict):
            raise ValueError("its description is no table")
        if length != 8 + size + max(ends, default=0):
            raise ValueError(f"it has {length} bytes, and {8 + size + max(ends, default=0)} were written")
    except FileNotFoundError:
        raise RunFolderError(f"{path} does not exist; is this a run folder?") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise RunDamaged(f"{path} is no complete file of a run of jko: {error}") from error
    return str(about), str(digest)


def _digest(tensors: Mapping[str, Tensor], about: str) -> str:
    digest = hashlib.blake2b(about.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _seal(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json_bytes(content, "content"), digest_size=16).hexdigest()


def _sync_folder(path: Path) -> None:
    """Make the new name survive a power failure, where the system can."""
    if os.name != "posix":
        return
    number = os.open(path, os.O_RDONLY)
    try:
        # Some network file systems refuse it; the file itself has been written.
        with contextlib.suppress(OSError):
            os.fsync(number)
    finally:
        os.close(number)


def _strict(content: Any) -> Any:
    if isinstance(content, dict):
        return {str(key): _strict(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_strict(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content
