-- name: outbox_list
SELECT o.id, l.name, o.message_name, o.partition_key, o.message_id, o.created_at, NULL, length(o.body), b.lane IS NOT NULL
FROM   waybill_outbox AS o JOIN waybill_outbox_lane AS l ON l.id = o.lane
LEFT   JOIN waybill_outbox_blocked AS b
       ON b.lane = o.lane AND b.partition_key = o.partition_key AND b.row_id = iif(o.partition_key = '', o.id, 0)
WHERE  (?1 = '' OR l.name = ?1) AND (?2 = '' OR o.partition_key = ?2) AND (?3 = '' OR o.message_name = ?3) AND o.id > ?4
ORDER  BY o.id LIMIT ?5;

-- name: delayed_list
SELECT d.id, coalesce(l.name, 'queue://' || d.queue), d.message_name, d.partition_key, d.message_id, d.created_at, d.due_at, length(d.body), 0
FROM   waybill_delayed AS d LEFT JOIN waybill_outbox_lane AS l ON l.id = d.lane
WHERE  (?1 = '' OR l.name = ?1 OR d.queue = ?1) AND (?2 = '' OR d.partition_key = ?2) AND (?3 = '' OR d.message_name = ?3)
ORDER  BY d.due_at, d.id LIMIT ?4;

-- name: blocked
-- The head of a parked key is in the failure store, if anything of it is there.
SELECT l.name, b.partition_key, b.row_id, coalesce(p.message_id, b.message_id), coalesce(p.message_name, b.message_name), b.failures, b.first_failed_at,
       iif(b.state = 'retrying', b.next_attempt_at, b.release_at), b.last_error, b.state, b.policy,
       iif(b.partition_key = '', 1, (SELECT count(*) FROM waybill_outbox AS o WHERE o.lane = b.lane AND o.partition_key = b.partition_key)),
       iif(b.state = 'retrying', 0, (SELECT count(*) FROM waybill_failed AS f WHERE f.transport = l.name AND f.partition_key = b.partition_key AND f.state = 'parked'))
FROM   waybill_outbox_blocked AS b JOIN waybill_outbox_lane AS l ON l.id = b.lane
LEFT   JOIN waybill_failed AS p ON p.id = (SELECT min(f.id) FROM waybill_failed AS f
                                           WHERE  b.state <> 'retrying' AND f.transport = l.name AND f.partition_key = b.partition_key AND f.state = 'parked')
WHERE  (?1 = '' OR l.name = ?1)
ORDER  BY b.first_failed_at, b.partition_key LIMIT ?2;

-- name: outbox_stats
SELECT l.name,
       (SELECT count(*) FROM waybill_outbox AS o WHERE o.lane = l.id),
       (SELECT min(created_at) FROM waybill_outbox AS o WHERE o.lane = l.id),
       (SELECT count(*) FROM waybill_outbox_blocked AS b WHERE b.lane = l.id),
       (SELECT count(*) FROM waybill_delayed AS d WHERE d.lane = l.id),
       (SELECT count(*) FROM waybill_failed AS f WHERE f.transport = l.name AND f.state <> 'removed')
FROM   waybill_outbox_lane AS l ORDER BY l.name;

-- name: queue_stats
SELECT queue, count(*), min(created_at),
       sum(held_until > ?1 AND holder IS NOT NULL), sum(held_until > ?1 AND holder IS NULL)
FROM   waybill_queue GROUP BY queue ORDER BY queue;

-- name: release
-- Lets blocked keys be tried at once. A parked key goes on with what is parked of
-- it, and counts its failures anew.
UPDATE waybill_outbox_blocked SET
       next_attempt_at = iif(state = 'retrying', 0, next_attempt_at),
       release_at = iif(state = 'retrying', NULL, CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
       failures = iif(state = 'parked', 0, failures),
       state = iif(state = 'retrying', 'retrying', 'releasing')
WHERE  (?1 = '' OR lane = (SELECT id FROM waybill_outbox_lane WHERE name = ?1)) AND (?2 = '' OR partition_key = ?2) AND (?3 = 0 OR row_id = ?3);

-- name: release_bump
UPDATE waybill_outbox_lane SET blocked_version = blocked_version + 1 WHERE ?1 = '' OR name = ?1;
