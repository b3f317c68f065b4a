"""Secure aggregation: exact sums, drop-outs to the threshold, wrong shares, masks that hide."""

import itertools

import numpy as np
import pytest

from potluck.core.random import derive_seed
from potluck.privacy.ciphers import BrokenBox, SecretCiphers, SimulatedCiphers
from potluck.privacy.secure_aggregation import (
    Party,
    Secrets,
    SumFailed,
    SumGroup,
    open_sum,
    pack,
    protocol_bytes,
    signed,
    unpack,
)
from potluck.privacy.shamir import find_secret, join_shares, split_secret


@pytest.fixture(params=["simulated", "secret"])
def ciphers(request):
    if request.param == "secret":
        pytest.importorskip("cryptography")
        return SecretCiphers()
    return SimulatedCiphers()


def stream(*name):
    rng = np.random.default_rng(derive_seed(*name))
    return rng.bytes


class Protocol:
    """All parties and the server in one process."""

    def __init__(self, ciphers, members=(2, 5, 7, 11), threshold=3, width=5):
        self.ciphers, self.group = ciphers, SumGroup("run/1", tuple(members), threshold, width)
        self.parties = {n: Party(self.group, n, Secrets.draw(stream("party", n)), ciphers) for n in members}
        self.public = {n: party.announce() for n, party in self.parties.items()}
        dealt = {n: party.deal(self.public, stream("deal", n)) for n, party in self.parties.items()}
        self.boxes = {n: {sender: boxes[n] for sender, boxes in dealt.items()} for n in members}

    def mask(self, vectors):
        return {
            n: self.parties[n].mask(self.public, np.array(v).astype(np.uint64)) for n, v in vectors.items()
        }

    def reveal(self, survivors, revealers=None):
        return {
            n: self.parties[n].reveal(self.public, self.boxes[n], survivors) for n in revealers or survivors
        }

    def sum(self, vectors, revealers=None):
        masked = self.mask(vectors)
        opened = open_sum(self.group, self.ciphers, self.public, masked, self.reveal(list(masked), revealers))
        return signed(opened.vector, self.group.width).tolist()


VECTORS = {2: [1, -2, 3], 5: [10, 20, -30], 7: [-100, 200, 300], 11: [2**37, 0, -(2**37)]}


def added(members):
    return np.sum([VECTORS[n] for n in members], axis=0).tolist()


def test_sum_is_exact(ciphers):
    assert Protocol(ciphers).sum(VECTORS) == [1 + 10 - 100 + 2**37, 218, 273 - 2**37]


@pytest.mark.parametrize("gone", [2, 5, 7, 11])
def test_any_single_drop_out_leaves_the_sum_of_the_others(ciphers, gone):
    survivors = [n for n in VECTORS if n != gone]
    assert Protocol(ciphers).sum({n: VECTORS[n] for n in survivors}) == added(survivors)


def test_every_set_of_survivors_from_the_threshold_on_gives_its_sum():
    protocol = Protocol(SimulatedCiphers(), members=(0, 1, 2, 3, 4), threshold=3)
    vectors = {n: [n + 1, -(10**n)] for n in range(5)}
    for count in (3, 4, 5):
        for survivors in itertools.combinations(range(5), count):
            expected = [sum(n + 1 for n in survivors), -sum(10**n for n in survivors)]
            assert protocol.sum({n: vectors[n] for n in survivors}) == expected


def test_fewer_survivors_than_the_threshold_open_nothing(ciphers):
    protocol = Protocol(ciphers)
    masked = protocol.mask({n: VECTORS[n] for n in (2, 5)})
    with pytest.raises(SumFailed, match="may only be opened with 3 vectors of 4"):
        protocol.reveal([2, 5])
    revealed = protocol.reveal([2, 5, 7])  # the server claims a survivor that sent nothing
    with pytest.raises(
        SumFailed, match="2 of 4 clients sent a vector and 3 revealed shares, fewer than the 3"
    ):
        open_sum(protocol.group, ciphers, protocol.public, masked, revealed)


def test_threshold_many_revealers_are_enough(ciphers):
    assert Protocol(ciphers).sum(VECTORS, revealers=[2, 7, 11]) == added(VECTORS)
    with pytest.raises(SumFailed, match="2 revealed shares"):
        Protocol(ciphers).sum(VECTORS, revealers=[2, 7])


def test_wrong_share_is_detected_and_its_sender_named(ciphers):
    protocol = Protocol(ciphers)
    masked, revealed = protocol.mask(VECTORS), protocol.reveal(list(VECTORS))
    revealed[5][7] = bytes(65) + b"\1"
    opened = open_sum(protocol.group, ciphers, protocol.public, masked, revealed)
    assert opened.wrong == (5,)
    assert signed(opened.vector, 5).tolist() == added(VECTORS)


def test_wrong_share_without_a_spare_one_fails_the_sum(ciphers):
    protocol = Protocol(ciphers)
    survivors = [2, 5, 7]
    masked, revealed = protocol.mask({n: VECTORS[n] for n in survivors}), protocol.reveal(survivors)
    revealed[5][11] = revealed[5][2]
    with pytest.raises(SumFailed, match="shares of client 11's pairwise masks are wrong or too few"):
        open_sum(protocol.group, ciphers, protocol.public, masked, revealed)


