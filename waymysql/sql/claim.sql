-- Claims of relays. Where a ? is a condition it stands for another statement of this
-- file, or for TRUE; where it is a join, for another statement, or for nothing. Statements
-- in parentheses are branches of a UNION ALL, one for each bucket or row. NO_SEMIJOIN is
-- for MySQL, which may read all entries of a bucket for a NOT EXISTS instead of looking up
-- one.

-- name: versions
SELECT bucket, blocked_version
FROM   app.waybill_outbox_bucket FORCE INDEX (PRIMARY)
WHERE  transport = ?;

-- name: table
-- The number of buckets, the outbox's next id, and the identity of server and table: with
-- another one the same ids are other rows. MySQL dates a TRUNCATE; on MariaDB only the
-- next id shows it.
SELECT 'table', (SELECT CAST(m.value AS SIGNED) FROM app.waybill_meta AS m WHERE m.name = 'buckets'),
       t.auto_increment, CONCAT(@@hostname, ':', @@port, '/', @@server_id, '/', t.create_time)
FROM   information_schema.tables AS t
WHERE  t.table_schema = ? AND t.table_name = ?;

-- name: paused
-- Relays pause while tables or buckets change. A time further ahead was written before
-- the clock went back.
SELECT 'paused', 0, NULL, NULL
FROM   app.waybill_meta
WHERE  name = 'relays_paused_until' AND CAST(value AS DATETIME(6)) > UTC_TIMESTAMP(6)
AND    CAST(value AS DATETIME(6)) < UTC_TIMESTAMP(6) + INTERVAL 1 MINUTE;

-- name: next_row
-- The first row of a bucket behind its position, in a UNION with table and paused. MIN is
-- read while the statement is optimized: half the time of an branch with ORDER BY and LIMIT.
(SELECT 'row', ?, MIN(id), NULL
 FROM   app.waybill_outbox FORCE INDEX (PRIMARY)
 WHERE  transport = ? AND bucket = ? AND id > ?);

-- name: free_gates
-- The buckets that no dispatcher writes to. The locks end with the statement.
SELECT bucket
FROM   app.waybill_outbox_gate FORCE INDEX (PRIMARY)
WHERE  transport = ? AND bucket IN (?)
FOR    UPDATE SKIP LOCKED;

-- name: any_blocked_key
-- In a UNION with next_row: whether a bucket has a blocked key.
(SELECT 'blocked', ?, NULL, NULL
 FROM   app.waybill_outbox_blocked FORCE INDEX (waybill_outbox_blocked_by_bucket)
 WHERE  transport = ? AND bucket = ? AND partition_key > ''
 LIMIT  1);

-- name: any_blocked_route
(SELECT 'blocked', -1, NULL, NULL
 FROM   app.waybill_outbox_blocked FORCE INDEX (PRIMARY)
 WHERE  transport = ? AND route > ''
 LIMIT  1);

-- name: try_buckets
-- Buckets locked by other relays are skipped.
SELECT bucket
FROM   app.waybill_outbox_bucket FORCE INDEX (PRIMARY)
WHERE  transport = ? AND bucket IN (?)
FOR    UPDATE SKIP LOCKED;

-- name: locked_state
-- The number of buckets, the transport's name, the versions of locked ones and of the routes,
-- and the blocked routes.
SELECT 'buckets', 0, CAST(value AS SIGNED), (SELECT t.name FROM app.waybill_transport AS t WHERE t.id = ?)
FROM   app.waybill_meta
WHERE  name = 'buckets'
UNION  ALL
SELECT 'version', bucket, blocked_version, NULL
FROM   app.waybill_outbox_bucket FORCE INDEX (PRIMARY)
WHERE  transport = ? AND bucket IN (-1, ?)
UNION  ALL
SELECT 'route', -1, 0, route
FROM   app.waybill_outbox_blocked FORCE INDEX (PRIMARY)
WHERE  transport = ? AND route > '';

-- name: blocked_keys
-- The blocked keys of buckets, in a UNION with locked_state. A branch for each of 32 buckets takes four times
-- as long to plan.
(SELECT 'key', bucket, 0, partition_key
 FROM   app.waybill_outbox_blocked FORCE INDEX (waybill_outbox_blocked_by_bucket)
 WHERE  transport = ? AND bucket IN (?) AND partition_key > ''
 LIMIT  ?);

-- name: last_id
-- The last id of a bucket, or NULL. It comes ahead of keyed_rows with a condition for keys,
-- which may find nothing. MAX, as MIN in next_row, is read while it is optimized.
(SELECT ?, MAX(e.id), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
 FROM   app.waybill_outbox AS e FORCE INDEX (PRIMARY)
 WHERE  e.transport = ? AND e.bucket = ? AND e.id > ?);

