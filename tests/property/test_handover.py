"""Ackers move while messages are in flight, in any order: the verdicts equal those of one ledger that never moved."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from millrace.control.ledger import Ledger, Owner, make_root
from millrace.runtime.flow.tracker import Tracker
from millrace.runtime.wire import messages as wire
from support.ack_trees import Tree, deliver, forests, messages

Handover = tuple[list[tuple[int, int, Owner | None]], list[int]]
ACKERS = 2
SPOUT_SLOT = 9  # a slot without an acker


class FakeVerdicts:
    """Verdicts by root. A second verdict for a root is an error."""

    def __init__(self) -> None:
        self.by_root: dict[int, bool] = {}

    def add(self, root: int, verdict: bool | None) -> None:
        if verdict is not None:
            assert root not in self.by_root, f"root {root} was told twice"
            self.by_root[root] = verdict


def take(ledger: Ledger, handover: Handover, verdicts: FakeVerdicts) -> None:
    """Apply a handover to the ledger as a tracker does."""
    for root, total, owner in handover[0]:
        if owner is not None:
            verdicts.add(root, ledger.open(root, total, owner))
        elif ledger.ack(root, total) is not None:
            verdicts.add(root, True)
    for root in handover[1]:
        if ledger.fail(root) is not None:
            verdicts.add(root, False)


def with_failures(forest: list[Tree], order: Random) -> tuple[list[tuple[Tree, int | str | None]], set[int]]:
    """Return all messages in random order; in some trees one ack is replaced by a failure."""
    doomed = {tree.root for tree in forest if tree.acks and order.random() < 0.4}
    labelled: list[tuple[Tree, int | str | None]] = []
    for tree, ack in messages(forest, order):
        fails = tree.root in doomed and ack is not None and all(of is not tree or other != "fail" for of, other in labelled)
        labelled.append((tree, "fail" if fails else ack))
    order.shuffle(labelled)
    return labelled, doomed


def hand(ledger: Ledger, tree: Tree, message: int | str | None, verdicts: FakeVerdicts) -> None:
    if message == "fail":
        if ledger.fail(tree.root) is not None:
            verdicts.add(tree.root, False)
    elif message is None:
        verdicts.add(tree.root, ledger.open(tree.root, tree.opened, tree.owner))
    elif deliver(ledger, tree, message):
        verdicts.add(tree.root, True)


@given(forests(), st.randoms(use_true_random=False), st.integers(2, 4))
def test_any_number_of_ledgers_put_together_in_any_order_are_one(forest: list[Tree], order: Random, count: int) -> None:
    """Every message reaches one of the ledgers; each but the last is handed over to another at any moment."""
    labelled, doomed = with_failures(forest, order)
    ledgers = [Ledger() for _ in range(count)]
    under_way: list[Handover] = []
    verdicts = FakeVerdicts()
    todo: list[tuple[str, object]] = [("message", entry) for entry in labelled]
    todo += [("retire", number) for number in range(count - 1)]
    order.shuffle(todo)
    alive = list(range(count))
    for kind, what in todo:
        if kind == "retire":
            alive.remove(what)  # type: ignore[arg-type]
            under_way.append(ledgers[what].hand_over())  # type: ignore[call-overload]
        else:
            hand(ledgers[order.choice(alive)], *what, verdicts)  # type: ignore[misc]
        if under_way and order.random() < 0.5:  # deliver the handover; the receiver may retire as well
            take(ledgers[order.choice(alive)], under_way.pop(order.randrange(len(under_way))), verdicts)
    for handover in under_way:
        take(ledgers[count - 1], handover, verdicts)
    assert verdicts.by_root == {tree.root: tree.root not in doomed for tree in forest}


@given(forests(), st.randoms(use_true_random=False))
def test_nothing_is_complete_before_its_last_message_whatever_is_handed_over(forest: list[Tree], order: Random) -> None:
    ledger, verdicts = Ledger(), FakeVerdicts()
    left = Counter({tree.root: len(tree.acks) + 1 for tree in forest})
    for tree, ack in messages(forest, order):
        if order.random() < 0.5:
            ledger, old = Ledger(), ledger
            take(ledger, old.hand_over(), verdicts)
        left[tree.root] -= 1
        hand(ledger, tree, ack, verdicts)
        assert set(verdicts.by_root) == {root for root, count in left.items() if count == 0}
    assert ledger.hand_over() == ([], [])


class Net:
    """Trackers of one topology whose ackers move about. Every worker hears of the plans when it is its turn, and may
    skip some; messages between two workers stay in order, those of different pairs do not."""

    def __init__(self, slots: int, order: Random) -> None:
        self.order, self.verdicts = order, FakeVerdicts()
        self.mail: dict[tuple[int, int], deque[wire.DataMessage]] = defaultdict(deque)
        self.plans: list[list[tuple[int, int]]] = [[(0, 1)] * ACKERS]  # slot and incarnation of each; one for each version
        self.trackers: dict[int, Tracker] = {}
        self.known: dict[int, int] = {}  # slot -> version
        self.incarnations: dict[tuple[int, int], int] = {}  # slot, acker -> incarnation, for those that run there
        for slot in [*range(slots), SPOUT_SLOT]:
            self.trackers[slot] = Tracker(1, slot, slot, self._sender(slot), self._tell)
            self.hear(slot)

    def _sender(self, sender: int) -> Callable[[int, wire.DataMessage], None]:
        def send(slot: int, message: wire.DataMessage) -> None:
            assert slot != sender
            self.mail[sender, slot].append(message)
        return send

    def _tell(self, owner: Owner, finished: list[int], failed: list[int]) -> None:
        for root in finished:
            self.verdicts.add(root, True)
        for root in failed:
            self.verdicts.add(root, False)

    def move(self, acker: int, slot: int) -> None:
        version = len(self.plans) + 1
        self.plans.append([(slot, version) if number == acker else place for number, place in enumerate(self.plans[-1])])

    def hear(self, slot: int) -> None:
        """Apply the newest plan in the order in which a worker applies it."""
        tracker, plan = self.trackers[slot], self.plans[-1]
        if self.known.get(slot) == len(self.plans):
            return
        self.known[slot] = tracker.version = len(self.plans)
        tracker.acker_slots = [place for place, _ in plan]
        had = {acker: incarnation for (at, acker), incarnation in self.incarnations.items() if at == slot}
        wanted = {acker: incarnation for acker, (place, incarnation) in enumerate(plan) if place == slot}
        for acker in [acker for acker, incarnation in had.items() if wanted.get(acker) != incarnation]:
            del self.incarnations[slot, acker]
            tracker.retire(acker)
        for acker in [acker for acker, incarnation in wanted.items() if had.get(acker) != incarnation]:
            self.incarnations[slot, acker] = wanted[acker]
            tracker.ledgers[acker] = Ledger()
        tracker.settle()

    def deliver(self) -> None:
        waiting = [pair for pair, box in self.mail.items() if box]
        if waiting:
            pair = self.order.choice(sorted(waiting))
            message = wire.decode_data(wire.encode(self.mail[pair].popleft()))
            tracker = self.trackers[pair[1]]
            if isinstance(message, wire.Roots):
                tracker.on_roots(message.owner, message.pairs, message.version)
            elif isinstance(message, wire.Acks):
                tracker.on_acks(message.pairs, message.version)
            elif isinstance(message, wire.Fails):
                tracker.on_fails(message.roots, message.version)
            elif isinstance(message, wire.LedgerHandover):
                tracker.on_handover(message.acker, message.sums, message.failed, message.version)

    def settle(self) -> None:
        while any(self.mail.values()) or any(self.known[slot] != len(self.plans) for slot in self.trackers):
            for slot in self.trackers:
                self.hear(slot)
            self.deliver()


class FakeSpout:
    number, incarnation = 5, 1

    def __init__(self) -> None:
        self.to_ackers: defaultdict[int, int] = defaultdict(int)


def root_of(tree: Tree) -> int:
    return make_root(tree.root % ACKERS, tree.root)


@given(forests(), st.randoms(use_true_random=False), st.integers(2, 4), st.integers(0, 8))
def test_ackers_that_move_about_forget_nothing_and_nobody_sends_in_circles(forest: list[Tree], order: Random, slots: int,
                                                                          moves: int) -> None:
    """Ackers may move back before every worker has heard of the first move."""
    labelled, doomed = with_failures(forest, order)
    net = Net(slots, order)
    todo: list[Callable[[], object]] = []
    for tree, message in labelled:
        root, tracker = root_of(tree), net.trackers[order.choice([*range(slots), SPOUT_SLOT])]
        if message is None:
            spout: object = FakeSpout()
            todo.append(lambda root=root, tree=tree, spout=spout: net.trackers[SPOUT_SLOT].open(root, tree.opened, spout))
        elif message == "fail":
            todo.append(lambda root=root, tracker=tracker: tracker.fail([root], defaultdict(int)))
        else:
            todo.append(lambda root=root, tracker=tracker, edges=message: tracker.add(root, edges, defaultdict(int)))
    todo += [lambda: net.move(order.randrange(ACKERS), order.randrange(slots))] * moves
    order.shuffle(todo)
    for step in todo:
        step()
        for slot in order.sample(sorted(net.trackers), 2):
            if order.random() < 0.5:
                net.trackers[slot].flush()
            if order.random() < 0.3:
                net.hear(slot)
        if order.random() < 0.6:
            net.deliver()
    for tracker in net.trackers.values():
        tracker.flush()
    net.settle()
    assert net.verdicts.by_root == {root_of(tree): tree.root not in doomed for tree in forest}
    assert all(not tracker._early for tracker in net.trackers.values())