def test_sealed_share_opens_for_its_receiver_alone(ciphers):
    protocol = Protocol(ciphers)
    swapped = {**protocol.boxes[5], 2: protocol.boxes[7][2]}
    with pytest.raises(BrokenBox, match="changed on its way"):
        protocol.parties[5].reveal(protocol.public, swapped, list(VECTORS))
    changed = bytearray(protocol.boxes[5][2])
    changed[-1] ^= 1
    with pytest.raises(BrokenBox, match="changed on its way"):
        protocol.parties[5].reveal(protocol.public, {**protocol.boxes[5], 2: bytes(changed)}, list(VECTORS))


def test_party_reveals_its_share_of_a_seed_or_of_a_key_never_both(ciphers):
    protocol = Protocol(ciphers)
    (all_sent, one_gone) = (
        protocol.parties[2].reveal(protocol.public, protocol.boxes[2], survivors)
        for survivors in (list(VECTORS), [2, 5, 7])
    )
    assert all_sent[11] != one_gone[11]
    assert all(all_sent[n] == one_gone[n] for n in (2, 5, 7))


def test_keys_of_other_parties_are_refused(ciphers):
    protocol = Protocol(ciphers)
    without = {n: key for n, key in protocol.public.items() if n != 11}
    foreign = {**protocol.public, 2: protocol.public[5]}
    for public in (without, foreign):
        with pytest.raises(SumFailed, match="not those of its members"):
            protocol.parties[2].mask(public, np.zeros(3, dtype=np.uint64))


@pytest.mark.parametrize("threshold", [2, 5])
def test_threshold_is_more_than_half_and_no_more_than_all(threshold):
    with pytest.raises(SumFailed, match="more than half of them, and no more than all"):
        SumGroup("run", (1, 2, 3, 4), threshold, 4)


def test_masked_vector_is_uniform_whatever_it_holds(ciphers):
    protocol = Protocol(ciphers, width=1)
    for value in (0, 77):
        masked = protocol.mask({5: [value] * 25_600})[5]
        counts = np.bincount(masked.astype(np.int64), minlength=256)
        assert ((counts - 100) ** 2 / 100).sum() < 370  # 255 degrees of freedom: one in a million is above


def test_masks_of_equal_vectors_differ(ciphers):
    masked = Protocol(ciphers).mask({n: [0] * 50 for n in VECTORS})
    assert len({vector.tobytes() for vector in masked.values()}) == 4


@pytest.mark.parametrize("width", [2, 3, 4, 5, 7, 8])
def test_packed_numbers_come_back_with_their_signs(width):
    top = 2 ** (8 * width - 1)
    numbers = np.array([0, 1, -1, top - 1, -top], dtype=np.int64)
    data = pack(numbers.view(np.uint64), width)
    assert len(data) == 5 * width
    assert signed(unpack(data, width), width).tolist() == numbers.tolist()


def test_shares_below_the_threshold_do_not_give_the_secret():
    secret = bytes(range(32))
    shares = split_secret(secret, range(1, 6), 3, stream("shares"))
    assert all(
        join_shares({n: shares[n] for n in some}) == secret for some in itertools.combinations(shares, 3)
    )
    assert all(
        join_shares({n: shares[n] for n in some}) != secret for some in itertools.combinations(shares, 2)
    )


def test_shares_of_a_polynomial_computed_by_hand():
    # 5 + 2x: 7 at 1, 9 at 2, 11 at 3
    draw = lambda count: (2).to_bytes(count, "big")  # noqa: E731
    shares = split_secret(bytes(31) + b"\5", [1, 2, 3], 2, draw)
    assert [int.from_bytes(share, "big") for share in shares.values()] == [7, 9, 11]
    assert int.from_bytes(join_shares({1: shares[1], 3: shares[3]}), "big") == 5


def test_wrong_shares_are_distinguished_from_right_ones():
    secret = bytes(range(32))
    shares = split_secret(secret, range(1, 6), 3, stream("shares"))
    wrong = {**shares, 1: shares[2], 4: bytes(66)}
    assert find_secret(wrong, 3, lambda candidate: candidate == secret) == (secret, [1, 4])
    assert find_secret({n: wrong[n] for n in (1, 2, 3)}, 3, lambda candidate: candidate == secret) == (
        None,
        [],
    )


def test_stated_bytes_are_those_of_the_protocol(ciphers):
    protocol = Protocol(ciphers)
    up, down = protocol_bytes(4)
    keys = len(b"".join(vars(protocol.public[2]).values()))
    boxes = sum(len(boxes[2]) for boxes in protocol.boxes.values())
    revealed = sum(len(share) for share in protocol.reveal(list(VECTORS))[2].values())
    assert (up, down) == (keys + boxes + revealed, 4 * keys + boxes)


def test_real_keys_agree_and_streams_are_long_enough():
    pytest.importorskip("cryptography")
    ciphers = SecretCiphers()
    first_key, two = bytes(range(32)), bytes(range(1, 33))
    keys = {
        ciphers.shared_key(first_key, ciphers.public_key(two), b"a"),
        ciphers.shared_key(two, ciphers.public_key(first_key), b"a"),
    }
    assert len(keys) == 1
    assert ciphers.shared_key(first_key, ciphers.public_key(two), b"b") not in keys
    assert len(ciphers.stream(first_key, 1001)) == 1001
    with pytest.raises(BrokenBox, match="not valid"):
        ciphers.shared_key(first_key, bytes(32), b"a")
