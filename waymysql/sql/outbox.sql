-- name: lanes
SELECT id, name FROM app.waybill_outbox_lane;

-- name: add_lane
INSERT IGNORE INTO app.waybill_outbox_lane (name) VALUES (?);

-- name: add_buckets
INSERT IGNORE INTO app.waybill_outbox_bucket (lane, bucket)
WITH RECURSIVE n (bucket) AS (SELECT 0 UNION ALL SELECT bucket + 1 FROM n WHERE bucket < ? - 1)
SELECT l.id, n.bucket FROM app.waybill_outbox_lane AS l JOIN n WHERE l.name = ?;

-- name: add_gates
INSERT IGNORE INTO app.waybill_outbox_gate (lane, bucket, name)
WITH RECURSIVE n (bucket) AS (SELECT -1 UNION ALL SELECT bucket + 1 FROM n WHERE bucket < ? - 1)
SELECT l.id, n.bucket, ? FROM app.waybill_outbox_lane AS l JOIN n WHERE l.name = ?;

-- name: now
-- The database's time, and which state of the blocked keys it has.
SELECT l.blocked_version, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM app.waybill_outbox_lane AS l WHERE l.id = ?;

-- name: table
-- How many buckets there are, the outbox's next id, and who answers: servers and
-- tables that give the same ids to other rows are told apart. MySQL dates a
-- TRUNCATE; on MariaDB only the next id shows it.
SELECT 'table', (SELECT CAST(m.value AS SIGNED) FROM app.waybill_meta AS m WHERE m.name = 'buckets'), t.auto_increment,
       CONCAT(@@hostname, ':', @@port, '/', @@server_id, '/', t.create_time)
FROM   information_schema.tables AS t WHERE t.table_schema = ? AND t.table_name = ?;

-- name: blocked_entries
-- Which state of the lane's blocked keys the rows are read by, who answers, how many
-- buckets there are, and so many entries of what is blocked, with the time at which
-- one is due that waits. It is read after buckets and rows are locked. The table's
-- creation changes when it is truncated: its ids begin anew.
SELECT l.blocked_version, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       (SELECT CONCAT(@@hostname, ':', @@port, '/', @@server_id, '/', t.create_time) FROM information_schema.tables AS t WHERE t.table_schema = ? AND t.table_name = ?),
       (SELECT m.value FROM app.waybill_meta AS m WHERE m.name = 'buckets'),
       b.bucket, b.route, b.partition_key, b.message_id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', CASE WHEN b.next_attempt_at > UTC_TIMESTAMP(6) THEN b.next_attempt_at END), b.failures
FROM   app.waybill_outbox_lane AS l
LEFT   JOIN (SELECT e.bucket, e.route, e.partition_key, e.message_id, e.next_attempt_at, e.failures FROM app.waybill_outbox_blocked AS e FORCE INDEX (PRIMARY) WHERE e.lane = ? LIMIT ?) AS b ON TRUE
WHERE  l.id = ?;

-- name: blocked_buckets
-- The same where there are too many entries: those of keys by their buckets.
SELECT l.blocked_version, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       (SELECT CONCAT(@@hostname, ':', @@port, '/', @@server_id, '/', t.create_time) FROM information_schema.tables AS t WHERE t.table_schema = ? AND t.table_name = ?),
       (SELECT m.value FROM app.waybill_meta AS m WHERE m.name = 'buckets'),
       b.bucket, b.route, NULL, NULL, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(CASE WHEN b.next_attempt_at > UTC_TIMESTAMP(6) THEN b.next_attempt_at END)), MAX(b.failures)
FROM   app.waybill_outbox_lane AS l LEFT JOIN app.waybill_outbox_blocked AS b ON b.lane = l.id
WHERE  l.id = ?
GROUP  BY l.blocked_version, b.bucket, b.route;

-- name: free_gates
-- The buckets whose gate nobody holds: whoever got an id for one of them before
-- this began has committed it, or never will. The locks end with the statement,
-- which is a transaction of its own and waits for nobody.
SELECT g.bucket FROM app.waybill_outbox_gate AS g FORCE INDEX (PRIMARY) WHERE g.lane = ? AND g.bucket >= 0 FOR UPDATE SKIP LOCKED;

-- name: bump_blocked
UPDATE app.waybill_outbox_lane SET blocked_version = blocked_version + 1 WHERE id = ?;

-- name: block
-- Counts a refusal of the head of a key, of a row without key, or of a route. The
-- assignments happen in this order.
INSERT INTO app.waybill_outbox_blocked (lane, route, partition_key, row_id, bucket, message_id, message_name, failures, first_failed_at, next_attempt_at, last_error, policy)
VALUES (?, ?, ?, ?, ?, ?, ?, 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, ?, ?)
ON DUPLICATE KEY UPDATE
    failures = CASE WHEN route <> '' OR message_id = VALUES(message_id) THEN failures + 1 ELSE 1 END,
    policy = VALUES(policy), message_id = VALUES(message_id), message_name = VALUES(message_name), next_attempt_at = VALUES(next_attempt_at), last_error = VALUES(last_error);

-- name: unblock_routes
-- A route that works again frees the keys that were blocked for its sake before
-- it was.
DELETE FROM app.waybill_outbox_blocked WHERE lane = ? AND (route = ? OR route = '' AND message_name = ? AND state = 'retrying');

