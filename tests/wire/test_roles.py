"""Roles and the public set in a charter: what is refused, and that other charters stay as they were."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from consilience.errors import ConfigurationError
from consilience.wire import schema
from consilience.wire.charter import build_charter, read_charter
from consilience.wire.roles import LARGEST_PUBLIC_SET, describe_public_set, encode_public_set
from tests.roles_tools import PUBLIC, small_charter

CHARTER = small_charter()[0]
TEXT = CHARTER.to_toml()


def test_a_charter_with_roles_is_read_as_it_was_written() -> None:
    assert read_charter(TEXT) == CHARTER
    assert CHARTER.roles is not None
    assert [CHARTER.roles.roles_of(n) for n in (0, 1, 9)] == [("distiller",), *[("learner", "witness")] * 2]
    assert [CHARTER.uploads_of(n) for n in (0, 2)] == [{"weights"}, {"similarity"}]
    assert (CHARTER.roles.most_uploads("weights"), CHARTER.roles.most_uploads("similarity")) == (1, float("inf"))


def test_a_charter_of_one_role_does_not_mention_roles() -> None:
    channels = {"logits": schema.Mean("logits", {"mean": schema.Tensor((3, 3))}, rows=(3,))}
    text = build_charter("plain", {"name": "some"}, 3, channels, {}).to_toml()
    before = text.replace("protocol = 2", "protocol = 1")
    assert hashlib.sha256(before.encode()).hexdigest() == PLAIN, text
    assert read_charter(text).uploads_of(7) == {"logits"}


PLAIN = "3405a9caffd42f9649a47783fc1ae3fede5e78e5d346350e021b326c217e08af"
"""Of the charter above, as it was written before charters had roles, in version 1 of the protocol."""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('distiller = [\n    "weights",\n]', "distiller = []", "'weights', to which nobody uploads"),
        ('    "weights",\n', '    "wights",\n', "differ in 'weights', to which nobody uploads"),
        ("learners = 3", "learners = 1", "nobody has the role 'learner' among 1 members"),
        ('0 = [\n    "distiller",\n]', '1 = [\n    "distillr",\n]', "role 'distillr' is not one of learner, witness"),
        ('0 = [\n    "distiller",\n]', '3 = [\n    "distiller",\n]', "member 3 has the roles"),
        ('0 = [\n    "distiller",\n]', "0 = []", "member 0 has the roles"),
        ('0 = [\n    "distiller",\n]', "", "nobody has the role 'distiller'"),
        ("learner = []", 'learner = ["weights"]', "would upload twice in a round"),
        ("host = 0", "host = 3", "public_set.host is 3; there are members 0 to 2"),
        ("host = 0", "host = -1", "public_set.host"),
        ("samples = 6", "samples = 0", "public_set.samples"),
        ("samples = 6", f"samples = {LARGEST_PUBLIC_SET}", "at most 268435456 bytes are allowed"),
        ('sha256 = "', 'sha256 = "x', "public_set.sha256"),
        ("[public_set]", "[public_set]\nowner = 1", "owner"),
    ],
)
def test_contradictions_are_refused(old: str, new: str, said: str) -> None:
    assert TEXT.count(old) == 1, TEXT
    with pytest.raises(ConfigurationError, match="the charter: ") as refused:
        read_charter(TEXT.replace(old, new))
    assert said in str(refused.value)


def test_a_channel_refers_to_the_public_set_of_the_charter() -> None:
    other = describe_public_set(PUBLIC + 1, host=0).sha256
    with pytest.raises(ConfigurationError, match="channel 'similarity' refers to another public set"):
        read_charter(TEXT.replace(f'public_set = "{describe_public_set(PUBLIC, 0).sha256}"', f'public_set = "{other}"'))


def test_the_fingerprint_is_that_of_the_scaled_samples() -> None:
    public = describe_public_set(PUBLIC, host=0)
    little: Any = PUBLIC.astype("<f4")
    assert public.sha256 == hashlib.sha256(little.tobytes()).hexdigest() and public.size == 6 * 16 * 4
    body = encode_public_set(PUBLIC)
    assert np.array_equal(public.decode(body), PUBLIC)
    assert describe_public_set(PUBLIC[::-1], host=0).sha256 != public.sha256  # the order counts
    for damaged in (body[:-1], body + b"\0", body[:-1] + b"\1", b""):
        with pytest.raises(ConfigurationError, match="this is not the public set of the charter"):
            public.decode(damaged)
    wrong = PUBLIC.copy()
    wrong[0] = np.nan
    with pytest.raises(ConfigurationError, match="NaN or infinite"):
        describe_public_set(wrong, host=0).decode(encode_public_set(wrong))
