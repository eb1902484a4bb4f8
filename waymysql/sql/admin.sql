-- name: outbox_list
SELECT o.id, l.name, o.message_name, o.partition_key, o.message_id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.created_at), NULL, LENGTH(o.body),
       EXISTS (SELECT 1 FROM app.waybill_outbox_blocked AS b
               WHERE  b.lane = o.lane AND (b.route = '' AND b.partition_key = o.partition_key AND b.row_id = CASE WHEN o.partition_key = '' THEN o.id ELSE 0 END
                                           OR b.route <> '' AND b.route = o.message_name))
FROM   app.waybill_outbox AS o JOIN app.waybill_outbox_lane AS l ON l.id = o.lane
WHERE  (? = '' OR l.name = ?) AND (? = '' OR o.partition_key = ?) AND (? = '' OR o.message_name = ?) AND o.id > ?
ORDER  BY o.id LIMIT ?;

-- name: delayed_list
SELECT d.id, COALESCE(l.name, CONCAT('queue://', d.queue)), d.message_name, d.partition_key, d.message_id,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', d.created_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', d.due_at), LENGTH(d.body), FALSE
FROM   app.waybill_delayed AS d LEFT JOIN app.waybill_outbox_lane AS l ON l.id = d.lane
WHERE  (? = '' OR l.name = ? OR d.queue = ?) AND (? = '' OR d.partition_key = ?) AND (? = '' OR d.message_name = ?)
ORDER  BY d.due_at, d.id LIMIT ?;

-- name: blocked
-- The head of a parked key is in the failure store, if anything of it is there.
SELECT l.name, b.route, b.partition_key, b.row_id,
       COALESCE((SELECT f.message_id FROM app.waybill_failed AS f FORCE INDEX (waybill_failed_by_key)
                 WHERE  b.state <> 'retrying' AND f.transport = l.name AND f.partition_key = b.partition_key AND f.state = 'parked' ORDER BY f.id LIMIT 1), b.message_id),
       COALESCE((SELECT f.message_name FROM app.waybill_failed AS f FORCE INDEX (waybill_failed_by_key)
                 WHERE  b.state <> 'retrying' AND f.transport = l.name AND f.partition_key = b.partition_key AND f.state = 'parked' ORDER BY f.id LIMIT 1), b.message_name),
       b.failures, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', b.first_failed_at),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', CASE b.state WHEN 'retrying' THEN b.next_attempt_at ELSE b.release_at END), b.last_error, b.state, b.policy,
       CASE WHEN b.route <> '' THEN (SELECT COUNT(*) FROM app.waybill_outbox AS o WHERE o.lane = b.lane AND o.message_name = b.route)
            WHEN b.partition_key = '' THEN 1
            ELSE (SELECT COUNT(*) FROM app.waybill_outbox AS o WHERE o.lane = b.lane AND o.bucket = b.bucket AND o.partition_key = b.partition_key) END,
       (SELECT COUNT(*) FROM app.waybill_failed AS f FORCE INDEX (waybill_failed_by_key)
        WHERE  b.state <> 'retrying' AND f.transport = l.name AND f.partition_key = b.partition_key AND f.state = 'parked')
FROM   app.waybill_outbox_blocked AS b JOIN app.waybill_outbox_lane AS l ON l.id = b.lane
WHERE  (? = '' OR l.name = ?)
ORDER  BY b.route = '', b.first_failed_at, b.partition_key LIMIT ?;

-- name: release
-- Lets blocked keys and routes be tried at once. A parked key goes on with what is
-- parked of it, and counts its failures anew. The state changes last.
UPDATE app.waybill_outbox_blocked AS b JOIN app.waybill_outbox_lane AS l ON l.id = b.lane
SET    b.next_attempt_at = CASE b.state WHEN 'retrying' THEN UTC_TIMESTAMP(6) ELSE b.next_attempt_at END,
       b.release_at = CASE b.state WHEN 'retrying' THEN NULL ELSE UTC_TIMESTAMP(6) END,
       b.failures = CASE b.state WHEN 'parked' THEN 0 ELSE b.failures END,
       b.state = CASE b.state WHEN 'retrying' THEN 'retrying' ELSE 'releasing' END
WHERE  (? = '' OR l.name = ?) AND (? = '' OR b.partition_key = ? AND b.route = '') AND (? = '' OR b.route = ?) AND (? = 0 OR b.row_id = ?);

-- name: count_release
SELECT COUNT(*) FROM app.waybill_outbox_blocked AS b JOIN app.waybill_outbox_lane AS l ON l.id = b.lane
WHERE  (? = '' OR l.name = ?) AND (? = '' OR b.partition_key = ? AND b.route = '') AND (? = '' OR b.route = ?) AND (? = 0 OR b.row_id = ?);

-- name: gone
-- Entries of which nothing is left in the outbox: an operator may have deleted
-- the rows. What is parked is elsewhere. It only reads: as part of a DELETE it would
-- wait for dispatchers.
SELECT b.lane, b.route, b.partition_key, b.row_id FROM app.waybill_outbox_blocked AS b JOIN app.waybill_outbox_lane AS l ON l.id = b.lane
WHERE  b.state = 'retrying' AND (? = '' OR l.name = ?) AND (? = '' OR b.partition_key = ? AND b.route = '') AND (? = '' OR b.route = ?) AND (? = 0 OR b.row_id = ?)
AND    NOT EXISTS (SELECT 1 FROM app.waybill_outbox AS o
                   WHERE  o.lane = b.lane AND CASE WHEN b.route <> '' THEN o.message_name = b.route
                                                   WHEN b.row_id > 0 THEN o.bucket = -1 AND o.id = b.row_id
                                                   ELSE o.bucket = b.bucket AND o.partition_key = b.partition_key END);

-- name: forget
DELETE FROM app.waybill_outbox_blocked WHERE lane = ? AND route = ? AND partition_key = ? AND row_id = ?;

-- name: release_bump
UPDATE app.waybill_outbox_lane SET blocked_version = blocked_version + 1 WHERE ? = '' OR name = ?;

-- name: outbox_stats
SELECT l.name, COUNT(o.id), COALESCE(TIMESTAMPDIFF(MICROSECOND, MIN(o.created_at), UTC_TIMESTAMP(6)), 0) / 1000000,
       (SELECT COUNT(*) FROM app.waybill_outbox_blocked AS b WHERE b.lane = l.id),
       (SELECT COUNT(*) FROM app.waybill_delayed AS d WHERE d.lane = l.id),
       (SELECT COUNT(*) FROM app.waybill_failed AS f WHERE f.transport = l.name AND f.state <> 'removed')
FROM   app.waybill_outbox_lane AS l LEFT JOIN app.waybill_outbox AS o ON o.lane = l.id
GROUP  BY l.id, l.name ORDER BY l.name;

-- name: queue_stats
SELECT queue, COUNT(*), COALESCE(TIMESTAMPDIFF(MICROSECOND, MIN(created_at), UTC_TIMESTAMP(6)), 0) / 1000000,
       COALESCE(SUM(held_until > UTC_TIMESTAMP(6) AND holder IS NOT NULL), 0), COALESCE(SUM(held_until > UTC_TIMESTAMP(6) AND holder IS NULL), 0)
FROM   app.waybill_queue GROUP BY queue ORDER BY queue;

-- name: relays
SELECT transport, host, pid, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', started_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', seen_at), problem,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', since)
FROM   app.waybill_workers
WHERE  kind = 'relay' AND seen_at > UTC_TIMESTAMP(6) - INTERVAL 60 SECOND ORDER BY transport, host, pid, started_at;
