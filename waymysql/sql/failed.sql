-- Dead letters: messages that were skipped by a relay, or failed in a worker.

-- name: list
-- Without bodies.
SELECT id, state, transport, message_name, partition_key, message_id,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at), failures,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', first_failed_at),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', failed_at), last_error,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', removed_at), LENGTH(body), source, failure_transport,
       handler, error_type, fingerprint
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
WHERE  f.state IN ('skipped', 'failed');

-- name: replayable
-- Locks workers' messages that are not in their retry queues. An entry whose row there was deleted by hand is
-- one of them.
SELECT f.id
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_failed AS f FORCE INDEX (PRIMARY) ON f.id = k.id
WHERE  f.source = 'worker'
AND   (f.state = 'failed'
       OR f.state = 'retrying'
       AND NOT EXISTS (SELECT 1 FROM app.waybill_retry AS q
                       WHERE q.queue = f.transport AND q.message_id = f.message_id))
FOR    UPDATE /*!80000 OF f */;

-- name: retrying
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_failed AS f FORCE INDEX (PRIMARY) ON f.id = k.id
SET    f.state = 'retrying';

-- name: replay
-- Their failures begin anew. A message that is in its retry queue already stays as it is there.
INSERT IGNORE INTO app.waybill_retry
       (queue, message_id, message_name, partition_key, headers, body, created_at)
SELECT f.transport, f.message_id, f.message_name, f.partition_key, f.headers, f.body, f.created_at
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_failed AS f FORCE INDEX (PRIMARY) ON f.id = k.id
ORDER  BY f.id;
