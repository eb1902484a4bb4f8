-- How keys are parked, messages skipped, and parked keys released. See
-- docs/schema.md. Whatever changes what is blocked begins with the lane's row. Ids
-- are those of a JSON array in ascending order: what is joined to it is looked up,
-- and locked, row by row.

-- name: park
-- After block. A parked key is never due.
UPDATE app.waybill_outbox_blocked SET state = 'parked', next_attempt_at = '9999-12-31', release_at = NULL
WHERE  lane = ? AND route = '' AND partition_key = ? AND row_id = 0;

-- name: rows_of_key
-- The first rows of a key that are in the outbox. Who reads them has the bucket's
-- lock, so there are none before them.
SELECT e.id FROM app.waybill_outbox AS e FORCE INDEX (PRIMARY) WHERE e.lane = ? AND e.bucket = ? AND e.partition_key = ? ORDER BY e.id LIMIT ?;

-- name: give_up
-- Copies rows of the outbox, in order, before they are deleted there. What has
-- failed is in the entry that blocks them.
INSERT INTO app.waybill_failed (transport, state, message_id, message_name, partition_key, headers, body, created_at, failures, first_failed_at, last_error)
SELECT l.name, ?, o.message_id, o.message_name, o.partition_key, o.headers, o.body, o.created_at,
       CASE WHEN o.message_id = b.message_id THEN b.failures ELSE 0 END, CASE WHEN o.message_id = b.message_id THEN b.first_failed_at END,
       CASE WHEN o.message_id = b.message_id THEN b.last_error ELSE '' END
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
       STRAIGHT_JOIN app.waybill_outbox AS o FORCE INDEX (PRIMARY) ON o.lane = ? AND o.bucket = ? AND o.id = k.id
       STRAIGHT_JOIN app.waybill_outbox_lane AS l FORCE INDEX (PRIMARY) ON l.id = o.lane
       STRAIGHT_JOIN app.waybill_outbox_blocked AS b FORCE INDEX (PRIMARY) ON b.lane = o.lane AND b.route = '' AND b.partition_key = o.partition_key AND b.row_id = ?
ORDER  BY k.id;

-- name: let_go
-- A key whose head was skipped waits no more, nor does the entry of a message
-- without one.
DELETE FROM app.waybill_outbox_blocked WHERE lane = ? AND route = '' AND partition_key = ? AND row_id = ?;

-- name: releasing_buckets
-- The buckets whose locks it takes to let released keys go that are due. A key
-- whose first row waits for its route is none of those, or they would hold up others.
SELECT DISTINCT k.bucket % 1024
FROM   app.waybill_outbox_blocked AS k FORCE INDEX (waybill_outbox_blocked_by_release) JOIN app.waybill_outbox_lane AS l ON l.id = k.lane
WHERE  k.lane = ? AND k.release_at <= UTC_TIMESTAMP(6)
AND    NOT EXISTS (SELECT 1 FROM app.waybill_meta AS m WHERE m.name = 'relays_paused_until' AND CAST(m.value AS DATETIME(6)) > UTC_TIMESTAMP(6))
AND    COALESCE((SELECT r.next_attempt_at FROM app.waybill_outbox_blocked AS r FORCE INDEX (PRIMARY)
                 WHERE  r.lane = k.lane AND r.partition_key = '' AND r.row_id = 0
                 AND    r.route = (SELECT f.message_name FROM app.waybill_failed AS f FORCE INDEX (waybill_failed_by_key)
                                   WHERE  f.transport = l.name AND f.partition_key = k.partition_key AND f.state = 'parked' ORDER BY f.id LIMIT 1)) <= UTC_TIMESTAMP(6), TRUE);

-- name: releasing_keys
-- The same keys, as far as they are in locked buckets, in a statement after the one
-- that locks. The rest of the claim goes by its time.
SELECT k.partition_key, k.message_id, k.failures, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM   app.waybill_outbox_blocked AS k FORCE INDEX (waybill_outbox_blocked_by_release) JOIN app.waybill_outbox_lane AS l ON l.id = k.lane
WHERE  k.lane = ? AND k.release_at <= UTC_TIMESTAMP(6) AND FIND_IN_SET(k.bucket % 1024, ?)
AND    COALESCE((SELECT r.next_attempt_at FROM app.waybill_outbox_blocked AS r FORCE INDEX (PRIMARY)
                 WHERE  r.lane = k.lane AND r.partition_key = '' AND r.row_id = 0
                 AND    r.route = (SELECT f.message_name FROM app.waybill_failed AS f FORCE INDEX (waybill_failed_by_key)
                                   WHERE  f.transport = l.name AND f.partition_key = k.partition_key AND f.state = 'parked' ORDER BY f.id LIMIT 1)) <= UTC_TIMESTAMP(6), TRUE)
