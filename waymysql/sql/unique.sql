-- name: lock
-- Locks the row of a key until the transaction ends, so that others with the key wait. That
-- of a free key has expired: should the transaction lose its messages, the key is free.
INSERT INTO app.waybill_unique (dedup_key, message_id, expires_at)
VALUES (?, REPEAT(X'00', 16), '1970-01-02 00:00:00')
ON     DUPLICATE KEY UPDATE message_id = message_id;

-- name: holder
-- The message that has a locked key, as it is now and not as the transaction's snapshot
-- has it.
SELECT message_id, expires_at > UTC_TIMESTAMP(6)
FROM   app.waybill_unique
WHERE  dedup_key = ?
FOR    UPDATE;

-- name: confirm
-- Gives a locked key to a message.
UPDATE app.waybill_unique
SET    message_id = UNHEX(?), expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
WHERE  dedup_key = ?;

-- name: old
-- A small batch; keys that a dispatcher has locked are for the next one.
SELECT dedup_key
FROM   app.waybill_unique FORCE INDEX (waybill_unique_by_expires_at)
WHERE  expires_at <= UTC_TIMESTAMP(6)
ORDER  BY expires_at
LIMIT  ?
FOR    UPDATE SKIP LOCKED;

-- name: delete_old
-- Row by row of the primary key. The condition is the next statement, joined by OR.
DELETE u
FROM   app.waybill_unique AS u FORCE INDEX (PRIMARY)
WHERE  ?;

-- name: key
u.dedup_key = ?;