-- name: flush
-- A commit, which has InnoDB write its log as far as this.
INSERT INTO app.waybill_meta (name, value) VALUES ('flushes', '1') ON DUPLICATE KEY UPDATE value = value + 1;

-- name: first_id
-- The lowest id of a bucket, in case a row came in below the mark.
SELECT id FROM app.waybill_outbox FORCE INDEX (PRIMARY) WHERE lane = ? AND bucket = ? ORDER BY id LIMIT 1;

-- name: any_due
SELECT EXISTS (SELECT 1 FROM app.waybill_delayed WHERE due_at <= UTC_TIMESTAMP(6));

-- name: unserialized
SELECT EXISTS (SELECT 1 FROM app.waybill_meta WHERE name = 'unserialized');

-- name: allow_unserialized
INSERT IGNORE INTO app.waybill_meta (name, value) VALUES ('unserialized', '1');

-- name: mover
-- One mover at a time, or two would invert a key.
SELECT g.bucket FROM app.waybill_outbox_gate AS g WHERE g.lane = 0 AND g.bucket = -1 FOR UPDATE SKIP LOCKED;

-- name: due
SELECT d.id, CAST(d.due_at AS CHAR), COALESCE(d.lane, 0), d.partition_key, COALESCE(l.name, '')
FROM   app.waybill_delayed AS d LEFT JOIN app.waybill_outbox_lane AS l ON l.id = d.lane
WHERE  d.due_at <= UTC_TIMESTAMP(6) AND d.due_at >= ? AND (d.due_at > ? OR d.id > ?) ORDER BY d.due_at, d.id LIMIT ?;

-- name: left
-- Parked rows count once their key is one of releasing_keys; until then what is
-- behind them waits. Blocked are the rows of keys and routes that wait; those that
-- are due count as pending alone, or a drain would leave them to nobody. What has a
-- row of a waiting route in its key waits with it.
SELECT COUNT(*) + (SELECT COUNT(*) FROM app.waybill_outbox_blocked AS b JOIN app.waybill_outbox_lane AS l ON l.id = b.lane
                   JOIN app.waybill_failed AS f FORCE INDEX (waybill_failed_by_key) ON f.transport = l.name AND f.partition_key = b.partition_key AND f.state = 'parked'
                   WHERE  l.name = ? AND b.release_at <= UTC_TIMESTAMP(6)
                   AND    COALESCE((SELECT r.next_attempt_at FROM app.waybill_outbox_blocked AS r FORCE INDEX (PRIMARY)
                                    WHERE  r.lane = b.lane AND r.partition_key = '' AND r.row_id = 0
                                    AND    r.route = (SELECT h.message_name FROM app.waybill_failed AS h FORCE INDEX (waybill_failed_by_key)
                                                      WHERE  h.transport = l.name AND h.partition_key = b.partition_key AND h.state = 'parked' ORDER BY h.id LIMIT 1)) <= UTC_TIMESTAMP(6), TRUE)),
       COALESCE(SUM(o.blocked), 0), (SELECT COUNT(*) FROM app.waybill_delayed AS d JOIN app.waybill_outbox_lane AS l ON l.id = d.lane WHERE l.name = ?)
FROM  (SELECT EXISTS (SELECT 1 FROM app.waybill_outbox_blocked AS b
                      WHERE  b.lane = o.lane AND b.next_attempt_at > UTC_TIMESTAMP(6)
                      AND   (b.route = '' AND b.partition_key = o.partition_key AND b.row_id = CASE WHEN o.partition_key = '' THEN o.id ELSE 0 END
                             OR b.route <> '' AND b.route = o.message_name))
              OR o.partition_key <> '' AND (o.bucket, o.partition_key) IN (
                      SELECT p.bucket, p.partition_key FROM app.waybill_outbox_blocked AS r
                      JOIN   app.waybill_outbox AS p ON p.lane = r.lane AND p.message_name = r.route
                      JOIN   app.waybill_outbox_lane AS m ON m.id = r.lane
                      WHERE  r.route <> '' AND r.next_attempt_at > UTC_TIMESTAMP(6) AND m.name = ?) AS blocked
       FROM app.waybill_outbox AS o JOIN app.waybill_outbox_lane AS l ON l.id = o.lane WHERE l.name = ?) AS o;

-- name: report
INSERT INTO app.waybill_workers (id, kind, transport, host, pid, problem, since)
VALUES (?, 'relay', ?, ?, ?, ?, CASE WHEN ? = '' THEN NULL ELSE UTC_TIMESTAMP(6) END)
ON DUPLICATE KEY UPDATE seen_at = UTC_TIMESTAMP(6), problem = VALUES(problem),
    since = CASE WHEN VALUES(problem) = '' THEN NULL ELSE COALESCE(since, VALUES(since)) END;

-- name: forget_report
DELETE FROM app.waybill_workers WHERE id = ? OR seen_at < UTC_TIMESTAMP(6) - INTERVAL 1 HOUR;

-- name: server
-- Settings under which the outbox would lose its order, or a relay its rows. A
-- session setting is what counts for this session.
SHOW SESSION VARIABLES WHERE variable_name IN ('version', 'wsrep_on', 'auto_increment_increment', 'auto_increment_offset', 'read_only', 'super_read_only', 'innodb_read_only',
    'innodb_flush_log_at_trx_commit', 'log_bin', 'idle_transaction_timeout', 'idle_write_transaction_timeout', 'idle_readonly_transaction_timeout', 'max_statement_time', 'max_execution_time', 'max_allowed_packet');
