"""What turns need of a database. ``storage/`` has it for SQL; another kind of store does the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

from agentapp.events import Event, Rendered, TurnResult, Usage, UsagePart
from agentapp.guardrails.admission import Reservation
from agentapp.guardrails.cell import Key
from agentapp.guardrails.changes import BreakerRows
from agentapp.isolation import Scope
from agentapp.turns.values import Lease, NewEvents, NewMessage, Place, RunningTurn, Spent, TurnRecord


class ChatTransaction(Protocol):
    """One write transaction on one chat, whose row was locked before anything else.

    Everybody who writes to a chat locks its row first, then its user's, then the cells of the guardrails, and
    the row of the live turn last. Two transactions that keep this order never wait for each other.
    """

    @property
    def title(self) -> str | None:
        """None if there is no such chat, or no such chat any more."""

    @property
    def now(self) -> datetime:
        """The time when the chat was locked. What others did before that does not lie ahead of it."""

    @property
    def cells(self) -> CellRows:
        """The rows of the guardrails, as part of this transaction."""

    def require_room(self) -> None:
        """Raises `StorageFull` or `StorageUnavailable` if no more can be kept."""

    def running_turn(self) -> RunningTurn | None: ...

    def other_running_turns(self) -> int:
        """How many turns run in all other chats of all users."""

    def message_of(self, turn_id: str) -> str | None:
        """The user's message that a turn answers."""

    def turn_with_key(self) -> str | None:
        """The turn that was sent with the idempotency key that this transaction is for."""

    def place_of(self, message: NewMessage) -> Place:
        """Raises `NotFound` if the message names a turn that is not in this chat."""

    def history(self, last: int) -> tuple[tuple[str, str], ...]:
        """Role and content of everything said on the way to turn number ``last``, and in it. Raises
        `ForeignHistory` if some of it is not of this chat.
        """

    def add_turn(self, place: Place, key: str | None, reservation: Reservation, lease: Lease) -> str:
        """Add a running turn, and give its id."""

    def add_message(
        self, turn_id: str, role: str, content: str, rendered: Rendered | None = None
    ) -> None: ...

    def touch(self, title: str | None = None) -> None:
        """The chat was used now; it is called so from now on, if a title is given."""

    def events_so_far(self, turn_id: str) -> Sequence[Event]:
        """The events of a running turn that were stored."""

    def spent_so_far(self, turn_id: str) -> Spent | None:
        """What it had spent when something was stored last; None if nothing is stored yet."""

    def leave_charge(self, turn_id: str, charged: Spent) -> None:
        """For a turn that is ended by somebody else than its worker: this is what was charged for it. It is
        kept though the chat is deleted.
        """

    def take_charge(self, turn_id: str) -> Spent | None:
        """What was charged for a turn by whoever ended it in its worker's place, once: it is not kept any
        longer. None if nobody else has ended it.
        """

    def end_turn(self, turn_id: str, result: TurnResult, events: Sequence[Event]) -> bool:
        """Store how a running turn ended. False if it is not running any more."""

    def complete_interrupted(self, turn_id: str, result: TurnResult, events: Sequence[Event]) -> bool:
        """Store that a turn that was interrupted has ended like this in truth, and remove what was kept of
        its reply. False if it is not interrupted, or not the newest of its chat.
        """

    def ended_turn(self, turn_id: str) -> tuple[str, Usage] | None:
        """The status and usage of a turn that is running no more; None if it is not there any more."""

    def correct_usage(self, turn_id: str, result: TurnResult) -> None:
        """A turn that was ended by others has spent this in truth."""

    def add_usage(self, reservation: Reservation, result: TurnResult) -> None:
        """To the usage of the day on which the turn began: the turn, and what it was charged."""

    def correct_usage_day(self, reservation: Reservation, parts: Sequence[UsagePart]) -> None:
        """The same for what a turn has spent besides what was charged when others ended it."""

    def remove_live_turn(self, turn_id: str) -> None:
        """Always the last step: see the order of locks above."""

    def delete_chat(self) -> None: ...

    def when_over(self, tell: Callable[[bool], object]) -> None:
        """Have this called after the transaction: with True once it is committed, with False if it is not, or
        if that is not known.
        """


class CellRows(BreakerRows, Protocol):
    def remove(self, key: Key) -> None: ...


class TurnStore(Protocol):
    def chat(self, scope: Scope, key: str | None = None) -> AbstractContextManager[ChatTransaction]:
        """Committed at the end, rolled back on any error. ``key`` is the idempotency key of the message that
        is to be sent, if there is one.
        """

    def find(self, scope: Scope, turn_id: str) -> TurnRecord:
        """The turn, if it is the scope's own; otherwise `NotFound`."""

    def has_ended(self, scope: Scope, turn_id: str, status: str, ended_at: datetime) -> bool:
        """Whether it is stored that the turn ended like this at that moment."""


class LiveTurnStore(Protocol):
    """The turns that run, in whichever worker: their leases, their events so far, requests to stop them."""

    def write(self, new: Sequence[NewEvents], worker: str) -> Mapping[str, bool]:
        """Store new events with what the turns have spent, in one transaction. To do it again with the same
        events changes nothing: the news of a commit may be lost.

        Gives the turns of this worker that are still alive, and for each if it was asked to stop.
        Events of a turn that is not alive any more are left out: its end is stored already.
        """

    def renew(self, turn_ids: Collection[str], lease: Lease) -> None:
        """From now on these turns of the lease's worker have its whole length again. It is one statement, and
        goes before everything else that waits to be written.
        """

    def stop_requests(self, worker: str) -> Mapping[str, bool]:
        """The same answer, when there is nothing to write."""

    def still_running(self, turn_ids: Collection[str]) -> set[str]:
        """Those of these turns that run, in whichever worker."""

    def events_after(
        self, known: Sequence[tuple[Scope, str, int]], refuse: Callable[[Scope, str], object]
    ) -> Mapping[str, Sequence[Event]]:
        """For each scope and turn, the stored events after the number that is known, by the turn's id. A row
        that is not of that scope is left out, and ``refuse`` is told the scope and the turn.
        """

    def worker_of(self, scope: Scope, turn_id: str) -> str | None:
        """The worker that plays the turn. None if it is not running, or not the scope's own."""

    def ask_to_stop(self, scope: Scope, turn_id: str) -> str | None:
        """Leave a request for the worker that plays the turn, and name that worker. None as above."""

    def workers(self) -> set[str]:
        """The names of all workers that have turns."""

    def give_up(self, turn_ids: Collection[str], worker: str) -> None:
        """Nobody plays these turns of this worker, though its process lives: they belong to no worker, and
        their lease is over.
        """

    def of_workers(self, workers: Collection[str]) -> list[Scope]:
        """The chats whose running turn is of one of these workers."""

    def with_lapsed_lease(
        self, living: Collection[str], latest_end: Callable[[datetime], datetime]
    ) -> list[Scope]:
        """The chats whose running turn has a lease that ran out, or that ends later than any can that is
        given out now, and so comes from a clock that is wrong. Not those of workers that are known to live.
        """


class LoginStore(Protocol):
    def signed_in(self, tokens: Collection[str]) -> set[str]:
        """Those of these logins that are still valid."""


class SearchIndex(Protocol):
    def add_waiting(self) -> bool:
        """Put what is new into the index of the search. Whether there is more than could be put there in a
        moment. What is not there yet is found all the same, only more slowly.
        """
