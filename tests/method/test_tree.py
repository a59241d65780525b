import random

import pytest
import torch

from sharpen.method.tree import HypothesisTree, pack

EOS = 9


def test_shared_prefixes_are_held_once():
    tree = HypothesisTree.of([[1, 2, EOS], [1, 3, EOS], [1, 2, 4], [EOS]], EOS)
    assert tree.tokens == [-1, 1, 2, 3]  # [1, 2] is one node; the tokens that end a hypothesis need none
    assert tree.parents == [-1, 0, 1, 1]
    assert tree.depths == [0, 1, 2, 2]
    assert [y.nodes for y in tree.hypotheses] == [(0, 1, 2), (0, 1, 3), (0, 1, 2), (0,)]
    assert [y.finished for y in tree.hypotheses] == [True, True, False, True]
    assert [y.content for y in tree.hypotheses] == [(1, 2), (1, 3), (1, 2, 4), ()]


def test_nodes_count_distinct_prefixes():
    rng = random.Random(0)
    for _ in range(50):
        sequences = [[rng.randrange(3) for _ in range(rng.randrange(6))] + [EOS] for _ in range(rng.randrange(1, 8))]
        tree = HypothesisTree.of(sequences, EOS)
        prefixes = {tuple(y[:t]) for y in sequences for t in range(len(y))}
        assert len(tree) == len(prefixes)
        assert {tuple(tree.prefix(n)) for n in range(len(tree))} == prefixes
        for y, tokens in zip(tree.hypotheses, sequences, strict=True):
            assert list(y.tokens) == tokens
            assert [tree.prefix(n) for n in y.nodes] == [tokens[:t] for t in range(len(tokens))]


def test_mask_shows_ancestors_and_self_only():
    trees = [HypothesisTree.of([[1, 2, EOS], [1, 3, EOS]], EOS), HypothesisTree.of([[5, EOS]], EOS)]
    packed = pack(trees)
    assert packed.ancestors[0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]
    assert packed.ancestors[1].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert packed.valid.tolist() == [[True] * 4, [True, True, False, False]]
    assert torch.equal(packed.depths, torch.tensor([[0, 1, 2, 2], [0, 1, 0, 0]]))


def test_pruning_drops_nodes_that_no_hypothesis_uses():
    tree = HypothesisTree()
    kept = tree.child(tree.child(0, 1, -0.5), 2, -0.25)
    tree.child(tree.child(0, 7, -3.0), 8, -3.0)
    tree.hypotheses = [tree.close(kept, EOS, -0.125, finished=True, score=-0.3)]
    pruned = tree.pruned()
    assert (len(tree), len(pruned)) == (5, 3)
    (y,) = pruned.hypotheses
    assert y.tokens == (1, 2, EOS)
    assert y.logprob == -0.875
    assert y.score == -0.3
    assert [pruned.prefix(n) for n in y.nodes] == [[], [1], [1, 2]]
    assert pruned.child(0, 1) == y.nodes[1]  # a pruned tree can go on growing


def test_eos_inside_a_hypothesis_is_refused():
    with pytest.raises(ValueError, match="only at its end"):
        HypothesisTree.of([[1, EOS, 2]], EOS)
