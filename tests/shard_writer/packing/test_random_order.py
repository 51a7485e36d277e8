"""Seeds: the same order on every machine, and one that looks random."""

import itertools

import numpy as np

from tokentar.shard_writer.packing.random_order import mix, permutation, spread


def test_spread_is_splitmix64() -> None:
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert spread(1234567, 4).tolist() == published


def test_spread_continues_where_an_earlier_piece_ended() -> None:
    assert np.array_equal(np.concatenate([spread(5, 30), spread(5, 70, 30)]), spread(5, 100))


def test_words_of_a_stream_are_all_different() -> None:
    assert len(set(spread(mix(0), 100_000).tolist())) == 100_000


def test_mix_depends_on_every_word_on_their_order_and_number() -> None:
    words = [(), (0,), (0, 0), (1,), (0, 1), (1, 0), (2, 1), (1, 2), (-1,), (1 << 63,)]
    assert len({mix(*w) for w in words}) == len(words)


def test_mix_takes_words_modulo_two_to_the_64() -> None:
    assert mix(-1) == mix((1 << 64) - 1)


def test_permutation_is_a_permutation_and_pinned_for_all_time() -> None:
    assert sorted(permutation(1000, 3, 4).tolist()) == list(range(1000))
    assert permutation(10, 0, 1).tolist() == [8, 9, 4, 3, 0, 5, 2, 1, 7, 6]
    assert permutation(0, 7).tolist() == []


def test_every_order_of_three_is_about_as_frequent() -> None:
    counts = dict.fromkeys(itertools.permutations(range(3)), 0)
    for word in range(6000):
        counts[tuple(permutation(3, word).tolist())] += 1
    assert all(abs(count - 1000) < 150 for count in counts.values()), counts
