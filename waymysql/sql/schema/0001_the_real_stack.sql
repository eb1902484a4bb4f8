-- The tables of waybill on MySQL and MariaDB. docs/schema.md says what each
-- column means and what a producer in another language writes. Keys and names
-- compare bytewise in every database: VARBINARY neither pads nor folds.

CREATE TABLE app.waybill_meta (
    name  VARCHAR(64) NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Dispatchers and relays must agree on both, whatever language they are in.
INSERT INTO app.waybill_meta (name, value) VALUES ('buckets', '64'), ('hash', 'sha256-2');

-- A lane is a target transport. blocked_version changes with every change of
-- the lane's blocked keys and routes.
CREATE TABLE app.waybill_outbox_lane (
    id              SMALLINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name            VARBINARY(190) NOT NULL UNIQUE CHECK (name <> ''),
    blocked_version BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row for each bucket of each lane. A relay locks them while it publishes;
-- nobody writes them.
CREATE TABLE app.waybill_outbox_bucket (
    lane   SMALLINT NOT NULL,
    bucket SMALLINT NOT NULL,
    PRIMARY KEY (lane, bucket)
) ENGINE = InnoDB;

-- The same for dispatchers, who must not wait for a publish. Bucket -1, of
-- messages without a key, is never locked; lane 0 is that of the queues, and its
-- bucket -1 that of who moves delayed messages; the rows of lane -1 are those of
-- who claims from a queue. The name shows a dispatcher that
-- lane and database are the ones it means.
CREATE TABLE app.waybill_outbox_gate (
    lane   SMALLINT NOT NULL,
    bucket SMALLINT NOT NULL,
    name   VARBINARY(200) NOT NULL,
    PRIMARY KEY (lane, bucket)
) ENGINE = InnoDB;

-- Ids are commit-ordered inside a bucket, because a dispatcher holds the
-- bucket's gate from before its id is given to its commit. Bucket -1 has the
-- messages without a key, which have no order. The key on id is there because
-- AUTO_INCREMENT needs one. Where sql_mode is not strict, NULL among several rows
-- becomes 0, which is nobody's lane.
CREATE TABLE app.waybill_outbox (
    lane          SMALLINT NOT NULL CHECK (lane > 0),
    bucket        SMALLINT NOT NULL,
    id            BIGINT NOT NULL AUTO_INCREMENT,
    message_id    BINARY(16) NOT NULL,
    message_name  VARBINARY(190) NOT NULL CHECK (message_name <> ''),
    partition_key VARBINARY(255) NOT NULL DEFAULT '',
    headers       JSON NOT NULL DEFAULT ('{}') CHECK (JSON_TYPE(headers) = 'OBJECT'),
    body          LONGBLOB NOT NULL,
    created_at    DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (lane, bucket, id),
    KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What a broker refuses: a key (row_id 0), a message without key (its row_id),
-- or a route, that is all messages of a name (bucket -2, row_id 0).
CREATE TABLE app.waybill_outbox_blocked (
    lane            SMALLINT NOT NULL,
    route           VARBINARY(190) NOT NULL DEFAULT '',
    partition_key   VARBINARY(255) NOT NULL DEFAULT '',
    row_id          BIGINT NOT NULL DEFAULT 0,
    bucket          SMALLINT NOT NULL,
    message_id      BINARY(16) NOT NULL,
    message_name    VARBINARY(190) NOT NULL,
    failures        INTEGER NOT NULL,
    first_failed_at DATETIME(6) NOT NULL,
    next_attempt_at DATETIME(6) NOT NULL,
    last_error      TEXT NOT NULL,
    PRIMARY KEY (lane, route, partition_key, row_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Messages that are not due yet. Exactly one of lane and queue is set: where
-- the message goes when it is due.
CREATE TABLE app.waybill_delayed (
    id            BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    due_at        DATETIME(6) NOT NULL,
    lane          SMALLINT,
    queue         VARBINARY(190),
    bucket        SMALLINT NOT NULL,
    message_id    BINARY(16) NOT NULL,
    message_name  VARBINARY(190) NOT NULL CHECK (message_name <> ''),
    partition_key VARBINARY(255) NOT NULL DEFAULT '',
    headers       JSON NOT NULL DEFAULT ('{}'),
    body          LONGBLOB NOT NULL,
    created_at    DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    KEY waybill_delayed_by_due_at (due_at, id),
    CHECK ((lane IS NULL) <> (queue IS NULL))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- processed_at is NULL where a handler's own statement has committed the entry,
-- such as DDL: nobody knows how much of the effect has happened.
CREATE TABLE app.waybill_inbox (
    handler      VARBINARY(190) NOT NULL,
    dedup_key    VARBINARY(512) NOT NULL,
    message_id   BINARY(16) NOT NULL,
    processed_at DATETIME(6) DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (handler, dedup_key),
    KEY waybill_inbox_by_processed_at (processed_at),
    KEY waybill_inbox_by_message_id (message_id)
) ENGINE = InnoDB;

-- A row is held until held_until: by holder, or by nobody while it waits for a
-- retry. lease counts its holders, so that a late one cannot settle it.
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
    held_until    DATETIME(6),
    holder        BINARY(16),
    lease         BIGINT NOT NULL DEFAULT 0,
    KEY waybill_queue_by_queue (queue, id),
    KEY waybill_queue_held (queue, partition_key, held_until)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What relays say of themselves, each every few seconds.
CREATE TABLE app.waybill_workers (
    id         BINARY(16) NOT NULL PRIMARY KEY,
    kind       VARCHAR(16) NOT NULL,
    transport  VARBINARY(190) NOT NULL,
    host       VARCHAR(255) NOT NULL,
    pid        INTEGER NOT NULL,
    started_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    seen_at    DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    problem    TEXT NOT NULL,
    since      DATETIME(6)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT INTO app.waybill_outbox_gate (lane, bucket, name)
WITH RECURSIVE n (bucket) AS (SELECT -1 UNION ALL SELECT bucket + 1 FROM n WHERE bucket < 63)
SELECT lane, bucket, '' FROM n JOIN (SELECT 0 AS lane UNION ALL SELECT -1) AS of_queues;

-- Writes one message and returns its id: what waybill_dispatch and its friends
-- are made of. The gate is locked by the statement that gives the id, so that
-- the order holds without an open transaction, too. Texts are compared by their
-- length where they may be empty: to some collations ' ' is ''.
CREATE PROCEDURE app.waybill_insert(IN p_transport TEXT CHARACTER SET utf8mb4, IN p_name TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, IN p_key TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
                                    IN p_headers LONGTEXT CHARACTER SET utf8mb4, IN p_body LONGBLOB, OUT p_id CHAR(36) CHARACTER SET ascii)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_lanes INT;
    DECLARE v_lane SMALLINT;
    DECLARE v_bucket SMALLINT DEFAULT -1;
    DECLARE v_hex CHAR(32) CHARACTER SET ascii;
    DECLARE v_n INT DEFAULT 0;
    DECLARE v_error VARCHAR(128) CHARACTER SET utf8mb4;
    SELECT COUNT(*), MIN(l.id) INTO v_lanes, v_lane FROM app.waybill_outbox_lane AS l WHERE p_transport IS NULL OR l.name = p_transport;
    IF p_key IS NULL OR p_headers IS NULL OR p_body IS NULL THEN
        SET v_error = 'waybill: key, headers and body must not be NULL; an unordered message has the key ''''';
    ELSEIF v_lanes > 1 THEN
        SET v_error = 'waybill: there are several transports: CALL waybill_dispatch_to(transport, name, key, headers, body)';
    ELSEIF v_lanes = 0 THEN
        SET v_error = CONCAT('waybill: unknown transport ', COALESCE(LEFT(p_transport, 60), ''), ', see waybill_outbox_lane');
    ELSEIF p_name IS NULL OR LENGTH(p_name) NOT BETWEEN 1 AND 190 OR p_name REGEXP '[^A-Za-z0-9._-]' THEN
        SET v_error = CONCAT('waybill: ', COALESCE(LEFT(p_name, 40), 'NULL'), ' is not a message name: 1 to 190 letters, digits, . _ and -');
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
    END IF;
    WHILE v_error IS NULL AND v_n < JSON_LENGTH(p_headers) DO
        IF JSON_TYPE(JSON_EXTRACT(JSON_EXTRACT(p_headers, '$.*'), CONCAT('$[', v_n, ']'))) <> 'STRING' THEN
            SET v_error = 'waybill: the values of headers must be strings, such as {"tenant": "acme"}';
        END IF;
        SET v_n = v_n + 1;
    END WHILE;
    IF v_error IS NOT NULL THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_error;
    END IF;
    -- UUIDv7 of RFC 9562: 48 bits of milliseconds, version, random bits.
    SET v_hex = LOWER(CONCAT(LPAD(HEX(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000), 12, '0'),
                             LEFT(SHA2(CONCAT(UUID(), RAND(), CONNECTION_ID()), 256), 20)));
    SET v_hex = INSERT(INSERT(v_hex, 13, 1, '7'), 17, 1, SUBSTRING('89ab', 1 + FLOOR(RAND() * 4), 1));
    IF LENGTH(p_key) = 0 THEN
        INSERT INTO app.waybill_outbox (lane, bucket, message_id, message_name, partition_key, headers, body)
        VALUES (v_lane, -1, UNHEX(v_hex), p_name, p_key, p_headers, p_body);
    ELSE
        SET v_bucket = CONV(LEFT(SHA2(p_key, 256), 4), 16, 10) % (SELECT m.value FROM app.waybill_meta AS m WHERE m.name = 'buckets');
        INSERT INTO app.waybill_outbox (lane, bucket, message_id, message_name, partition_key, headers, body)
        VALUES ((SELECT g.lane FROM app.waybill_outbox_gate AS g WHERE g.lane = v_lane AND g.bucket = v_bucket FOR UPDATE),
                v_bucket, UNHEX(v_hex), p_name, p_key, p_headers, p_body);
    END IF;
    SET p_id = INSERT(INSERT(INSERT(INSERT(v_hex, 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-');
END;

-- Dispatches one message in the caller's transaction; the result set has its
-- id. Call it last: the key's bucket is locked until the transaction ends, and
-- several calls with different keys in one transaction can deadlock with another
-- transaction that has them in another order.
CREATE PROCEDURE app.waybill_dispatch(IN p_name TEXT CHARACTER SET utf8mb4, IN p_key TEXT CHARACTER SET utf8mb4, IN p_headers LONGTEXT CHARACTER SET utf8mb4, IN p_body LONGBLOB)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_id CHAR(36) CHARACTER SET ascii;
    CALL app.waybill_insert(NULL, p_name, p_key, p_headers, p_body, v_id);
    SELECT v_id AS id;
END;

-- The same where the outbox has several transports.
CREATE PROCEDURE app.waybill_dispatch_to(IN p_transport TEXT CHARACTER SET utf8mb4, IN p_name TEXT CHARACTER SET utf8mb4, IN p_key TEXT CHARACTER SET utf8mb4,
                                         IN p_headers LONGTEXT CHARACTER SET utf8mb4, IN p_body LONGBLOB)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_id CHAR(36) CHARACTER SET ascii;
    CALL app.waybill_insert(p_transport, p_name, p_key, p_headers, p_body, v_id);
    SELECT v_id AS id;
END;

-- The same for several messages of one transaction, which must be open:
-- [{"name": ..., "key": ..., "headers": {...}, "body": base64}, ...]. The
-- transport may be NULL where there is one. The buckets are locked in ascending
-- order, so it cannot deadlock with others. The result set has the ids in order.
-- A cursor reads the array once for the locks and once for the rows: to look up
-- element after element takes minutes for some thousands.
CREATE PROCEDURE app.waybill_dispatch_all(IN p_transport TEXT CHARACTER SET utf8mb4, IN p_messages LONGTEXT CHARACTER SET utf8mb4)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_lane SMALLINT;
    DECLARE v_n INT DEFAULT 0;
    DECLARE v_count INT;
    DECLARE v_bucket INT DEFAULT 0;
    DECLARE v_buckets INT DEFAULT (SELECT m.value FROM app.waybill_meta AS m WHERE m.name = 'buckets');
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
        FROM   JSON_TABLE(p_messages, '$[*]' COLUMNS (n FOR ORDINALITY, name JSON PATH '$.name', of_key JSON PATH '$.key', headers JSON PATH '$.headers', body JSON PATH '$.body')) AS j
        ORDER  BY j.n;
    IF NOT COALESCE(JSON_VALID(p_messages), FALSE) OR NOT p_messages REGEXP '^[[:space:]]*[[]' THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'waybill: messages must be a JSON array of objects with name, key, headers and body (base64)';
    END IF;
    SELECT MIN(l.id) INTO v_lane FROM app.waybill_outbox_lane AS l WHERE p_transport IS NULL OR l.name = p_transport;
    SET v_count = JSON_LENGTH(p_messages);
    OPEN c_messages;
    WHILE v_n < v_count DO
        FETCH c_messages INTO v_name, v_key, v_headers, v_body;
        SET v_n = v_n + 1;
        IF COALESCE(JSON_TYPE(v_name), '') <> 'STRING' OR COALESCE(JSON_TYPE(v_key), '') <> 'STRING' OR COALESCE(JSON_TYPE(v_body), '') <> 'STRING' THEN
            SET v_error = CONCAT('waybill: message ', v_n, ' of the array: name, key and body (base64) must be strings');
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
            SELECT COUNT(*) INTO v_n FROM app.waybill_outbox_gate AS g WHERE g.lane = v_lane AND g.bucket = v_bucket FOR UPDATE;
        END IF;
        SET v_bucket = v_bucket + 1;
    END WHILE;
    OPEN c_messages;
    SET v_n = 0;
    WHILE v_n < v_count DO
        FETCH c_messages INTO v_name, v_key, v_headers, v_body;
        SET v_n = v_n + 1;
        CALL app.waybill_insert(p_transport, JSON_UNQUOTE(v_name), JSON_UNQUOTE(v_key), v_headers, FROM_BASE64(JSON_UNQUOTE(v_body)), v_id);
        SET v_ids = CONCAT(v_ids, CASE WHEN v_n = 1 THEN '"' ELSE '","' END, v_id);
    END WHILE;
    CLOSE c_messages;
    SET v_ids = CASE WHEN v_n = 0 THEN '[]' ELSE CONCAT('[', v_ids, '"]') END;
    SELECT j.id FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (n FOR ORDINALITY, id CHAR(36) PATH '$')) AS j ORDER BY j.n;
END;
