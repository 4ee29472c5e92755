"""Where data files come from: a folder of the user, else a cache that is filled from public mirrors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from consilience.data.cache import cache_folder
from consilience.errors import DataError

FOLDER_VARIABLE = "CONSILIENCE_DATA"

MIRRORS = {
    "cifar10": ("https://www.cs.toronto.edu/~kriz/",),
    "cifar100": ("https://www.cs.toronto.edu/~kriz/",),
    "mnist": (
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    # These mirrors have http only; the checksums protect the content.
    "tiny-imagenet": ("http://cs231n.stanford.edu/",),
    "fashion-mnist": ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
}

CHECKSUMS = {
    "cifar10": {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},  # as its authors publish it
    "cifar100": {"cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8"},  # as well
    "tiny-imagenet": {"tiny-imagenet-200.zip": "md5:90528d7ca1a48142e341f4ef8d21d0de"},
    "mnist": {
        "train-images-idx3-ubyte.gz": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz": "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
    # No public mirror is known, so it is never downloaded.
    "shakespeare": {
        "speeches.jsonl.gz": "sha256:7b462ecf08f7d7c1549eaf8ab4b814ae54fdb4688edb8c2664803c0d76735178",
    },
}


def locate_file(name: str, file: str, directory: Path | None, progress: bool) -> Path:
    """The path of one data file, from `directory`, else the folder in CONSILIENCE_DATA, else by download."""
    folder = chosen_folder(directory)
    return download(name, file, progress) if folder is None else find_file(name, file, folder)


def chosen_folder(directory: Path | None) -> Path | None:
    """The folder to look in: `directory`, else the one in CONSILIENCE_DATA, else none."""
    variable = os.environ.get(FOLDER_VARIABLE)  # set but empty counts as not set
    folder = directory or (Path(variable) if variable else None)
    return None if folder is None else folder.expanduser()


def find_file(name: str, file: str, folder: Path) -> Path:
    """The file in `folder`, in a folder named after the data set or beside it, compressed or not."""
    uncompressed = file.removesuffix(".gz")
    places = [parent / each for parent in (folder / name, folder) for each in (file, uncompressed)]
    for place in places:
        if place.is_file():
            return place
    raise DataError(
        f"data set {name!r} needs the file {file}, which is at none of {', '.join(map(str, places))}. "
        f"Point --data-dir or {FOLDER_VARIABLE} to a folder that has it"
        + (", or leave both out to download it" if name in MIRRORS else "")
    )


def download(name: str, file: str, progress: bool) -> Path:
    """The file in the cache, downloaded from the first mirror whose copy has the right checksum."""
    if name not in MIRRORS:
        raise DataError(
            f"data set {name!r} needs the file {file} ({CHECKSUMS[name][file]}), which no public mirror is known to "
            f"have, so it is not downloaded. Put it into a folder as {name}/{file}, and point --data-dir or "
            f"{FOLDER_VARIABLE} to that folder"
        )
    import pooch  # imported late: only a download needs it

    cache = cache_folder() / name
    failures = []
    for mirror in MIRRORS[name]:
        bar = ProgressLine(file) if progress else False
        try:
            known = CHECKSUMS[name][file]
            return Path(pooch.retrieve(mirror + file, known, fname=file, path=cache, progressbar=bar))
        except (OSError, ValueError) as error:  # no network, no such page, a full disk; a wrong checksum
            failures.append(f"{mirror + file} ({error})")
    raise DataError(
        f"data set {name!r}: {file} could not be downloaded to {cache}. Tried: {'; '.join(failures)}. "
        f"If you have the file, point --data-dir or {FOLDER_VARIABLE} to its folder"
    )


class ProgressLine:
    """A line on stderr that counts to 100 %, with the interface pooch expects of a progress bar."""

    def __init__(self, file: str, total: int = 0) -> None:
        self.file, self.total, self.done, self.shown = file, total, 0, -1

    def update(self, count: int) -> None:
        """Count further items as done."""
        self.done += count
        percent = min(100, 100 * self.done // max(1, self.total))
        if percent != self.shown:  # pooch calls for every kilobyte
            print(f"\r{self.file}: {percent} %", end="", file=sys.stderr, flush=True)
            self.shown = percent

    def reset(self) -> None:
        """Start again from 0."""
        self.done = 0

    def close(self) -> None:
        """End the line."""
        print(file=sys.stderr)
