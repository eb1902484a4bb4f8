-- Dead letters: messages that were skipped.

-- name: list
-- Without bodies.
SELECT id, state, transport, message_name, partition_key, message_id,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at), failures,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', first_failed_at),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', failed_at), last_error,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', removed_at), LENGTH(body)
FROM   app.waybill_failed
WHERE  CASE WHEN ? = '' THEN state <> 'removed' ELSE state = ? END
AND   (? = '' OR transport = ?) AND (? = '' OR partition_key = ?) AND (? = '' OR message_name = ?)
AND   (? = '' OR FIND_IN_SET(id, ?)) AND id > ?
ORDER  BY id
LIMIT  ?;

-- name: content
SELECT headers, body FROM app.waybill_failed WHERE id = ?;

-- name: skipped
-- A skipped message that is dispatched again, and deleted here, in one transaction.
SELECT transport, message_id, message_name, partition_key, headers, body,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at)
FROM   app.waybill_failed
WHERE  id = ? AND state = 'skipped'
FOR    UPDATE;

-- name: delete_skipped
DELETE FROM app.waybill_failed WHERE id = ?;

-- name: remove
-- The other columns stay, as a record of the missing message.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_failed AS f FORCE INDEX (PRIMARY) ON f.id = k.id
SET    f.state = 'removed', f.body = '', f.headers = '{}', f.removed_at = UTC_TIMESTAMP(6)
WHERE  f.state = 'skipped';
