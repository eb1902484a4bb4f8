-- What relays have given up: rows of parked keys, which go out first when their
-- key is released, and messages that were skipped. A removed one keeps its place
-- without body and headers, so that it is known who is missing.
CREATE TABLE waybill_failed (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    transport       TEXT NOT NULL CHECK (transport <> ''),
    state           TEXT NOT NULL CHECK (state IN ('parked', 'skipped', 'removed')),
    message_id      BLOB NOT NULL CHECK (length(message_id) = 16),
    message_name    TEXT NOT NULL,
    partition_key   TEXT NOT NULL,
    headers         TEXT NOT NULL,
    body            BLOB NOT NULL,
    created_at      INTEGER NOT NULL,
    failures        INTEGER NOT NULL,
    first_failed_at INTEGER,
    failed_at       INTEGER NOT NULL,
    last_error      TEXT NOT NULL,
    removed_at      INTEGER
);
CREATE INDEX waybill_failed_by_key ON waybill_failed (transport, partition_key, id) WHERE state = 'parked';

-- A parked or releasing key is never due (after 9999-01-01), so that nobody claims
-- its rows from the outbox, also a relay of the version before. release_at is when
-- a released one is tried next. The constraint keeps commands of the version before
-- from letting go of a parked key, whose first rows they do not see.
ALTER TABLE waybill_outbox_blocked ADD COLUMN state TEXT NOT NULL DEFAULT 'retrying';
ALTER TABLE waybill_outbox_blocked ADD COLUMN policy TEXT NOT NULL DEFAULT 'halt';
ALTER TABLE waybill_outbox_blocked ADD COLUMN release_at INTEGER CHECK (
    CASE state WHEN 'retrying' THEN release_at IS NULL
               WHEN 'parked' THEN release_at IS NULL AND next_attempt_at > 253370764800000000
               WHEN 'releasing' THEN release_at IS NOT NULL AND next_attempt_at > 253370764800000000
               ELSE 0 END);
CREATE INDEX waybill_outbox_blocked_by_release ON waybill_outbox_blocked (lane, release_at) WHERE release_at IS NOT NULL;
