-- name: transports
-- With how many bucket rows each has.
SELECT t.id, t.name,
       (SELECT COUNT(*) FROM app.waybill_outbox_bucket AS b WHERE b.transport = t.id AND b.bucket >= 0)
FROM   app.waybill_transport AS t;

-- name: lock_number
-- The number of buckets, which is locked for a new transport, and for a rebucket, first: dispatchers that lock
-- it do so before any dispatch lock.
SELECT value
FROM   app.waybill_meta
WHERE  name = 'buckets'
FOR    UPDATE;

-- name: buckets_now
-- The number as it is now, not as a snapshot has it.
SELECT value FROM app.waybill_meta WHERE name = 'buckets';

-- name: add_transport
INSERT IGNORE INTO app.waybill_transport (name) VALUES (?);

-- name: add_buckets
INSERT IGNORE INTO app.waybill_outbox_bucket (transport, bucket)
WITH RECURSIVE d (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM d WHERE n < 32)
SELECT t.id, a.n * 33 + b.n - 1
FROM   app.waybill_transport AS t
JOIN   d AS a
JOIN   d AS b
WHERE  t.name = ? AND a.n * 33 + b.n <= ?;

-- name: add_gates
INSERT IGNORE INTO app.waybill_outbox_gate (transport, bucket, name)
WITH RECURSIVE d (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM d WHERE n < 32)
SELECT t.id, a.n * 33 + b.n, ?
FROM   app.waybill_transport AS t
JOIN   d AS a
JOIN   d AS b
WHERE  t.name = ? AND a.n * 33 + b.n < ?;

-- name: add_sentinels
-- Of each bucket, of its parked rows, and of one number above the last of both.
INSERT IGNORE INTO app.waybill_outbox
       (transport, bucket, id, message_id, message_name, partition_key, body)
WITH RECURSIVE d (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM d WHERE n < 32)
SELECT t.id, a.n * 33 + b.n + p.parked, -1, '', 'sentinel', '', ''
FROM   app.waybill_transport AS t
JOIN   d AS a
JOIN   d AS b
JOIN   (SELECT 0 AS parked UNION ALL SELECT 1024) AS p
WHERE  t.name = ? AND a.n * 33 + b.n <= ?;

-- name: add_unkeyed_sentinels
INSERT IGNORE INTO app.waybill_outbox_unkeyed (transport, held, id, message_id, message_name, body)
SELECT t.id, h.held, -1, '', 'sentinel', ''
FROM   app.waybill_transport AS t
JOIN   (SELECT 1 AS held UNION ALL SELECT 2) AS h
WHERE  t.name = ?;

-- name: server
-- Settings under which the outbox would lose its order, or a relay its rows. The
-- session's value counts.
SHOW SESSION VARIABLES
WHERE  variable_name IN ('wsrep_on', 'auto_increment_increment', 'read_only', 'super_read_only',
                         'innodb_read_only', 'innodb_flush_log_at_trx_commit', 'log_bin',
                         'idle_transaction_timeout', 'idle_write_transaction_timeout',
                         'idle_readonly_transaction_timeout', 'max_statement_time');

-- name: change_nothing
-- Changes no row: a client that counts those found counts one.
UPDATE app.waybill_meta
SET    value = value
WHERE  name = 'schema_version';

-- name: flush
-- A commit, which has InnoDB write its log as far as this.
INSERT INTO app.waybill_meta (name, value)
VALUES ('flushes', '1')
ON DUPLICATE KEY UPDATE value = value + 1;

-- name: bump
-- Takes the bucket's lock, and has relays drop their cursors there.
UPDATE app.waybill_outbox_bucket
SET    blocked_version = blocked_version + 1
WHERE  transport = ? AND bucket = ?;

-- name: block
INSERT INTO app.waybill_outbox_blocked
       (transport, route, partition_key, row_id, bucket, message_id, message_name, failures,
        first_failed_at, next_attempt_at, last_error, state, policy)
VALUES (?, ?, ?, ?, ?, UNHEX(?), ?, ?,
        UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, ?, ?, ?);

-- name: block_again
UPDATE app.waybill_outbox_blocked
SET    failures = failures + ?, next_attempt_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,
       last_error = ?, state = ?, policy = ?
WHERE  transport = ? AND route = ? AND partition_key = ? AND row_id = ?;

-- name: unblock
DELETE FROM app.waybill_outbox_blocked
WHERE  transport = ? AND route = ? AND partition_key = ? AND row_id = ?;

-- name: route_is_blocked
SELECT EXISTS (SELECT 1
               FROM   app.waybill_outbox_blocked FORCE INDEX (PRIMARY)
               WHERE  transport = ? AND route = ? AND partition_key = '');

-- name: unkeyed_of_route
SELECT row_id
FROM   app.waybill_outbox_blocked FORCE INDEX (PRIMARY)
WHERE  transport = ? AND route = '' AND partition_key = '' AND message_name = ?
FOR    UPDATE SKIP LOCKED;

