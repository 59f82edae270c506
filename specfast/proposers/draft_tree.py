"""One sequence's tree of drafts, and what can be said of it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class DraftTree:
    """One sequence's tree while it grows; a node's number is the order in which it came."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    sources: list[int] | None = None  # where several draft: who drafted which node

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, parent: int, confidence: float = 1.0, source: int = 0) -> int:
        """-> the new node's number; parent -1 is the root."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.confidence.append(confidence)
        if self.sources is not None:
            self.sources.append(source)
        return len(self.tokens) - 1


def expected(tree: DraftTree) -> float:
    """Accepted drafts, by the tree's own confidence."""
    return sum(reaches(tree))


def reaches(tree: DraftTree) -> list[float]:
    """That each node and all its ancestors are accepted."""
    found: list[float] = []
    for parent, confidence in zip(tree.parents, tree.confidence):
        found.append(confidence * (found[parent] if parent >= 0 else 1.0))
    return found


def likely(tree: DraftTree, floor: float) -> DraftTree:
    """Of a tree grown best first, the nodes reached at least so often."""
    n = sum(reach >= floor for reach in reaches(tree))
    return DraftTree(tree.tokens[:n], tree.parents[:n], tree.confidence[:n])


def num_foretold(tree: DraftTree, said: list[int]) -> int:
    """How far the tree holds what the target said, verified or not."""
    children = {(p, t): node for node, (p, t) in enumerate(zip(tree.parents, tree.tokens))}
    node = -1
    for count, token in enumerate(said):
        if (node := children.get((node, token), -2)) == -2:
            return count
    return len(said)


def likeliest_leaf(tree: DraftTree) -> tuple[int, list[int], float]:
    """-> the leaf that is reached most often, the tokens on its path, and how often."""
    reach = reaches(tree)
    leaves = set(range(len(tree))) - set(tree.parents)
    leaf = max(leaves, key=lambda node: (reach[node], -node))
    path, node = [], leaf
    while node >= 0:
        path.append(tree.tokens[node])
        node = tree.parents[node]
    return leaf, path[::-1], reach[leaf]


def graft(tree: DraftTree, branch: DraftTree, at: int, max_nodes: int, source: int = 0) -> None:
    """Adds what of a source's branch the tree lacks below node `at`, up to max_nodes in all."""
    children = {(p, t): node for node, (p, t) in enumerate(zip(tree.parents, tree.tokens))}
    placed: list[int] = []
    for token, parent, confidence in zip(branch.tokens, branch.parents, branch.confidence):
        below = placed[parent] if parent >= 0 else at
        node = children.get((below, token))
        if node is None:
            if len(tree) == max_nodes:
                return
            node = children[below, token] = tree.add(token, below, confidence, source)
        placed.append(node)
