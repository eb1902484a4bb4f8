-- What relays have given up: rows of parked keys, which go out first when their
-- key is released, and messages that were skipped. A removed one keeps its place
-- without body and headers, so that it is known who is missing.
CREATE TABLE app.waybill_failed (
    id              BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    transport       VARBINARY(190) NOT NULL CHECK (transport <> ''),
    state           VARCHAR(16) NOT NULL CHECK (state IN ('parked', 'skipped', 'removed')),
    message_id      BINARY(16) NOT NULL,
    message_name    VARBINARY(190) NOT NULL,
    partition_key   VARBINARY(255) NOT NULL,
    headers         JSON NOT NULL,
    body            LONGBLOB NOT NULL,
    created_at      DATETIME(6) NOT NULL,
    failures        INTEGER NOT NULL,
    first_failed_at DATETIME(6),
    failed_at       DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    last_error      TEXT NOT NULL,
    removed_at      DATETIME(6),
    KEY waybill_failed_by_key (transport, partition_key, state, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- A parked or releasing key is never due, so that nobody claims its rows from the
-- outbox, also relays of the version before. release_at is when a released one is
-- tried next. The constraint keeps commands of the version before from letting go of
-- a parked key, whose first rows they do not see.
ALTER TABLE app.waybill_outbox_blocked
    ADD COLUMN state VARCHAR(16) NOT NULL DEFAULT 'retrying',
    ADD COLUMN policy VARCHAR(16) NOT NULL DEFAULT 'halt',
    ADD COLUMN release_at DATETIME(6),
    ADD CONSTRAINT waybill_outbox_blocked_state CHECK (
        (release_at IS NOT NULL) = (state = 'releasing')
        AND (state = 'retrying' OR state IN ('parked', 'releasing') AND next_attempt_at > TIMESTAMP'9999-01-01 00:00:00')),
    ADD KEY waybill_outbox_blocked_by_release (lane, release_at);
