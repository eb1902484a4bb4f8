-- name: lock
-- The message that has a key at the time ?2. The row of a free key has expired: it has the transaction
-- begin to write, and confirm has something to update.
INSERT INTO waybill_unique AS u (dedup_key, message_id, expires_at)
VALUES (?1, zeroblob(16), 0)
ON     CONFLICT (dedup_key) DO UPDATE SET dedup_key = excluded.dedup_key
RETURNING message_id, expires_at > ?2;

-- name: confirm
-- Gives a locked key to a message, until ?3.
UPDATE waybill_unique SET message_id = ?2, expires_at = ?3 WHERE dedup_key = ?1;

-- name: prune
-- A small batch, so that writers wait for milliseconds.
DELETE FROM waybill_unique WHERE dedup_key IN (
    SELECT dedup_key FROM waybill_unique WHERE expires_at <= ? ORDER BY expires_at LIMIT ?);
