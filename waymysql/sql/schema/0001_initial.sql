-- The tables of waybill on MySQL and MariaDB. docs/schema.md documents each column,
-- and the rows that a producer in another language writes. Keys and names
-- compare bytewise in every database: VARBINARY neither pads nor folds.

CREATE TABLE app.waybill_meta (
    name  VARCHAR(64) NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Dispatchers and relays must agree on both, whatever language they are in.
INSERT INTO app.waybill_meta (name, value) VALUES ('buckets', '64'), ('hash', 'sha256-2');

-- Target transports. Dispatchers may lock these rows in share mode, so relays
-- never write them.
CREATE TABLE app.waybill_transport (
    id   SMALLINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name VARBINARY(190) NOT NULL UNIQUE CHECK (name <> '')
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row for each bucket of each transport, locked by the relay that publishes the
-- bucket. blocked_version changes with every change of the bucket's blocked keys;
-- that of bucket -1 is the version of the transport's blocked routes.
CREATE TABLE app.waybill_outbox_bucket (
    transport       SMALLINT NOT NULL,
    bucket          SMALLINT NOT NULL,
    blocked_version BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (transport, bucket)
) ENGINE = InnoDB;

-- The dispatch locks. Transport 0 is that of the queues, and its bucket -1 the lock
-- for promoting delayed messages; the rows of transport -1 are the locks for claiming
-- from a queue, those of -2 for adding to a retry queue. The name is the transport's, with the number of buckets where that is
-- not 64: a dispatcher that knows another number finds no lock.
CREATE TABLE app.waybill_outbox_gate (
    transport SMALLINT NOT NULL,
    bucket    SMALLINT NOT NULL,
    name      VARBINARY(200) NOT NULL,
    PRIMARY KEY (transport, bucket)
) ENGINE = InnoDB;

-- Messages with a key. Ids are commit-ordered inside a bucket, because a dispatcher
-- holds the bucket's lock from before its id is given to its commit. Rows of parked
-- keys are set aside in their bucket + 1024. At the head of each bucket, and of one
-- more behind the last, is a sentinel with id -1: the server notices the end of a
-- range at a live row only, and would read on through unpurged rows. The key on id is
-- there because AUTO_INCREMENT needs one. Where sql_mode is not strict, NULL among
-- several rows becomes 0, which the CHECK refuses.
CREATE TABLE app.waybill_outbox (
    transport     SMALLINT NOT NULL CHECK (transport > 0),
    bucket        SMALLINT NOT NULL,
    id            BIGINT NOT NULL AUTO_INCREMENT,
    message_id    BINARY(16) NOT NULL,
    message_name  VARBINARY(190) NOT NULL CHECK (message_name <> ''),
    partition_key VARBINARY(255) NOT NULL,
    headers       JSON NOT NULL DEFAULT ('{}'),
    body          LONGBLOB NOT NULL,
    created_at    DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (transport, bucket, id),
    KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'waybill: write with waybill_dispatch, or as docs/schema.md says: bucket = first two bytes of SHA-256(partition_key) mod buckets of waybill_meta';

-- Messages without a key, which have no order. Held rows were refused, or wait for
-- their route. Sentinels with id -1 are at the head of held = 1 and held = 2.
CREATE TABLE app.waybill_outbox_unkeyed (
    transport     SMALLINT NOT NULL CHECK (transport > 0),
    held          TINYINT NOT NULL DEFAULT 0,
    id            BIGINT NOT NULL AUTO_INCREMENT,
    message_id    BINARY(16) NOT NULL,
    message_name  VARBINARY(190) NOT NULL CHECK (message_name <> ''),
    headers       JSON NOT NULL DEFAULT ('{}'),
    body          LONGBLOB NOT NULL,
    created_at    DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (transport, held, id),
    KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Refused keys (partition_key), routes (route, a message name), and messages without
-- a key (neither). row_id is the refused row, in its bucket, or -1 without a key.
CREATE TABLE app.waybill_outbox_blocked (
    transport       SMALLINT NOT NULL,
    route           VARBINARY(190) NOT NULL DEFAULT '',
    partition_key   VARBINARY(255) NOT NULL DEFAULT '',
    row_id          BIGINT NOT NULL,
    bucket          SMALLINT NOT NULL,
    message_id      BINARY(16) NOT NULL,
    message_name    VARBINARY(190) NOT NULL,
    failures        INTEGER NOT NULL,
    first_failed_at DATETIME(6) NOT NULL,
    next_attempt_at DATETIME(6) NOT NULL,
    last_error      TEXT NOT NULL,
    state           VARCHAR(16) NOT NULL DEFAULT 'retrying' CHECK (state IN ('retrying', 'parked')),
    policy          VARCHAR(16) NOT NULL DEFAULT 'block',
    PRIMARY KEY (transport, route, partition_key, row_id),
    KEY waybill_outbox_blocked_by_bucket (transport, bucket, partition_key),
    KEY waybill_outbox_blocked_by_due (transport, state, next_attempt_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Messages that are not due yet. Exactly one of transport and queue is set. A refused
-- one could not be promoted.
CREATE TABLE app.waybill_delayed (
    id            BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    refused       BOOLEAN NOT NULL DEFAULT FALSE,
    due_at        DATETIME(6) NOT NULL,
    transport     SMALLINT,
    queue         VARBINARY(190),
    message_id    BINARY(16) NOT NULL,
    message_name  VARBINARY(190) NOT NULL CHECK (message_name <> ''),
    partition_key VARBINARY(255) NOT NULL DEFAULT '',
    headers       JSON NOT NULL DEFAULT ('{}'),
    body          LONGBLOB NOT NULL,
    created_at    DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    KEY waybill_delayed_by_due_at (refused, due_at, id),
    CHECK ((transport IS NULL) <> (queue IS NULL))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Dead letters: messages that a relay has skipped (source outbox), and failed messages
-- of workers. A removed one keeps its place without body and headers. A worker's message
-- has one entry, however often it fails, which is retrying while a replay is in the retry
-- queue of its transport: worker_message_id is NULL for a relay's, so that only workers'
-- are unique.
CREATE TABLE app.waybill_failed (
    id                BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    source            VARCHAR(16) NOT NULL DEFAULT 'outbox' CHECK (source IN ('outbox', 'worker')),
    transport         VARBINARY(190) NOT NULL CHECK (transport <> ''),
    failure_transport VARBINARY(255) NOT NULL DEFAULT '',
    state             VARCHAR(16) NOT NULL CHECK (state IN ('skipped', 'failed', 'retrying', 'removed')),
    message_id        BINARY(16) NOT NULL,
    message_name      VARBINARY(190) NOT NULL,
    partition_key     VARBINARY(255) NOT NULL,
    headers           JSON NOT NULL,
    body              LONGBLOB NOT NULL,
    created_at        DATETIME(6) NOT NULL,
    failures          INTEGER NOT NULL,
    first_failed_at   DATETIME(6),
    failed_at         DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    last_error        TEXT NOT NULL,
    handler           VARCHAR(255) NOT NULL DEFAULT '',
    error_type        TEXT NOT NULL DEFAULT (''),
    fingerprint       VARCHAR(255) NOT NULL DEFAULT '',
    removed_at        DATETIME(6),
    worker_message_id BINARY(16) GENERATED ALWAYS AS (CASE WHEN source = 'worker' THEN message_id END) STORED,
    UNIQUE KEY waybill_failed_of_workers (transport, worker_message_id),
    KEY waybill_failed_by_key (partition_key),
    KEY waybill_failed_by_fingerprint (fingerprint)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The failed attempts of workers at a message, which is in the retry queue or a dead letter.
CREATE TABLE app.waybill_failed_attempt (
    transport   VARBINARY(190) NOT NULL,
    message_id  BINARY(16) NOT NULL,
    attempt     INTEGER NOT NULL,
    at          DATETIME(6) NOT NULL,
    worker      VARCHAR(255) NOT NULL,
    handler     VARCHAR(255) NOT NULL,
    error_type  TEXT NOT NULL,
    error       TEXT NOT NULL,
    stack       TEXT NOT NULL,
    fingerprint VARCHAR(255) NOT NULL,
    PRIMARY KEY (transport, message_id, attempt)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Changes by operators.
CREATE TABLE app.waybill_audit (
    id       BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at       DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    actor    VARCHAR(255) NOT NULL,
    action   VARCHAR(64) NOT NULL,
    filter   JSON NOT NULL,
    messages INTEGER NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- in_doubt is 1 where a handler's own statement has committed the entry, such as DDL:
-- part of the effect may be missing. It is in no index, because each message of a worker
-- changes it.
CREATE TABLE app.waybill_inbox (
    handler      VARBINARY(190) NOT NULL,
    dedup_key    VARBINARY(512) NOT NULL,
    message_id   BINARY(16) NOT NULL,
    processed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    in_doubt     TINYINT NOT NULL DEFAULT 0,
    PRIMARY KEY (handler, dedup_key),
    KEY waybill_inbox_by_processed_at (processed_at),
    KEY waybill_inbox_by_message_id (message_id)
) ENGINE = InnoDB;

-- Keys of messages that are dispatched once until expires_at. A row that only serves as a
-- lock has expired.
CREATE TABLE app.waybill_unique (
    dedup_key  VARBINARY(512) NOT NULL PRIMARY KEY,
    message_id BINARY(16) NOT NULL,
    expires_at DATETIME(6) NOT NULL,
    KEY waybill_unique_by_expires_at (expires_at)
) ENGINE = InnoDB;

-- held is 0 for claimable rows, 1 for rows in flight, 2 for rows set aside behind a row
-- of their key in flight. A row in flight is leased by holder until held_until, or waits
-- for a retry, without one. lease counts its holders, so that a late one cannot settle it.
-- A claim sets redelivered if the last holder has neither settled nor released the row.
-- held_until is NULL for claimable rows.
CREATE TABLE app.waybill_queue (
    id            BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    queue         VARBINARY(190) NOT NULL CHECK (queue <> ''),
    message_id    BINARY(16) NOT NULL,
    message_name  VARBINARY(190) NOT NULL CHECK (message_name <> ''),
    partition_key VARBINARY(255) NOT NULL DEFAULT '',
    headers       JSON NOT NULL DEFAULT ('{}'),
    body          LONGBLOB NOT NULL,
    created_at    DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    failures      INTEGER NOT NULL DEFAULT 0,
    held          SMALLINT NOT NULL DEFAULT 0 CHECK (held BETWEEN 0 AND 2),
    held_until    DATETIME(6),
    holder        BINARY(16),
    lease         BIGINT NOT NULL DEFAULT 0,
    redelivered   BOOLEAN NOT NULL DEFAULT FALSE,
    KEY waybill_queue_due (queue, held_until, held, id),
    KEY waybill_queue_held (queue, partition_key, held, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The retry queues of workers: queue is the name of the transport. The statements of
-- waybill_queue run on it, hence the same columns, and indexes of the same names. A parked
-- row is in flight without holder and held_until. crashes counts the leases under which
-- the handlers began and did not end; begun is the last lease under which they began.
CREATE TABLE app.waybill_retry LIKE app.waybill_queue;

ALTER TABLE app.waybill_retry
      ADD COLUMN crashes INTEGER NOT NULL DEFAULT 0,
      ADD COLUMN begun BIGINT NOT NULL DEFAULT 0,
      ADD UNIQUE KEY waybill_retry_ids (queue, message_id);

-- The last report of each relay, and of each process with workers, every few seconds. Those of workers have
-- their state as JSON in report, and no transport.
CREATE TABLE app.waybill_workers (
    id         BINARY(16) NOT NULL PRIMARY KEY,
    kind       VARCHAR(16) NOT NULL,
    transport  VARBINARY(190) NOT NULL,
    host       VARCHAR(255) NOT NULL,
    pid        INTEGER NOT NULL,
    started_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    seen_at    DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    problem    TEXT NOT NULL,
    since      DATETIME(6),
    report     MEDIUMTEXT,
    stop_requested_at DATETIME(6)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The transports whose workers an operator has paused: they receive no messages until a resume.
CREATE TABLE app.waybill_paused (
    transport VARBINARY(190) NOT NULL PRIMARY KEY,
    since     DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    actor     VARCHAR(255) NOT NULL,
    reason    TEXT NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Schedules: each tick up to done_until has been dispatched or skipped, last_tick is the last one dispatched.
-- requested_at is the time of an operator's request that waits to be sent.
CREATE TABLE app.waybill_schedule (
    name         VARBINARY(190) NOT NULL PRIMARY KEY,
    spec         VARBINARY(255) NOT NULL,
    missed       VARCHAR(16) NOT NULL,
    done_until   DATETIME(6) NOT NULL,
    last_tick    DATETIME(6),
    next_tick    DATETIME(6) NOT NULL,
    requested_at DATETIME(6)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Counts and latencies of a minute (since 1970), for the transport, message and handler; empty ones sum up. The
-- columns from within_1ms on count the times from dispatch to the end of handling, each up to the time of
-- its name and above that of the one before.
CREATE TABLE app.waybill_history (
    transport       VARBINARY(190) NOT NULL,
    message_name    VARBINARY(190) NOT NULL,
    handler         VARBINARY(190) NOT NULL,
    minute          BIGINT NOT NULL,
    dispatched      BIGINT NOT NULL,
    published       BIGINT NOT NULL,
    refused         BIGINT NOT NULL,
    handled         BIGINT NOT NULL,
    failed          BIGINT NOT NULL,
    retried         BIGINT NOT NULL,
    duplicates      BIGINT NOT NULL,
    skipped         BIGINT NOT NULL,
    publish_micros  BIGINT NOT NULL,
    handling_micros BIGINT NOT NULL,
    within_1ms      BIGINT NOT NULL,
    within_2ms      BIGINT NOT NULL,
    within_5ms      BIGINT NOT NULL,
    within_10ms     BIGINT NOT NULL,
    within_20ms     BIGINT NOT NULL,
    within_50ms     BIGINT NOT NULL,
    within_100ms    BIGINT NOT NULL,
    within_200ms    BIGINT NOT NULL,
    within_500ms    BIGINT NOT NULL,
    within_1s       BIGINT NOT NULL,
    within_2s       BIGINT NOT NULL,
    within_5s       BIGINT NOT NULL,
    within_10s      BIGINT NOT NULL,
    within_30s      BIGINT NOT NULL,
    within_1m       BIGINT NOT NULL,
    within_5m       BIGINT NOT NULL,
    within_15m      BIGINT NOT NULL,
    within_1h       BIGINT NOT NULL,
    within_6h       BIGINT NOT NULL,
    longer          BIGINT NOT NULL,
    PRIMARY KEY (transport, message_name, handler, minute),
    KEY waybill_history_by_minute (minute)
) ENGINE = InnoDB;

INSERT INTO app.waybill_outbox_gate (transport, bucket, name)
WITH RECURSIVE n (bucket) AS (SELECT -1 UNION ALL SELECT bucket + 1 FROM n WHERE bucket < 63)
SELECT transport, bucket, ''
FROM   n
JOIN   (SELECT 0 AS transport UNION ALL SELECT -1 UNION ALL SELECT -2) AS of_queues;

-- Writes one message and returns its id: the part that waybill_dispatch and its
-- friends share. The delay is in milliseconds; a message with one waits in
-- waybill_delayed, and takes no lock. The gate is locked by the statement that gives the id, so that
-- the order holds without an open transaction, too. Texts are compared by their
-- length where they may be empty: to some collations ' ' is ''.
CREATE PROCEDURE app.waybill_insert(IN p_transport TEXT CHARACTER SET utf8mb4,
                                    IN p_name TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
                                    IN p_key TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
                                    IN p_headers LONGTEXT CHARACTER SET utf8mb4,
                                    IN p_body LONGBLOB,
                                    IN p_delay BIGINT,
                                    OUT p_id CHAR(36) CHARACTER SET ascii)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_transports INT;
    DECLARE v_transport SMALLINT;
    DECLARE v_name VARBINARY(190);
    DECLARE v_buckets INT;
    DECLARE v_bucket SMALLINT;
    DECLARE v_gone BOOLEAN DEFAULT FALSE;
    DECLARE v_hex CHAR(32) CHARACTER SET ascii;
    DECLARE v_n INT DEFAULT 0;
    DECLARE v_header LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE v_value LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE v_error VARCHAR(128) CHARACTER SET utf8mb4;
    SELECT COUNT(*), MIN(t.id), MIN(t.name) INTO v_transports, v_transport, v_name
    FROM   waybill_transport AS t
    WHERE  p_transport IS NULL OR t.name = p_transport;
    IF p_key IS NULL OR p_headers IS NULL OR p_body IS NULL THEN
        SET v_error =
            'waybill: key, headers and body must not be NULL; an unordered message has the key ''''';
    ELSEIF v_transports > 1 THEN
        SET v_error =
            'waybill: there are several transports: CALL waybill_dispatch_to(transport, name, key, headers, body)';
    ELSEIF v_transports = 0 THEN
        SET v_error = CONCAT('waybill: unknown transport ', COALESCE(LEFT(p_transport, 60), ''),
                             ', see waybill_transport');
    ELSEIF p_name IS NULL OR LENGTH(p_name) NOT BETWEEN 1 AND 190 OR p_name REGEXP '[^A-Za-z0-9._-]' THEN
        SET v_error = CONCAT('waybill: ', COALESCE(LEFT(p_name, 40), 'NULL'),
                             ' is not a message name: 1 to 190 letters, digits, . _ and -');
    ELSEIF p_delay NOT BETWEEN 0 AND 100 * 365 * 86400000 THEN
        SET v_error = CONCAT('waybill: the delay is ', p_delay, ' ms, allowed are 0 to 100 years');
    ELSEIF LENGTH(p_key) > 255 THEN
        SET v_error = CONCAT('waybill: the key has ', LENGTH(p_key), ' bytes, allowed are 255');
    ELSEIF LOCATE(CHAR(0 USING utf8mb4), p_key) > 0 THEN
        SET v_error = 'waybill: the key has a NUL character';
    ELSEIF NOT JSON_VALID(p_headers) THEN
        SET v_error = 'waybill: headers must be a JSON object';
    ELSEIF JSON_TYPE(p_headers) <> 'OBJECT' THEN
        SET v_error = 'waybill: headers must be a JSON object';
    ELSEIF LENGTH(p_headers) > 65536 THEN
        SET v_error = CONCAT('waybill: headers have ', LENGTH(p_headers), ' bytes, allowed are 65536');
    ELSEIF LENGTH(p_body) > 0
           AND COALESCE(JSON_UNQUOTE(JSON_EXTRACT(p_headers, '$."content-type"')), 'application/json')
               = 'application/json'
           AND NOT COALESCE(JSON_VALID(CONVERT(p_body USING utf8mb4)), FALSE) THEN
        SET v_error = CONCAT('waybill: the body of ', LEFT(p_name, 24),
                             ' is not JSON, or nested too deep; name another kind in the header content-type');
    END IF;
    WHILE v_error IS NULL AND v_n < JSON_LENGTH(p_headers) DO
        SET v_value = JSON_EXTRACT(JSON_EXTRACT(p_headers, '$.*'), CONCAT('$[', v_n, ']'));
        SET v_header = JSON_UNQUOTE(JSON_EXTRACT(JSON_KEYS(p_headers), CONCAT('$[', v_n, ']')));
        SET v_n = v_n + 1;
        IF JSON_TYPE(v_value) <> 'STRING' THEN
            SET v_error = 'waybill: the values of headers must be strings, such as {"tenant": "acme"}';
        ELSEIF LENGTH(v_header) NOT BETWEEN 1 AND 255 OR v_header REGEXP '[^!#$%&''*+.^_`|~0-9A-Za-z-]' THEN
            SET v_error = CONCAT('waybill: "', LEFT(v_header, 40),
                                 '" is not the name of a header: 1 to 255 letters, digits, - and _');
        ELSEIF v_header NOT IN ('content-type', 'x-correlation-id', 'x-causation-id', 'x-idempotency-key')
               AND LOWER(v_header) REGEXP
                   CONCAT('^(content-type|type|user_id|expiration|cc|bcc|x-(first|last)-death-.*',
                          '|x-(correlation-id|causation-id|idempotency-key|handled-by|message-id|attempt',
                          '|partition-key|publish-no|dispatched-at|death|delivery-count|acquired-count))$') THEN
            SET v_error = CONCAT('waybill: the header ', LEFT(v_header, 60),
                                 ' belongs to waybill or the broker');
        ELSE
            SET v_value = JSON_UNQUOTE(v_value);
            IF LOCATE(CHAR(0 USING utf8mb4), v_value) > 0 OR v_value REGEXP
               CONCAT('[', CHAR(1 USING utf8mb4), '-', CHAR(8 USING utf8mb4), CHAR(10 USING utf8mb4), '-',
                      CHAR(31 USING utf8mb4), CHAR(127 USING utf8mb4), ']') THEN
                SET v_error = CONCAT('waybill: the value of the header ', LEFT(v_header, 60),
                                     ' has a control character');
            ELSEIF LENGTH(v_value) > 255 AND v_header IN
                   ('content-type', 'x-correlation-id', 'x-causation-id', 'x-idempotency-key') THEN
                SET v_error = CONCAT('waybill: the value of the header ', v_header, ' has ', LENGTH(v_value),
                                     ' bytes, allowed are 255');
            END IF;
        END IF;
    END WHILE;
    IF v_error IS NOT NULL THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_error;
    END IF;
    -- UUIDv7 of RFC 9562: 48 bits of milliseconds, version, random bits.
    SET v_hex = LOWER(CONCAT(LPAD(HEX(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000),
                                  12, '0'),
                             LEFT(SHA2(CONCAT(UUID(), RAND(), CONNECTION_ID()), 256), 20)));
    SET v_hex = INSERT(INSERT(v_hex, 13, 1, '7'), 17, 1, SUBSTRING('89ab', 1 + FLOOR(RAND() * 4), 1));
    IF p_delay > 0 THEN
        INSERT INTO waybill_delayed
               (due_at, transport, message_id, message_name, partition_key, headers, body)
        VALUES (UTC_TIMESTAMP(6) + INTERVAL 1000 * p_delay MICROSECOND,
                v_transport, UNHEX(v_hex), p_name, p_key, p_headers, p_body);
    ELSEIF LENGTH(p_key) = 0 THEN
        INSERT INTO waybill_outbox_unkeyed (transport, message_id, message_name, headers, body)
        VALUES (v_transport, UNHEX(v_hex), p_name, p_headers, p_body);
    ELSE
        -- The number of buckets is locked before the dispatch lock, as schema rebucket
        -- does. Outside a transaction both locks end with their statements: then the
        -- lock's name shows a number that has changed in between.
        SET v_n = 0;
        REPEAT
            BEGIN
                DECLARE CONTINUE HANDLER FOR 1048 SET v_gone = TRUE;
                SET v_n = v_n + 1, v_gone = FALSE;
                SELECT m.value INTO v_buckets
                FROM   waybill_meta AS m
                WHERE  m.name = 'buckets'
                LOCK   IN SHARE MODE;
                SET v_bucket = CONV(LEFT(SHA2(p_key, 256), 4), 16, 10) % v_buckets;
                INSERT INTO waybill_outbox
                       (transport, bucket, message_id, message_name, partition_key, headers, body)
                VALUES ((SELECT g.transport
                         FROM   waybill_outbox_gate AS g
                         WHERE  g.transport = v_transport AND g.bucket = v_bucket
                         AND    g.name = IF(v_buckets = 64, v_name, CONCAT(v_name, '/', v_buckets))
                         FOR    UPDATE),
                        v_bucket, UNHEX(v_hex), p_name, p_key, p_headers, p_body);
            END;
        UNTIL NOT v_gone OR v_n = 3 END REPEAT;
        IF v_gone THEN
            SIGNAL SQLSTATE '45000'
            SET MESSAGE_TEXT = 'waybill: the transport has no buckets: run `waybill schema up`';
        END IF;
    END IF;
    SET p_id = INSERT(INSERT(INSERT(INSERT(v_hex, 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-');
END;

-- Dispatches one message in the caller's transaction; the result set has its
-- id. Call it last: the key's bucket is locked until the transaction ends, and
-- several calls with different keys in one transaction can deadlock with another
-- transaction that has them in another order.
CREATE PROCEDURE app.waybill_dispatch(IN p_name TEXT CHARACTER SET utf8mb4,
                                      IN p_key TEXT CHARACTER SET utf8mb4,
                                      IN p_headers LONGTEXT CHARACTER SET utf8mb4,
                                      IN p_body LONGBLOB)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    CALL waybill_dispatch_later(NULL, p_name, p_key, p_headers, p_body, NULL);
END;

-- The same where the outbox has several transports.
CREATE PROCEDURE app.waybill_dispatch_to(IN p_transport TEXT CHARACTER SET utf8mb4,
                                         IN p_name TEXT CHARACTER SET utf8mb4,
                                         IN p_key TEXT CHARACTER SET utf8mb4,
                                         IN p_headers LONGTEXT CHARACTER SET utf8mb4,
                                         IN p_body LONGBLOB)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    CALL waybill_dispatch_later(p_transport, p_name, p_key, p_headers, p_body, NULL);
END;

-- The same after a delay in milliseconds.
CREATE PROCEDURE app.waybill_dispatch_later(IN p_transport TEXT CHARACTER SET utf8mb4,
                                            IN p_name TEXT CHARACTER SET utf8mb4,
                                            IN p_key TEXT CHARACTER SET utf8mb4,
                                            IN p_headers LONGTEXT CHARACTER SET utf8mb4,
                                            IN p_body LONGBLOB,
                                            IN p_delay BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_id CHAR(36) CHARACTER SET ascii;
    CALL waybill_insert(p_transport, p_name, p_key, p_headers, p_body, p_delay, v_id);
    SELECT v_id AS id;
END;

-- The same for several messages of one transaction, which must be open:
-- [{"name": ..., "key": ..., "headers": {...}, "body": base64}, ...]. The
-- transport may be NULL where there is one. The buckets are locked in ascending
-- order, so calls cannot deadlock. The result set has the ids in order.
-- A cursor reads the array once for the locks and once for the rows: to look up
-- element after element takes minutes for some thousands.
CREATE PROCEDURE app.waybill_dispatch_all(IN p_transport TEXT CHARACTER SET utf8mb4,
                                          IN p_messages LONGTEXT CHARACTER SET utf8mb4)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_transport SMALLINT;
    DECLARE v_n INT DEFAULT 0;
    DECLARE v_count INT;
    DECLARE v_bucket INT DEFAULT 0;
    DECLARE v_buckets INT;
    DECLARE v_taken TEXT CHARACTER SET ascii DEFAULT '';
    DECLARE v_name LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_key LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_headers LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_body LONGTEXT CHARACTER SET utf8mb4;
    DECLARE v_error VARCHAR(128) CHARACTER SET utf8mb4;
    DECLARE v_id CHAR(36) CHARACTER SET ascii;
    DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4 DEFAULT '';
    DECLARE c_messages CURSOR FOR
        SELECT j.name, j.of_key, j.headers, j.body
        FROM   JSON_TABLE(p_messages, '$[*]' COLUMNS (name JSON PATH '$.name', of_key JSON PATH '$.key',
                                                      headers JSON PATH '$.headers',
                                                      body JSON PATH '$.body')) AS j;
    IF CASE WHEN COALESCE(JSON_VALID(p_messages), FALSE) THEN JSON_TYPE(p_messages) <> 'ARRAY'
            ELSE TRUE END THEN
        SIGNAL SQLSTATE '45000'
        SET MESSAGE_TEXT =
            'waybill: messages must be a JSON array of objects with name, key, headers and body (base64)';
    END IF;
    SELECT MIN(t.id) INTO v_transport
    FROM   waybill_transport AS t
    WHERE  p_transport IS NULL OR t.name = p_transport;
    SELECT m.value INTO v_buckets
    FROM   waybill_meta AS m
    WHERE  m.name = 'buckets'
    LOCK   IN SHARE MODE;
    SET v_count = JSON_LENGTH(p_messages);
    OPEN c_messages;
    WHILE v_n < v_count DO
        FETCH c_messages INTO v_name, v_key, v_headers, v_body;
        SET v_n = v_n + 1;
        IF COALESCE(JSON_TYPE(v_name), '') <> 'STRING' OR COALESCE(JSON_TYPE(v_key), '') <> 'STRING'
           OR COALESCE(JSON_TYPE(v_body), '') <> 'STRING' THEN
            SET v_error = CONCAT('waybill: message ', v_n,
                                 ' of the array: name, key and body (base64) must be strings');
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_error;
        END IF;
        SET v_key = JSON_UNQUOTE(v_key);
        IF LENGTH(v_key) > 0 THEN
            SET v_bucket = CONV(LEFT(SHA2(v_key, 256), 4), 16, 10) % v_buckets;
            IF FIND_IN_SET(v_bucket, v_taken) = 0 THEN
                SET v_taken = CONCAT(v_taken, ',', v_bucket);
            END IF;
        END IF;
    END WHILE;
    CLOSE c_messages;
    SET v_bucket = 0;
    WHILE v_bucket < v_buckets DO
        IF FIND_IN_SET(v_bucket, v_taken) > 0 THEN
            SELECT COUNT(*) INTO v_n
            FROM   waybill_outbox_gate AS g
            WHERE  g.transport = v_transport AND g.bucket = v_bucket
            FOR    UPDATE;
        END IF;
        SET v_bucket = v_bucket + 1;
    END WHILE;
    OPEN c_messages;
    SET v_n = 0;
    WHILE v_n < v_count DO
        FETCH c_messages INTO v_name, v_key, v_headers, v_body;
        SET v_n = v_n + 1;
        CALL waybill_insert(p_transport, JSON_UNQUOTE(v_name), JSON_UNQUOTE(v_key), v_headers,
                                FROM_BASE64(JSON_UNQUOTE(v_body)), NULL, v_id);
        SET v_ids = CONCAT(v_ids, CASE WHEN v_n = 1 THEN '"' ELSE '","' END, v_id);
    END WHILE;
    CLOSE c_messages;
    SET v_ids = CASE WHEN v_n = 0 THEN '[]' ELSE CONCAT('[', v_ids, '"]') END;
    SELECT j.id
    FROM   JSON_TABLE(v_ids, '$[*]' COLUMNS (n FOR ORDINALITY, id CHAR(36) PATH '$')) AS j
    ORDER  BY j.n;
END;
