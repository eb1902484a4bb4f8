-- Messages are written under dispatch locks: rows of the gate table. A ? for WHERE is one
-- condition gates_of_transport for each transport, joined by OR.

-- name: lock_gates
-- In ascending order, which is the order of the index.
SELECT COUNT(*)
FROM   app.waybill_outbox_gate AS g FORCE INDEX (PRIMARY)
WHERE  ?
FOR    UPDATE;

-- name: lock_gates_in_block
-- The same in a compound statement: IF (SELECT ...) would lock nothing.
SELECT COUNT(*) INTO @waybill_gates
FROM   app.waybill_outbox_gate AS g FORCE INDEX (PRIMARY)
WHERE  ?
FOR    UPDATE;

-- name: lock_free_gates
-- Gates that an open transaction holds are left out.
SELECT g.transport, g.bucket
FROM   app.waybill_outbox_gate AS g FORCE INDEX (PRIMARY)
WHERE  ?
FOR    UPDATE SKIP LOCKED;

-- name: gates_of_transport
-- The bounds make the optimizer prefer its range to all gates of the transport; it is
-- read in ascending order.
g.transport = ? AND g.bucket BETWEEN ? AND ? AND g.bucket IN (?) AND g.name = ?;

-- name: transport
-- The number of a transport, or NULL.
(SELECT t.id FROM app.waybill_transport AS t WHERE t.id = ? AND t.name = ?);

-- name: transport_of_gate
-- The same from a gate, which it locks.
(SELECT g.transport
 FROM   app.waybill_outbox_gate AS g
 WHERE  g.transport = ? AND g.bucket = ? AND g.name = ?
 FOR    UPDATE);

-- name: transport_of_gates
-- The same from several gates, all of which must be there.
(SELECT CASE WHEN COUNT(*) = ? THEN ? END
 FROM   app.waybill_outbox_gate AS g FORCE INDEX (PRIMARY)
 WHERE  ?
 FOR    UPDATE);

-- name: insert_keyed
-- The row of VALUES is repeated.
INSERT INTO app.waybill_outbox
       (transport, bucket, message_id, message_name, partition_key, headers, body, created_at)
VALUES (?, ?, ?, ?, ?, CONVERT(? USING utf8mb4), ?, ?);

-- name: insert_unkeyed
INSERT INTO app.waybill_outbox_unkeyed
       (transport, message_id, message_name, headers, body, created_at)
VALUES (?, ?, ?, CONVERT(? USING utf8mb4), ?, ?);

-- name: insert_queued
INSERT INTO app.waybill_queue
       (queue, message_id, message_name, partition_key, headers, body, created_at)
VALUES (?, ?, ?, ?, CONVERT(? USING utf8mb4), ?, ?);

-- name: insert_delayed
INSERT INTO app.waybill_delayed
       (due_at, transport, queue, message_id, message_name, partition_key, headers, body, created_at)
VALUES (?, ?, ?, ?, ?, ?, CONVERT(? USING utf8mb4), ?, ?);

-- name: share_buckets
-- The number of buckets, locked against a change, or no row while it changes.
SELECT value
FROM   app.waybill_meta
WHERE  name = 'buckets'
FOR    SHARE SKIP LOCKED;

-- name: share_buckets_mariadb
SELECT value
FROM   app.waybill_meta
WHERE  name = 'buckets'
LOCK   IN SHARE MODE SKIP LOCKED;
