# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face checkpoint on disk: its JSON files, and its tensors by name.

    checkpoint = Checkpoint.open("models/demo-moe")
    for rows in checkpoint.tensors["model.norm.weight"].rows(4096):   # float32
        ...

Nothing is read before it is asked for, and never more than a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colibri.checked_json import parse_object, read_bytes, read_json
from colibri.errors import CheckpointError
from colibri.tensor_file import Tensor, read_safetensors

if TYPE_CHECKING:
    from colibri.descriptors import Family


@dataclass(frozen=True)
class Checkpoint:
    """A folder with config.json and safetensors.

    Attributes
    ----------
    tensors : dict
        By the name in the files.
    missing : dict
        Tensors that the index puts into a file which is not there: name -> that file.
    notes : list of str
        What is not an error but should be known.
    adapt : callable, optional
        Turns a family's descriptor into one of the names that this source has for tensors.
    """

    folder: Path
    config: dict[str, Any]
    generation: dict[str, Any]
    tokenizer: bytes | None
    tensors: dict[str, Tensor]
    missing: dict[str, Path]
    notes: list[str]
    adapt: Callable[[Family], Family] | None = None

    @classmethod
    def open(cls, folder: Path | str) -> Checkpoint:
        """Reads the JSON files and the headers of the tensor files."""
        folder = Path(folder)
        if not folder.is_dir():
            raise CheckpointError("is not a folder", file=folder,
                                  hint="give the folder that holds config.json")  # fmt: skip
        notes: list[str] = []
        config = read_json(folder / "config.json")
        generation = _optional(
            folder / "generation_config.json", notes, "stop ids are config.json's"
        )
        tokenizer = _tokenizer(folder / "tokenizer.json", notes)
        tensors, missing = _tensors(folder, notes)
        return cls(folder, config, generation, tokenizer, tensors, missing, notes)

    @property
    def config_file(self) -> Path:
        """Path for messages; of a source in one file, that file."""
        return self.folder if self.folder.is_file() else self.folder / "config.json"

    def stop_ids(self, vocabulary: int) -> list[int]:
        """Ids that end a text: those of both config files, ascending.

        Raises
        ------
        CheckpointError
            When eos_token_id is not an id or a list of ids below the vocabulary's size.
        """
        ids: set[int] = set()
        generation_file = self.folder / "generation_config.json"
        sources = ((self.config_file, self.config), (generation_file, self.generation))
        for file, values in sources:
            given = values.get("eos_token_id")
            listed = given if isinstance(given, list) else [] if given is None else [given]
            for value in listed:
                if type(value) is not int or not 0 <= value < vocabulary:
                    raise CheckpointError(
                        f"is {given!r}", file=file, field="eos_token_id",
                        hint=f"valid is an id from 0 to {vocabulary - 1}, or a list of them",
                    )  # fmt: skip
            ids.update(listed)
        return sorted(ids)


def _optional(path: Path, notes: list[str], then: str) -> dict[str, Any]:
    if path.exists():
        return read_json(path)
    notes.append(f"no {path.name}: {then}")
    return {}


def _tokenizer(path: Path, notes: list[str]) -> bytes | None:
    if not path.exists():
        notes.append(f"no {path.name}: the image takes token ids only")
        return None
    data = read_bytes(path)
    parse_object(data, path)
    return data


def _tensors(folder: Path, notes: list[str]) -> tuple[dict[str, Tensor], dict[str, Path]]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        if index.exists():
            notes.append(f"{index.name} is ignored: {single.name} is there")
        return read_safetensors(single), {}
    if not index.exists():
        raise CheckpointError(
            "has no weights", file=folder, hint=f"it must have {single.name} or {index.name}"
        )
    return _sharded(folder, index)


def _sharded(folder: Path, index: Path) -> tuple[dict[str, Tensor], dict[str, Path]]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError("must be an object from tensor to file name",
                              file=index, field="weight_map")  # fmt: skip
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or shard in ("", ".", ".."):
            raise CheckpointError(
                f"is {shard!r}",
                file=index,
                field=f"weight_map: {name}",
                hint="valid is the name of a file in the same folder",
            )
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(weight_map.values())):
        if (folder / shard).exists():
            for name, tensor in read_safetensors(folder / shard).items():
                if name in tensors:
                    raise CheckpointError(f"is in {tensors[name].file.name} and in {shard}",
                                          file=folder, field=name, hint="keep one")  # fmt: skip
                tensors[name] = tensor
    missing = {n: folder / shard for n, shard in weight_map.items() if n not in tensors}
    return tensors, missing
