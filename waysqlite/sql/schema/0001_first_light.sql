-- The tables of waybill on SQLite. Times are microseconds since 1970 UTC,
-- booleans do not occur, message ids are 16 bytes. docs/schema.md says what
-- each column means and what a producer in another language writes.

CREATE TABLE waybill_meta (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- A lane is a target transport. blocked_version changes with every change of
-- the lane's blocked keys.
CREATE TABLE waybill_outbox_lane (
    id              INTEGER PRIMARY KEY,
    name            TEXT NOT NULL UNIQUE CHECK (name <> ''),
    blocked_version INTEGER NOT NULL DEFAULT 0
);

-- AUTOINCREMENT: an id is never given twice, so with SQLite's single writer the
-- order of ids is the order of commits.
CREATE TABLE waybill_outbox (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    lane          INTEGER NOT NULL REFERENCES waybill_outbox_lane (id),
    bucket        INTEGER NOT NULL DEFAULT 0,
    message_id    BLOB NOT NULL CHECK (length(message_id) = 16),
    message_name  TEXT NOT NULL CHECK (length(CAST(message_name AS BLOB)) BETWEEN 1 AND 190),
    partition_key TEXT NOT NULL DEFAULT '' CHECK (length(CAST(partition_key AS BLOB)) <= 255),
    headers       TEXT NOT NULL DEFAULT '{}',
    body          BLOB NOT NULL,
    created_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
);
CREATE INDEX waybill_outbox_by_lane ON waybill_outbox (lane);

-- row_id is 0 for a key, and the outbox id for a single message without key.
CREATE TABLE waybill_outbox_blocked (
    lane            INTEGER NOT NULL,
    partition_key   TEXT NOT NULL,
    row_id          INTEGER NOT NULL,
    message_id      BLOB NOT NULL,
    message_name    TEXT NOT NULL,
    failures        INTEGER NOT NULL,
    first_failed_at INTEGER NOT NULL,
    next_attempt_at INTEGER NOT NULL,
    last_error      TEXT NOT NULL,
    PRIMARY KEY (lane, partition_key, row_id)
) WITHOUT ROWID;

-- Messages that are not due yet. Exactly one of lane and queue is set: where
-- the message goes when it is due.
CREATE TABLE waybill_delayed (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    due_at        INTEGER NOT NULL,
    lane          INTEGER REFERENCES waybill_outbox_lane (id),
    queue         TEXT CHECK (queue <> ''),
    message_id    BLOB NOT NULL CHECK (length(message_id) = 16),
    message_name  TEXT NOT NULL CHECK (length(CAST(message_name AS BLOB)) BETWEEN 1 AND 190),
    partition_key TEXT NOT NULL DEFAULT '' CHECK (length(CAST(partition_key AS BLOB)) <= 255),
    headers       TEXT NOT NULL DEFAULT '{}',
    body          BLOB NOT NULL,
    created_at    INTEGER NOT NULL,
    CHECK ((lane IS NULL) <> (queue IS NULL))
);
CREATE INDEX waybill_delayed_by_due_at ON waybill_delayed (due_at);

CREATE TABLE waybill_inbox (
    handler      TEXT NOT NULL,
    dedup_key    TEXT NOT NULL,
    message_id   BLOB NOT NULL,
    processed_at INTEGER NOT NULL,
    PRIMARY KEY (handler, dedup_key)
) WITHOUT ROWID;
CREATE INDEX waybill_inbox_by_processed_at ON waybill_inbox (processed_at);

-- A row is held until held_until: by holder, or by nobody while it waits for a
-- retry. lease counts its holders, so that a late one cannot settle it.
CREATE TABLE waybill_queue (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    queue         TEXT NOT NULL CHECK (queue <> ''),
    message_id    BLOB NOT NULL CHECK (length(message_id) = 16),
    message_name  TEXT NOT NULL CHECK (length(CAST(message_name AS BLOB)) BETWEEN 1 AND 190),
    partition_key TEXT NOT NULL DEFAULT '' CHECK (length(CAST(partition_key AS BLOB)) <= 255),
    headers       TEXT NOT NULL DEFAULT '{}',
    body          BLOB NOT NULL,
    created_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)),
    failures      INTEGER NOT NULL DEFAULT 0,
    held_until    INTEGER NOT NULL DEFAULT 0,
    holder        BLOB,
    lease         INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX waybill_queue_by_queue ON waybill_queue (queue);
CREATE INDEX waybill_queue_held ON waybill_queue (queue, partition_key) WHERE held_until > 0;