ORDER  BY k.release_at, k.partition_key LIMIT ?;

-- name: parked
-- The oldest parked rows of a key, and whether their routes wait: an arm of what
-- reads several.
SELECT f.partition_key, f.id, f.message_id, f.message_name, f.headers, f.body, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', f.created_at), COALESCE(r.failures, 0), COALESCE(r.next_attempt_at > ?, FALSE)
FROM   app.waybill_failed AS f FORCE INDEX (waybill_failed_by_key)
LEFT   JOIN app.waybill_outbox_blocked AS r FORCE INDEX (PRIMARY) ON r.lane = ? AND r.route = f.message_name AND r.partition_key = '' AND r.row_id = 0
WHERE  f.transport = ? AND f.partition_key = ? AND f.state = 'parked' ORDER BY f.id LIMIT ?;

-- name: delete_failed
DELETE f FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k STRAIGHT_JOIN app.waybill_failed AS f FORCE INDEX (PRIMARY) ON f.id = k.id WHERE f.state = 'parked';

-- name: end_release
-- A key that has nothing parked any more goes on in the outbox.
DELETE b FROM app.waybill_outbox_blocked AS b FORCE INDEX (PRIMARY)
WHERE  b.lane = ? AND b.route = '' AND b.partition_key = ? AND b.row_id = 0 AND b.release_at IS NOT NULL
AND    (SELECT f.id FROM app.waybill_failed AS f FORCE INDEX (waybill_failed_by_key) WHERE f.transport = ? AND f.partition_key = ? AND f.state = 'parked' ORDER BY f.id LIMIT 1) IS NULL;

-- name: retry_release
-- A parked row was refused. The assignments happen in this order.
UPDATE app.waybill_outbox_blocked SET failures = CASE WHEN message_id = ? THEN failures + 1 ELSE 1 END,
       message_id = ?, message_name = ?, policy = ?, last_error = ?, release_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
WHERE  lane = ? AND route = '' AND partition_key = ? AND row_id = 0;

-- name: failed_again
-- After retry_release, for the row itself: it stays parked, or is skipped.
UPDATE app.waybill_failed AS f FORCE INDEX (PRIMARY)
STRAIGHT_JOIN app.waybill_outbox_blocked AS b FORCE INDEX (PRIMARY) ON b.lane = ? AND b.route = '' AND b.partition_key = f.partition_key AND b.row_id = 0
SET    f.state = ?, f.failures = b.failures, f.first_failed_at = COALESCE(f.first_failed_at, UTC_TIMESTAMP(6)), f.failed_at = UTC_TIMESTAMP(6), f.last_error = b.last_error
WHERE  f.id = ?;

-- name: list
-- Without bodies.
SELECT id, state, transport, message_name, partition_key, message_id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at), failures,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', first_failed_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', failed_at), last_error,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', removed_at), LENGTH(body)
FROM   app.waybill_failed
WHERE  CASE WHEN ? = '' THEN state <> 'removed' ELSE state = ? END AND (? = '' OR transport = ?) AND (? = '' OR partition_key = ?) AND (? = '' OR message_name = ?)
AND    (? = '' OR FIND_IN_SET(id, ?)) AND id > ?
ORDER  BY id LIMIT ?;

-- name: content
SELECT headers, body FROM app.waybill_failed WHERE id = ?;

-- name: skipped
-- A skipped message that is dispatched again, and deleted here, in one transaction.
SELECT transport, message_id, message_name, partition_key, headers, body, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at)
FROM   app.waybill_failed WHERE id = ? AND state = 'skipped' FOR UPDATE;

-- name: delete_skipped
DELETE FROM app.waybill_failed WHERE id = ?;

-- name: remove
-- The rest stays, so that it is known what is missing. A relay may have those of a
-- key that is being released in hand.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k STRAIGHT_JOIN app.waybill_failed AS f FORCE INDEX (PRIMARY) ON f.id = k.id
SET    f.state = 'removed', f.body = '', f.headers = '{}', f.removed_at = UTC_TIMESTAMP(6)
WHERE  f.state = 'skipped' OR f.state = 'parked' AND NOT EXISTS (
       SELECT 1 FROM app.waybill_outbox_lane AS l JOIN app.waybill_outbox_blocked AS b FORCE INDEX (PRIMARY) ON b.lane = l.id
       WHERE  l.name = f.transport AND b.route = '' AND b.partition_key = f.partition_key AND b.row_id = 0 AND b.state = 'releasing');
