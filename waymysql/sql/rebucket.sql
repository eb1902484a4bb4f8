-- name: pause
-- Relays claim nothing until then. It ends by itself, in case the process that paused
-- them dies.
REPLACE INTO app.waybill_meta (name, value)
VALUES ('relays_paused_until', UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND);

-- name: resume
DELETE FROM app.waybill_meta WHERE name = 'relays_paused_until';

-- name: lock_gates
-- Transactions that dispatch or promote messages end first, and begin after.
SELECT g.transport
FROM   app.waybill_outbox_gate AS g FORCE INDEX (PRIMARY)
WHERE  g.transport >= 0
ORDER  BY g.transport, g.bucket
FOR    UPDATE;

-- name: lock_blocked
-- Claims of retries, too, which lock the bucket after the entry.
SELECT b.transport
FROM   app.waybill_outbox_blocked AS b FORCE INDEX (PRIMARY)
ORDER  BY b.transport, b.route, b.partition_key, b.row_id
FOR    UPDATE;

-- name: lock_buckets
-- Claims of keyed rows, too.
SELECT b.transport
FROM   app.waybill_outbox_bucket AS b FORCE INDEX (PRIMARY)
WHERE  b.bucket >= 0
ORDER  BY b.transport, b.bucket
FOR    UPDATE;

-- name: count
SELECT COUNT(*) FROM app.waybill_outbox WHERE id > 0;

-- name: odd
-- Transports whose buckets or dispatch locks are not as many as recorded.
SELECT COUNT(*)
FROM   app.waybill_transport AS t
WHERE  (SELECT COUNT(*) FROM app.waybill_outbox_bucket AS b WHERE b.transport = t.id AND b.bucket >= 0) <> ?
OR     (SELECT COUNT(*) FROM app.waybill_outbox_gate AS g WHERE g.transport = t.id) <> ?;

-- name: move
-- Parked rows stay parked.
UPDATE app.waybill_outbox
SET    bucket = CONV(LEFT(SHA2(partition_key, 256), 4), 16, 10) % ?
              + CASE WHEN bucket >= 1024 THEN 1024 ELSE 0 END
WHERE  id > 0;

-- name: move_blocked
UPDATE app.waybill_outbox_blocked
SET    bucket = CONV(LEFT(SHA2(partition_key, 256), 4), 16, 10) % ?
WHERE  partition_key <> '';

-- name: move_routes
-- With the row that stands for the route.
UPDATE app.waybill_outbox_blocked AS b
JOIN   app.waybill_outbox AS o ON o.transport = b.transport AND o.id = b.row_id
SET    b.bucket = o.bucket % 1024
WHERE  b.route <> '' AND b.bucket >= 0;

-- name: remove_buckets
DELETE FROM app.waybill_outbox_bucket WHERE bucket >= ?;

-- name: remove_gates
DELETE FROM app.waybill_outbox_gate WHERE transport > 0 AND bucket >= ?;

-- name: rename_gates
-- A process that knows another number of buckets finds none of them.
UPDATE app.waybill_outbox_gate SET name = ? WHERE transport = ?;

-- name: transports
SELECT id, name FROM app.waybill_transport ORDER BY id;

-- name: bump
-- Relays drop their cursors.
UPDATE app.waybill_outbox_bucket SET blocked_version = blocked_version + 1;

-- name: record
UPDATE app.waybill_meta SET value = ? WHERE name = 'buckets';
