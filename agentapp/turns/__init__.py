"""Turns: one message and everything done to answer it, from the first check to the settled row.

service         what a request may ask for: send, follow, stop, delete; start, drain, close
turn            one turn, top to bottom: begin, play, settle
abandoned       turns that nobody will settle: their worker died, or their chat is deleted
history         what the model is shown of the conversation before
feed            the events of one turn, numbered, and the subscriptions of those who read them
local, remote   turns that this worker plays; turns of other workers that somebody reads here
heartbeat       the worker's one background thread, and the list of its jobs
jobs            what each of those jobs does
draining        how a worker that must end ends its turns
leases          the worker's name, and how long its turns count as alive without news
values, stores  what is passed around, and what is needed of a database
"""
