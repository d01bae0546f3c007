# SPDX-License-Identifier: Apache-2.0
"""Which tensor of a checkpoint is which tensor of the model; none missing, none left over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from colibri.checkpoint import Checkpoint
from colibri.errors import CheckpointError
from colibri.families import Model, Place, Wanted
from colibri.formats import block_size
from colibri.image_format import WHOLE_NORMS, Settings
from colibri.tensor_file import Tensor

_SHOWN = 8  # names in a message


@dataclass(frozen=True)
class Matched:
    """The model's tensors, found and of the right shape."""

    tensors: tuple[tuple[Wanted, Tensor], ...]
    notes: tuple[str, ...]


def match_tensors(checkpoint: Checkpoint, model: Model) -> Matched:
    """Finds every tensor that the model needs.

    Raises
    ------
    CheckpointError
        For tensors that are missing, of another shape, there twice, or not used.
    """
    found = _without_prefixes(checkpoint.tensors, model.family.prefixes)
    away = {strip(n, model.family.prefixes): path for n, path in checkpoint.missing.items()}
    wanted = [w for w in model.tensors if not (model.settings.tied and w.role.name == "output")]
    places = _places(wanted, found)
    absent = [w.name for w in wanted if places[id(w)] is None]
    for name in absent:
        if name in away:
            what = "does not have it" if away[name].exists() else "is missing"
            raise CheckpointError(f"the index puts it into {away[name].name}, which {what}",
                                  file=checkpoint.folder, field=name)  # fmt: skip
    if absent:
        raise CheckpointError(f"tensors are missing: {_some(absent)}", file=checkpoint.folder,
                              hint=_missing_hint(absent, model))  # fmt: skip
    notes = _missing_notes(away, wanted) + _tied_notes(model, found)
    taken = [(w, place) for w in wanted if (place := places[id(w)])]
    scales = {p.name: _scales_of(found[p.name], p) for _, p in taken if p.name}
    used = set(scales) | {name for name in scales.values() if name}
    if model.settings.tied:
        used.add(_output_name(model))
    _refuse_unused(checkpoint, model, found, used)
    block = block_size(checkpoint.config, checkpoint.config_file)
    whole = {n: _with_scales(found[n], s, found, block) for n, s in scales.items()}
    return Matched(tuple(_pairs(checkpoint, model, taken, whole)), tuple(notes))


def _pairs(
    checkpoint: Checkpoint, model: Model, taken: list[tuple[Wanted, Place]],
    whole: dict[str, Tensor],
) -> Iterator[tuple[Wanted, Tensor]]:  # fmt: skip
    for wanted, place in taken:
        settings = model.settings_of(wanted.layer)
        if place.name:
            tensor = _part(whole[place.name], place)
        else:
            values = place.values or (0.0,) * wanted.role.columns(settings)
            tensor = Tensor.given(wanted.role.name, checkpoint.folder, values)
        _check_shape(wanted, tensor, settings)
        yield wanted, tensor


def _places(wanted: list[Wanted], found: dict[str, Tensor]) -> dict[int, Place | None]:
    """By id, the first place that fits, or else one of the right name.

    The tensors of an expert are stored in one manner, so all take the same number of their lists:
    where sizes coincide, one matrix alone would not tell a transposed layout.
    """
    places = {id(w): _place(w, found) for w in wanted}
    experts: dict[tuple[int | None, int | None], list[Wanted]] = defaultdict(list)
    for w in wanted:
        if w.role.scope == "expert" and len(w.places) > 1:
            experts[w.layer, w.expert].append(w)
    for group in experts.values():
        choices = zip(*(w.places for w in group), strict=False)
        choice = next((c for c in choices if all(_fits(p, found) for p in c)), None)
        if choice is not None:
            places |= {id(w): place for w, place in zip(group, choice, strict=True)}
    return places


def _fits(place: Place, found: dict[str, Tensor]) -> bool:
    if place.name not in found:
        return not place.name
    return place.shape is None or bool(place.scales) or place.shape == found[place.name].shape


def _place(wanted: Wanted, found: dict[str, Tensor]) -> Place | None:
    named = (p for p in wanted.places if not p.name or p.name in found)
    return next((p for p in wanted.places if _fits(p, found)), next(named, None))


