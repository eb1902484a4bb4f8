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

-- name: lookup
SELECT handler, dedup_key, message_id, processed_at FROM waybill_inbox
WHERE  message_id = ?1 OR dedup_key = ?2 ORDER BY processed_at, handler;

-- name: count_older
SELECT count(*) FROM waybill_inbox WHERE processed_at < ?;

-- name: prune
-- A small batch, so that writers wait for milliseconds.
DELETE FROM waybill_inbox WHERE (handler, dedup_key) IN (
    SELECT handler, dedup_key FROM waybill_inbox WHERE processed_at < ? ORDER BY processed_at LIMIT ?);
