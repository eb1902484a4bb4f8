-- name: insert
INSERT INTO waybill_queue (queue, message_id, message_name, partition_key, created_at, headers, body)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: any
-- Whether claim would find something, without taking the write lock. INDEXED BY
-- reads the held rows alone; left to itself SQLite reads the whole queue.
SELECT EXISTS (
    SELECT 1 FROM waybill_queue
    WHERE  queue = ?1 AND held_until <= ?2 AND (partition_key = '' OR partition_key NOT IN (
           SELECT partition_key FROM waybill_queue INDEXED BY waybill_queue_held
           WHERE  queue = ?1 AND held_until > 0 AND held_until > ?2 AND partition_key <> '')));

-- name: claim
-- Leases up to ?5 rows to holder ?3 until ?4, oldest first. A key with a row in
-- flight, or whose head waits for a retry, is left alone, so that it keeps its
-- order: not even the same holder gets more of it, or a row that it has just
-- released could be overtaken by rows on their way to it. RETURNING promises no
-- order: the caller sorts by id.
UPDATE waybill_queue SET held_until = ?4, holder = ?3, lease = lease + 1
WHERE  id IN (
    SELECT id FROM waybill_queue
    WHERE  queue = ?1 AND held_until <= ?2 AND (partition_key = '' OR partition_key NOT IN (
           SELECT partition_key FROM waybill_queue INDEXED BY waybill_queue_held
           WHERE  queue = ?1 AND held_until > 0 AND held_until > ?2 AND partition_key <> ''))
    ORDER  BY id LIMIT ?5)
RETURNING id, message_id, message_name, partition_key, headers, body, created_at, failures, lease;

-- name: ack
-- Ends a delivery, unless it has lost its lease.
DELETE FROM waybill_queue WHERE id = ?1 AND holder = ?2 AND lease = ?3;

-- name: retry
-- Counts a failure and lets the row, and its key behind it, wait. The clock is
-- read while the write lock is held, not before the wait for it.
UPDATE waybill_queue SET failures = failures + 1, headers = ?5, holder = NULL,
       held_until = CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?4
WHERE  id = ?1 AND holder = ?2 AND lease = ?3;

-- name: release
UPDATE waybill_queue SET held_until = 0, holder = NULL WHERE id = ?1 AND holder = ?2 AND lease = ?3;

-- name: renew
UPDATE waybill_queue SET held_until = CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?4
WHERE  id = ?1 AND holder = ?2 AND lease = ?3;
