-- Queues. held is 0 for a claimable row, 1 for one in flight (leased, or waiting for a retry), 2 for one set
-- aside behind a row of its key in flight. A partial index WHERE held > 0 needs these words in the statement.

-- name: insert
INSERT INTO waybill_queue (queue, message_id, message_name, partition_key, created_at, headers, body)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: any
-- Whether a claim may find something, without taking the write lock.
SELECT EXISTS (SELECT 1 FROM waybill_queue INDEXED BY waybill_queue_due
               WHERE  queue = ?1
               AND    held_until <= CAST(unixepoch('subsec') * 1000000 AS INTEGER));

-- name: due
-- Makes rows claimable whose lease has ended, or whose retry is due. Rows set aside come back after a while
-- even if the row before them was deleted by hand.
UPDATE waybill_queue SET held = 0, held_until = 0
WHERE  id IN (SELECT id FROM waybill_queue INDEXED BY waybill_queue_due
              WHERE  queue = ?1 AND held_until > 0
              AND    held_until <= CAST(unixepoch('subsec') * 1000000 AS INTEGER)
              ORDER  BY held_until
              LIMIT  ?2);

-- name: read
-- The oldest ?2 claimable rows and, of each of their keys, one row in flight and the oldest ?3 rows set aside.
WITH found AS MATERIALIZED (
    SELECT id, partition_key AS key FROM waybill_queue INDEXED BY waybill_queue_due
    WHERE  queue = ?1 AND held_until = 0
    ORDER  BY id
    LIMIT  ?2),
keys AS MATERIALIZED (
    SELECT DISTINCT key FROM found WHERE key <> '')
SELECT id, key, 0 FROM found
UNION  ALL
SELECT (SELECT q.id FROM waybill_queue AS q INDEXED BY waybill_queue_held
        WHERE  q.queue = ?1 AND q.partition_key = k.key AND q.held = 1 AND q.held > 0
        LIMIT  1) AS head, k.key, 1
FROM   keys AS k
WHERE  head IS NOT NULL
UNION  ALL
SELECT q.id, k.key, 2
FROM   keys AS k
CROSS  JOIN waybill_queue AS q
WHERE  q.id IN (SELECT a.id FROM waybill_queue AS a INDEXED BY waybill_queue_held
                WHERE  a.queue = ?1 AND a.partition_key = k.key AND a.held = 2 AND a.held > 0
                ORDER  BY a.id
                LIMIT  ?3);

-- name: lease
-- Leases rows to holder ?2 for ?3 microseconds.
UPDATE waybill_queue SET held = 1, holder = ?2, lease = lease + 1, redelivered = holder IS NOT NULL,
       held_until = CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?3
WHERE  id IN (SELECT value FROM json_each(?1))
RETURNING id, message_id, message_name, partition_key, headers, body, created_at, failures, lease,
          redelivered;

-- name: make_claimable
UPDATE waybill_queue SET held = 0, held_until = 0 WHERE id IN (SELECT value FROM json_each(?1));

-- name: set_aside
UPDATE waybill_queue SET held = 2, held_until = CAST(unixepoch('subsec') * 1000000 AS INTEGER) + 600000000
WHERE  id IN (SELECT value FROM json_each(?1));

-- name: ack
-- Ends a delivery, unless it has lost its lease.
DELETE FROM waybill_queue WHERE id = ?1 AND holder = ?2 AND lease = ?3;

-- name: next
-- Makes the oldest row set aside of key ?2 claimable, unless the key has a row in flight: that one brings it
-- back then.
UPDATE waybill_queue SET held = 0, held_until = 0
WHERE  id = (SELECT id FROM waybill_queue INDEXED BY waybill_queue_held
             WHERE  queue = ?1 AND partition_key = ?2 AND held = 2 AND held > 0
             ORDER  BY id
             LIMIT  1)
AND    NOT EXISTS (SELECT 1 FROM waybill_queue INDEXED BY waybill_queue_held
                   WHERE queue = ?1 AND partition_key = ?2 AND held = 1 AND held > 0);

-- name: retry
-- Counts a failure and lets the row, and its key behind it, wait. The clock is
-- read while the write lock is held, not before the wait for it.
UPDATE waybill_queue SET failures = failures + 1, headers = ?5, holder = NULL, held = 1,
       held_until = CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?4
WHERE  id = ?1 AND holder = ?2 AND lease = ?3;

-- name: release
UPDATE waybill_queue SET held = 0, held_until = 0, holder = NULL WHERE id = ?1 AND holder = ?2 AND lease = ?3;

-- name: renew
UPDATE waybill_queue SET held = 1, held_until = CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?4
WHERE  id = ?1 AND holder = ?2 AND lease = ?3;
