-- name: pause
-- Relays claim nothing until then. It ends by itself, in case that who paused
-- them dies.
REPLACE INTO app.waybill_meta (name, value) VALUES ('relays_paused_until', UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND);

-- name: resume
DELETE FROM app.waybill_meta WHERE name = 'relays_paused_until';

-- name: lock_gates
-- All that dispatches or moves messages ends first, and begins after.
SELECT g.lane FROM app.waybill_outbox_gate AS g FORCE INDEX (PRIMARY) WHERE g.lane >= 0 ORDER BY g.lane, g.bucket FOR UPDATE;

-- name: lock_buckets
-- The same of what relays.
SELECT b.lane FROM app.waybill_outbox_bucket AS b FORCE INDEX (PRIMARY) ORDER BY b.lane, b.bucket FOR UPDATE;

-- name: count
SELECT COUNT(*) FROM app.waybill_outbox WHERE bucket >= 0;

-- name: read
SELECT value FROM app.waybill_meta WHERE name = 'buckets' FOR UPDATE;

-- name: recorded
SELECT value FROM app.waybill_meta WHERE name = 'buckets';

-- name: move
-- Buckets of unserialized messages begin at 1024, however many there are.
UPDATE app.waybill_outbox SET bucket = CONV(LEFT(SHA2(partition_key, 256), 4), 16, 10) % ? + CASE WHEN bucket >= 1024 THEN 1024 ELSE 0 END WHERE bucket >= 0;

-- name: move_blocked
UPDATE app.waybill_outbox_blocked SET bucket = CONV(LEFT(SHA2(partition_key, 256), 4), 16, 10) % ? + CASE WHEN bucket >= 1024 THEN 1024 ELSE 0 END WHERE route = '' AND partition_key <> '';

-- name: remove_buckets
DELETE FROM app.waybill_outbox_bucket WHERE bucket >= ?;

-- name: remove_gates
DELETE FROM app.waybill_outbox_gate WHERE lane > 0 AND bucket >= ?;

-- name: rename_gates
-- Who knows another number of buckets finds none of them.
UPDATE app.waybill_outbox_gate SET name = ? WHERE lane = ?;

-- name: bump
-- What relays remember of waiting keys is worth nothing.
UPDATE app.waybill_outbox_lane SET blocked_version = blocked_version + 1;

-- name: record
UPDATE app.waybill_meta SET value = ? WHERE name = 'buckets';

-- name: any_unserialized
SELECT EXISTS (SELECT 1 FROM app.waybill_outbox WHERE bucket >= 1024) OR EXISTS (SELECT 1 FROM app.waybill_delayed WHERE bucket >= 1024);

-- name: any_failed
SELECT EXISTS (SELECT 1 FROM app.waybill_failed WHERE state <> 'removed') OR EXISTS (SELECT 1 FROM app.waybill_outbox_blocked WHERE state <> 'retrying');