-- name: rows_of_key
-- A separate statement, without locks: an UPDATE that looked for the rows would wait for
-- dispatchers.
SELECT id, partition_key
FROM   app.waybill_outbox FORCE INDEX (PRIMARY)
WHERE  transport = ? AND bucket = ? AND id > ? AND (? = '' OR partition_key = ?)
ORDER  BY id
LIMIT  ?;

-- name: move_rows
-- Between a bucket and the one for its parked rows.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_outbox AS o FORCE INDEX (PRIMARY)
ON     o.transport = ? AND o.bucket = ? AND o.id = k.id
SET    o.bucket = ?;

-- name: delete
-- Pairs of bucket and id. By their whole primary key: on a way that looks at other rows
-- it waits for dispatchers, or deadlocks with them.
DELETE o
FROM   JSON_TABLE(?, '$[*]' COLUMNS (bucket SMALLINT PATH '$[0]', id BIGINT PATH '$[1]')) AS k
STRAIGHT_JOIN app.waybill_outbox AS o FORCE INDEX (PRIMARY)
ON     o.transport = ? AND o.bucket = k.bucket AND o.id = k.id;

-- name: delete_unkeyed
-- Pairs of held and id.
DELETE u
FROM   JSON_TABLE(?, '$[*]' COLUMNS (held SMALLINT PATH '$[0]', id BIGINT PATH '$[1]')) AS k
STRAIGHT_JOIN app.waybill_outbox_unkeyed AS u FORCE INDEX (PRIMARY)
ON     u.transport = ? AND u.held = k.held AND u.id = k.id;

-- name: hold
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_outbox_unkeyed AS u FORCE INDEX (PRIMARY)
ON     u.transport = ? AND u.held = ? AND u.id = k.id
SET    u.held = ?;

-- name: skip
-- Copies a row to the dead letters, before it is deleted.
INSERT INTO app.waybill_failed
       (transport, state, message_id, message_name, partition_key, headers, body, created_at,
        failures, first_failed_at, last_error)
SELECT t.name, 'skipped', o.message_id, o.message_name, o.partition_key, o.headers, o.body, o.created_at, ?,
       COALESCE((SELECT MIN(b.first_failed_at)
                 FROM   app.waybill_outbox_blocked AS b FORCE INDEX (PRIMARY)
                 WHERE  b.transport = o.transport AND b.route = '' AND b.partition_key = o.partition_key),
                UTC_TIMESTAMP(6)), ?
FROM   app.waybill_outbox AS o FORCE INDEX (PRIMARY)
JOIN   app.waybill_transport AS t ON t.id = o.transport
WHERE  o.transport = ? AND o.bucket = ? AND o.id = ?;

-- name: skip_unkeyed
INSERT INTO app.waybill_failed
       (transport, state, message_id, message_name, partition_key, headers, body, created_at,
        failures, first_failed_at, last_error)
SELECT t.name, 'skipped', o.message_id, o.message_name, '', o.headers, o.body, o.created_at, ?,
       COALESCE((SELECT b.first_failed_at
                 FROM   app.waybill_outbox_blocked AS b FORCE INDEX (PRIMARY)
                 WHERE  b.transport = o.transport AND b.route = '' AND b.partition_key = ''
                 AND    b.row_id = o.id),
                UTC_TIMESTAMP(6)), ?
FROM   app.waybill_outbox_unkeyed AS o FORCE INDEX (PRIMARY)
JOIN   app.waybill_transport AS t ON t.id = o.transport
WHERE  o.transport = ? AND o.held = ? AND o.id = ?;

-- name: any_due
SELECT EXISTS (SELECT 1 FROM app.waybill_delayed WHERE refused = FALSE AND due_at <= UTC_TIMESTAMP(6));

-- name: promoter
-- One promoter at a time, or two would invert a key.
SELECT g.bucket
FROM   app.waybill_outbox_gate AS g
WHERE  g.transport = 0 AND g.bucket = -1
FOR    UPDATE SKIP LOCKED;

-- name: due
SELECT d.id, CAST(d.due_at AS CHAR), COALESCE(d.transport, 0), d.partition_key, COALESCE(t.name, ''),
       LENGTH(d.body)
FROM   app.waybill_delayed AS d FORCE INDEX (waybill_delayed_by_due_at)
LEFT   JOIN app.waybill_transport AS t ON t.id = d.transport
WHERE  d.refused = FALSE AND d.due_at <= UTC_TIMESTAMP(6) AND d.due_at >= ? AND (d.due_at > ? OR d.id > ?)
ORDER  BY d.due_at, d.id
LIMIT  ?;

-- name: promote_keyed
INSERT INTO app.waybill_outbox
       (transport, bucket, message_id, message_name, partition_key, headers, body, created_at)
