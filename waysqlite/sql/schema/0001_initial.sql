-- The tables of waybill on SQLite. Times are microseconds since 1970 UTC, message ids
-- are 16 bytes. docs/schema.md describes the columns, and the rows of a producer in
-- another language.
--
-- SQLite stores any value in any column. The tables that other programs may insert into
-- check the type (typeof) of each column that waybill reads or compares: one value that
-- no claim can read would stop the relay, or a queue, for all messages. A body is TEXT or
-- BLOB.

CREATE TABLE waybill_meta (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- blocked_version changes with every change of the transport's set of blocked keys.
CREATE TABLE waybill_transport (
    id              INTEGER PRIMARY KEY,
    name            TEXT NOT NULL UNIQUE CHECK (typeof(name) = 'text' AND name <> ''),
    blocked_version INTEGER NOT NULL DEFAULT 0
);

-- AUTOINCREMENT: an id is never reused, so with SQLite's single writer the order of
-- ids is the order of commits. bucket is 1024 for set-aside rows of a parked key;
-- held is 1 for a row without key that was refused. Each row is in exactly one of the
-- indexes, so that every kind of claim reads its own rows only.
CREATE TABLE waybill_outbox (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    transport     INTEGER NOT NULL REFERENCES waybill_transport (id) CHECK (typeof(transport) = 'integer'),
    bucket        INTEGER NOT NULL DEFAULT 0 CHECK (bucket IN (0, 1024)),
    held          INTEGER NOT NULL DEFAULT 0 CHECK (held IN (0, 1)),
    message_id    BLOB NOT NULL CHECK (typeof(message_id) = 'blob' AND length(message_id) = 16),
    message_name  TEXT NOT NULL
                  CHECK (typeof(message_name) = 'text'
                         AND length(CAST(message_name AS BLOB)) BETWEEN 1 AND 190),
    partition_key TEXT NOT NULL DEFAULT ''
                  CHECK (typeof(partition_key) = 'text' AND length(CAST(partition_key AS BLOB)) <= 255),
    created_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
                  CHECK (typeof(created_at) = 'integer'),
    headers       TEXT NOT NULL DEFAULT '{}' CHECK (typeof(headers) = 'text'),
    body          BLOB NOT NULL,
    CHECK (partition_key <> '' AND held = 0 OR partition_key = '' AND bucket = 0)
);
CREATE INDEX waybill_outbox_keyed ON waybill_outbox (transport) WHERE partition_key <> '' AND bucket = 0;
CREATE INDEX waybill_outbox_unkeyed ON waybill_outbox (transport) WHERE partition_key = '' AND held = 0;
CREATE INDEX waybill_outbox_held ON waybill_outbox (transport) WHERE held = 1;
CREATE INDEX waybill_outbox_parked ON waybill_outbox (transport, partition_key) WHERE bucket = 1024;

-- An entry for each blocked key, with row_id as its head, and for each refused row
-- without key. The row of an entry leaves the outbox together with the entry.
CREATE TABLE waybill_outbox_blocked (
    transport       INTEGER NOT NULL,
    partition_key   TEXT NOT NULL,
    row_id          INTEGER NOT NULL,
    message_id      BLOB NOT NULL,
    message_name    TEXT NOT NULL,
    failures        INTEGER NOT NULL,
    first_failed_at INTEGER NOT NULL,
    next_attempt_at INTEGER NOT NULL,
    last_error      TEXT NOT NULL,
    state           TEXT NOT NULL DEFAULT 'retrying' CHECK (state IN ('retrying', 'parked')),
    policy          TEXT NOT NULL,
    PRIMARY KEY (transport, partition_key, row_id)
) WITHOUT ROWID;
CREATE INDEX waybill_outbox_blocked_due ON waybill_outbox_blocked (transport, next_attempt_at)
    WHERE state = 'retrying';

-- Messages that are not due yet. Exactly one of transport and queue is set: the
-- target of the message. refused is 1 for a row that its target refused.
CREATE TABLE waybill_delayed (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    due_at        INTEGER NOT NULL CHECK (typeof(due_at) = 'integer'),
    refused       INTEGER NOT NULL DEFAULT 0 CHECK (refused IN (0, 1)),
    transport     INTEGER REFERENCES waybill_transport (id) CHECK (typeof(transport) IN ('integer', 'null')),
    queue         TEXT CHECK (typeof(queue) IN ('text', 'null') AND queue <> ''),
    message_id    BLOB NOT NULL CHECK (typeof(message_id) = 'blob' AND length(message_id) = 16),
    message_name  TEXT NOT NULL
                  CHECK (typeof(message_name) = 'text'
                         AND length(CAST(message_name AS BLOB)) BETWEEN 1 AND 190),
    partition_key TEXT NOT NULL DEFAULT ''
                  CHECK (typeof(partition_key) = 'text' AND length(CAST(partition_key AS BLOB)) <= 255),
    created_at    INTEGER NOT NULL CHECK (typeof(created_at) = 'integer'),
    headers       TEXT NOT NULL DEFAULT '{}' CHECK (typeof(headers) = 'text'),
    body          BLOB NOT NULL,
    CHECK ((transport IS NULL) <> (queue IS NULL))
);
CREATE INDEX waybill_delayed_due ON waybill_delayed (due_at) WHERE refused = 0;

-- Dead letters: messages that a relay has skipped (source outbox), and failed messages of
-- workers. A removed one keeps its row without body and headers, as a record of the missing
-- message. A worker's message has one entry, however often it fails, which is retrying
-- while a replay is in the retry queue of its transport.
CREATE TABLE waybill_failed (
    id                INTEGER PRIMARY KEY AUTOINCREMENT,
    source            TEXT NOT NULL DEFAULT 'outbox' CHECK (source IN ('outbox', 'worker')),
    transport         TEXT NOT NULL CHECK (transport <> ''),
    failure_transport TEXT NOT NULL DEFAULT '',
    state             TEXT NOT NULL CHECK (state IN ('skipped', 'failed', 'retrying', 'removed')),
    message_id        BLOB NOT NULL CHECK (length(message_id) = 16),
    message_name      TEXT NOT NULL,
    partition_key     TEXT NOT NULL,
    headers           TEXT NOT NULL,
    body              BLOB NOT NULL,
    created_at        INTEGER NOT NULL,
    failures          INTEGER NOT NULL,
    first_failed_at   INTEGER,
    failed_at         INTEGER NOT NULL,
    last_error        TEXT NOT NULL,
    handler           TEXT NOT NULL DEFAULT '',
    error_type        TEXT NOT NULL DEFAULT '',
    fingerprint       TEXT NOT NULL DEFAULT '',
    removed_at        INTEGER
);
CREATE UNIQUE INDEX waybill_failed_of_workers ON waybill_failed (transport, message_id)
    WHERE source = 'worker';

-- The failed attempts of workers at a message, which is in the retry queue or a dead letter.
CREATE TABLE waybill_failed_attempt (
    transport   TEXT NOT NULL,
    message_id  BLOB NOT NULL,
    attempt     INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    worker      TEXT NOT NULL,
    handler     TEXT NOT NULL,
    error_type  TEXT NOT NULL,
    error       TEXT NOT NULL,
    stack       TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    PRIMARY KEY (transport, message_id, attempt)
);

-- The last report of each process with workers, every few seconds, with its state as JSON.
CREATE TABLE waybill_workers (
    id                TEXT PRIMARY KEY,
    started_at        INTEGER NOT NULL,
    seen_at           INTEGER NOT NULL,
    report            TEXT NOT NULL,
    stop_requested_at INTEGER
) WITHOUT ROWID;

-- The transports whose workers an operator has paused: they receive no messages until a resume.
CREATE TABLE waybill_paused (
    transport TEXT PRIMARY KEY,
    since     INTEGER NOT NULL,
    actor     TEXT NOT NULL,
    reason    TEXT NOT NULL
) WITHOUT ROWID;

-- Schedules: each tick up to done_until has been dispatched or skipped, last_tick is the last
-- one dispatched. requested_at is the time of an operator's request that waits to be sent.
CREATE TABLE waybill_schedule (
    name         TEXT PRIMARY KEY,
    spec         TEXT NOT NULL,
    missed       TEXT NOT NULL,
    done_until   INTEGER NOT NULL,
    last_tick    INTEGER,
    next_tick    INTEGER NOT NULL,
    requested_at INTEGER
) WITHOUT ROWID;

-- Changes by operators.
CREATE TABLE waybill_audit (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    actor    TEXT NOT NULL,
    action   TEXT NOT NULL,
    filter   TEXT NOT NULL,
    messages INTEGER NOT NULL
);

CREATE TABLE waybill_inbox (
    handler      TEXT NOT NULL,
    dedup_key    TEXT NOT NULL,
    message_id   BLOB NOT NULL,
    processed_at INTEGER NOT NULL,
    PRIMARY KEY (handler, dedup_key)
) WITHOUT ROWID;
CREATE INDEX waybill_inbox_by_processed_at ON waybill_inbox (processed_at);
-- Of idempotency keys: other dedup keys are message ids.
CREATE INDEX waybill_inbox_by_message_id ON waybill_inbox (message_id)
    WHERE dedup_key >= 'k:' AND dedup_key < 'k;';

-- Keys of messages that are dispatched once until expires_at. A row that is in use by an
-- open transaction alone has expired.
CREATE TABLE waybill_unique (
    dedup_key  TEXT NOT NULL PRIMARY KEY,
    message_id BLOB NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX waybill_unique_by_expires_at ON waybill_unique (expires_at);

-- held is 0 for claimable rows, 1 for rows in flight, 2 for rows set aside behind a row
-- of their key in flight. A row in flight is leased by holder until held_until, or waits
-- for a retry, without one. lease counts its holders, so that a late one cannot settle it. A
-- claim sets redelivered if the last holder has neither settled nor released the row.
CREATE TABLE waybill_queue (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    queue         TEXT NOT NULL CHECK (typeof(queue) = 'text' AND queue <> ''),
    message_id    BLOB NOT NULL CHECK (typeof(message_id) = 'blob' AND length(message_id) = 16),
    message_name  TEXT NOT NULL
                  CHECK (typeof(message_name) = 'text'
                         AND length(CAST(message_name AS BLOB)) BETWEEN 1 AND 190),
    partition_key TEXT NOT NULL DEFAULT ''
                  CHECK (typeof(partition_key) = 'text' AND length(CAST(partition_key AS BLOB)) <= 255),
    headers       TEXT NOT NULL DEFAULT '{}' CHECK (typeof(headers) = 'text'),
    body          BLOB NOT NULL,
    created_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
                  CHECK (typeof(created_at) = 'integer'),
    failures      INTEGER NOT NULL DEFAULT 0 CHECK (typeof(failures) = 'integer'),
    held          INTEGER NOT NULL DEFAULT 0 CHECK (held IN (0, 1, 2)),
    held_until    INTEGER NOT NULL DEFAULT 0 CHECK (typeof(held_until) = 'integer'),
    holder        BLOB,
    lease         INTEGER NOT NULL DEFAULT 0 CHECK (typeof(lease) = 'integer'),
    redelivered   INTEGER NOT NULL DEFAULT 0 CHECK (redelivered IN (0, 1))
);
CREATE INDEX waybill_queue_due ON waybill_queue (queue, held_until);
CREATE INDEX waybill_queue_held ON waybill_queue (queue, partition_key, held) WHERE held > 0;

-- The retry queues of workers: queue is the name of the transport. The statements of
-- waybill_queue run on it, hence the same columns and indexes. A parked row is held until
-- the greatest integer without a holder. crashes counts the leases under which the handlers
-- began and did not end; begun is the last lease under which they began.
CREATE TABLE waybill_retry (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    queue         TEXT NOT NULL CHECK (typeof(queue) = 'text' AND queue <> ''),
    message_id    BLOB NOT NULL CHECK (typeof(message_id) = 'blob' AND length(message_id) = 16),
    message_name  TEXT NOT NULL
                  CHECK (typeof(message_name) = 'text'
                         AND length(CAST(message_name AS BLOB)) BETWEEN 1 AND 190),
    partition_key TEXT NOT NULL DEFAULT ''
                  CHECK (typeof(partition_key) = 'text' AND length(CAST(partition_key AS BLOB)) <= 255),
    headers       TEXT NOT NULL DEFAULT '{}' CHECK (typeof(headers) = 'text'),
    body          BLOB NOT NULL,
    created_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
                  CHECK (typeof(created_at) = 'integer'),
    failures      INTEGER NOT NULL DEFAULT 0 CHECK (typeof(failures) = 'integer'),
    held          INTEGER NOT NULL DEFAULT 0 CHECK (held IN (0, 1, 2)),
    held_until    INTEGER NOT NULL DEFAULT 0 CHECK (typeof(held_until) = 'integer'),
    holder        BLOB,
    lease         INTEGER NOT NULL DEFAULT 0 CHECK (typeof(lease) = 'integer'),
    redelivered   INTEGER NOT NULL DEFAULT 0 CHECK (redelivered IN (0, 1)),
    crashes       INTEGER NOT NULL DEFAULT 0 CHECK (typeof(crashes) = 'integer'),
    begun         INTEGER NOT NULL DEFAULT 0 CHECK (typeof(begun) = 'integer'),
    UNIQUE (queue, message_id)
);
CREATE INDEX waybill_retry_due ON waybill_retry (queue, held_until);
CREATE INDEX waybill_retry_held ON waybill_retry (queue, partition_key, held) WHERE held > 0;
CREATE INDEX waybill_retry_keys ON waybill_retry (queue, partition_key) WHERE partition_key <> '';

-- Counts and latencies of a minute (since 1970), for the transport, message and handler; empty ones sum up. The
-- columns from within_1ms on count the times from dispatch to the end of handling, each up to the time of
-- its name and above that of the one before.
CREATE TABLE waybill_history (
    transport       TEXT NOT NULL,
    message_name    TEXT NOT NULL,
    handler         TEXT NOT NULL,
    minute          INTEGER NOT NULL,
    dispatched      INTEGER NOT NULL,
    published       INTEGER NOT NULL,
    refused         INTEGER NOT NULL,
    handled         INTEGER NOT NULL,
    failed          INTEGER NOT NULL,
    retried         INTEGER NOT NULL,
    duplicates      INTEGER NOT NULL,
    skipped         INTEGER NOT NULL,
    publish_micros  INTEGER NOT NULL,
    handling_micros INTEGER NOT NULL,
    within_1ms      INTEGER NOT NULL,
    within_2ms      INTEGER NOT NULL,
    within_5ms      INTEGER NOT NULL,
    within_10ms     INTEGER NOT NULL,
    within_20ms     INTEGER NOT NULL,
    within_50ms     INTEGER NOT NULL,
    within_100ms    INTEGER NOT NULL,
    within_200ms    INTEGER NOT NULL,
    within_500ms    INTEGER NOT NULL,
    within_1s       INTEGER NOT NULL,
    within_2s       INTEGER NOT NULL,
    within_5s       INTEGER NOT NULL,
    within_10s      INTEGER NOT NULL,
    within_30s      INTEGER NOT NULL,
    within_1m       INTEGER NOT NULL,
    within_5m       INTEGER NOT NULL,
    within_15m      INTEGER NOT NULL,
    within_1h       INTEGER NOT NULL,
    within_6h       INTEGER NOT NULL,
    longer          INTEGER NOT NULL,
    PRIMARY KEY (transport, message_name, handler, minute)
) WITHOUT ROWID;
CREATE INDEX waybill_history_by_minute ON waybill_history (minute);