def _scales_of(tensor: Tensor, place: Place) -> str | None:
    """Name of the tensor that holds another one's scales."""
    return f"{place.name}_scale_inv" if tensor.dtype == "F8_E4M3" else place.scales


def _with_scales(
    tensor: Tensor, scales: str | None, found: dict[str, Tensor], block: tuple[int, int]
) -> Tensor:
    if scales is None:
        return tensor
    if scales not in found:
        raise CheckpointError(
            f"is {tensor.dtype} and has no scales",
            file=tensor.file,
            field=tensor.name,
            hint=f"the checkpoint must have {scales}",
        )
    if tensor.dtype == "F8_E4M3":
        return tensor.with_fp8_scales(found[scales], block)
    return tensor.with_mxfp4_scales(found[scales])


def strip(name: str, prefixes: tuple[str, ...]) -> str:
    """A tensor's name without the prefixes of its family."""
    while prefix := next((p for p in prefixes if name.startswith(p)), None):
        name = name[len(prefix) :]
    return name


def _without_prefixes(tensors: dict[str, Tensor], prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        short = strip(name, prefixes)
        if short in found:
            raise CheckpointError(f"is the same tensor as {found[short].name}", file=tensor.file,
                                  field=name, hint="keep one")  # fmt: skip
        found[short] = tensor
    return found


def _output_name(model: Model) -> str:
    return next(w.name for w in model.tensors if w.role.name == "output")


def _missing_hint(absent: list[str], model: Model) -> str:
    prefixes = " or ".join(model.family.prefixes)
    hint = f"they may have the prefix {prefixes}" if prefixes else "is the file complete?"
    if _output_name(model) in absent:
        hint += "; only with tie_word_embeddings true the output is the embedding"
    return hint


def _missing_notes(away: Iterable[str], wanted: list[Wanted]) -> list[str]:
    needed = {w.name for w in wanted}
    unneeded = [name for name in away if name not in needed]
    return [f"in the index but not there, and not needed: {_some(unneeded)}"] if unneeded else []


def _tied_notes(model: Model, found: dict[str, Tensor]) -> list[str]:
    """A tied model may carry an output tensor all the same; the embedding is what counts."""
    if not model.settings.tied or (output := found.get(_output_name(model))) is None:
        return []
    embedding = next(w.name for w in model.tensors if w.role.name == "embedding")
    if embedding not in found or output.same_bytes(found[embedding]):
        return [f"{output.name} ignored: tied to the embedding, and identical"]
    return [f"WARNING: {output.name} ignored although it differs from the embedding: "
            "config.json ties them (tie_word_embeddings)"]  # fmt: skip


def _refuse_unused(
    checkpoint: Checkpoint, model: Model, found: dict[str, Tensor], used: set[str]
) -> None:
    unused = [
        tensor.name for name, tensor in found.items() if name not in used
        and not any(fnmatchcase(name, pattern) for pattern in model.ignore)
    ]  # fmt: skip
    if unused:
        raise CheckpointError(
            f"tensors that {model.family.name} has no use for: {_some(unused)}",
            file=checkpoint.folder, hint="is this the right architecture in config.json?",
        )  # fmt: skip


def _part(tensor: Tensor, place: Place) -> Tensor:
    tensor = replace(tensor, factor=place.factor, plus=place.plus)
    if place.pick is None:
        return tensor
    if tensor.shape != place.shape:
        expected = list(place.shape or ())
        raise CheckpointError(
            f"shape is {list(tensor.shape)}, expected {expected}",
            file=tensor.file,
            field=tensor.name,
            hint="by config.json",
        )
    return tensor.part(place.pick)


def _check_shape(wanted: Wanted, tensor: Tensor, settings: Settings) -> None:
    rows, columns = wanted.role.rows(settings), wanted.role.columns(settings)
    expected = (columns,) if wanted.role.vector else (rows, columns)
    whole = WHOLE_NORMS.get(wanted.role.name)
    if whole is not None and tensor.shape == (whole(settings),):
        return
    if tensor.shape != expected:
        raise CheckpointError(f"shape is {list(tensor.shape)}, expected {list(expected)}",
                              file=tensor.file, field=tensor.name,
                              hint=f"by config.json ({wanted.role.name})")  # fmt: skip


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
