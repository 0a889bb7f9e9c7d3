"""Turns that nobody will settle, because their worker is gone or their chat is deleted."""

from __future__ import annotations

from agentapp.errors import NotFound
from agentapp.events import TurnResult, agent_of, text_of
from agentapp.guardrails.cell import Key
from agentapp.isolation import Scope
from agentapp.turns.ends import TurnEnds
from agentapp.turns.leases import Leases
from agentapp.turns.stores import ChatTransaction, TurnStore
from agentapp.turns.turn_reports import report_lost_worker
from agentapp.turns.values import RunningTurn, Spent


def interrupt_abandoned(store: TurnStore, ends: TurnEnds, scope: Scope, leases: Leases) -> None:
    """If the chat's running turn has lost its worker, store that it was interrupted. Only once: a second
    worker that comes to it finds nothing running.
    """
    with store.chat(scope) as chat:
        if chat.title is not None:
            find_running(chat, ends, scope, leases)


def find_running(chat: ChatTransaction, ends: TurnEnds, scope: Scope, leases: Leases) -> str | None:
    """The turn of this chat that is alive, if there is one. One that has lost its worker is interrupted
    first: it must not keep the chat from going on. One whose worker is only slow is alive.
    """
    running = chat.running_turn()
    if running is None:
        return None
    lease_until = running.lease_until
    if lease_until is not None and leases.is_alive(running.worker, lease_until, chat.now):
        return running.id
    report_lost_worker(running)
    events = chat.events_so_far(running.id)
    result = _charged(chat, running, TurnResult("interrupted", text_of(events), agent_of(events)))
    chat.end_turn(running.id, result, events)
    if result.reply:
        chat.add_message(running.id, "assistant", result.reply)
    if running.reservation is not None:
        chat.leave_charge(running.id, Spent.of(result))
    ends.settle(chat, scope, running.id, running.reservation, result)
    chat.remove_live_turn(running.id)
    return None


def delete_chat(store: TurnStore, ends: TurnEnds, scope: Scope) -> RunningTurn | None:
    """Delete the chat and all that was said in it. The turn that was running in it, if there was one."""
    with store.chat(scope) as chat:
        if chat.title is None:
            raise NotFound("There is no such chat.")
        running = chat.running_turn()
        if running is not None and running.reservation is not None:
            result = _charged(chat, running, TurnResult("stopped"))
            chat.leave_charge(running.id, Spent.of(result))
            ends.settle(chat, scope, running.id, running.reservation, result)
        chat.delete_chat()
        chat.cells.remove(Key("session", scope.session_id))
    return running


def _charged(chat: ChatTransaction, running: RunningTurn, result: TurnResult) -> TurnResult:
    """The result with what the turn has spent as far as that is known. Its worker may be alive after all and
    store more in the meantime, so what was charged is left for it: see `Turn._charge_the_rest`.
    """
    if running.reservation is None:
        return result
    spent = chat.spent_so_far(running.id) or Spent.on_first_call(running.reservation)
    return spent.added_to(result)
