"""Keys of members on the command line and in charters: secret ones are refused, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from consilience.cli.member import parse_members
from consilience.errors import ConfigurationError
from consilience.peer.create_charter import with_members
from consilience.peer.direct.key_file import make_key
from tests.direct_tools import small_charter


def test_public_keys_are_read_from_text_and_file(tmp_path: Path) -> None:
    key = make_key(tmp_path / "south.key")
    (tmp_path / "south.pub").write_text(f"{key}\n")
    assert parse_members([f"a={key}", f"b={tmp_path / 'south.pub'}"]) == (("a", key), ("b", key))


def test_a_secret_key_is_refused_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "south.key"
    make_key(file)
    text = file.read_text().strip()
    secret = text.partition(":")[2]
    with pytest.raises(ConfigurationError, match=r"south\.key is a secret key; give the public key that") as error:
        parse_members([f"south={file}"])
    assert secret not in str(error.value) and f"`consilience key --show {file}`" in str(error.value)
    for given in (f"south={text}", text):
        with pytest.raises(ConfigurationError, match="--member has a secret key") as error:
            parse_members([given])
        assert secret not in str(error.value)
    with pytest.raises(ConfigurationError, match="the key of south is not a public key") as error:
        with_members(small_charter(), [("south", text), ("north", text)])
    assert secret not in str(error.value)


@pytest.mark.parametrize("content", [b"a password", b"\xff\xfe a password", b""])
def test_what_else_a_file_holds_is_not_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notes").write_bytes(content)
    with pytest.raises(ConfigurationError, match="notes has no public key; one is ed25519: with 44") as error:
        parse_members([f"south={tmp_path / 'notes'}"])
    assert "password" not in str(error.value)
