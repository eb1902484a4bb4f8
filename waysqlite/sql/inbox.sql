-- name: claim
-- Remembers a handler's effect in the handler's own transaction. No row changed
-- means that it has happened before.
INSERT INTO waybill_inbox (handler, dedup_key, message_id, processed_at)
VALUES (?, ?, ?, CAST(unixepoch('subsec') * 1000000 AS INTEGER)) ON CONFLICT (handler, dedup_key) DO NOTHING;

-- name: seen
SELECT EXISTS (SELECT 1 FROM waybill_inbox WHERE handler = ? AND dedup_key = ?);

-- name: stats
SELECT handler, count(*), min(processed_at), max(processed_at) FROM waybill_inbox
GROUP  BY handler ORDER BY handler;

-- name: entries
-- The latest entries behind (?1, ?2, ?3), newest first, of handler ?4 or of all. ?6 entries are looked at.
SELECT handler, dedup_key, message_id, processed_at
FROM  (SELECT handler, dedup_key, message_id, processed_at
       FROM   waybill_inbox
       WHERE (processed_at, handler, dedup_key) < (?1, ?2, ?3)
       ORDER  BY processed_at DESC, handler DESC, dedup_key DESC
       LIMIT  ?6)
WHERE  ?4 IN ('', handler)
ORDER  BY processed_at DESC, handler DESC, dedup_key DESC
LIMIT  ?5;

-- name: lookup
-- By message id (?1, and ?3 as text), or by idempotency key under any message name (k:NAME/KEY). The handlers
-- and names that there are, each found behind the one before, make the key an entry of the primary key: 0
-- follows the slash.
WITH RECURSIVE handlers (handler) AS (
    SELECT min(handler) FROM waybill_inbox
    UNION  ALL
    SELECT (SELECT min(i.handler) FROM waybill_inbox AS i WHERE i.handler > h.handler)
    FROM   handlers AS h WHERE h.handler IS NOT NULL),
found (handler, dedup_key) AS (
    SELECT h.handler, (SELECT min(i.dedup_key) FROM waybill_inbox AS i
                       WHERE  i.handler = h.handler AND i.dedup_key >= 'k:' AND i.dedup_key < 'k;')
    FROM   handlers AS h WHERE h.handler IS NOT NULL
    UNION  ALL
    SELECT f.handler, (SELECT min(i.dedup_key) FROM waybill_inbox AS i
                       WHERE  i.handler = f.handler AND i.dedup_key < 'k;' AND i.dedup_key
                              >= substr(f.dedup_key, 1, instr(f.dedup_key || '/', '/') - 1) || '0')
    FROM   found AS f WHERE f.dedup_key IS NOT NULL)
SELECT * FROM (
       SELECT handler, dedup_key, message_id, processed_at FROM waybill_inbox
       WHERE  message_id = ?1 AND dedup_key >= 'k:' AND dedup_key < 'k;'
       UNION
       SELECT i.handler, i.dedup_key, i.message_id, i.processed_at
       FROM   handlers AS h CROSS JOIN waybill_inbox AS i
       WHERE  i.handler = h.handler AND i.dedup_key = ?3
       UNION
       SELECT i.handler, i.dedup_key, i.message_id, i.processed_at
       FROM   found AS f CROSS JOIN waybill_inbox AS i
       WHERE  i.handler = f.handler
       AND    i.dedup_key = substr(f.dedup_key, 1, instr(f.dedup_key || '/', '/')) || ?2)
ORDER  BY processed_at, handler;

-- name: count_older
SELECT count(*) FROM waybill_inbox WHERE processed_at < ?;

-- name: prune
-- A small batch, so that writers wait for milliseconds.
DELETE FROM waybill_inbox WHERE (handler, dedup_key) IN (
    SELECT handler, dedup_key FROM waybill_inbox WHERE processed_at < ? ORDER BY processed_at LIMIT ?);

-- name: record_retention
-- The longest retention of an application counts, in seconds.
INSERT INTO waybill_meta AS m (name, value)
VALUES ('inbox_retention', CAST(?1 AS TEXT))
ON     CONFLICT (name) DO UPDATE SET value = excluded.value
WHERE  CAST(m.value AS INTEGER) < CAST(excluded.value AS INTEGER);

-- name: set_retention
INSERT INTO waybill_meta (name, value)
VALUES ('inbox_retention', CAST(?1 AS TEXT))
ON     CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: retention
SELECT coalesce((SELECT CAST(value AS INTEGER) FROM waybill_meta WHERE name = 'inbox_retention'), 0);
