-- name: list
-- Without bodies. The list ?5 of numbers is null or empty for all.
SELECT id, state, transport, message_name, partition_key, message_id, created_at,
       failures, first_failed_at, failed_at, last_error, removed_at, length(body)
FROM   waybill_failed
WHERE  iif(?1 = '', state <> 'removed', state = ?1)
AND    (?2 = '' OR transport = ?2) AND (?3 = '' OR partition_key = ?3) AND (?4 = '' OR message_name = ?4)
AND    (?5 IN ('null', '[]') OR id IN (SELECT value FROM json_each(?5))) AND id > ?6
ORDER  BY id LIMIT ?7;

-- name: content
SELECT headers, body FROM waybill_failed WHERE id = ?;

-- name: take
-- A skipped message that is dispatched again, in the same transaction.
DELETE FROM waybill_failed WHERE id = ? AND state = 'skipped'
RETURNING transport, message_id, message_name, partition_key, headers, body, created_at;

-- name: remove
-- The row stays, as a record of the missing message.
UPDATE waybill_failed SET state = 'removed', body = x'', headers = '{}',
       removed_at = CAST(unixepoch('subsec') * 1000000 AS INTEGER)
WHERE  id IN (SELECT value FROM json_each(?)) AND state = 'skipped';
