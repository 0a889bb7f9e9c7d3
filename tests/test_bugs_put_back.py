"""Each bug this app exists to prevent, put back into a copy of it: the test named beside it must turn red."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.forked_pytest import ForkedPytest, forked_pytest
from tests.support.rounds import ROUNDS

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Bug:
    name: str
    file: str
    sound: str
    broken: str
    test: str


ATOMIC = "  # agentapp: shared ok - atomic, and what is missed is loaded anew"
BUGS = (
    Bug(
        "a module-level history",
        "agentapp/turns/history.py",
        "    passed = 0\n",
        "    EVERYTHING.extend(said)\n    said = tuple(EVERYTHING)\n    passed = 0\n",
        "tests/turns/test_turn.py::test_what_the_model_saw_before_is_only_this_chat",
    ),
    Bug(
        "one agent for all requests",
        "agentapp/agents/team.py",
        "        return Crew(self, scope, report or _log_report)\n",
        "        return CREWS.setdefault(self.front.name, Crew(self, scope, report or _log_report))\n",
        "tests/turns/test_turn.py::test_after_any_trouble_the_next_request_of_anyone_works",
    ),
    Bug(
        "a binding held across a yield",
        "agentapp/isolation.py",
        "        with self._binder.bound(self._scope):\n            return next(self._items)\n",
        "        self._binder.bound(self._scope).__enter__()\n        return next(self._items)\n",
        "tests/test_isolation.py::test_a_stream_is_bound_around_each_pull_and_never_between_two",
    ),
    Bug(
        "a binding held across a yield, seen from a page",
        "agentapp/web/turns.py",
        "    answer = Response(stream, mimetype=EVENTS)\n",
        "    binder, scope = parts().binder, chat_scope()\n"
        "    bound = (binder.bound(scope).__enter__() and item for item in stream)\n"
        "    answer = Response(bound, mimetype=EVENTS)\n",
        "tests/web/test_hooks.py::test_after_a_streaming_turn_a_stranger_on_the_same_thread_sees_nobody",
    ),
    Bug(
        "a scoped session that is not removed",
        "agentapp/storage/db.py",
        "        binder.at_release(self.release)\n",
        "",
        "tests/storage/test_storage.py::test_the_scoped_session_is_removed_when_its_binding_ends[sqlite]",
    ),
    Bug(
        "a tool thread without its scope",
        "agentapp/agents/drivers/threaded.py",
        "        run = self._binder.carried(\n"
        "            context.scope, lambda: Returned(current(), _finish(tool.call(context, call)))\n"
        "        )\n",
        "        run = lambda: Returned(context.scope, _finish(tool.call(context, call)))\n",
        "tests/agents/drivers/test_running_tools.py::test_each_tool_has_its_scope_carried_in",
    ),
    Bug(
        "the user missing from the WHERE clause",
        "agentapp/storage/owned.py",
        "    return and_(table.tenant_id == scope.tenant_id, table.user_id == scope.user_id)\n",
        "    return and_(table.tenant_id == scope.tenant_id)\n",
        "tests/storage/test_storage.py::test_somebody_elses_chat_is_an_absent_one[sqlite]",
    ),
    Bug(
        "the tenant missing from the WHERE clause",
        "agentapp/storage/owned.py",
        "    return and_(table.tenant_id == scope.tenant_id, table.user_id == scope.user_id)\n",
        "    return and_(table.user_id == scope.user_id)\n",
        "tests/storage/test_storage.py::test_somebody_elses_chat_is_an_absent_one[sqlite]",
    ),
    Bug(
        "the owner missing from one query only",
        "agentapp/storage/notes.py",
        '    delete(Note).where(in_session(OWNER, Note), Note.number == bindparam("at"))',
        '    delete(Note).where(Note.number == bindparam("at"))',
        "tests/storage/test_storage.py::test_somebody_elses_chat_is_an_absent_one[sqlite]",
    ),
    Bug(
        "no sweep before a request",
        "agentapp/web/hooks.py",
        "    binder.sweep()\n",
        "",
        "tests/web/test_hooks.py::test_somebody_elses_teardown_that_raises_changes_nothing_for_the_next",
    ),
    Bug(
        "a connection held while another one is waited for",
        "agentapp/storage/db.py",
        "        self.release()\n        wait = Wait()\n",
        "        wait = Wait()\n",
        "tests/storage/test_storage.py::test_nobody_holds_two_connections_at_once[sqlite]",
    ),
    Bug(
        "two connections held at once",
        "agentapp/storage/db.py",
        "        self.release()\n        with self._wait_observed() as wait, ",
        "        with self._wait_observed() as wait, ",
        "tests/storage/test_storage.py::test_nobody_holds_two_connections_at_once[sqlite]",
    ),
    Bug(
        "a pool shared with a forked child",
        "agentapp/storage/engines.py",
        '    event.listen(engine, "checkout", _refuse_inherited)\n',
        "",
        "tests/storage/test_storage.py::test_a_connection_is_not_used_by_a_forked_child[sqlite]",
    ),
    Bug(
        "time for the headers that begins anew with every byte",
        "agentapp/server/connection.py",
        "        if not incoming.size:\n            self.since,",
        "        if True:\n            self.since,",
        "tests/server/test_connections.py"
        "::test_headers_must_come_in_time_and_their_time_does_not_begin_anew_with_every_byte",
    ),
    Bug(
        "any number of half-sent requests from one address",
        "agentapp/server/connections.py",
        "        return self._half_sent_address is not None and count > self._half_sent_address\n",
        "        return False\n",
        "tests/server/test_connections.py::test_the_oldest_half_sent_requests_of_an_address_go_and_nobody_elses",
    ),
    Bug(
        "threads that one user can take all of",
        "agentapp/server/lanes.py",
        "queue.can_start and self._at_work[key] < self.each:\n",
        "queue.can_start:\n",
        "tests/server/test_lanes.py::test_of_one_user_only_so_many_are_at_work_and_others_find_a_thread",
    ),
    Bug(
        "strangers who take the threads of users",
        "agentapp/server/lanes.py",
        "        if user is None or request is None:\n",
        "        if request is None:\n",
        "tests/server/test_lanes.py::test_a_stranger_who_asks_for_a_stream_is_a_stranger",
    ),
    Bug(
        "malformed chunks that reach the application",
        "agentapp/server/incoming_request.py",
        "        if self._chunks is not None:\n            body =",
        "        if False:\n            body =",
        "tests/server/test_incoming_request.py"
        "::test_malformed_chunks_are_found_before_the_application_is_asked",
    ),
    Bug(
        "one breaker for all sessions",
        "agentapp/guardrails/guard.py",
        '            Key("session", scope.session_id),\n',
        '            Key("session", "the one and only"),\n',
        "tests/guardrails/test_guardrails.py::test_a_paused_chat_stops_neither_its_users_other_chats_nor_anybody_else",
    ),
    Bug(
        "fresh limits for a new session",
        "agentapp/guardrails/guard.py",
        '            Key("user", scope.user_id),\n',
        '            Key("user", scope.session_id),\n',
        "tests/guardrails/test_guardrails.py::test_a_new_chat_is_no_way_around_the_users_limits",
    ),
    Bug(
        "breakers in one worker's memory",
        "agentapp/guardrails/registry.py",
        "        if text is None:\n            return self._kind.fresh(key)\n"
        f"        cached = self._cache.get(key){ATOMIC}\n"
        "        if cached is not None and cached.text == text:\n",
        "        cached = self._cache.get(key)\n        if cached is None:\n"
        "            return self._kind.fresh(key)\n"
        "        if cached is not None:\n",
        "tests/guardrails/test_guardrails.py::test_another_worker_and_a_new_start_know_of_the_pause",
    ),
    Bug(
        "eviction that resets a tripped breaker",
        "agentapp/guardrails/registry.py",
        "        if text is None:\n            return self._kind.fresh(key)\n"
        f"        cached = self._cache.get(key){ATOMIC}\n",
        "        cached = self._cache.get(key)\n        if cached is None:\n"
        "            return self._kind.fresh(key)\n",
        "tests/guardrails/test_guardrails.py::test_a_flood_of_other_chats_does_not_push_a_pause_out_of_memory",
    ),
    Bug(
        "a decision by what is remembered, not by the row",
        "agentapp/guardrails/registry.py",
        "        if cached is not None and cached.text == text:\n",
        "        if cached is not None:\n",
        "tests/guardrails/test_guardrails.py::test_failures_count_together_whichever_worker_served_them",
    ),
    Bug(
        "a quota that is checked and then counted",
        "agentapp/storage/cells.py",
        "store.select(len(keys), lock=True)",
        "store.select(len(keys))",
        "tests/guardrails/test_registry.py::test_of_twenty_first_calls_at_once_as_many_pass_as_the_bucket_holds[postgresql]",
    ),
    Bug(
        "calls that failed are free",
        "agentapp/agents/loop.py",
        "            self._end_call(error.usage or Usage())\n",
        "            self._end_call(Usage())\n",
        "tests/turns/test_turn.py::test_every_call_is_charged_to_the_chat_the_user_and_the_tenant",
    ),
    Bug(
        "only the first call is charged",
        "agentapp/agents/loop.py",
        "        self._end_call(reply.usage)\n",
        "        self._end_call(Usage() if len(self._calls) > 1 else reply.usage)\n",
        "tests/turns/test_turn.py::test_every_call_is_charged_to_the_chat_the_user_and_the_tenant",
    ),
    Bug(
        "one tool limiter for all sessions",
        "agentapp/agents/loop.py",
        "        self.called[tool.name] += 1\n",
        "        self.called[tool.name] += 1\n        CREWS[tool.name] = CREWS.get(tool.name, 0) + 1\n"
        "        self.called_before = CREWS\n",
        "tests/turns/test_turn.py::test_calls_of_a_tool_are_counted_over_all_turns_of_a_chat",
    ),
    Bug(
        "no half-open state: paused for good",
        "agentapp/guardrails/breaker.py",
        "        left = self.cooldown - elapsed(self.opened, now)\n",
        "        left = self.cooldown\n",
        "tests/guardrails/test_guardrails.py::test_a_pause_ends_with_one_try_that_succeeds",
    ),
    Bug(
        "a trip counted at every failure",
        "agentapp/guardrails/breaker.py",
        "        if generation != self.generation or self.forced:\n            return self\n"
        "        if self._is_probed_early:",
        "        if self.opened is not None:\n            return replace(self, trips=self.trips + 1)\n"
        "        if self._is_probed_early:",
        "tests/guardrails/test_breaker.py::test_a_trip_is_counted_once_however_many_are_refused_or_fail_later",
    ),
    Bug(
        "a late success that closes",
        "agentapp/guardrails/breaker.py",
        "        if generation != self.generation or self.forced:\n            return self\n"
        "        if self.opened is not None:\n",
        "        if self.forced:\n            return self\n        if self.opened is not None:\n",
        "tests/guardrails/test_breaker.py::test_a_late_success_from_before_it_opened_does_not_close_it",
    ),
    Bug(
        "a probe without a lease",
        "agentapp/guardrails/breaker.py",
        "self.policy.lease - elapsed(self.probed, now)",
        "self.policy.lease",
        "tests/guardrails/test_breaker.py::test_the_lease_frees_a_lost_probe_and_what_it_tells_later_is_ignored",
    ),
    Bug(
        "one user's failures take the model away from all",
        "agentapp/guardrails/outage.py",
        "        return self.users_failing(now) >= self.policy.users and ",
        "        return sum(failures.values()) >= self.policy.users and ",
        "tests/guardrails/test_outage.py::test_one_user_never_takes_the_model_away_however_often_it_fails",
    ),
    Bug(
        "one tenant's users take the model away from all tenants",
        "agentapp/guardrails/outage.py",
        "        return sum(count if most is None else min(count, most) for count in tenants.values())\n",
        "        return sum(tenants.values())\n",
        "tests/guardrails/test_admission.py::test_one_tenant_alone_never_takes_the_model_from_another[False]",
    ),
    Bug(
        "who failed takes every probe",
        "agentapp/guardrails/admission.py",
        "    if (left := outage.seconds_without_probe(who, cooldown, now)) > 0:\n",
        "    if (left := 0.0) > 0:\n",
        "tests/guardrails/test_admission.py::test_who_failed_is_not_the_one_who_probes",
    ),
    Bug(
        "one tenant makes up the share that shuts the model for all",
        "agentapp/guardrails/outage.py",
        "            bad = _with_no_tenant_above_the_others(tenants)\n",
        "            pass\n",
        "tests/guardrails/test_outage.py::test_one_tenant_does_not_make_up_the_share_for_a_few_others[3-False]",
    ),
    Bug(
        "who stops one probe after the other keeps the model shut",
        "agentapp/guardrails/admission.py",
        '    if result.status != "interrupted":\n',
        "    if False:\n",
        "tests/guardrails/test_admission.py"
        "::test_who_ends_a_probe_before_its_first_word_does_not_get_the_next[result0]",
    ),
    Bug(
        "a probe that was answered and then stopped proves nothing",
        "agentapp/guardrails/admission.py",
        '    if result.verdict == "succeeded" or result.usage.output_tokens > 0:\n',
        '    if result.verdict == "succeeded":\n',
        "tests/guardrails/test_admission.py"
        "::test_one_word_of_the_model_in_a_probe_shows_that_it_works_however_the_turn_ends[stopped-nobody]",
    ),
    Bug(
        "who deletes the chat of a probe gets the next one",
        "agentapp/turns/abandoned.py",
        '            result = _charged(chat, running, TurnResult("stopped"))\n',
        '            result = _charged(chat, running, TurnResult("interrupted"))\n',
        "tests/turns/test_turn.py::test_deleting_the_chat_of_a_probe_is_stopping_it",
    ),
    Bug(
        "a tenant stays shut though the model works for all others",
        "agentapp/guardrails/admission.py",
        "_asked_about_model(tenant, who, now, works=works)",
        "_asked_about_model(tenant, who, now)",
        "tests/guardrails/test_admission.py"
        "::test_a_tenant_tries_again_when_the_model_was_seen_to_work_for_others",
    ),
    Bug(
        "each tenant that tries makes all others wait longer",
        "agentapp/guardrails/breaker.py",
        "        if self._is_probed_early:",
        "        if False:",
        "tests/guardrails/test_admission.py::"
        "test_while_it_is_open_a_tenant_that_has_not_failed_goes_through_one_turn_at_a_time",
    ),
    Bug(
        "a call that is stopped before its first word is free",
        "agentapp/agents/meter.py",
        "        self._known += self.estimate\n",
        "        pass\n",
        "tests/turns/test_charging.py::test_a_call_that_ends_before_its_first_word_costs_its_input[stop]",
    ),
    Bug(
        "an answer that runs into its deadline is one token",
        "agentapp/agents/meter.py",
        "        self._heard_bytes += size_of(text)\n",
        "        pass\n",
        "tests/agents/drivers/test_halting.py::"
        "test_an_answer_that_runs_into_a_deadline_costs_what_was_heard_of_it",
    ),
    Bug(
        "an answer whose end does not say its cost is one token",
        "agentapp/agents/providers/anthropic/messages.py",
        "        usage = self._with_heard(self.usage or self._meter.estimate)\n",
        "        usage = self.usage or self._meter.estimate\n",
        "tests/agents/providers/anthropic/test_provider.py::"
        "test_an_answer_without_a_final_count_costs_what_was_heard_of_it[sync]",
    ),
    Bug(
        "a dead worker's turns are free",
        "agentapp/turns/abandoned.py",
        "    return spent.added_to(result)\n",
        "    return result\n",
        "tests/turns/test_charging.py::test_a_turn_whose_worker_died_costs_what_was_stored_of_it",
    ),
    Bug(
        "what a dead worker's model wrote and nobody was shown is free",
        "agentapp/turns/turn.py",
        "        if not new and (not written or spent == stored):\n",
        "        if not new:\n",
        "tests/turns/test_charging_once.py::test_what_is_not_shown_is_charged_though_the_worker_dies[sqlite]",
    ),
    Bug(
        "what a provider has cached of one user is read by another",
        "agentapp/agents/team.py",
        '        owner = f"{scope.tenant_id}\\0{scope.user_id}".encode()\n',
        '        owner = b"everybody"\n',
        "tests/turns/test_prompt_cache.py::test_nobody_reads_what_another_user_has_written",
    ),
    Bug(
        "the tools, which all users have, cached by themselves",
        "agentapp/agents/providers/anthropic/messages.py",
        "    if prompt_cache:\n",
        '    if prompt_cache and "tools" in request:\n        _mark(request["tools"][-1])\n',
        "tests/agents/providers/anthropic/test_prompt_cache.py"
        "::test_no_call_has_more_marks_than_the_api_takes",
    ),
    Bug(
        "many tools called at once, and the call after them is not cached",
        "agentapp/agents/providers/anthropic/messages.py",
        "    for content in contents[-2:]:\n",
        "    for content in contents[-1:]:\n",
        "tests/agents/providers/anthropic/test_prompt_cache.py"
        "::test_so_it_is_however_many_tools_were_called_at_once[20]",
    ),
    Bug(
        "a specialist's note keeps the next turn from being cached",
        "agentapp/agents/providers/anthropic/messages.py",
        "        _mark(last)\n",
        "        pass\n",
        "tests/agents/providers/anthropic/test_prompt_cache.py"
        "::test_so_does_a_specialist_who_was_handed_a_note_with_it",
    ),
    Bug(
        "a conversation that begins one message later with each turn",
        "agentapp/turns/history.py",
        "    left_out = -(-too_many // STEP_CHARS) * STEP_CHARS\n",
        "    left_out = too_many\n",
        "tests/turns/test_turn.py::test_a_long_conversation_begins_with_the_same_message_for_several_turns",
    ),
    Bug(
        "what was read from the cache costs as much as what was not",
        "agentapp/agents/prices.py",
        "            + usage.cache_read_tokens * self.cache_read\n",
        "            + usage.cache_read_tokens * self.input\n",
        "tests/turns/test_prompt_cache.py::test_ten_turns_with_tools_cost_far_less[a shop's own team-0.5]",
    ),
    Bug(
        "what a dead worker had read from the cache is forgotten",
        "agentapp/turns/values.py",
        "        return [*numbers[:3], self.cost_microusd, self.charged_microusd, *numbers[3:], parts]\n",
        "        return [*numbers[:3], self.cost_microusd, self.charged_microusd, 0, 0, parts]\n",
        "tests/turns/test_charging.py::test_what_a_dead_worker_had_read_from_the_cache_is_charged_as_that",
    ),
    Bug(
        "a turn whose commit was not heard of is taken for another's",
        "agentapp/storage/turn_rows.py",
        "        row.cache_read_tokens,\n        row.cache_write_tokens,\n",
        "",
        "tests/turns/test_charging.py::test_the_same_holds_if_part_of_its_input_was_cached",
    ),
    Bug(
        "what was charged yesterday is taken off today",
        "agentapp/guardrails/budget.py",
        "        period = current if at is None else _period(self.allowance.period, at)\n",
        "        period = current\n",
        "tests/guardrails/test_budget.py"
        "::test_a_correction_counts_for_the_period_in_which_it_was_charged[day]",
    ),
    Bug(
        "a clock that is put back keeps a chat paused",
        "agentapp/guardrails/times.py",
        "    return 0.0 if since <= now + CLOCK_SKEW_SECONDS else inf\n",
        "    return 0.0\n",
        "tests/guardrails/test_breaker.py::test_a_clock_moved_by_an_hour_keeps_nobody_out_longer",
    ),
    Bug(
        "a thread that is not swept when its stream ends",
        "agentapp/web/checks.py",
        "    app.binder.sweep()  # it reports what it finds\n",
        "",
        "tests/web/test_isolation_measured.py"
        "::test_a_stream_that_leaves_something_bound_is_found_when_it_ends",
    ),
    Bug(
        "connections that nobody looks for",
        "agentapp/web/checks.py",
        "    if left := app.db.close_left(scope.request_id):\n",
        "    if left := 0:\n",
        "tests/web/test_isolation_measured.py::test_a_connection_that_is_left_open",
    ),
    Bug(
        "subscriptions that nobody looks for",
        "agentapp/web/checks.py",
        "    if not streams:\n        _check_subscription(app, scope)\n",
        "",
        "tests/web/test_isolation_measured.py::test_a_subscription_that_is_left_open",
    ),
    Bug(
        "agents of one turn in the next",
        "agentapp/agents/team.py",
        "        if crew.take():\n",
        "        if True:\n",
        "tests/web/test_isolation_measured.py::test_agents_of_one_turn_that_are_given_to_another",
    ),
    Bug(
        "history that is not looked at",
        "agentapp/storage/turns.py",
        "        self._require_own(owners)\n",
        "",
        "tests/web/test_isolation_measured.py::test_history_rows_of_somebody_else",
    ),
    Bug(
        "results of tools that are not looked at",
        "agentapp/agents/loop.py",
        "        if result.scope is None or result.scope == self.scope:\n",
        "        if True:\n",
        "tests/web/test_isolation_measured.py::test_the_result_of_somebody_elses_tool",
    ),
    Bug(
        "events that are not looked at",
        "agentapp/turns/service.py",
        "        if feed.scope.of_same_chat(scope):\n",
        "        if True:\n",
        "tests/web/test_isolation_measured.py::test_events_of_somebody_elses_turn",
    ),
    Bug(
        "a score that stays at 1",
        "agentapp/telemetry/measurements.py",
        '            self.count("isolation_violating_total", tenant_id=tenant_id)\n'
        "            self.metrics.count(UNSTORED.name, 1, {})\n",
        "            pass\n",
        "tests/web/test_isolation_measured.py::test_a_binding_that_is_left_over",
    ),
    Bug(
        "a trip for every refusal",
        "agentapp/web/problems.py",
        "    if isinstance(error, errors.GuardrailRefused):\n",
        "    if isinstance(error, errors.GuardrailRefused):\n"
        '        parts().telemetry.count("breaker_trips_total", scope=error.scope)\n',
        "tests/turns/test_ends.py::test_a_chat_that_is_paused_is_one_trip_however_often_it_refuses",
    ),
    Bug(
        "every failure contained",
        "agentapp/guardrails/changes.py",
        "    return Settled(changes, not any(map(_is_kept_open, before[1:], after[1:])))\n",
        "    return Settled(changes)\n",
        "tests/turns/test_ends.py::test_a_failure_that_stops_its_users_other_chats_is_not_contained",
    ),
    Bug(
        "a turn counted before it is stored",
        "agentapp/turns/ends.py",
        "        chat.when_over(ending.over)\n",
        "        ending.over(True)\n",
        "tests/turns/test_ends.py::test_what_could_not_be_stored_was_not_counted_and_opened_nothing",
    ),
    Bug(
        "a turn that a killed worker has stored and nobody counts",
        "agentapp/turns/jobs.py",
        "            if self._store.has_ended(end.scope, end.turn_id, end.status, end.ended_at):\n",
        "            if False:\n",
        "tests/turns/test_ends.py"
        "::test_a_worker_killed_between_storing_and_counting_leaves_the_turn_to_the_next_one[sqlite]",
    ),
    Bug(
        "a refusal that is counted for nobody, as it is shown on a page of its own",
        "agentapp/web/problems.py",
        "    _count_if_refused(error)\n    return _with_retry_after(Response(page",
        "    return _with_retry_after(Response(page",
        "tests/web/test_refusals_counted.py::test_a_message_too_many[page]",
    ),
    Bug(
        "a dead turn keeps what it reserved",
        "agentapp/turns/abandoned.py",
        "    ends.settle(chat, scope, running.id, running.reservation, result)\n    chat.remove",
        "    chat.remove",
        "tests/turns/test_turn.py::test_a_dead_turn_is_given_back_once_when_the_next_message_comes[never]",
    ),
    Bug(
        "a dead turn gives back twice",
        "agentapp/turns/abandoned.py",
        "    ends.settle(chat, scope, running.id, running.reservation, result)\n    chat.remove",
        "    ends.settle(chat, scope, running.id, running.reservation, result)\n"
        "    ends.settle(chat, scope, running.id, running.reservation, result)\n    chat.remove",
        "tests/turns/test_turn.py::test_a_dead_turn_is_given_back_once_when_the_next_message_comes[never]",
    ),
    Bug(
        "a seat that is not given back",
        "agentapp/turns/feed.py",
        "        self._held.close()\n",
        "        pass\n",
        "tests/turns/test_turn.py::test_a_seat_is_given_back_once_however_a_stream_ends[str-closed_at_once]",
    ),
    Bug(
        "a user's streams counted in one worker only",
        "agentapp/guardrails/seats.py",
        "        return [self._seat(number) for number in self._numbers(self._column(self._users), user)]\n",
        "        here = range(self._first, self._first + self.width)\n"
        "        found = self._numbers(self._column(self._users), user)\n"
        "        return [self._seat(number) for number in found if number in here]\n",
        "tests/guardrails/test_streams.py"
        "::test_the_oldest_stream_of_a_user_gives_way_wherever_it_is_and_no_other",
    ),
    Bug(
        "somebody else's stream gives way",
        "agentapp/guardrails/seats.py",
        "        return found == opened\n",
        "        return found != 0\n",
        "tests/guardrails/test_streams.py"
        "::test_a_slot_that_somebody_else_has_taken_meanwhile_does_not_give_way",
    ),
    Bug(
        "a message gives way to a newer stream",
        "agentapp/guardrails/streams.py",
        "    followers = [seat for seat in seats if seat.kind == FOLLOWER]\n",
        "    followers = seats\n",
        "tests/guardrails/test_streams.py::test_a_message_makes_a_follower_give_way_but_never_another_message",
    ),
    Bug(
        "a killed worker keeps its seats",
        "agentapp/guardrails/seats.py",
        "        memory[start : start + length] = bytes(length)\n",
        "        pass\n",
        "tests/guardrails/test_seats.py::test_the_seats_of_a_killed_process_count_until_its_row_is_cleared",
    ),
    Bug(
        "one stream more than a user may have",
        "agentapp/guardrails/streams.py",
        "        too_many = len(staying) - self._per_user\n",
        "        too_many = len(staying) - self._per_user - 1\n",
        "tests/guardrails/test_streams.py"
        "::test_the_oldest_stream_of_a_user_gives_way_wherever_it_is_and_no_other",
    ),
    Bug(
        "one tenant takes all streams",
        "agentapp/guardrails/streams.py",
        "        if taken >= share:\n",
        "        if False:\n",
        "tests/guardrails/test_streams.py"
        "::test_a_tenant_leaves_an_eighth_to_a_first_one_of_another_and_half_when_others_want_some",
    ),
    Bug(
        "one tenant takes all that followers may have",
        "agentapp/guardrails/streams.py",
        "        if taken >= share_of_kind and ",
        "        if False and ",
        "tests/guardrails/test_streams.py"
        "::test_of_each_kind_too_a_tenant_leaves_half_to_others_who_want_some[follow-20]",
    ),
    Bug(
        "a stream that another worker has displaced goes on",
        "agentapp/turns/jobs.py",
        "        self._subscriptions.end_displaced()\n",
        "",
        "tests/turns/test_surviving.py::test_a_stream_that_another_worker_displaced_is_ended_by_the_heartbeat",
    ),
    Bug(
        "a stream that gives way is not told when to come back",
        "agentapp/web/sse.py",
        "            return RECONNECT_LATER\n",
        "            raise\n",
        "tests/turns/test_surviving.py::test_a_stream_that_gives_way_is_told_to_come_back_and_its_turn_goes_on",
    ),
    Bug(
        "a page slot that is not given back",
        "agentapp/web/hooks.py",
        "        stack.callback(parts().pages.take(claimed).release)\n",
        "        parts().pages.take(claimed)\n",
        "tests/web/test_pages_in_flight.py::test_every_page_gives_its_slot_back_however_it_ends[/chat]",
    ),
    Bug(
        "one user's pages take everybody's",
        "agentapp/guardrails/pages.py",
        "        if self._per_user is not None and self._seats.count_user(user) > self._per_user:\n",
        "        if False:\n",
        "tests/web/test_pages_in_flight.py::test_pages_in_other_workers_count_too",
    ),
    Bug(
        "a reader who leaves ends the turn",
        "agentapp/turns/service.py",
        "        held.callback(self.subscriptions.remove, weakref.ref(subscription), scope.request_id)\n",
        "        held.callback(self.subscriptions.remove, weakref.ref(subscription), scope.request_id)\n"
        "        held.callback(self.local.stop, subscription.feed.turn_id)\n",
        "tests/turns/test_surviving.py::test_a_reader_who_leaves_in_the_middle_does_not_end_the_turn",
    ),
    Bug(
        "a stop is held against the chat",
        "agentapp/events.py",
        '        return "failed" if self.status == "failed" and self.blame != "nobody" else "abandoned"\n',
        '        return "failed"\n',
        "tests/turns/test_surviving.py::test_stopping_is_nobodys_failure_however_often",
    ),
    Bug(
        "a stop loses what was said",
        "agentapp/turns/turn.py",
        "        reply = text_of(self.feed.events)\n",
        '        reply = "" if status == "stopped" else text_of(self.feed.events)\n',
        "tests/turns/test_surviving.py::test_a_stopped_answer_keeps_what_had_been_said",
    ),
    Bug(
        "a turn that runs here can be followed by anybody",
        "agentapp/turns/service.py",
        "        record = self.kit.store.find(scope, turn_id)\n",
        "        if (here := self.local.feed(turn_id)) is not None:\n"
        "            return here\n"
        "        record = self.kit.store.find(scope, turn_id)\n",
        "tests/turns/test_surviving.py::test_nobody_else_can_follow_or_stop_a_turn_that_runs_here",
    ),
    Bug(
        "a turn can be followed from any chat",
        "agentapp/storage/turns.py",
        "        mine = select(Turn).where(in_session(scope, Turn), Turn.id == turn_id)\n",
        "        mine = select(Turn).where(Turn.id == turn_id)\n",
        "tests/turns/test_surviving.py::test_nobody_else_can_follow_or_stop_a_turn_that_runs_here",
    ),
    Bug(
        "a resumed stream counts from one",
        "agentapp/turns/feed.py",
        "            self._number = event.number\n            return event\n",
        "            self._number = event.number\n"
        "            self.told = getattr(self, 'told', 0) + 1\n"
        "            return NumberedEvent(self.told, event.event)\n",
        "tests/turns/test_surviving.py::test_a_stream_taken_up_again_goes_on_with_the_next_event_and_its_number",
    ),
    Bug(
        "a resumed stream begins at the beginning",
        "agentapp/turns/service.py",
        "        return self._listed(scope, Subscription(feed, after, login, held, slot), held)\n",
        "        return self._listed(scope, Subscription(feed, 0, login, held, slot), held)\n",
        "tests/turns/test_surviving.py::test_a_stream_taken_up_again_goes_on_with_the_next_event_and_its_number",
    ),
    Bug(
        "a version is told what it replaces",
        "agentapp/storage/turns.py",
        "        if message.replaces is None:\n            return Place(place.number, number, next_agent)\n",
        "        if True:\n            return Place(place.number, number, next_agent)\n",
        "tests/turns/test_surviving.py::test_another_version_is_asked_for_without_the_one_it_replaces",
    ),
    Bug(
        "a stream goes on after its login",
        "agentapp/turns/jobs.py",
        "                    subscription.cut(signed_out=True)\n",
        "                    pass\n",
        "tests/turns/test_surviving.py::test_a_stream_ends_with_its_login_and_the_turn_goes_on",
    ),
    Bug(
        "a worker ends in the middle of its turns",
        "agentapp/turns/draining.py",
        "        self._local.interrupt_all()\n",
        "        pass\n",
        "tests/turns/test_surviving.py::test_a_worker_that_must_end_interrupts_what_still_runs_and_tells_of_it",
    ),
    Bug(
        "a message that is let in though there is no room to keep it",
        "agentapp/turns/turn.py",
        "    chat.require_room()\n",
        "",
        "tests/storage/test_room.py::test_a_full_quota_refuses_what_would_be_kept_and_nothing_else[sqlite]",
    ),
    Bug(
        "bytes that are not given back when a chat is deleted",
        "migrations/versions/0006_stored_bytes.py",
        "stored_bytes = stored_bytes - removed.bytes\n",
        "stored_bytes = stored_bytes\n",
        "tests/storage/test_room.py::test_a_full_quota_refuses_what_would_be_kept_and_nothing_else[postgresql]",
    ),
    Bug(
        "a tenant that has no room because of others",
        "agentapp/storage/room.py",
        'select(func.sum(User.stored_bytes)).where(User.tenant_id == bindparam("tenant"))',
        "select(func.sum(User.stored_bytes))",
        "tests/storage/test_room.py::test_a_full_tenant_refuses_all_its_users_and_nobody_elses[sqlite]",
    ),
    Bug(
        "a slow worker is taken for dead",
        "agentapp/turns/leases.py",
        "        if lives is not None:\n            return lives\n",
        "        return now <= lease_until <= self.latest_end(now) and lives is not False\n",
        "tests/turns/test_heartbeat.py"
        "::test_a_worker_of_this_machine_that_is_only_slow_is_not_taken_for_dead[sqlite]",
    ),
    Bug(
        "another process with the number of a dead worker is taken for it",
        "agentapp/turns/leases.py",
        "started == process.started\n",
        "True\n",
        "tests/turns/test_leases.py::test_another_process_with_the_same_number_is_not_the_worker",
    ),
    Bug(
        "a dead worker that its parent has not asked after counts as living",
        "agentapp/turns/leases.py",
        'DEAD_STATES = "ZX"',
        'DEAD_STATES = "!"',
        "tests/turns/test_leases.py::test_a_process_that_has_ended_is_dead_at_once",
    ),
    Bug(
        "leases that do not grow with the lag",
        "agentapp/turns/leases.py",
        "            return Lease(self._worker, max(self._length, grown))\n",
        "            return Lease(self._worker, self._length)\n",
        "tests/turns/test_leases.py::test_a_lease_grows_with_the_lag_and_shrinks_when_that_is_over",
    ),
    Bug(
        "turns that nobody plays are kept alive for ever",
        "agentapp/turns/jobs.py",
        "        if lost:\n",
        "        if not lost:\n",
        "tests/turns/test_heartbeat.py"
        "::test_a_turn_that_nobody_plays_is_not_kept_alive_but_given_up_by_its_own_worker[sqlite]",
    ),
    Bug(
        "an answer that comes back into a chat that went on without it",
        "agentapp/storage/turn_statements.py",
        "Turn.number == _NEWEST_NUMBER",
        "Turn.number <= _NEWEST_NUMBER",
        "tests/turns/test_heartbeat.py"
        "::test_a_turn_that_was_taken_for_dead_stays_so_if_something_else_has_happened"
        "[sqlite-the chat went on]",
    ),
    Bug(
        "events that are lost or stored twice after the news of a commit was lost",
        "agentapp/turns/local.py",
        "        if self._offered is None:\n",
        "        if True:\n",
        "tests/turns/test_heartbeat.py"
        "::test_events_whose_commit_nobody_heard_of_are_stored_once_and_in_order[sqlite]",
    ),
    Bug(
        "a transaction that SQLite has not begun",
        "agentapp/storage/engines.py",
        "        if cursor.connection.in_transaction:\n",
        "        if True:\n",
        "tests/storage/test_begin_writing.py::test_a_transaction_that_was_not_begun_is_begun_again",
    ),
    Bug(
        "a cursor that outlives its transaction",
        "agentapp/storage/db.py",
        "            connection.close_results()\n",
        "            pass\n",
        "tests/storage/test_begin_writing.py::test_an_answer_that_nobody_reads_ends_with_its_transaction",
    ),
    Bug(
        "as many writers to PostgreSQL as there are connections",
        "agentapp/storage/db.py",
        "1 if is_sqlite else POSTGRES_WRITERS",
        "1 if is_sqlite else 15",
        "tests/storage/test_storage.py::test_few_write_at_once_and_the_others_hold_nothing_meanwhile[postgresql]",
    ),
    Bug(
        "a heartbeat that waits behind all turns",
        "agentapp/storage/write_permits.py",
        "self._take_urgently(seconds) if urgent else self._take(seconds)",
        "self._take(seconds)",
        "tests/storage/test_write_permits.py::test_who_is_urgent_goes_before_all_who_wait",
    ),
    Bug(
        "a tenant with many users that has everybody else refused",
        "agentapp/server/lanes.py",
        "(self._of_group[self._groups[key]], self.in_flight(key))",
        "self.in_flight(key)",
        "tests/server/test_lanes.py"
        "::test_the_group_with_most_in_flight_is_refused_first_and_one_with_little_nothing",
    ),
    Bug(
        "turns of one tenant that are stuck keep those of all others from beginning",
        "agentapp/server/turn_loop.py",
        "now - connection.in_thread_since > BEGINNING_SECONDS:\n",
        "now - connection.in_thread_since > 3_600:\n",
        "tests/server/test_turn_loop.py"
        "::test_turns_that_are_stuck_before_they_begin_do_not_keep_others_from_it",
    ),
    Bug(
        "a full disk that is found only after the call is paid for",
        "agentapp/storage/room.py",
        "        self._db.disk.require_reserve()\n",
        "",
        "tests/storage/test_room.py::test_a_nearly_full_disk_refuses_what_is_new_and_says_so_once[sqlite]",
    ),
    Bug(
        "a stream that takes a thread of the pages because its address is written in another way",
        "agentapp/server/lanes.py",
        "    return unquote(request.path)\n",
        "    return str(request.path)\n",
        "tests/server/test_lanes.py::test_each_kind_of_request_has_threads_of_its_own"
        "[/chat/x/turns/y/event%73-anna-others5]",
    ),
    Bug(
        "a queue of strangers without end",
        "agentapp/server/lanes.py",
        "            self.let_wait(self._most_waiting)\n",
        "            self.let_wait(10**9)\n",
        "tests/server/test_lanes.py"
        "::test_when_too_many_wait_the_newest_of_who_has_most_is_refused_and_nobody_else",
    ),
    Bug(
        "a stranger with any cookie who may send as much as a user",
        "agentapp/server/incoming_request.py",
        "        self._max_body_bytes = MAX_BODY_BYTES_SIGNED_OUT if self.user is None else MAX_BODY_BYTES\n",
        "        self._max_body_bytes = MAX_BODY_BYTES if self.cookies else MAX_BODY_BYTES_SIGNED_OUT\n",
        "tests/server/test_incoming_request.py::test_a_body_that_is_too_long_is_not_waited_for[False]",
    ),
    Bug(
        "the cookie of an ended login that takes up its owner's pages",
        "agentapp/web/auth.py",
        '        return None if kept.get("_user_id") in ended else _claimed_user(kept)\n',
        "        return _claimed_user(kept)\n",
        "tests/web/test_auth.py::test_a_cookie_of_an_ended_login_takes_nothing_of_its_owners_share",
    ),
    Bug(
        "a signed-in user who makes room for strangers",
        "agentapp/server/connections.py",
        "        if stranger is not None:\n            return stranger\n",
        "        return by_loss[0]\n",
        "tests/server/test_connections.py"
        "::test_strangers_make_room_before_anybody_who_signed_in_and_then_who_has_most_of_them",
    ),
    Bug(
        "who leaves takes the answer along",
        "agentapp/turns/played.py",
        "                while self._turn is not None:\n",
        "                while False:\n",
        "tests/turns/test_played.py::"
        "test_who_leaves_in_the_middle_plays_on_and_keeps_the_slot_until_the_end[1]",
    ),
    Bug(
        "a turn whose request was lost is kept alive for ever",
        "agentapp/turns/local.py",
        "        for each in dropped:\n            self._start(each.turn)\n",
        "",
        "tests/turns/test_played.py::test_a_turn_whose_player_was_lost_is_played_on_by_a_thread[2]",
    ),
    Bug(
        "a stop waits until a model that is read in place says something",
        "agentapp/agents/drivers/threaded.py",
        "        halt.add_done_callback(lambda _: cancellation.cancel())\n",
        "",
        "tests/turns/test_played.py::test_stop_ends_a_silent_model_within_a_second[[[hang:60]]]",
    ),
    Bug(
        "nobody is told anything while the model is silent",
        "agentapp/agents/drivers/in_place.py",
        "            self._before_wait()\n",
        "",
        "tests/turns/test_played.py::test_while_the_model_is_silent_the_client_is_told_that_all_is_well",
    ),
    Bug(
        "who has signed out is told more until the model is done",
        "agentapp/web/sse.py",
        "            self._client.end_now()\n",
        "            pass\n",
        "tests/turns/test_played.py::"
        "test_a_client_whose_login_ends_is_cut_off_while_the_model_is_silent_and_the_turn_goes_on",
    ),
    Bug(
        "a thread that got no processor counts as the model's silence",
        "agentapp/agents/drivers/in_place.py",
        "            began = time.monotonic()\n",
        "            began = time.monotonic()\n            self._look_at_deadlines()\n",
        "tests/agents/drivers/test_in_place.py::test_what_is_there_to_be_read_is_read_even_if_the_time_is_up",
    ),
    Bug(
        "a connection in the pool keeps the turn",
        "agentapp/agents/drivers/threaded.py",
        "            waiting.end()\n",
        "            pass\n",
        "tests/agents/drivers/test_in_place.py::"
        "test_a_connection_in_the_pool_keeps_nothing_of_the_turn_that_used_it[True]",
    ),
    Bug(
        "connecting cannot be stopped",
        "agentapp/agents/providers/anthropic/cancelling.py",
        "    if sending is None or sending.waiting is None:\n",
        "    if True:\n",
        "tests/agents/drivers/test_in_place.py::"
        "test_a_call_that_is_still_connecting_is_stopped_within_a_second[the name is looked up]",
    ),
    Bug(
        "a thread waits for a client that does not read its stream",
        "agentapp/server/answer.py",
        "            self._send(may_wait=self._no_thread_waits)\n",
        "            self._send(may_wait=False)\n",
        "tests/server/test_answer.py::"
        "test_no_thread_waits_for_a_client_that_does_not_take_its_stream_and_at_last_it_is_given_up",
    ),
    Bug(
        "what a client did not take at once is lost when more comes",
        "agentapp/server/connection.py",
        'b"".join((self._unsent, data)) if self._unsent else data',
        "data",
        "tests/server/test_answer.py::test_a_client_that_was_slow_gets_everything_in_order_once_it_reads",
    ),
    Bug(
        "words that came together with an error are not said",
        "agentapp/agents/providers/anthropic/messages.py",
        "            failure = exc\n            break\n",
        "            raise exc\n",
        "tests/agents/providers/anthropic/test_together.py::test_words_that_come_with_an_error_are_said_before_it",
    ),
    Bug(
        "words are said before what it has cost until then",
        "agentapp/agents/providers/anthropic/messages.py",
        "            if texts:\n",
        "            if not texts:\n",
        "tests/agents/providers/anthropic/test_together.py::"
        "test_words_are_joined_and_all_else_keeps_its_place",
    ),
    Bug(
        "every chunk is read by itself however many came at once",
        "agentapp/agents/providers/anthropic/transport.py",
        '        body, self._body = b"".join(self._body), []\n',
        '        body, self._body = (self._body[0] if self._body else b""), self._body[1:]\n',
        "tests/agents/providers/anthropic/test_together.py::test_words_that_come_together_are_one_piece",
    ),
    Bug(
        "what a server sends unasked becomes the end of an answer",
        "agentapp/agents/providers/anthropic/transport.py",
        "        if self._is_whole:\n            raise",
        "        if False:\n            raise",
        "tests/agents/providers/anthropic/test_transport.py::test_what_comes_after_an_answer_is_nobodys",
    ),
    Bug(
        "a connection with an answer that nobody read is used for the next call",
        "agentapp/agents/providers/anthropic/transport.py",
        "        if answer.can_be_followed and self._is_read_out:\n",
        "        if True:\n",
        "tests/agents/providers/anthropic/test_transport.py::"
        "test_a_connection_is_not_used_again_unless_its_answer_was_read_out",
    ),
    Bug(
        "a connection that is kept remembers the call before",
        "agentapp/agents/providers/anthropic/transport.py",
        "            answer.connection.forget_call()\n",
        "            pass\n",
        "tests/agents/providers/anthropic/test_transport.py::"
        "test_nothing_of_a_call_stays_with_the_connection_that_is_kept",
    ),
    Bug(
        "a connection that its server has closed is used again",
        "agentapp/agents/providers/anthropic/connection.py",
        "        return not idle.poll(0)\n",
        "        return True\n",
        "tests/agents/providers/anthropic/test_transport.py::"
        "test_a_connection_that_was_closed_while_it_was_idle_is_not_used",
    ),
    Bug(
        "one tenant that waits for its row takes every writer",
        "agentapp/storage/db.py",
        "        self._shares = None if is_sqlite else Shares(POSTGRES_WRITERS - 1)\n",
        "        self._shares = None if is_sqlite else Shares(POSTGRES_WRITERS)\n",
        "tests/storage/test_storage.py::test_a_tenant_that_is_stuck_leaves_a_writer_for_the_others",
    ),
    Bug(
        "what was left for later is not there for who asks next",
        "agentapp/storage/statements.py",
        '        """For a statement in the database\'s own words. Gives the driver\'s cursor."""\n'
        "        self._run_those_left()\n",
        '        """For a statement in the database\'s own words. Gives the driver\'s cursor."""\n',
        "tests/storage/test_together.py::test_whoever_asks_sees_what_was_left_for_later",
    ),
    Bug(
        "what waits for the search's index is not found",
        "agentapp/storage/search.py",
        "union_all(select(newest.c.id), _waiting_matches(scope, asked))",
        "select(newest.c.id)",
        "tests/storage/test_search.py::test_what_waits_for_the_index_is_found_as_what_is_in_it[sqlite]",
    ),
    Bug(
        "a worker that stops leaves connections to others that stop too",
        "agentapp/server/request_loop.py",
        "            while most and self._accept_one(listener):\n",
        "            while most and not self._is_ahead and self._accept_one(listener):\n",
        "tests/server/test_accepting.py"
        "::test_a_worker_that_stops_takes_all_that_has_come_however_many_the_others_have",
    ),
    Bug(
        "a call that is given up between two attempts costs the last one only",
        "agentapp/agents/providers/retrying.py",
        "                failure.usage = attempts.spent  # of all attempts, and not of the last one alone\n",
        "",
        "tests/agents/providers/test_retrying.py"
        "::test_a_call_that_is_given_up_between_two_attempts_costs_all_that_were_made",
    ),
    Bug(
        "a worker keeps the token for writing",
        "agentapp/storage/db.py",
        "                    kept.give_back(taken)\n                self.write_token.give_back()\n",
        "                    kept.give_back(taken)\n",
        "tests/storage/test_write_token.py::test_who_waits_has_the_token_as_soon_as_another_worker_has_written",
    ),
    Bug(
        "a kept connection is used by a forked child",
        "agentapp/storage/kept_connections.py",
        "                if found.pid == os.getpid():",
        "                if True:",
        "tests/storage/test_kept_connections.py::test_a_forked_child_opens_its_own",
    ),
    Bug(
        "a kept connection with a transaction that was not ended",
        "agentapp/storage/kept_connections.py",
        "                connection.driver.rollback()\n",
        "                pass\n",
        "tests/storage/test_kept_connections.py::test_what_was_begun_and_not_ended_is_rolled_back",
    ),
    Bug(
        "the values of two statements that are run together are mixed up",
        "agentapp/storage/together.py",
        "    number = count()\n    body",
        "    number = count(1)\n    body",
        "tests/storage/test_together.py::test_what_was_run_before_is_one_call_with_the_same_result",
    ),
    Bug(
        "the connections of a crowd stay open for ever",
        "agentapp/agents/providers/anthropic/transport.py",
        "            while now - free[0].idle_since > KEEPALIVE_SECONDS:\n",
        "            while False:\n",
        "tests/agents/providers/anthropic/test_transport.py::"
        "test_connections_that_nobody_needs_any_more_are_closed",
    ),
    Bug(
        "what the SDK says once is said again for somebody else",
        "agentapp/agents/providers/anthropic/repeating.py",
        "        self._is_repeatable = before is not None and self._is_like(before)\n",
        "        self._is_repeatable = before is not None\n",
        "tests/agents/providers/anthropic/test_repeating.py::"
        "test_what_the_sdk_says_anew_each_time_is_not_said_again",
    ),
    Bug(
        "a cookie of the API is lost",
        "agentapp/agents/providers/anthropic/repeating.py",
        "            cookies.set_cookie_header(request)\n",
        "            pass\n",
        "tests/agents/providers/anthropic/test_repeating.py::test_a_cookie_is_sent_back_as_long_as_it_is_there",
    ),
    Bug(
        "a line feed that comes after its return ends another line",
        "agentapp/agents/providers/anthropic/event_data.py",
        '        self._ended_with_return = received.endswith(b"\\r")\n',
        "        self._ended_with_return = False\n",
        "tests/agents/providers/anthropic/test_event_data.py::test_it_finds_what_the_sdk_finds",
    ),
    Bug(
        "a tool on the one processor of its worker",
        "agentapp/agents/drivers/threaded.py",
        ", anywhere=True)",
        ")",
        "tests/agents/drivers/test_running_tools.py::test_a_tool_of_a_turn_that_stays_on_one_processor_may_use_all",
    ),
    Bug(
        "passwords hashed on the one processor of a worker",
        "agentapp/server/lanes.py",
        "SIGN_IN_THREADS, SIGN_INS_WAITING, is_patient=True, anywhere=True",
        "SIGN_IN_THREADS, SIGN_INS_WAITING, is_patient=True",
        "tests/server/test_processors.py::test_sign_ins_and_strangers_may_use_all_processors",
    ),
    Bug(
        "a span that is below no other begins a trace of its own",
        "agentapp/telemetry/otel.py",
        "        parent = trace.set_span_in_context(self._span, Context())\n",
        "        parent = Context()\n",
        "tests/turns/test_traces.py::test_interleaved_turns_have_no_span_of_another",
    ),
    Bug(
        "the name of a tool that a model has made up in a trace",
        "agentapp/agents/tracing.py",
        "event.name if event.name in self._tool_names else UNKNOWN_TOOL",
        "event.name",
        "tests/turns/test_traces.py::test_no_span_has_a_word_of_a_person_a_model_or_a_tool",
    ),
    Bug(
        "who only looks at the settings makes a secret",
        "agentapp/cli/checks/setting_checks.py",
        "{**environ, SECRET_KEY: NO_SECRET} if missing else environ",
        "environ",
        "tests/cli/test_doctor.py::test_it_makes_and_changes_nothing",
    ),
    Bug(
        "a host that goes by its own clock",
        "agentapp/storage/clock.py",
        "return self._wall() if reading is None else self._steady() + reading.ahead",
        "return self._wall()",
        "tests/storage/test_clock.py::test_the_time_is_asked_for_once_and_counted_on_from_there",
    ),
    Bug(
        "leases by the clock of each host",
        "agentapp/storage/live_turns.py",
        '"until": db.clock.utc_now() + lease.length',
        '"until": db.clock.utc_now() - timedelta(seconds=db.clock.now() - db.clock._wall()) + lease.length',
        "tests/turns/test_hosts_apart.py::test_neither_takes_a_turn_of_the_other_for_abandoned[30s-postgresql]",
    ),
    Bug(
        "the host's clock in a store",
        "agentapp/storage/notes.py",
        '"created_at": self._db.clock.utc_now()',
        '"created_at": datetime.now(UTC)',
        "tests/test_clocks.py::test_only_a_few_modules_look_at_the_hosts_clock[storage.notes]",
    ),
    Bug(
        "the host's clock until the database is asked for something else",
        "agentapp/storage/clock.py",
        "        if self._reading is None and self._ask is not None:\n",
        "        if False:\n",
        "tests/storage/test_clock.py::test_nobody_decides_by_the_hosts_clock_while_the_database_is_away",
    ),
    Bug(
        "a look at the database's clock that took long is believed",
        "agentapp/storage/clock.py",
        "newer if before is None else before.narrowed_by(newer)",
        "newer",
        "tests/storage/test_clock.py::test_a_reading_that_took_long_spoils_nothing",
    ),
    Bug(
        "a database whose clock was set is not followed",
        "agentapp/storage/clock.py",
        "newer.at) if low <= high else newer",
        "newer.at)",
        "tests/storage/test_clock.py"
        "::test_if_the_databases_clock_is_set_or_another_server_takes_over_that_is_the_time",
    ),
    Bug(
        "a cookie that a host has signed a moment ahead is refused",
        "agentapp/web/dated_signer.py",
        "self._clock() - signed_at.timestamp() > max_age:",
        "not 0 <= self._clock() - signed_at.timestamp() <= max_age:",
        "tests/web/test_sessions.py::test_a_cookie_that_a_host_ahead_has_signed_counts_at_once[1]",
    ),
    Bug(
        "what the heartbeat stores while a chat is being deleted vanishes",
        "agentapp/turns/ends.py",
        "                self._charge_the_rest(chat, charged)\n",
        "                self._charge_the_rest(chat, Spent.of(result))\n",
        "tests/turns/test_charging_once.py::"
        "test_what_the_heartbeat_stores_while_others_wait_for_the_cells_is_charged[delete-postgresql]",
    ),
    Bug(
        "a turn whose chat is deleted right after it ended is charged twice",
        "agentapp/turns/ends.py",
        "                if (charged := chat.take_charge(turn_id)) is None:\n",
        "                first = Spent.on_first_call(self.turn.reservation)\n"
        "                charged = chat.take_charge(turn_id) or first\n"
        "                if again and chat.ended_turn(turn_id) is not None:\n",
        "tests/turns/test_charging_once.py::"
        "test_a_turn_whose_chat_is_deleted_before_it_is_known_to_be_stored_is_charged_once[sqlite]",
    ),
    Bug(
        "a chat that fails keeps the turns of dead workers from being settled",
        "agentapp/turns/jobs.py",
        "            except Exception as error:\n                if scope.session_id not in self._failing:",
        "            except NotImplementedError as error:\n"
        "                if scope.session_id not in self._failing:",
        "tests/turns/test_charging_once.py::"
        "test_a_chat_that_fails_does_not_keep_the_turns_of_others_from_being_settled[sqlite-unreadable]",
    ),
    Bug(
        "a turn that was given up too early is charged twice",
        "agentapp/turns/ends.py",
        "        tokens = result.usage.total_tokens - charged.usage.total_tokens\n",
        "        tokens = result.usage.total_tokens\n",
        "tests/turns/test_turn.py::"
        "test_a_dead_turn_is_given_back_once_when_the_next_message_comes[after the next]",
    ),
    Bug(
        "the same key is another turn while the first one runs",
        "agentapp/turns/turn.py",
        "    if (repeated := _find_repeated(chat, text)) is not None:\n        return repeated\n",
        "    repeated = _find_repeated(chat, text)\n"
        "    if running is None and repeated is not None:\n        return repeated\n",
        "tests/turns/test_surviving.py::test_the_same_key_while_the_turn_runs_is_that_turn",
    ),
    Bug(
        "the stored events of an ended turn are kept",
        "agentapp/turns/ends.py",
        "            chat.remove_live_turn(turn_id)\n            return True\n",
        "            return True\n",
        "tests/turns/test_surviving.py::test_what_is_kept_of_a_running_turn_goes_when_it_ends[completes]",
    ),
    Bug(
        "an answer that could not be saved is told as one",
        "agentapp/turns/turn.py",
        "        waits = kit.unstored.add(settlement)\n",
        "        waits = kit.unstored.add(settlement)\n        return result\n",
        "tests/turns/test_turn.py::test_a_database_that_goes_away_fails_the_turn_and_says_so",
    ),
    Bug(
        "allowed because the store is away",
        "agentapp/turns/turn.py",
        "    admitted = kit.guardrails.admit(chat.cells, scope, kit.max_cost())\n",
        "    try:\n"
        "        admitted = kit.guardrails.admit(chat.cells, scope, kit.max_cost())\n"
        "    except Exception as error:\n"
        "        if error.code != 'storage-unavailable':\n"
        "            raise\n"
        "        from agentapp.guardrails.admission import Reservation\n"
        "        from agentapp.guardrails.guard import Admitted\n"
        "\n"
        "        admitted = Admitted(Reservation(0.0, 9999, 9999, 9999, 0, 0, 0), ())\n",
        "tests/guardrails/test_guardrails.py"
        "::test_if_the_cells_cannot_be_reached_nothing_is_let_in[text/event-stream-read]",
    ),
    Bug(
        "an answer that is whole is thrown away because its worker was slow",
        "agentapp/turns/ends.py",
        "                return self._store_after_all(chat)\n",
        "                return False\n",
        "tests/turns/test_heartbeat.py"
        "::test_a_turn_that_was_taken_for_dead_and_answered_whole_is_saved[sqlite-plain]",
    ),
    Bug(
        "a chat stays locked after an outage, as all rows of its worker are renewed",
        "agentapp/turns/jobs.py",
        "        turns.update(self._unstored.turn_ids())\n",
        "        turns.update(self._live.stop_requests(self._leases.worker()))\n",
        "tests/turns/test_unstored.py::test_a_lease_is_renewed_for_what_waits_to_be_stored_and_for_nothing_else",
    ),
    Bug(
        "the lease of a turn whose end waits to be stored runs out",
        "agentapp/turns/jobs.py",
        "        turns.update(self._unstored.turn_ids())\n",
        "",
        "tests/turns/test_unstored.py::test_a_lease_is_renewed_for_what_waits_to_be_stored_and_for_nothing_else",
    ),
    Bug(
        "an answer that could not be stored for some seconds is never tried again",
        "agentapp/turns/jobs.py",
        "            if not self._store(settlement) or time.monotonic() > ends:\n",
        "            if True or self._store(settlement) or time.monotonic() > ends:\n",
        "tests/turns/test_outage.py"
        "::test_an_answer_that_ends_while_the_database_is_away_is_in_its_chat_when_it_is_back",
    ),
    Bug(
        "a message whose commit nobody heard of locks its chat",
        "agentapp/turns/turn.py",
        "            if isinstance(started, StartedTurn):\n",
        "            if False:\n",
        "tests/turns/test_outage.py"
        "::test_a_message_that_was_taken_in_and_refused_as_its_commit_was_not_heard_of_locks_no_chat",
    ),
    Bug(
        "an end that waits to be stored forgets that it was tried",
        "agentapp/turns/ends.py",
        "        again, self._was_tried = self._was_tried, True\n",
        "        again = False\n",
        "tests/turns/test_outage.py"
        "::test_an_end_whose_commit_nobody_heard_of_is_stored_once_though_the_database_went_away_with_it",
    ),
    Bug(
        "a worker ends with answers that are not stored",
        "agentapp/turns/draining.py",
        "        all_stored = self._local.wait(0) and not len(self._unstored)\n",
        "        all_stored = self._local.wait(0)\n",
        "tests/turns/test_outage.py::test_a_worker_that_ends_waits_for_what_is_not_stored_yet",
    ),
    Bug(
        "an answer whose worker ends is not tried a last time",
        "agentapp/turns/jobs.py",
        "            if not self._store(settlement):\n",
        "            if True:\n",
        "tests/turns/test_outage.py::test_a_worker_whose_grace_is_over_tries_a_last_time_and_says_what_is_lost",
    ),
    Bug(
        "a worker on another machine is taken for dead by the first message after an outage",
        "agentapp/turns/leases.py",
        " or (bool(worker) and not self.are_trusted)\n",
        "\n",
        "tests/turns/test_unstored.py"
        "::test_after_an_outage_a_message_does_not_take_another_machines_worker_for_dead",
    ),
    Bug(
        "a turn that is known to be lost is interrupted only when leases are trusted again",
        "agentapp/turns/jobs.py",
        "if not worker or self._leases.lives(worker) is False}",
        "if self._leases.lives(worker) is False}",
        "tests/turns/test_unstored.py::test_the_oldest_end_makes_room_and_its_turn_is_interrupted_at_once",
    ),
    Bug(
        "the end of one turn keeps all others from being stored",
        "agentapp/turns/jobs.py",
        "            except StorageUnavailable:\n                self._unstored.put_last(turn.id)\n",
        "            except StorageUnavailable:\n",
        "tests/turns/test_unstored.py"
        "::test_an_end_that_fails_does_not_keep_the_others_from_being_stored[error1-0]",
    ),
    Bug(
        "a schema that must be exactly this code's own",
        "agentapp/storage/schema.py",
        "    if oldest_code is not None and oldest_code <= HEAD:\n        return None\n",
        "",
        "tests/storage/test_compatibility.py"
        "::test_a_newer_schema_that_this_code_can_work_with_is_used_and_left_alone[sqlite]",
    ),
    Bug(
        "who connects while a server stops listening is cut off",
        "agentapp/server/listening.py",
        "                listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, option)\n",
        "                pass\n",
        "tests/server/test_stopping.py::test_who_has_connected_is_there_and_nobody_new_is[2-127.0.0.1]",
    ),
    Bug(
        "a stopping server closes a proxy's connection before the proxy does",
        "agentapp/server/limits.py",
        "STOPPING_PROXY_KEEPALIVE_SECONDS = 5.0\n",
        "STOPPING_PROXY_KEEPALIVE_SECONDS = 2.0\n",
        "tests/server/test_stopping.py::test_nginx_closes_its_idle_connections_first",
    ),
    Bug(
        "any newer schema will do",
        "agentapp/storage/schema.py",
        "    if oldest_code is not None and oldest_code <= HEAD:\n",
        "    if True:\n",
        "tests/storage/test_compatibility.py"
        "::test_a_worker_does_not_touch_a_database_that_does_not_fit_until_it_does_again[sqlite-newer]",
    ),
    Bug(
        "hot statements that do not ask whether the schema fits",
        "agentapp/storage/db.py",
        "        self._require_usable()\n        if self._kept_writers is not None:\n",
        "        if self._kept_writers is not None:\n",
        "tests/storage/test_compatibility.py"
        "::test_a_worker_does_not_touch_a_database_that_does_not_fit_until_it_does_again[sqlite-older]",
    ),
    Bug(
        "a worker that starts while the database is away takes any schema",
        "agentapp/storage/schema_gate.py",
        "        self._problem = NOT_SEEN_YET\n",
        "",
        "tests/storage/test_compatibility.py"
        "::test_a_worker_that_starts_while_the_database_is_away_uses_it_only_when_it_was_seen[sqlite]",
    ),
    Bug(
        "a migration that stands in everybody's way while it waits for a table",
        "agentapp/storage/migration_lock.py",
        "    connection.execute(text(f\"SET LOCAL lock_timeout = '{TABLE_WAIT_SECONDS * 1000:.0f}ms'\"))\n",
        "",
        "tests/storage/test_compatibility.py::test_nobody_waits_long_behind_a_migration_that_waits",
    ),
    Bug(
        "a migration that does not try again",
        "agentapp/storage/migrate.py",
        "            if time.monotonic() > ends:\n                raise\n",
        "            raise\n",
        "tests/storage/test_compatibility.py::test_nobody_waits_long_behind_a_migration_that_waits",
    ),
    Bug(
        "a migration under the limits of a request",
        "agentapp/storage/migration_lock.py",
        '        ("idle_in_transaction_session_timeout", "0"),\n',
        "",
        "tests/storage/test_compatibility.py"
        "::test_what_a_migration_does_may_take_longer_than_a_statement_may",
    ),
    Bug(
        "something taken away from workers that run",
        "agentapp/storage/migrate.py",
        "        refuse_if_older_workers_run(connection, oldest_code)\n",
        "        pass\n",
        "tests/storage/test_compatibility.py::test_nothing_is_taken_away_from_workers_that_run[sqlite]",
    ),
    Bug(
        "a revision that takes away and does not tell",
        "agentapp/storage/migrate.py",
        "        schema.note_oldest_code(connection, oldest_code)\n",
        "        pass\n",
        "tests/storage/test_compatibility.py"
        "::test_a_revision_that_only_adds_leaves_who_fits_and_one_that_takes_away_says_it[sqlite]",
    ),
    Bug(
        "a connection to Redis that is used again before its answer has come",
        "agentapp/storage/redis_connection.py",
        "            self.drop(connection)\n            raise\n",
        "            self.give_back(connection)\n            raise\n",
        "tests/storage/test_redis_client.py"
        "::test_a_call_that_is_interrupted_before_its_answer_leaves_nothing_to_the_next",
    ),
    Bug(
        "connections to Redis that a child shares with its parent",
        "agentapp/storage/redis_client.py",
        "        if here.pid != os.getpid():\n",
        "        if here is None:\n",
        "tests/storage/test_redis_client.py::test_nothing_is_shared_over_a_fork",
    ),
    Bug(
        "a key in Redis that is made of ids with a separator in them",
        "agentapp/storage/redis_client.py",
        'part.replace("%", "%25").replace(":", "%3A") for part in parts',
        "part for part in parts",
        "tests/sessions/test_sessions.py::test_one_session_is_never_another[redis]",
    ),
    Bug(
        "a session's messages numbered without a lock",
        "agentapp/sessions/sql_sessions.py",
        ".where(_of(KEPT, key)).with_for_update()\n        while True:",
        ".where(_of(KEPT, key))\n        while True:",
        "tests/sessions/test_sessions.py"
        "::test_of_two_processes_that_append_nothing_is_lost_and_the_order_is_kept[postgresql]",
    ),
    Bug(
        "a session whose version goes unlooked at when it is saved",
        "agentapp/sessions/redis_sessions.py",
        "if (current or '0') ~= ARGV[3] then",
        "if false then",
        "tests/sessions/test_sessions.py::test_of_many_threads_that_save_exactly_one_wins_each_round[redis]",
    ),
    Bug(
        "events of another chat taken from another worker",
        "agentapp/turns/remote.py",
        "        if piece.owner != Owner.of(remote.feed.scope):\n",
        "        if not piece.owner:\n",
        "tests/turns/test_live_bus.py::test_events_of_somebody_else_are_refused_and_reported",
    ),
    Bug(
        "anybody's turn stopped and followed by a letter to its worker",
        "agentapp/turns/live_bus.py",
        "        if feed is None or Owner.of(feed.scope) == message.owner:\n",
        "        if True:\n",
        "tests/turns/test_live_bus.py::test_nobody_elses_turn_can_be_stopped_or_followed_by_a_letter",
    ),
    Bug(
        "events that come twice are told twice",
        "agentapp/turns/feed.py",
        "                self._extend(events[known:])\n",
        "                self._extend(events)\n",
        "tests/turns/test_live_bus.py::test_letters_that_come_again_or_too_late_double_nothing",
    ),
    Bug(
        "events told although some before them are lost",
        "agentapp/turns/feed.py",
        "            if known < 0:\n",
        "            if known is None:\n",
        "tests/turns/test_live_bus.py::test_letters_that_come_again_or_too_late_double_nothing",
    ),
    Bug(
        "a turn that was heard of once is never again looked for in the database",
        "agentapp/turns/remote.py",
        "            remote.heard = now\n",
        '            remote.heard = float("inf")\n',
        "tests/turns/test_live_bus.py::test_a_worker_that_plays_without_redis_is_read_from_the_database[postgresql]",
    ),
    Bug(
        "events stored seldom although Redis is away",
        "agentapp/turns/jobs.py",
        "        return just_written and self._bus.is_up and not any(each.has_new_call for each in turns)\n",
        "        return just_written and not any(each.has_new_call for each in turns)\n",
        "tests/turns/test_live_bus.py::test_with_the_bus_events_are_stored_less_often_but_calls_of_the_model_at_once",
    ),
    Bug(
        "what was sent to a Redis that was flushed is not sent again",
        "agentapp/turns/passed_on.py",
        "            reader.sent, reader.until, reader.waits = known, until, True\n",
        "            reader.until, reader.waits = until, True\n",
        "tests/turns/test_live_bus.py::test_who_does_not_ask_any_more_is_told_no_more",
    ),
    Bug(
        "a letter to another worker that nobody removes",
        "agentapp/storage/redis_mailboxes.py",
        '            commands.append(("EXPIRE", key, KEPT_SECONDS))\n',
        "",
        "tests/turns/test_live_bus.py::test_nothing_stays_in_redis",
    ),
    Bug(
        "numbers of PostgreSQL that begin at one after a copy",
        "agentapp/storage/copying/target.py",
        "    if sequence is not None:\n",
        "    if False:\n",
        "tests/cli/test_db_copy.py::test_every_number_that_postgresql_gives_is_beyond_those_that_were_copied",
    ),
    Bug(
        "what users keep is counted twice by a copy",
        "agentapp/storage/copying/target.py",
        "    with without_triggers(connection, table.name):\n        if connection",
        "    if True:\n        if connection",
        "tests/cli/test_db_copy.py::test_the_app_goes_on_with_the_copy[postgresql]",
    ),
    Bug(
        "a copy whose search finds nothing",
        "agentapp/storage/copying/target.py",
        '    if table.name == "search_entries":',
        "    if False:",
        "tests/cli/test_db_copy.py::test_the_app_goes_on_with_the_copy[sqlite]",
    ),
    Bug(
        "times that are taken for those of the server's time zone",
        "agentapp/storage/copying/target.py",
        'lambda text: f"{text}+00"',
        "lambda text: text",
        "tests/cli/test_db_copy.py::test_there_and_back_again_nothing_has_changed",
    ),
    Bug(
        "a copy that copies a batch twice when it goes on",
        "agentapp/storage/copying/database_copy.py",
        "self._place.key if table.name == self._place.table else ()",
        "()",
        "tests/cli/test_db_copy.py::test_an_interrupted_copy_goes_on_where_it_was[sqlite]",
    ),
    Bug(
        "a batch that is there without its place",
        "agentapp/storage/copying/target.py",
        "    if not move_marker(connection, before, after):\n",
        "    with connection.engine.begin() as other:\n        moved = move_marker(other, before, after)\n"
        "    if not moved:\n",
        "tests/cli/test_db_copy.py::test_an_interrupted_copy_goes_on_where_it_was[postgresql]",
    ),
    Bug(
        "a copy on top of what is there",
        "agentapp/storage/copying/database_copy.py",
        "(full := filling.tables_with_rows(connection))",
        "(full := [])",
        "tests/cli/test_db_copy.py::test_a_target_with_anything_in_it_is_refused_and_stays_as_it_is[sqlite]",
    ),
    Bug(
        "a comparison that sees no difference",
        "agentapp/storage/copying/database_copy.py",
        "here == there)",
        "True)",
        "tests/cli/test_db_copy.py::test_what_has_changed_since_it_was_copied_is_told_and_a_restart_puts_it_right[sqlite]",
    ),
    Bug(
        "a server on a database that is half copied",
        "agentapp/storage/schema.py",
        "                if is_marked(connection):\n                    raise StartError(UNFINISHED)\n",
        "",
        "tests/cli/test_db_copy.py::test_nothing_but_a_copy_of_the_same_uses_a_half_copied_database[sqlite]",
    ),
    Bug(
        "a copy of a database that a server uses",
        "agentapp/storage/copying/places.py",
        "        if now - row.seen_at < SILENT_AFTER:\n",
        "        if False:\n",
        "tests/cli/test_db_copy.py::test_a_server_that_starts_meanwhile_is_noticed_at_the_end",
    ),
    Bug(
        "two copies that begin in one place",
        "agentapp/storage/copying/target.py",
        "    if not move_marker(connection, before, after):\n",
        "    move_marker(connection, before, after)\n    if False:\n",
        "tests/cli/test_db_copy.py::test_two_copies_into_one_database_do_not_mix[sqlite]",
    ),
    Bug(
        "an import that trusts names that it has looked at before",
        "agentapp/storage/user_import.py",
        "            names, tenants = _names_in(db)\n            for problem in",
        "            names, tenants = _names_in(db)\n            for problem in () and",
        "tests/cli/test_user_import.py::test_a_name_that_is_taken_meanwhile_leaves_everybody_out",
    ),
    Bug(
        "two names in one file that look the same",
        "agentapp/storage/user_import.py",
        "        self._line_of[clean] = self._looks[look] = line\n",
        "        self._line_of[clean] = line\n",
        "tests/cli/test_user_import.py::test_all_problems_are_told_at_once_with_their_lines_and_nobody_is_added[sqlite]",
    ),
    Bug(
        "a password shown, since it stands where a column has its name",
        "agentapp/cli/user_file.py",
        '    if "name" not in columns:\n',
        "    if False:\n",
        "tests/cli/test_user_import.py::test_no_password_is_shown_or_logged_whatever_is_wrong",
    ),
    Bug(
        "passwords of people that were not added",
        "agentapp/cli/user_import.py",
        "        path.unlink()\n        raise\n",
        "        raise\n",
        "tests/cli/test_user_import.py::test_a_name_that_is_taken_meanwhile_leaves_everybody_out",
    ),
    Bug(
        "a made password that need not be changed",
        "agentapp/cli/user_import.py",
        "given=must_change or person.password is None",
        "given=must_change",
        "tests/cli/test_user_import.py::test_without_passwords_each_gets_one_that_has_to_be_changed",
    ),
    Bug(
        "a database that hangs is waited for",
        "agentapp/storage/guarded_connection.py",
        "            watch.waits(seconds)\n",
        "            pass\n",
        "tests/storage/test_stalled.py"
        "::test_nobody_waits_long_for_a_server_that_hangs_and_all_is_well_when_it_goes_on",
    ),
    Bug(
        "a connection whose call timed out goes back to the pool",
        "agentapp/storage/guarded_connection.py",
        "            self.close()\n            raise psycopg",
        "            raise psycopg",
        "tests/storage/test_stalled.py"
        "::test_nobody_waits_long_for_a_server_that_hangs_and_all_is_well_when_it_goes_on",
    ),
    Bug(
        "everybody tries by himself whether the database answers",
        "agentapp/storage/hang_watch.py",
        " and (self._thread is None or not self._thread.is_alive()):\n",
        ":\n",
        "tests/storage/test_stalled.py"
        "::test_nobody_waits_long_for_a_server_that_hangs_and_all_is_well_when_it_goes_on",
    ),
    Bug(
        "a statement that takes long is taken for a database that hangs",
        "agentapp/storage/hang_watch.py",
        "            if self._can_answer():\n",
        "            if not self._can_answer():\n",
        "tests/storage/test_stalled.py::test_a_statement_that_only_takes_long_is_left_alone",
    ),
    Bug(
        "no limit of ours to a statement that the server does not end",
        "agentapp/storage/postgres_connector.py",
        "                made.most_silent_seconds = limit + SECONDS_BEYOND_A_STATEMENT\n",
        "                made.most_silent_seconds = limit + 12.0\n",
        "tests/storage/test_stalled.py::test_a_server_that_does_not_even_end_a_statement_in_its_time_is_not_waited_for",
    ),
    Bug(
        "rows that a stopped process keeps",
        "agentapp/storage/postgres_options.py",
        '            "idle_in_transaction_session_timeout": self.idle_transaction_seconds,\n',
        '            "idle_in_transaction_session_timeout": None,\n',
        "tests/storage/test_stalled.py::test_a_stopped_process_gives_back_its_rows_and_fails_cleanly_when_it_goes_on[writing]",
    ),
    Bug(
        "rows that a process keeps that was stopped in the middle of a pipeline",
        "agentapp/storage/guarded_connection.py",
        "            pipeline.sync()\n",
        "            pass\n",
        "tests/storage/test_stalled.py::test_a_stopped_process_gives_back_its_rows_and_fails_cleanly_when_it_goes_on[transaction]",
    ),
    Bug(
        "our time-outs in place of the operator's",
        "agentapp/storage/postgres_options.py",
        'filter(None, (*ours, os.environ.get("PGOPTIONS"), of_url))',
        'filter(None, (of_url, os.environ.get("PGOPTIONS"), *ours))',
        "tests/storage/test_stalled.py::test_time_outs_are_set_on_every_connection_and_what_the_url_says_comes_first",
    ),
    Bug(
        "a second connection for a thread that reads",
        "agentapp/storage/db.py",
        " if reader is None else self._postgres.looking_with(reader)\n",
        "\n",
        "tests/storage/test_stalled.py::test_threads_that_read_and_then_look_never_wait_for_a_second_connection",
    ),
    Bug(
        "connections that nobody needs and nobody closes",
        "agentapp/storage/idle_pool.py",
        "            self.close_idle(now - IDLE_SECONDS)\n",
        "            pass\n",
        "tests/storage/test_stalled.py::test_connections_that_nobody_needs_are_given_back",
    ),
    Bug(
        "room in the pool that is lost with each idle connection",
        "agentapp/storage/idle_pool.py",
        "                self._dec_overflow()\n",
        "                pass\n",
        "tests/storage/test_stalled.py::test_connections_that_nobody_needs_are_given_back",
    ),
    Bug(
        "statements prepared behind a pooler",
        "agentapp/storage/postgres_connector.py",
        "            made.prepare_threshold = None\n",
        "            pass\n",
        "tests/storage/test_pgbouncer.py::test_nothing_is_prepared_so_that_any_connection_knows_what_is_asked",
    ),
    Bug(
        "no time-outs behind a pooler",
        "agentapp/storage/postgres_connector.py",
        "        return self._local_settings if self.is_pooled else None\n",
        "        return None\n",
        "tests/storage/test_pgbouncer.py::test_it_is_noticed_and_every_transaction_brings_its_time_outs_along[settings0]",
    ),
    Bug(
        "a pooler that is not noticed",
        "agentapp/storage/postgres_connector.py",
        "            self._note_pooler(pid != made.info.backend_pid)\n",
        "            self._note_pooler(False)\n",
        "tests/storage/test_pgbouncer.py::test_it_is_noticed_and_every_transaction_brings_its_time_outs_along[settings1]",
    ),
    Bug(
        "readiness asked of the pool",
        "agentapp/storage/readiness.py",
        "            with self._engine.connect() as connection:\n",
        "            with self._db.engine.connect() as connection:\n",
        "tests/storage/test_readiness.py::test_a_pool_that_is_all_lent_and_a_server_that_is_full_do_not_make_it_lie",
    ),
    Bug(
        "a look at the database for each who asks whether it is ready",
        "agentapp/storage/readiness.py",
        "            if latest is None or latest.is_old(now):\n",
        "            if True:\n",
        "tests/storage/test_readiness.py::test_what_was_found_is_remembered_for_a_moment[sqlite]",
    ),
    Bug(
        "ready while the worker ends",
        "agentapp/web/health.py",
        "    if parts().turns.draining.has_begun:\n",
        "    if False:\n",
        "tests/storage/test_readiness.py::test_a_worker_that_is_ending_says_so",
    ),
    Bug(
        "the set-up link of another host taken away",
        "agentapp/storage/accounts.py",
        "limit(MOST_SETUP_LINKS)",
        "limit(1)",
        "tests/web/test_auth.py::test_only_the_newest_set_up_links_work",
    ),
    Bug(
        "two first accounts by two set-up links",
        "agentapp/storage/accounts.py",
        "            user_changes.lock_accounts(db)\n            links = set(db.scalars(delete(SetupLink).",
        "            links = set(db.scalars(delete(SetupLink).where(SetupLink.digest == digest_of(token)).",
        "tests/web/test_auth.py"
        "::test_of_two_set_up_links_used_at_once_one_makes_an_operator_and_then_none_works[postgresql]",
    ),
    Bug(
        "a server that gives up when its database is not there yet",
        "agentapp/storage/schema.py",
        '        if engine.dialect.name == "postgresql" and is_away(error):\n',
        "        if False:\n",
        "tests/storage/test_migrations.py::test_server_that_is_away_is_said_plainly",
    ),
    Bug(
        "waiting for what never comes",
        "agentapp/storage/away.py",
        '    "does not exist",\n',
        "",
        "tests/storage/test_migrations.py::test_a_database_that_there_is_not_is_not_waited_for",
    ),
    Bug(
        "an old state of a cell in Redis that takes the place of a newer one",
        "agentapp/storage/hot_cells.py",
        "  if not known or tonumber(version) >= tonumber(known) then",
        "  if true then",
        "tests/storage/test_hot_cells.py"
        "::test_what_comes_late_does_not_take_the_place_of_what_is_newer[sqlite]",
    ),
    Bug(
        "a state of a cell in Redis that is believed for ever",
        "agentapp/storage/hot_cells.py",
        "if state is None or not now < float(until) <= now + BELIEVED_SECONDS:",
        "if state is None:",
        "tests/storage/test_hot_cells.py"
        "::test_what_was_not_written_behind_misleads_for_a_moment_at_most[sqlite]",
    ),
    Bug(
        "a message that was taken in, refused when it is sent again",
        "agentapp/storage/hot_cells.py",
        '_digest(message_key).encode() in (messages or b"").split(b",")',
        "message_key in messages.decode()",
        "tests/storage/test_hot_cells.py"
        "::test_a_message_that_was_taken_in_is_never_refused_when_it_is_sent_again[sqlite]",
    ),
    Bug(
        "somebody else's chat in Redis",
        "agentapp/storage/hot_cells.py",
        "                if owner is None or owner.decode() != _owner(scope):\n",
        "                if owner is None:\n",
        "tests/storage/test_hot_cells.py::test_nobody_learns_anything_of_somebody_elses_chat[sqlite]",
    ),
    Bug(
        "limits by the clock of each host",
        "agentapp/app.py",
        "Guardrails(registry, settings.provider, clock.now, hot)",
        "Guardrails(registry, settings.provider, lambda: clock._wall(), hot)",
        "tests/turns/test_hosts_apart.py::test_a_rate_is_kept_over_both[30s-postgresql]",
    ),
    Bug(
        "ready on a database that nobody can write to",
        "agentapp/storage/readiness.py",
        "    check_schema,\n    check_writable,\n",
        "    check_schema,\n",
        "tests/storage/test_readiness.py::test_a_read_only_database_is_not_ready",
    ),
    Bug(
        "ready on another schema",
        "agentapp/storage/readiness.py",
        "    check_schema,\n    check_writable,\n",
        "    check_writable,\n",
        "tests/storage/test_readiness.py::test_another_schema_is_not_ready_and_the_right_one_is[sqlite]",
    ),
    Bug(
        "two first accounts by two set-up links",
        "agentapp/storage/accounts.py",
        "            user_changes.lock_accounts(db)\n            links",
        "            links",
        "tests/web/test_auth.py"
        "::test_of_two_set_up_links_used_at_once_one_makes_an_operator_and_then_none_works[postgresql]",
    ),
    Bug(
        "waiting for what never comes",
        "agentapp/storage/away.py",
        '    "authentication failed",\n',
        "",
        "tests/server/test_waits_for_database.py::test_what_waiting_does_not_change_is_one_line_at_once[password]",
    ),
    Bug(
        "a time-out lifted for whoever a pooler gives the connection to next",
        "agentapp/storage/vacuum.py",
        "            if connection.prepare_threshold is not None:",
        "            if connection is not None:",
        "tests/storage/test_pgbouncer.py::test_a_vacuum_leaves_no_setting_to_others_on_the_same_connection",
    ),
    Bug(
        "an answer waited for while part of the question is not sent yet",
        "agentapp/storage/guarded_connection.py",
        "ready = yield from self._ready(wanted)",
        "ready = yield wanted",
        "tests/storage/test_large_values.py"
        "::test_the_server_gets_all_of_it[asks for a result after it-postgresql]",
    ),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("copy")
    for folder in ("agentapp", "tests", "migrations", "deploy"):
        shutil.copytree(ROOT / folder, made / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", made)
    return made


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[ForkedPytest]:
    with forked_pytest(tmp_path_factory.mktemp("home"), sqlite_template) as process:
        yield process


@contextmanager
def put_back(bug: Bug, copy: Path) -> Iterator[None]:
    file = copy / bug.file
    sound = file.read_text()
    assert sound.count(bug.sound) == 1, f"{bug.file} has changed: this bug cannot be put back any more"
    names = "EVERYTHING: list = []\nCREWS: dict = {}\n\n\n"
    head, line, tail = sound.partition("\n\n\n")
    try:
        rewrite(file, (head + line + names + tail).replace(bug.sound, bug.broken))
        yield
    finally:
        rewrite(file, sound)


def rewrite(file: Path, text: str) -> None:
    """Compiled files know when the source was changed only to the second."""
    file.write_text(text)
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
        compiled.unlink()


def test_every_bug_can_be_put_back() -> None:
    for bug in BUGS:
        assert (ROOT / bug.file).read_text().count(bug.sound) == 1, f"{bug.name}: {bug.file} has changed"
        file, _, test = bug.test.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(), (
            f"{bug.name}: there is no {test}"
        )


# Each takes seconds: the suite puts back every twentieth of them, the long version all.
@pytest.mark.parametrize("bug", BUGS if ROUNDS > 1 else BUGS[::20], ids=lambda bug: bug.name)
def test_the_bug_put_back_turns_its_test_red(bug: Bug, copy: Path, forked: ForkedPytest) -> None:
    with put_back(bug, copy):
        code, output = forked.run(copy, bug.test)
    assert code == 1, output
    assert re.match(r"1 failed\b.* in ", output.splitlines()[-1]), output
    for other in ("ImportError", "SyntaxError", "NameError", "Failed: Timeout"):
        assert other not in output, output