SELECT d.transport, CONV(LEFT(SHA2(d.partition_key, 256), 4), 16, 10) % ?, d.message_id, d.message_name,
       d.partition_key, d.headers, d.body, d.due_at
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_delayed AS d FORCE INDEX (PRIMARY) ON d.id = k.id
WHERE  d.transport IS NOT NULL AND d.partition_key <> ''
ORDER  BY d.due_at, d.id;

-- name: promote_unkeyed
INSERT INTO app.waybill_outbox_unkeyed
       (transport, message_id, message_name, headers, body, created_at)
SELECT d.transport, d.message_id, d.message_name, d.headers, d.body, d.due_at
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_delayed AS d FORCE INDEX (PRIMARY) ON d.id = k.id
WHERE  d.transport IS NOT NULL AND d.partition_key = ''
ORDER  BY d.due_at, d.id;

-- name: promote_queued
INSERT INTO app.waybill_queue
       (queue, message_id, message_name, partition_key, headers, body, created_at)
SELECT d.queue, d.message_id, d.message_name, d.partition_key, d.headers, d.body, d.due_at
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_delayed AS d FORCE INDEX (PRIMARY) ON d.id = k.id
WHERE  d.queue IS NOT NULL
ORDER  BY d.due_at, d.id;

-- name: promoted
DELETE d
FROM   JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k
STRAIGHT_JOIN app.waybill_delayed AS d FORCE INDEX (PRIMARY) ON d.id = k.id;

-- name: refuse
UPDATE app.waybill_delayed SET refused = TRUE WHERE id = ?;

-- name: backlog
-- Blocked are parked rows, rows of keys and routes that are not due, rows behind them in
-- their keys, rows in no bucket that a relay reads, and delayed rows that could not be
-- promoted. Due entries count as pending alone, or a drain would leave their rows.
WITH waiting AS (
    SELECT route, partition_key, row_id
    FROM   app.waybill_outbox_blocked
    WHERE  transport = ? AND (state = 'parked' OR next_attempt_at > UTC_TIMESTAMP(6)))
SELECT COUNT(o.id) + u.pending + d.refused,
       COALESCE(SUM(o.bucket < 0 OR o.bucket >= m.buckets
                    OR o.partition_key IN (SELECT w.partition_key
                                           FROM   waiting AS w
                                           WHERE  w.route = '' AND w.partition_key <> '')
                    OR o.message_name IN (SELECT w.route FROM waiting AS w WHERE w.route <> '')
                    OR o.partition_key IN (SELECT p.partition_key
                                           FROM   waiting AS w
                                           JOIN   app.waybill_outbox AS p
                                           ON     p.transport = ? AND p.message_name = w.route AND p.id > 0
                                           WHERE  w.route <> '')), 0) + u.held + d.refused,
       d.waiting
FROM  (SELECT CAST(value AS SIGNED) AS buckets FROM app.waybill_meta WHERE name = 'buckets') AS m
JOIN  (SELECT COUNT(*) AS pending,
              COALESCE(SUM(x.message_name IN (SELECT w.route FROM waiting AS w WHERE w.route <> '')
                           OR x.id IN (SELECT w.row_id
                                       FROM   waiting AS w
                                       WHERE  w.route = '' AND w.partition_key = '')), 0) AS held
       FROM   app.waybill_outbox_unkeyed AS x
       WHERE  x.transport = ? AND x.id > 0) AS u
JOIN  (SELECT COALESCE(SUM(refused), 0) AS refused, COALESCE(SUM(NOT refused), 0) AS waiting
       FROM   app.waybill_delayed
       WHERE  transport = ?) AS d
LEFT   JOIN app.waybill_outbox AS o ON o.transport = ? AND o.id > 0
GROUP  BY u.pending, u.held, d.refused, d.waiting;

-- name: report
INSERT INTO app.waybill_workers (id, kind, transport, host, pid, problem, since)
VALUES (UNHEX(?), 'relay', ?, ?, ?, ?, CASE WHEN ? = '' THEN NULL ELSE UTC_TIMESTAMP(6) END)
ON DUPLICATE KEY UPDATE seen_at = UTC_TIMESTAMP(6), problem = VALUES(problem),
    since = CASE WHEN VALUES(since) IS NULL THEN NULL ELSE COALESCE(since, VALUES(since)) END;

-- name: report_workers
INSERT INTO app.waybill_workers (id, kind, transport, host, pid, problem, report)
VALUES (UNHEX(?), 'worker', '', ?, ?, '', ?)
ON DUPLICATE KEY UPDATE seen_at = UTC_TIMESTAMP(6), report = VALUES(report);

-- name: instructions
-- One row for each paused transport, or one without.
SELECT w.stop_requested_at IS NOT NULL, p.transport
FROM   app.waybill_workers AS w
LEFT   JOIN app.waybill_paused AS p ON TRUE
WHERE  w.id = UNHEX(?);

-- name: forget_report
DELETE FROM app.waybill_workers WHERE id = UNHEX(?) OR seen_at < UTC_TIMESTAMP(6) - INTERVAL 1 HOUR;
