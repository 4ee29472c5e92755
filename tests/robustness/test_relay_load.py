"""Many members at once: every round is aggregated, no upload is lost or counts twice, and sums are correct."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import httpx
import numpy as np

from consilience.wire.codec import Codec
from consilience.wire.headers import LATEST_ROUND
from tests.relay_tools import Federation, Upload, common_of, create_federation, often, serving, upload_headers

PEERS, ROUNDS = often(20, 200), often(20, 50)
AT_ONCE = 64


async def every_round(federation: Federation, url: str) -> dict[tuple[int, int], Upload]:
    """All members upload in every round, in any order, some of them twice at once."""
    chance, sent = random.Random(0), dict[tuple[int, int], Upload]()
    limit = asyncio.Semaphore(AT_ONCE)

    async def put(client: httpx.AsyncClient, member: int, round_: int) -> None:
        upload = sent[member, round_]
        headers = upload_headers(federation, member, upload)
        async with limit:
            answer = await client.put(f"/v1/rounds/{round_}", content=upload.body, headers=headers)
            for _ in range(100):  # a member has one upload in progress at a time
                if answer.status_code != 429:
                    break
                await asyncio.sleep(0.02)
                answer = await client.put(f"/v1/rounds/{round_}", content=upload.body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.json()["sha256"] == upload.sha256
        assert answer.json()["accepted"] == ["prototypes", "observations", "weights"]

    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        for round_ in range(1, ROUNDS + 1):
            sent |= {(member, round_): federation.upload(member, round_, round_ - 1) for member in range(PEERS)}
            order = [*range(PEERS), *chance.sample(range(PEERS), PEERS // 10)]
            chance.shuffle(order)
            await asyncio.gather(*(put(client, member, round_) for member in order))
            stands = (await client.get("/v1/federation", headers=federation.head(0))).json()
            assert (stands["versions"], stands["waiting"]) == ({"weights": round_}, {"weights": 0})
    return sent


def test_every_upload_counts_once(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, PEERS)
    with serving(federation.store) as relay:
        sent = asyncio.run(every_round(federation, relay.url))
        said = httpx.get(f"{relay.url}/v1/answers?channel=weights", headers=federation.head(0))
        mean = httpx.get(f"{relay.url}/v1/answers?channel=prototypes", headers=federation.head(0))
        relay.stop()

    assert federation.receipts() == sorted((*which, upload.sha256) for which, upload in sent.items())
    federation.sums_are_right()

    moving = federation.moving()
    for round_ in range(1, ROUNDS + 1):
        moving.expect(range(PEERS))
        for member in range(PEERS):
            tensors = {k: t[None] for k, t in sent[member, round_].of("weights").items()}
            assert moving.upload([member], tensors, np.array([10 * member + 3.5]), [round_ - 1]) == []
        assert moving.aggregate()
    common = common_of(federation, said.content)
    assert all(np.array_equal(common[k], moving.common[k]) for k in moving.common), "to the bit"

    newest = [sent[member, ROUNDS].of("prototypes") for member in range(PEERS)]
    counts = np.stack([each["count"] for each in newest]).astype(np.float64)  # (members, classes)
    values = np.stack([each["mean"] for each in newest]).astype(np.float64)  # (members, classes, width)
    right = (counts[:, :, None] * values).sum(0) / counts.sum(0)[:, None]
    kept = federation.state("prototypes")
    np.testing.assert_allclose(kept["sums.mean"] / kept["count"][:, None], right, rtol=1e-12)
    assert np.array_equal(kept["count"], counts.sum(0))
    answered = Codec(federation.charter.channels["prototypes"].message("down")).decode(mean.content)
    np.testing.assert_allclose(answered["prototypes.mean"], right, rtol=1e-6)


def test_rounds_may_be_skipped(tmp_path: Path) -> None:
    """A member that was absent continues from any round, up to the last possible one."""
    federation = create_federation(tmp_path, 2)
    with serving(federation.store) as relay, httpx.Client(base_url=relay.url) as client:
        for round_ in (0, 7, LATEST_ROUND):
            upload = federation.upload(0, round_, names=["prototypes"])
            head = upload_headers(federation, 0, upload)
            for _ in range(2):
                answer = client.put(f"/v1/rounds/{round_}", content=upload.body, headers=head)
                assert (answer.status_code, answer.json()["round"]) == (200, round_)
        assert client.put(f"/v1/rounds/{LATEST_ROUND + 1}", content=b"", headers=head).status_code == 400
    assert [round_ for _, round_, _ in federation.receipts()] == [0, 7, LATEST_ROUND]
