-- Queues. Rows are looked up, and locked, one by one by their ids, in ascending order:
-- for WHERE id IN the optimizer may read the whole table, and wait for other
-- transactions' rows, or deadlock with them. MySQL refuses to lock a JSON_TABLE and needs
-- the OF that MariaDB does not know.

-- name: turn
-- Claims of a queue take turns, so that none sees a key free that another is
-- just taking. A separate statement: the next one sees the commit of the last
-- claim.
SELECT g.bucket
FROM   app.waybill_outbox_gate AS g
WHERE  g.transport = -1 AND g.bucket = ?
FOR    UPDATE;

-- name: free
-- Rows to lease, oldest first. A key with a leased row, or whose head waits
-- for a retry, is left alone, so that it keeps its order.
SELECT c.id
FROM   app.waybill_queue AS c FORCE INDEX (waybill_queue_by_queue)
WHERE  c.queue = ? AND (c.held_until IS NULL OR c.held_until <= UTC_TIMESTAMP(6))
AND   (c.partition_key = ''
       OR NOT EXISTS (SELECT 1
                      FROM   app.waybill_queue AS h FORCE INDEX (waybill_queue_held)
                      WHERE  h.queue = c.queue AND h.partition_key = c.partition_key
                      AND    h.held_until > UTC_TIMESTAMP(6)))
ORDER  BY c.id
LIMIT  ?;

-- name: lock
SELECT q.id, COALESCE(q.held_until > UTC_TIMESTAMP(6), FALSE), q.message_id, q.message_name, q.partition_key,
       q.headers, q.body, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', q.created_at), q.failures, q.lease + 1
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
ORDER  BY q.id
FOR    UPDATE /*!80000 OF q */;

-- name: lease
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
SET    q.held_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, q.holder = UNHEX(?), q.lease = q.lease + 1;

-- name: leases
-- Locks the rows of one holder.
SELECT q.id, q.lease
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
WHERE  q.holder = UNHEX(?)
ORDER  BY q.id
FOR    UPDATE /*!80000 OF q */;

-- name: ack
DELETE q
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id;

-- name: release
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
SET    q.held_until = NULL, q.holder = NULL;

-- name: retry
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
SET    q.failures = q.failures + 1, q.headers = ?, q.holder = NULL,
       q.held_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND;

-- name: renew
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_queue AS q FORCE INDEX (PRIMARY) ON q.id = k.id
SET    q.held_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND;