-- name: keyed_rows
-- The oldest rows of a bucket, with a condition for bodies, a join, and a condition for keys.
(SELECT e.bucket, NULL, e.id, e.message_id, e.message_name, e.partition_key, e.headers, LENGTH(e.body),
        CASE WHEN ? THEN e.body END, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', e.created_at)
 FROM   app.waybill_outbox AS e FORCE INDEX (PRIMARY)
 ?
 WHERE  e.transport = ? AND e.bucket = ? AND e.id > ? AND ?
 ORDER  BY e.id
 LIMIT  ?);

-- name: count_keyed
-- How many rows keyed_rows should have found up to an id.
(SELECT ?, COUNT(*)
 FROM   app.waybill_outbox AS e FORCE INDEX (PRIMARY)
 ?
 WHERE  e.transport = ? AND e.bucket = ? AND e.id > ? AND e.id <= ? AND ?);

-- name: unkeyed_rows
-- The oldest rows without a key. Rows locked by other relays are skipped.
SELECT -1, NULL, e.id, e.message_id, e.message_name, '', e.headers, LENGTH(e.body),
       CASE WHEN ? THEN e.body END, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', e.created_at)
FROM   app.waybill_outbox_unkeyed AS e FORCE INDEX (PRIMARY)
WHERE  e.transport = ? AND e.held = 0 AND e.id > ?
ORDER  BY e.id
LIMIT  ?
FOR    UPDATE SKIP LOCKED;

-- name: keyed_row
-- The row of an entry.
(SELECT e.bucket, NULL, e.id, e.message_id, e.message_name, e.partition_key, e.headers, LENGTH(e.body),
        CASE WHEN ? THEN e.body END, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', e.created_at)
 FROM   app.waybill_outbox AS e FORCE INDEX (PRIMARY)
 WHERE  e.transport = ? AND e.bucket = ? AND e.id = ?);

-- name: unkeyed_row
(SELECT -1, NULL, e.id, e.message_id, e.message_name, '', e.headers, LENGTH(e.body),
        CASE WHEN ? THEN e.body END, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', e.created_at)
 FROM   app.waybill_outbox_unkeyed AS e FORCE INDEX (PRIMARY)
 WHERE  e.transport = ? AND e.held = 1 AND e.id = ?);

-- name: small_body
-- A condition for bodies: no larger than their share of a claim.
LENGTH(e.body) <= ?;

-- name: not_of_routes
-- A condition for bodies: of no blocked route.
e.message_name NOT IN (?);

-- name: not_of_blocked_route
-- The same by a lookup.
NOT EXISTS (SELECT /*+ NO_SEMIJOIN() */ 1
            FROM   app.waybill_outbox_blocked AS r FORCE INDEX (PRIMARY)
            WHERE  r.transport = e.transport AND r.route = e.message_name AND r.partition_key = '');

-- name: not_of_keys
-- A condition for keys: neither blocked nor hot.
e.partition_key NOT IN (?);

-- name: blocked_key
-- A join with the entry of a row's key. A NOT EXISTS takes MariaDB twice as long to plan.
LEFT   JOIN app.waybill_outbox_blocked AS i FORCE INDEX (waybill_outbox_blocked_by_bucket)
       ON  i.transport = e.transport AND i.bucket = e.bucket AND i.partition_key = e.partition_key;

-- name: not_of_blocked_key
-- The same by that join.
i.transport IS NULL;

-- name: keyed_body
-- A body that was not read with its row.
(SELECT bucket, id, body
 FROM   app.waybill_outbox FORCE INDEX (PRIMARY)
 WHERE  transport = ? AND bucket = ? AND id = ?);

-- name: unkeyed_body
(SELECT -1, id, body
 FROM   app.waybill_outbox_unkeyed FORCE INDEX (PRIMARY)
 WHERE  transport = ? AND held IN (0, 1) AND id = ?);

-- name: probe
-- How many of three sentinels there are, and the first row of a bucket.
SELECT (SELECT COUNT(*) FROM app.waybill_outbox WHERE transport = ? AND bucket = ? AND id = -1)
     + (SELECT COUNT(*) FROM app.waybill_outbox_unkeyed WHERE transport = ? AND held IN (1, 2) AND id = -1),
       (SELECT id
        FROM   app.waybill_outbox FORCE INDEX (PRIMARY)
        WHERE  transport = ? AND bucket = ? AND id > 0
        ORDER  BY id
        LIMIT  1);

