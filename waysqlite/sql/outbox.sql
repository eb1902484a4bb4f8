-- name: now
-- The database's clock, in microseconds.
SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER);

-- name: add_lane
INSERT INTO waybill_outbox_lane (name) VALUES (?) ON CONFLICT (name) DO NOTHING;

-- name: lanes
SELECT id, name FROM waybill_outbox_lane;

-- name: insert_outbox
-- One message of a unit of work. SQLite has one writer, so ids are given in
-- commit order.
INSERT INTO waybill_outbox (lane, message_id, message_name, partition_key, headers, body, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: insert_outbox_by_name
-- One message in a transaction of the caller's own, which may be one of another
-- database: there the transport has another number, or none, and the insert
-- fails.
INSERT INTO waybill_outbox (lane, message_id, message_name, partition_key, headers, body, created_at)
VALUES ((SELECT id FROM waybill_outbox_lane WHERE name = ?), ?, ?, ?, ?, ?, ?);

-- name: insert_delayed
INSERT INTO waybill_delayed (due_at, lane, queue, message_id, message_name, partition_key, headers, body, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: any_due
SELECT EXISTS (SELECT 1 FROM waybill_delayed WHERE due_at <= ?);

-- name: due_batch
-- The time up to which a batch may be moved, NULL when nothing is due.
SELECT max(due_at) FROM (SELECT due_at FROM waybill_delayed WHERE due_at <= ?1 ORDER BY due_at LIMIT ?2);

-- name: due_to_outbox
-- In order of the time they are due, and from then on ordered, and aged, like
-- any other.
INSERT INTO waybill_outbox (lane, message_id, message_name, partition_key, headers, body, created_at)
SELECT lane, message_id, message_name, partition_key, headers, body, due_at
FROM   waybill_delayed WHERE due_at <= ? AND lane IS NOT NULL ORDER BY due_at, id;

-- name: due_to_queue
INSERT INTO waybill_queue (queue, message_id, message_name, partition_key, headers, body, created_at)
SELECT queue, message_id, message_name, partition_key, headers, body, due_at
FROM   waybill_delayed WHERE due_at <= ? AND queue IS NOT NULL ORDER BY due_at, id;

-- name: delete_due
-- In the transaction that moved them.
DELETE FROM waybill_delayed WHERE due_at <= ?;

-- name: lane
SELECT id, blocked_version FROM waybill_outbox_lane WHERE name = ?;

-- name: next_unblocking
-- When the first of the lane's waiting keys is due, and NULL when none waits.
SELECT min(next_attempt_at) FROM waybill_outbox_blocked WHERE lane = ?1 AND next_attempt_at > ?2;

-- name: claim
-- The oldest rows after a cursor, without those of keys that wait. The caller
-- stops reading when it has enough bytes. Nothing is locked: one relay per
-- file is elected by a lock of the operating system.
SELECT o.id, o.message_id, o.message_name, o.partition_key, o.headers, o.body, o.created_at,
       coalesce(iif(b.message_id = o.message_id, b.failures, 0), 0), b.lane IS NOT NULL
FROM   waybill_outbox AS o
LEFT   JOIN waybill_outbox_blocked AS b
       ON b.lane = o.lane AND b.partition_key = o.partition_key AND b.row_id = iif(o.partition_key = '', o.id, 0)
WHERE  o.lane = ?1 AND o.id > ?2 AND (b.next_attempt_at IS NULL OR b.next_attempt_at <= ?3)
ORDER  BY o.id LIMIT ?4;

-- name: last_id
SELECT coalesce(max(id), 0) FROM waybill_outbox WHERE lane = ?;

-- name: delete_outbox
-- Exactly the confirmed rows.
DELETE FROM waybill_outbox WHERE id IN (SELECT value FROM json_each(?));

-- name: block
-- Counts a refusal of the head of a key, or of a row without key.
INSERT INTO waybill_outbox_blocked (lane, partition_key, row_id, message_id, message_name, failures, first_failed_at, next_attempt_at, last_error, policy)
VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6, ?6 + ?7, ?8, ?9)
ON CONFLICT (lane, partition_key, row_id) DO UPDATE SET
    policy = excluded.policy, message_id = excluded.message_id, message_name = excluded.message_name,
    failures = iif(message_id = excluded.message_id, failures + 1, 1), next_attempt_at = excluded.next_attempt_at, last_error = excluded.last_error;

-- name: unblock
-- In the transaction that deletes the head that got through.
DELETE FROM waybill_outbox_blocked WHERE lane = ? AND partition_key = ? AND row_id = ?;

-- name: bump_blocked
UPDATE waybill_outbox_lane SET blocked_version = blocked_version + 1 WHERE id = ?;

-- name: left
-- Parked rows count once their key is released and due; until then what is behind
-- them waits.
SELECT (SELECT count(*) FROM waybill_outbox WHERE lane = ?1) +
       (SELECT count(*) FROM waybill_outbox_blocked AS b JOIN waybill_outbox_lane AS l ON l.id = b.lane
        JOIN waybill_failed AS f ON f.transport = l.name AND f.partition_key = b.partition_key AND f.state = 'parked'
        WHERE b.lane = ?1 AND b.release_at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
       (SELECT count(*) FROM waybill_outbox AS o WHERE lane = ?1 AND EXISTS (
            SELECT 1 FROM waybill_outbox_blocked AS b
            WHERE  b.lane = ?1 AND b.partition_key = o.partition_key AND b.row_id = iif(o.partition_key = '', o.id, 0))),
       (SELECT count(*) FROM waybill_delayed WHERE lane = ?1);
