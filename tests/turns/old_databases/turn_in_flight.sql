BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0003');
CREATE TABLE guardrail_cells (
	scope VARCHAR(16) NOT NULL, 
	id VARCHAR(64) NOT NULL, 
	state TEXT NOT NULL, 
	mark VARCHAR(16) NOT NULL, 
	updated_at FLOAT NOT NULL, 
	CONSTRAINT pk_guardrail_cells PRIMARY KEY (scope, id)
);
INSERT INTO "guardrail_cells" VALUES('session','X6E6NLE1G4qmzB_ZfsIEtw','{"breaker":{"failures":1},"bucket":[[1794936404,1],[1794936405,2]],"budget":{"spent":{"ever":3317}},"tools":{"calculate":1,"add_note":1}}','failing',1794936405.04789);
INSERT INTO "guardrail_cells" VALUES('user','v4EYhmyP7xcT-ESiVUKDOw','{"breaker":{"failures":1},"bucket":[[1794936404,1],[1794936405,3]],"budget":{"holds":[[1794936404.375,1,0]]},"room":[[1794936404.375,1,0]]}','failing',1.79493640505169939998e+09);
INSERT INTO "guardrail_cells" VALUES('tenant','217RJVDGuEbsW9EAWkG0Ig','{"bucket":[[1794936404,1],[1794936405,3]],"budget":{"holds":[[1794936404.375,1,0]]},"room":[[1794936404.375,1,0]]}','',1.79493640505169987681e+09);
INSERT INTO "guardrail_cells" VALUES('provider','demo','{"outage":{"running":[[1794936404.375,1,0]],"slots":[[1794936405,2,{"v4EYhmyP7xcT-ESiVUKDOw":1}]]}}','',1794936405.0517);
INSERT INTO "guardrail_cells" VALUES('session','9TPEfr4o2Sylsp4iKGaY2g','{"bucket":[[1794936405,1]],"budget":{"holds":[[1794936404.375,1,50000]]}}','',1.79493640505169844631e+09);
CREATE TABLE live_turns (
	turn_id VARCHAR(64) NOT NULL, 
	worker VARCHAR(64) NOT NULL, 
	lease_until DATETIME NOT NULL, 
	stop_asked BOOLEAN NOT NULL, 
	tenant_id VARCHAR(64) NOT NULL, 
	user_id VARCHAR(64) NOT NULL, 
	session_id VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_live_turns PRIMARY KEY (turn_id), 
	CONSTRAINT fk_live_turns_turn_id FOREIGN KEY(turn_id) REFERENCES turns (id) ON DELETE CASCADE
);
INSERT INTO "live_turns" VALUES('ZKjECTxWe7u-1geVb_e-ZQ','a840635d70025a1c.16810.iuBd1A1E5gMM1oY83npDjg','2026-11-17 17:26:57.049020',0,'217RJVDGuEbsW9EAWkG0Ig','v4EYhmyP7xcT-ESiVUKDOw','9TPEfr4o2Sylsp4iKGaY2g');
CREATE TABLE logins (
	digest VARCHAR(64) NOT NULL, 
	user_id VARCHAR(64) NOT NULL, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME NOT NULL, 
	CONSTRAINT pk_logins PRIMARY KEY (digest), 
	CONSTRAINT fk_logins_user_id FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE
);
CREATE TABLE messages (
	id VARCHAR(64) NOT NULL, 
	turn_id VARCHAR(64) NOT NULL, 
	seq INTEGER NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	content TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	session_id VARCHAR(64) NOT NULL, 
	tenant_id VARCHAR(64) NOT NULL, 
	user_id VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_messages PRIMARY KEY (id), 
	CONSTRAINT fk_messages_session_id FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE, 
	CONSTRAINT fk_messages_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id), 
	CONSTRAINT fk_messages_user_id FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT fk_messages_turn_id FOREIGN KEY(turn_id) REFERENCES turns (id) ON DELETE CASCADE, 
	CONSTRAINT uq_messages_seq UNIQUE (session_id, seq), 
	CONSTRAINT role CHECK (role IN ('user', 'assistant'))
);
INSERT INTO "messages" VALUES('8BBDfFyAoSfT3AbMKjqbvw','qwTD5Yhv6B8hyYKRKaJr0A',1,'user','what is 6*7?','2026-11-17 17:26:44.975906','X6E6NLE1G4qmzB_ZfsIEtw','217RJVDGuEbsW9EAWkG0Ig','v4EYhmyP7xcT-ESiVUKDOw');
INSERT INTO "messages" VALUES('806FxahWapS0GZZviRB6-g','qwTD5Yhv6B8hyYKRKaJr0A',2,'assistant','Here is what I found: `6*7 = 42`','2026-11-17 17:26:44.999740','X6E6NLE1G4qmzB_ZfsIEtw','217RJVDGuEbsW9EAWkG0Ig','v4EYhmyP7xcT-ESiVUKDOw');
INSERT INTO "messages" VALUES('O6qJTnxqxRK3dKj_-ZKQSw','qtUeW7PKPfQmNDP3Xulxpg',3,'user','remember that tea is at five','2026-11-17 17:26:45.016360','X6E6NLE1G4qmzB_ZfsIEtw','217RJVDGuEbsW9EAWkG0Ig','v4EYhmyP7xcT-ESiVUKDOw');
INSERT INTO "messages" VALUES('VII4fCIm3Mq6Qz544rqSQw','qtUeW7PKPfQmNDP3Xulxpg',4,'assistant','Here is what I found: Noted as number 1: tea is at five','2026-11-17 17:26:45.039417','X6E6NLE1G4qmzB_ZfsIEtw','217RJVDGuEbsW9EAWkG0Ig','v4EYhmyP7xcT-ESiVUKDOw');
INSERT INTO "messages" VALUES('KwYwBsuE0NqP4Zc9Qogr1Q','bPbxEOEtzoerO3Fk3eGPaA',5,'user','/fail','2026-11-17 17:26:45.043470','X6E6NLE1G4qmzB_ZfsIEtw','217RJVDGuEbsW9EAWkG0Ig','v4EYhmyP7xcT-ESiVUKDOw');
INSERT INTO "messages" VALUES('a-L6vPQFYivCEH_sPjJ0wg','ZKjECTxWe7u-1geVb_e-ZQ',1,'user','Tell me all of it','2026-11-17 17:26:45.049020','9TPEfr4o2Sylsp4iKGaY2g','217RJVDGuEbsW9EAWkG0Ig','v4EYhmyP7xcT-ESiVUKDOw');
CREATE TABLE notes (
	id VARCHAR(64) NOT NULL, 
	number INTEGER NOT NULL, 
	text TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	session_id VARCHAR(64) NOT NULL, 
	tenant_id VARCHAR(64) NOT NULL, 
	user_id VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_notes PRIMARY KEY (id), 
	CONSTRAINT fk_notes_session_id FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE, 
	CONSTRAINT fk_notes_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id), 
	CONSTRAINT fk_notes_user_id FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT uq_notes_number UNIQUE (session_id, number)
);
INSERT INTO "notes" VALUES('yjOegzlG3uZRpkhXdM9Wfw',1,'tea is at five','2026-11-17 17:26:45.036693','X6E6NLE1G4qmzB_ZfsIEtw','217RJVDGuEbsW9EAWkG0Ig','v4EYhmyP7xcT-ESiVUKDOw');
CREATE TABLE "sessions" (
	id VARCHAR(64) NOT NULL, 
	title VARCHAR(200) NOT NULL, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	tenant_id VARCHAR(64) NOT NULL, 
	user_id VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (id), 
	CONSTRAINT fk_sessions_user_id FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT fk_sessions_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id)
);
INSERT INTO "sessions" VALUES('X6E6NLE1G4qmzB_ZfsIEtw','what is 6*7?','2026-11-17 17:26:44.969479','2026-11-17 17:26:45.046388','217RJVDGuEbsW9EAWkG0Ig','v4EYhmyP7xcT-ESiVUKDOw');
INSERT INTO "sessions" VALUES('9TPEfr4o2Sylsp4iKGaY2g','Tell me all of it','2026-11-17 17:26:44.971680','2026-11-17 17:26:45.049020','217RJVDGuEbsW9EAWkG0Ig','v4EYhmyP7xcT-ESiVUKDOw');
CREATE TABLE setup_links (
	digest VARCHAR(64) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_setup_links PRIMARY KEY (digest)
);
CREATE TABLE tenants (
	id VARCHAR(64) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_tenants PRIMARY KEY (id), 
	CONSTRAINT uq_tenants_name UNIQUE (name)
);
INSERT INTO "tenants" VALUES('217RJVDGuEbsW9EAWkG0Ig','default','2026-11-17 17:26:44.961691');
CREATE TABLE turn_events (
	turn_id VARCHAR(64) NOT NULL, 
	first INTEGER NOT NULL, 
	events JSON NOT NULL, 
	tenant_id VARCHAR(64) NOT NULL, 
	user_id VARCHAR(64) NOT NULL, 
	session_id VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_turn_events PRIMARY KEY (turn_id, first), 
	CONSTRAINT fk_turn_events_turn_id FOREIGN KEY(turn_id) REFERENCES live_turns (turn_id) ON DELETE CASCADE
);
INSERT INTO "turn_events" VALUES('ZKjECTxWe7u-1geVb_e-ZQ',1,'[["turn_started", {"turn_id": "ZKjECTxWe7u-1geVb_e-ZQ", "session_id": "9TPEfr4o2Sylsp4iKGaY2g", "message": "Tell me all of it"}], ["agent_started", {"agent": "triage"}], ["agent_thinking", {"agent": "triage"}], ["text", {"text": "Half of "}], ["text", {"text": "an answer"}]]','217RJVDGuEbsW9EAWkG0Ig','v4EYhmyP7xcT-ESiVUKDOw','9TPEfr4o2Sylsp4iKGaY2g');
CREATE TABLE "turns" (
	id VARCHAR(64) NOT NULL, 
	request_id VARCHAR(64) NOT NULL, 
	idempotency_key VARCHAR(128), 
	status VARCHAR(16) NOT NULL, 
	agent VARCHAR(64) NOT NULL, 
	error_code VARCHAR(64), 
	error_message TEXT, 
	input_tokens INTEGER NOT NULL, 
	output_tokens INTEGER NOT NULL, 
	model_calls INTEGER NOT NULL, 
	cost_microusd INTEGER, 
	started_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	session_id VARCHAR(64) NOT NULL, 
	tenant_id VARCHAR(64) NOT NULL, 
	user_id VARCHAR(64) NOT NULL, 
	admission JSON, 
	number INTEGER NOT NULL, 
	follows INTEGER NOT NULL, 
	next_agent VARCHAR(64) NOT NULL, 
	log JSON NOT NULL, 
	CONSTRAINT pk_turns PRIMARY KEY (id), 
	CONSTRAINT uq_turns_idempotency_key UNIQUE (session_id, idempotency_key), 
	CONSTRAINT fk_turns_user_id FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT fk_turns_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id), 
	CONSTRAINT fk_turns_session_id FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE, 
	CONSTRAINT status CHECK (status IN ('running', 'completed', 'failed', 'stopped', 'interrupted')), 
	CONSTRAINT uq_turns_number UNIQUE (session_id, number)
);
INSERT INTO "turns" VALUES('qwTD5Yhv6B8hyYKRKaJr0A','request-before',NULL,'completed','maths',NULL,NULL,1330,28,3,0,'2026-11-17 17:26:44.975906','2026-11-17 17:26:44.999740','X6E6NLE1G4qmzB_ZfsIEtw','217RJVDGuEbsW9EAWkG0Ig','v4EYhmyP7xcT-ESiVUKDOw','[1794936404.375, 50000, 0, 0, 0, 0, 0]',1,0,'maths','[["turn_started", {"turn_id": "qwTD5Yhv6B8hyYKRKaJr0A", "session_id": "X6E6NLE1G4qmzB_ZfsIEtw"}], ["agent_started", {"agent": "triage"}], ["agent_thinking", {"agent": "triage"}], ["agent_completed", {"agent": "triage"}], ["handed_over", {"from": "triage", "to": "maths", "task": "what is 6*7?", "parameters": {}}], ["agent_started", {"agent": "maths"}], ["agent_thinking", {"agent": "maths"}], ["tool_executing", {"call_id": "demo_400669ee67fc090f_1", "name": "calculate", "input": {"expression": "6*7"}}], ["tool_completed", {"call_id": "demo_400669ee67fc090f_1", "name": "calculate", "output": "6*7 = 42", "failed": false, "limited": false}], ["agent_thinking", {"agent": "maths"}], 5, 3, 5, 2, 7, 5, 2, 3, ["agent_completed", {"agent": "maths"}]]');
INSERT INTO "turns" VALUES('qtUeW7PKPfQmNDP3Xulxpg','request-before',NULL,'completed','memory',NULL,NULL,1901,58,4,0,'2026-11-17 17:26:45.016360','2026-11-17 17:26:45.039417','X6E6NLE1G4qmzB_ZfsIEtw','217RJVDGuEbsW9EAWkG0Ig','v4EYhmyP7xcT-ESiVUKDOw','[1794936404.375, 50000, 0, 0, 0, 0, 0]',2,1,'memory','[["turn_started", {"turn_id": "qtUeW7PKPfQmNDP3Xulxpg", "session_id": "X6E6NLE1G4qmzB_ZfsIEtw"}], ["agent_started", {"agent": "maths"}], ["agent_thinking", {"agent": "maths"}], ["agent_completed", {"agent": "maths"}], ["handed_over", {"from": "maths", "to": "triage", "task": "This is not my job: remember that tea is at five", "parameters": {}}], ["agent_started", {"agent": "triage"}], ["agent_thinking", {"agent": "triage"}], ["agent_completed", {"agent": "triage"}], ["handed_over", {"from": "triage", "to": "memory", "task": "remember that tea is at five", "parameters": {}}], ["agent_started", {"agent": "memory"}], ["agent_thinking", {"agent": "memory"}], ["tool_executing", {"call_id": "demo_b19acb1d19830ac8_1", "name": "add_note", "input": {"text": "tea is at five"}}], ["tool_completed", {"call_id": "demo_b19acb1d19830ac8_1", "name": "add_note", "output": "Noted as number 1: tea is at five", "failed": false, "limited": false}], ["agent_thinking", {"agent": "memory"}], 5, 3, 5, 2, 7, 6, 3, 7, 3, 4, 3, 3, 4, ["agent_completed", {"agent": "memory"}]]');
INSERT INTO "turns" VALUES('bPbxEOEtzoerO3Fk3eGPaA','request-before',NULL,'failed','triage','provider-failed','The demo model was told to fail.',0,0,0,0,'2026-11-17 17:26:45.043470','2026-11-17 17:26:45.046388','X6E6NLE1G4qmzB_ZfsIEtw','217RJVDGuEbsW9EAWkG0Ig','v4EYhmyP7xcT-ESiVUKDOw','[1794936404.375, 50000, 0, 0, 0, 0, 0]',3,2,'','[["turn_started", {"turn_id": "bPbxEOEtzoerO3Fk3eGPaA", "session_id": "X6E6NLE1G4qmzB_ZfsIEtw"}], ["agent_started", {"agent": "memory"}], ["agent_thinking", {"agent": "memory"}], ["agent_completed", {"agent": "memory"}], ["handed_over", {"from": "memory", "to": "triage", "task": "It could not answer: The demo model was told to fail.", "parameters": {}}], ["agent_started", {"agent": "triage"}], ["agent_thinking", {"agent": "triage"}]]');
INSERT INTO "turns" VALUES('ZKjECTxWe7u-1geVb_e-ZQ','request-before','key-in-flight','running','',NULL,NULL,0,0,0,NULL,'2026-11-17 17:26:45.049020',NULL,'9TPEfr4o2Sylsp4iKGaY2g','217RJVDGuEbsW9EAWkG0Ig','v4EYhmyP7xcT-ESiVUKDOw','[1794936404.375, 50000, 0, 0, 0, 0, 0]',1,0,'','[]');
CREATE TABLE users (
	id VARCHAR(64) NOT NULL, 
	tenant_id VARCHAR(64) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	password_hash TEXT NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	created_at DATETIME NOT NULL, 
	disabled_at DATETIME, 
	CONSTRAINT pk_users PRIMARY KEY (id), 
	CONSTRAINT fk_users_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenants (id), 
	CONSTRAINT uq_users_name UNIQUE (name), 
	CONSTRAINT role CHECK (role IN ('member', 'admin', 'operator'))
);
INSERT INTO "users" VALUES('v4EYhmyP7xcT-ESiVUKDOw','217RJVDGuEbsW9EAWkG0Ig','ann','$argon2id$v=19$m=19456,t=2,p=1$8/+2RK9M1Y7Szjwos4EB0Q$JDwwgqBGAzL7ktAE5krkSTitpWtDMeic/aG6WN/YRrk','member','2026-11-17 17:26:44.963124',NULL);
CREATE INDEX ix_logins_user_id ON logins (user_id);
CREATE INDEX ix_logins_expires_at ON logins (expires_at);
CREATE INDEX ix_messages_owner ON messages (tenant_id, user_id);
CREATE INDEX ix_messages_turn_id ON messages (turn_id);
CREATE INDEX ix_guardrail_cells_marked ON guardrail_cells (mark, scope) WHERE mark <> '';
CREATE UNIQUE INDEX uq_turns_one_running ON turns (session_id) WHERE status = 'running';
CREATE INDEX ix_sessions_owner ON sessions (tenant_id, user_id, updated_at);
CREATE INDEX ix_live_turns_worker ON live_turns (worker);
COMMIT;