-- name: routes
-- The transport's name, the blocked routes with their version, and whether relays are to pause.
SELECT 'version', blocked_version, (SELECT t.name FROM app.waybill_transport AS t WHERE t.id = ?)
FROM   app.waybill_outbox_bucket FORCE INDEX (PRIMARY)
WHERE  transport = ? AND bucket = -1
UNION  ALL
SELECT 'route', NULL, route
FROM   app.waybill_outbox_blocked FORCE INDEX (PRIMARY)
WHERE  transport = ? AND route > ''
UNION  ALL
SELECT 'paused', NULL, NULL
FROM   app.waybill_meta
WHERE  name = 'relays_paused_until' AND CAST(value AS DATETIME(6)) > UTC_TIMESTAMP(6)
AND    CAST(value AS DATETIME(6)) < UTC_TIMESTAMP(6) + INTERVAL 1 MINUTE;

-- name: route_version
-- Transactions that make or remove a blocked route hold this row's lock.
SELECT blocked_version
FROM   app.waybill_outbox_bucket FORCE INDEX (PRIMARY)
WHERE  transport = ? AND bucket = -1
LOCK   IN SHARE MODE;

-- name: any_unkeyed
SELECT id
FROM   app.waybill_outbox_unkeyed FORCE INDEX (PRIMARY)
WHERE  transport = ? AND held = 0 AND id > ?
LIMIT  1;

-- name: next_unkeyed
SELECT t.auto_increment
FROM   information_schema.tables AS t
WHERE  t.table_schema = ? AND t.table_name = ?;

-- name: released
-- Held rows without a reason: neither they nor their route have an entry.
SELECT u.id
FROM   app.waybill_outbox_unkeyed AS u FORCE INDEX (PRIMARY)
WHERE  u.transport = ? AND u.held = 1 AND u.id > ?
AND    NOT EXISTS (SELECT /*+ NO_SEMIJOIN() */ 1 FROM app.waybill_outbox_blocked AS r FORCE INDEX (PRIMARY)
                   WHERE  r.transport = u.transport AND r.route = u.message_name AND r.partition_key = '')
AND    NOT EXISTS (SELECT /*+ NO_SEMIJOIN() */ 1 FROM app.waybill_outbox_blocked AS i FORCE INDEX (PRIMARY)
                   WHERE  i.transport = u.transport AND i.route = '' AND i.partition_key = ''
                   AND    i.row_id = u.id)
ORDER  BY u.id
LIMIT  ?;

-- name: any_retry
SELECT EXISTS (SELECT 1 FROM app.waybill_outbox_blocked FORCE INDEX (waybill_outbox_blocked_by_due)
               WHERE  transport = ? AND state = 'retrying' AND next_attempt_at <= UTC_TIMESTAMP(6))
    OR EXISTS (SELECT 1 FROM app.waybill_outbox_blocked FORCE INDEX (waybill_outbox_blocked_by_due)
               WHERE  transport = ? AND state = 'retrying'
               AND    next_attempt_at > UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND),
       EXISTS (SELECT 1 FROM app.waybill_meta
               WHERE  name = 'relays_paused_until' AND CAST(value AS DATETIME(6)) > UTC_TIMESTAMP(6)
               AND    CAST(value AS DATETIME(6)) < UTC_TIMESTAMP(6) + INTERVAL 1 MINUTE),
       COALESCE((SELECT t.name FROM app.waybill_transport AS t WHERE t.id = ?), '');

-- name: due_retries
-- Entries to be tried, by name. One that is further ahead than the longest delay was
-- written before the clock went back. Rows that wait for a blocked route are left out.
SELECT b.route, b.partition_key, b.row_id
FROM   app.waybill_outbox_blocked AS b FORCE INDEX (waybill_outbox_blocked_by_due)
WHERE  b.transport = ? AND b.state = 'retrying'
AND   (b.next_attempt_at <= UTC_TIMESTAMP(6)
       OR b.next_attempt_at > UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)
AND   (b.route <> ''
       OR b.message_name NOT IN (SELECT r.route
                                 FROM   app.waybill_outbox_blocked AS r FORCE INDEX (PRIMARY)
                                 WHERE  r.transport = ? AND r.route > ''))
ORDER  BY b.next_attempt_at
LIMIT  ?;

-- name: due_retry
-- Locks one of these entries. By its whole primary key: a range of due entries can leave
-- a lock on the entry behind it.
(SELECT b.route, b.partition_key, b.row_id, b.bucket, b.failures
 FROM   app.waybill_outbox_blocked AS b FORCE INDEX (PRIMARY)
 WHERE  b.transport = ? AND b.route = ? AND b.partition_key = ? AND b.row_id = ? AND b.state = 'retrying'
 AND   (b.next_attempt_at <= UTC_TIMESTAMP(6)
        OR b.next_attempt_at > UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)
 FOR    UPDATE SKIP LOCKED);
