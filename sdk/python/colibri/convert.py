# SPDX-License-Identifier: Apache-2.0
"""An image in another layout: the same weights, elsewhere.

    from colibri.convert import convert
    convert("model.colibri", "card/model.colibri", Placement.of("sharded"))

The bytes of every tensor and record are copied as they are and held against their checksums; only
the tables are new.  What comes out is what `colibri.pack.pack` would have written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from colibri.errors import ImageError
from colibri.image import Image
from colibri.image_format import GLOBAL_LAYER, ROLES, Order, Type
from colibri.image_layout import Layout, Model, TensorSpec
from colibri.image_writer import ImageWriter, new_image
from colibri.pack import Progress, image_files, image_target, refuse_input
from colibri.placement import Placement, hottest_first

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Converted:
    """Each file that was written and its bytes, the image itself first."""

    image: Path
    files: tuple[tuple[Path, int], ...]

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(size for _, size in self.files)


def convert(
    image: Image | Path | str,
    target: Path | str,
    placement: Placement,
    *,
    heat: Path | None = None,
    progress: Callable[[int], Progress] | None = None,
) -> Converted:
    """Writes an image again, laid out otherwise.

    Parameters
    ----------
    heat : Path, optional
        As in `colibri.pack.pack`.  Without it records stay in the order in which they lie.
    progress : callable, optional
        Gets the number of bytes, returns what is called with each number of bytes done.

    Raises
    ------
    ImageError, PackError
        For an image that is damaged, and for a layout that it cannot have; no file is left.
    """
    source = image if isinstance(image, Image) else Image(image)
    path = image_target(Path(target))
    model = _model(source)
    order = hottest_first(heat, model.expert_layers, model.records) if heat else _order(source)
    layout = Layout.place(model, _specs(source), replace(placement, order=order))
    files = image_files(path, layout)
    refuse_input(files, [*source.paths, *([heat] if heat else [])], "conversion")
    advance = progress(sum(layout.files)) if progress else (lambda _: None)
    with new_image(path, layout, inputs=source.paths) as (writer, _):
        _copy(source, writer, advance)
        first, second, third = _selftest(source)[:3]
        writer.finish((first, second, third))
    return Converted(path, files)


def _selftest(image: Image) -> tuple[int, ...]:
    """Three checksums, then the tokens."""
    words = image.section_bytes("selftest") or b""
    return struct.unpack(f"<{len(words) // 4}I", words)


def _model(image: Image) -> Model:
    config, layers, stop, notes = (
        image.section_bytes(name) or b"" for name in ("config", "layers", "stop", "notes")
    )
    tokenizer = image.section("tokenizer")
    return Model(
        config, layers, stop, notes, _selftest(image)[3:], image.expert_layers,
        image.config["experts"] - image.config["identities"], tokenizer.bytes if tokenizer else 0,
    )  # fmt: skip


def _specs(image: Image) -> list[TensorSpec]:
    return [
        TensorSpec(ROLES[t.name], t.layer if t.layer < GLOBAL_LAYER else None, Type(t.type),
                   t.group, t.rows, t.columns, Order(t.order))
        for t in image.tensors
    ]  # fmt: skip


def _order(image: Image) -> tuple[int, ...]:
    """Numbers of the records as they lie."""
    places = [(record.file, record.offset) for record in image.experts]
    return tuple(sorted(range(len(places)), key=places.__getitem__))


def _copy(image: Image, writer: ImageWriter, advance: Progress) -> None:
    """Everything but the tables, in the order of the new layout."""
    section = image.section("tokenizer")
    if section:
        writer.tokenizer(_chunks(image, 0, section.offset, section.bytes, advance))
    tensors = {(t.layer, t.role): t for t in image.tensors}
    for slot in writer.layout.slots:
        spec = slot.spec
        if slot.expert is None:
            tensor = tensors[spec.layer_number, spec.role.number]
            chunks = _chunks(image, 0, tensor.offset, tensor.bytes, advance)
            same = writer.copy_tensor(slot, chunks) == tensor.crc32
        elif slot.starts_record:
            record = image.experts[slot.record]
            chunks = _chunks(image, record.file, record.offset, record.bytes, advance)
            same = writer.copy_record(slot.record, chunks) == record.crc32
        else:
            continue  # came with its record
        if not same:
            image.verify()  # says which block it is
            raise ImageError("changed while it was read", file=image.name)


def _chunks(image: Image, file: int, offset: int, size: int, advance: Progress) -> Iterator[bytes]:
    for at in range(0, size, _CHUNK):
        count = min(_CHUNK, size - at)
        yield image.read(offset + at, count, file)
        advance(count)
