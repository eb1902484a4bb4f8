-- name: add_transport
INSERT INTO waybill_transport (name) VALUES (?) ON CONFLICT (name) DO NOTHING;

-- name: transport
-- The state of a transport, in the snapshot in which a claim reads its rows.
SELECT id, blocked_version,
       EXISTS (SELECT 1 FROM waybill_outbox_blocked AS b WHERE b.transport = t.id AND b.partition_key > ''),
       CAST(unixepoch('subsec') * 1000000 AS INTEGER)
FROM   waybill_transport AS t WHERE name = ?;

-- name: insert
-- One message. SQLite has one writer, so ids are given in commit order. The
-- transport's name is looked up in the database of the transaction, which may be
-- another one.
INSERT INTO waybill_outbox (transport, message_id, message_name, partition_key, created_at, headers, body)
SELECT id, ?2, ?3, ?4, ?5, ?6, ?7 FROM waybill_transport WHERE name = ?1;

-- name: insert_delayed
INSERT INTO waybill_delayed (due_at, transport,
       message_id, message_name, partition_key, created_at, headers, body)
SELECT ?5 + ?8, id, ?2, ?3, ?4, ?5, ?6, ?7 FROM waybill_transport WHERE name = ?1;

-- name: insert_delayed_local
-- For a queue of this database.
INSERT INTO waybill_delayed (due_at, queue,
       message_id, message_name, partition_key, created_at, headers, body)
VALUES (?5 + ?8, ?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- name: any_due
SELECT EXISTS (
    SELECT 1 FROM waybill_delayed
    WHERE  refused = 0 AND due_at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER));

-- name: due
-- A batch of due messages, at most ?1 rows and, but for the first, ?2 bytes.
SELECT id FROM (
    SELECT id, due_at, sum(size) OVER (ORDER BY due_at, id) - size AS before FROM (
        SELECT id, due_at, length(body) + length(headers) AS size FROM waybill_delayed
        WHERE  refused = 0 AND due_at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER)
        ORDER  BY due_at, id LIMIT ?1))
WHERE  before < ?2
ORDER  BY due_at, id;

-- name: due_to_outbox
-- In order of the time they are due, and from then on ordered, and aged, like
-- any other.
INSERT INTO waybill_outbox (transport, message_id, message_name, partition_key, created_at, headers, body)
SELECT transport, message_id, message_name, partition_key, due_at, headers, body FROM waybill_delayed
WHERE  id IN (SELECT value FROM json_each(?)) AND transport IS NOT NULL
ORDER  BY due_at, id;

-- name: due_to_queue
INSERT INTO waybill_queue (queue, message_id, message_name, partition_key, headers, body, created_at)
SELECT queue, message_id, message_name, partition_key, headers, body, due_at FROM waybill_delayed
WHERE  id IN (SELECT value FROM json_each(?)) AND queue IS NOT NULL
ORDER  BY due_at, id;

-- name: delete_due
-- In the transaction that promoted them.
DELETE FROM waybill_delayed WHERE id IN (SELECT value FROM json_each(?));

-- name: refuse_due
-- Marks a delayed message that the outbox or queue refuses.
UPDATE waybill_delayed SET refused = 1 WHERE id = ?;

-- name: claim_keyed
-- The oldest rows after an id whose keys are not blocked, without the hot key ?3. The
-- caller stops reading when it has enough bytes.
SELECT o.id, o.message_id, o.message_name, o.partition_key, o.created_at, o.headers, o.body, 0
FROM   waybill_outbox AS o INDEXED BY waybill_outbox_keyed
WHERE  o.transport = ?1 AND o.partition_key <> '' AND o.bucket = 0 AND o.id > ?2 AND o.partition_key <> ?3
AND    NOT EXISTS (
       SELECT 1 FROM waybill_outbox_blocked AS b
       WHERE  b.transport = ?1 AND b.partition_key = o.partition_key)
ORDER  BY o.id LIMIT ?4;

-- name: last_keyed
SELECT coalesce(max(id), 0) FROM waybill_outbox INDEXED BY waybill_outbox_keyed
WHERE  transport = ? AND partition_key <> '' AND bucket = 0;

-- name: claim_unkeyed
SELECT id, message_id, message_name, partition_key, created_at, headers, body, 0
FROM   waybill_outbox INDEXED BY waybill_outbox_unkeyed
WHERE  transport = ?1 AND partition_key = '' AND held = 0
ORDER  BY id LIMIT ?2;

-- name: claim_retries
-- The heads of due entries, oldest due first. A next attempt farther ahead than the
-- longest delay dates from before the clock went back, and is due.
SELECT o.id, o.message_id, o.message_name, o.partition_key, o.created_at, o.headers, o.body, b.failures
FROM  (SELECT row_id, failures, next_attempt_at
       FROM   waybill_outbox_blocked INDEXED BY waybill_outbox_blocked_due
       WHERE  transport = ?1 AND state = 'retrying' AND next_attempt_at <= ?2
       UNION  ALL
       SELECT row_id, failures, next_attempt_at
       FROM   waybill_outbox_blocked INDEXED BY waybill_outbox_blocked_due
       WHERE  transport = ?1 AND state = 'retrying' AND next_attempt_at > ?2 + ?3
       ORDER  BY next_attempt_at LIMIT ?4) AS b
