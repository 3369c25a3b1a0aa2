"""Which pages hold which tokens: a tree, each node of which is one page of tokens, with a page of each group.

Exact behind the hash: a node is found under its parent by comparing its tokens. They are any numbers that say what a
row depends on: ids, and for a placeholder the picture or sound that fills it. Owns the nodes; whether their pages are
used or merely cached is the page pool's matter, which tells when it takes one back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.cache.pages import DSA, GROUPS, MTP, SWA, Group

NO_PAGE = -1


class Node:
    """One page of tokens after all those of its parents."""

    __slots__ = ("children", "holders", "key", "pages", "parent")

    def __init__(self, parent: Node | None, key: tuple[int, ...] | str) -> None:
        self.parent = parent
        self.key = key  # its tokens; of a root its salt
        self.children: dict[tuple[int, ...], Node] = {}
        self.pages = [NO_PAGE] * len(GROUPS)
        self.holders = 0  # sequences whose next page comes under it


class Hit(NamedTuple):
    """Pages from which a sequence can go on."""

    tail: Node  # the last node, held for the caller; the root if nothing was found
    dsa_pages: list[int]
    swa_pages: list[int]  # of the last window only: `first_swa` on
    first_swa: int
    mtp_pages: list[int]  # the same; none unless all of them are there


class PrefixIndex:
    def __init__(self, page_size: int, window: int) -> None:
        self._page_size = page_size
        self._window = window
        self._roots: dict[str, Node] = {}
        self._node_of: tuple[dict[int, Node], ...] = tuple({} for _ in GROUPS)

    def first_window_page(self, length: int) -> int:
        """First page that the query at position `length` still sees."""
        return max(0, length - self._window + 1) // self._page_size

    def find(self, salt: str, tokens: Sequence[int], limit: int) -> Hit:
        """The longest prefix, of at most `limit` pages, that has all its DSA pages and the SWA pages of its window."""
        size = self._page_size
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = Node(None, salt)
        nodes: list[Node] = []
        node: Node | None = root
        length = windows = 0  # pages that can be used; pages up to here without a gap in their SWA pages
        while node is not None and len(nodes) < limit:
            start = len(nodes) * size
            node = node.children.get(tuple(tokens[start : start + size]))
            if node is None or node.pages[DSA] == NO_PAGE:
                break
            nodes.append(node)
            windows = windows + 1 if node.pages[SWA] != NO_PAGE else 0
            if windows >= len(nodes) - self.first_window_page(len(nodes) * size):
                length = len(nodes)
        first = self.first_window_page(length * size)
        tail = nodes[length - 1] if length else root
        tail.holders += 1
        drafts = [node.pages[MTP] for node in nodes[first:length]]
        return Hit(
            tail,
            [node.pages[DSA] for node in nodes[:length]],
            [node.pages[SWA] for node in nodes[first:length]],
            first,
            [] if NO_PAGE in drafts else drafts,
        )

    def extend(self, tail: Node, tokens: tuple[int, ...], pages: Sequence[int]) -> tuple[Node, list[Group]]:
        """The node of `tokens` under the held `tail`, held instead of it, and the groups whose page it now knows.

        Another sequence may have computed the same tokens before; then its page stays the known one.
        """
        node = tail.children.get(tokens)
        if node is None:
            node = tail.children[tokens] = Node(tail, tokens)
        taken: list[Group] = []
        for group, page in zip(GROUPS, pages, strict=False):
            if page != NO_PAGE and node.pages[group] == NO_PAGE:
                node.pages[group] = page
                self._node_of[group][page] = node
                taken.append(group)
        node.holders += 1
        self.let_go(tail)
        return node, taken

    def let_go(self, tail: Node) -> None:
        tail.holders -= 1
        self._prune(tail)

    def forget(self, group: Group, page: int) -> None:
        """The page is taken back."""
        node = self._node_of[group].pop(page)
        node.pages[group] = NO_PAGE
        self._prune(node)

    def _prune(self, node: Node) -> None:
        while not node.children and not node.holders and not any(page != NO_PAGE for page in node.pages):
            parent = node.parent
            if parent is None:
                assert isinstance(node.key, str)
                del self._roots[node.key]
                return
            assert isinstance(node.key, tuple)
            del parent.children[node.key]
            node = parent

    def check_integrity(self, held: Sequence[Node]) -> None:
        """For tests: nodes and pages point at each other, and no node is there for nothing. `held`: by sequences."""
        waiting = list(self._roots.values())
        found: tuple[dict[int, Node], ...] = tuple({} for _ in GROUPS)
        while waiting:
            node = waiting.pop()
            assert node.holders == sum(one is node for one in held)
            assert node.children or node.holders or any(page != NO_PAGE for page in node.pages)
            for group in GROUPS:
                if node.pages[group] != NO_PAGE:
                    found[group][node.pages[group]] = node
            for key, child in node.children.items():
                assert (child.parent, child.key, len(key)) == (node, key, self._page_size)
                waiting.append(child)
        assert found == self._node_of
