-- name: claim
-- Remembers a handler's effect in the handler's own transaction. A duplicate
-- key means that it has happened before. In a unit of work the entry is in doubt
-- until the unit is over, so that a statement which commits on its own cannot
-- make it look like an effect that has happened.
INSERT INTO app.waybill_inbox
       (handler, dedup_key, message_id, in_doubt)
VALUES (?, ?, UNHEX(?), ?);

-- name: processed
UPDATE app.waybill_inbox
SET    in_doubt = 0
WHERE  handler = ? AND dedup_key = ?;

-- name: mark
INSERT IGNORE INTO app.waybill_inbox (handler, dedup_key, message_id) VALUES (?, ?, UNHEX(?));

-- name: in_doubt
-- Whether an entry was committed by a statement of its handler, as it is now and
-- not as the transaction's snapshot has it.
SELECT in_doubt
FROM   app.waybill_inbox
WHERE  handler = ? AND dedup_key = ?
LOCK   IN SHARE MODE;

-- name: seen
SELECT EXISTS (SELECT 1 FROM app.waybill_inbox WHERE handler = ? AND dedup_key = ?);

-- name: stats
SELECT handler, COUNT(*),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(processed_at)),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MAX(processed_at))
FROM   app.waybill_inbox
GROUP  BY handler
ORDER  BY handler;

-- name: handlers
SELECT DISTINCT handler FROM app.waybill_inbox;

-- name: next_key
-- The first idempotency key of a handler (k:NAME/KEY) from some on. Constants make it a range of the primary key.
SELECT MIN(dedup_key) FROM app.waybill_inbox WHERE handler = ? AND dedup_key >= ? AND dedup_key < 'k;';

-- name: lookup
-- By message id, and by dedup keys.
SELECT handler, dedup_key, message_id,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', IF(in_doubt, '1970-01-01', processed_at))
FROM   app.waybill_inbox
WHERE  message_id = UNHEX(?)
UNION
SELECT i.handler, i.dedup_key, i.message_id,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', IF(i.in_doubt, '1970-01-01', i.processed_at))
FROM   JSON_TABLE(?, '$[*]' COLUMNS (handler VARCHAR(380) PATH '$[0]', dedup_key VARCHAR(1024) PATH '$[1]')) AS k
STRAIGHT_JOIN app.waybill_inbox AS i FORCE INDEX (PRIMARY)
       ON i.handler = UNHEX(k.handler) AND i.dedup_key = UNHEX(k.dedup_key)
ORDER  BY 4, 1;

-- name: entries
-- The latest certain entries behind one, newest first, of a handler or of all.
SELECT h.handler, h.dedup_key, h.message_id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', h.processed_at)
FROM  (SELECT handler, dedup_key, message_id, processed_at
       FROM   app.waybill_inbox FORCE INDEX (waybill_inbox_by_processed_at)
       WHERE  processed_at <= ?
       AND   (processed_at < ? OR handler < ? OR handler = ? AND dedup_key < ?)
       AND    in_doubt = 0
       ORDER  BY processed_at DESC, handler DESC, dedup_key DESC
       LIMIT  ?) AS h
WHERE  ? IN ('', h.handler)
ORDER  BY h.processed_at DESC, h.handler DESC, h.dedup_key DESC
LIMIT  ?;

-- name: count_older
SELECT COUNT(*)
FROM   app.waybill_inbox
WHERE  processed_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
AND    in_doubt = 0;

-- name: old
-- A small batch, so that handlers wait for milliseconds; locked rows are for the
-- next one.
SELECT handler, dedup_key
FROM   app.waybill_inbox FORCE INDEX (waybill_inbox_by_processed_at)
WHERE  processed_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
AND    in_doubt = 0
ORDER  BY processed_at
LIMIT  ?
FOR    UPDATE SKIP LOCKED;

-- name: delete_old
-- Row by row of the primary key: on any other way it would wait for handlers. The
-- condition is the next statement, joined by OR.
DELETE i
FROM   app.waybill_inbox AS i FORCE INDEX (PRIMARY)
WHERE  ?;

-- name: entry
i.handler = ? AND i.dedup_key = ?;

-- name: record_retention
-- The longest retention of an application counts, in seconds.
INSERT INTO app.waybill_meta (name, value)
VALUES ('inbox_retention', ?)
ON     DUPLICATE KEY UPDATE value = IF(CAST(value AS UNSIGNED) < ?, ?, value);

-- name: set_retention
REPLACE INTO app.waybill_meta (name, value) VALUES ('inbox_retention', ?);

-- name: retention
SELECT COALESCE((SELECT CAST(value AS UNSIGNED) FROM app.waybill_meta WHERE name = 'inbox_retention'), 0);