JOIN   waybill_outbox AS o ON o.id = b.row_id
ORDER  BY b.next_attempt_at;

-- name: any_orphan
-- Whether there is a due entry without a row; only valid when no due entry has one.
SELECT EXISTS (
    SELECT 1 FROM waybill_outbox_blocked INDEXED BY waybill_outbox_blocked_due
    WHERE  transport = ?1 AND state = 'retrying' AND next_attempt_at <= ?2);

-- name: delete_orphans
DELETE FROM waybill_outbox_blocked
WHERE  transport = ? AND state = 'retrying' AND row_id NOT IN (SELECT id FROM waybill_outbox);

-- name: delete
-- Exactly the confirmed rows.
DELETE FROM waybill_outbox WHERE id IN (SELECT value FROM json_each(?));

-- name: block
-- Records a refusal of the head of a key, or of a row without key. No row is changed
-- if an operator has removed the head.
INSERT INTO waybill_outbox_blocked (transport, partition_key, row_id, message_id, message_name,
       failures, first_failed_at, next_attempt_at, last_error, policy)
SELECT transport, partition_key, id, message_id, message_name, ?2,
       CAST(unixepoch('subsec') * 1000000 AS INTEGER),
       CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?3, ?4, ?5
FROM   waybill_outbox WHERE id = ?1
ON     CONFLICT (transport, partition_key, row_id) DO UPDATE SET
       failures = failures + excluded.failures, next_attempt_at = excluded.next_attempt_at,
       last_error = excluded.last_error, policy = excluded.policy;

-- name: hold
UPDATE waybill_outbox SET held = 1 WHERE id = ?;

-- name: unblock
-- In the transaction that takes the head out of the outbox, or ends a release.
DELETE FROM waybill_outbox_blocked WHERE transport = ? AND partition_key = ? AND row_id = ?;

-- name: bump
UPDATE waybill_transport SET blocked_version = blocked_version + 1 WHERE id = ?;

-- name: rows_of_keys
-- The oldest rows of keys whose heads are in the list ?2, heads included.
SELECT id FROM waybill_outbox INDEXED BY waybill_outbox_keyed
WHERE  transport = ?1 AND partition_key <> '' AND bucket = 0 AND id >= (SELECT min(value) FROM json_each(?2))
AND    partition_key IN (
       SELECT partition_key FROM waybill_outbox WHERE id IN (SELECT value FROM json_each(?2)))
ORDER  BY id LIMIT ?3;

-- name: park
-- After block.
UPDATE waybill_outbox_blocked SET state = 'parked' WHERE transport = ? AND partition_key = ? AND row_id = ?;

-- name: set_aside
-- After park, rows of rows_of_keys. A key that is not parked keeps its rows.
UPDATE waybill_outbox SET bucket = 1024
WHERE  id IN (SELECT value FROM json_each(?)) AND EXISTS (
       SELECT 1 FROM waybill_outbox_blocked AS b
       WHERE  b.transport = waybill_outbox.transport AND b.partition_key = waybill_outbox.partition_key
       AND    b.state = 'parked');

-- name: skip
-- After block: copies the row to the failed messages; it is deleted in the same transaction.
INSERT INTO waybill_failed (transport, state, message_id, message_name, partition_key, headers, body,
       created_at, failures, first_failed_at, failed_at, last_error)
SELECT t.name, 'skipped', o.message_id, o.message_name, o.partition_key, o.headers, o.body, o.created_at,
       b.failures, b.first_failed_at, CAST(unixepoch('subsec') * 1000000 AS INTEGER), b.last_error
FROM   waybill_outbox AS o JOIN waybill_transport AS t ON t.id = o.transport
       JOIN waybill_outbox_blocked AS b
       ON b.transport = o.transport AND b.partition_key = o.partition_key AND b.row_id = o.id
WHERE  o.id = ?;

-- name: transports
SELECT name FROM waybill_transport ORDER BY name;

-- name: backlog
-- Pending, blocked and delayed rows. Each row of the outbox is in one of the four
-- indexes. Refused delayed messages count as blocked. A transport without messages so
-- far has no id, and counts zero.
WITH t AS (SELECT id FROM waybill_transport WHERE name = ?1), counted AS (SELECT
       (SELECT count(*) FROM waybill_outbox, t
        WHERE  transport = t.id AND partition_key <> '' AND bucket = 0) +
       (SELECT count(*) FROM waybill_outbox, t
        WHERE  transport = t.id AND partition_key = '' AND held = 0) AS free,
       (SELECT count(*) FROM waybill_outbox, t WHERE transport = t.id AND held = 1) +
       (SELECT count(*) FROM waybill_outbox, t WHERE transport = t.id AND bucket = 1024) +
       (SELECT count(*) FROM waybill_delayed, t WHERE transport = t.id AND refused = 1) AS aside,
       (SELECT count(*) FROM waybill_outbox AS o, t
        WHERE  o.transport = t.id AND o.partition_key <> '' AND o.bucket = 0 AND EXISTS (
               SELECT 1 FROM waybill_outbox_blocked AS b
               WHERE  b.transport = t.id AND b.partition_key = o.partition_key)) AS behind)
SELECT free + aside, behind + aside,
       (SELECT count(*) FROM waybill_delayed, t WHERE transport = t.id AND refused = 0)
FROM   counted;
