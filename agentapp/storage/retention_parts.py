"""The clean-up and the erasure of users over a database, as the server and the commands need them."""

from __future__ import annotations

from agentapp.config import Settings
from agentapp.guardrails.cell import Cells
from agentapp.guardrails.erased import forget_failures
from agentapp.guardrails.guard import Guardrails
from agentapp.retention.clean_up import CleanUp
from agentapp.retention.erasing import AllChats, Eraser
from agentapp.storage.cells import CellStore
from agentapp.storage.chat_removal import ChatRemoval
from agentapp.storage.db import Database
from agentapp.storage.idle_cells import SweepCells
from agentapp.storage.retention import RetentionStore
from agentapp.storage.sweeps import SweepAuditLog, SweepChats, simple_sweeps
from agentapp.storage.user_erasure import UserErasureStore
from agentapp.turns.abandoned import delete_chat
from agentapp.turns.ends import TurnEnds
from agentapp.turns.stores import TurnStore


def make_retention_store(db: Database, settings: Settings) -> RetentionStore:
    return RetentionStore(db, settings.retain_sessions_days, settings.retain_audit_days)


def make_clean_up(db: Database, settings: Settings, cell_kind: Cells, cells: CellStore) -> CleanUp:
    keeping = make_retention_store(db, settings)
    chats = SweepChats(keeping, ChatRemoval(db, cells))
    return CleanUp(
        (SweepCells(db, cell_kind), chats, SweepAuditLog(db, keeping), *simple_sweeps(db)), keeping
    )


def make_all_chats(db: Database, store: TurnStore, ends: TurnEnds, cells: CellStore) -> AllChats:
    return AllChats(
        ChatRemoval(db, cells), lambda scope: delete_chat(store, ends, scope), UserErasureStore(db)
    )


def make_eraser(db: Database, chats: AllChats, guardrails: Guardrails) -> Eraser:
    return Eraser(UserErasureStore(db), chats, lambda scope: forget_failures(guardrails.registry, scope))
