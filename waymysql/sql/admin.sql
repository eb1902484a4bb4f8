-- name: outbox_list
-- Whether a row is blocked is asked of those that are shown alone.
SELECT o.id, t.name, o.message_name, o.partition_key, o.message_id,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.created_at), NULL, o.bytes,
       o.held <> 0
       OR EXISTS (SELECT 1 FROM app.waybill_outbox_blocked AS b FORCE INDEX (PRIMARY)
                  WHERE  o.partition_key <> ''
                  AND    b.transport = o.transport AND b.route = '' AND b.partition_key = o.partition_key)
       OR EXISTS (SELECT 1 FROM app.waybill_outbox_blocked AS b FORCE INDEX (PRIMARY)
                  WHERE  b.transport = o.transport AND b.route = o.message_name)
FROM  ((SELECT e.transport, e.id, e.message_name, e.partition_key, e.message_id, e.created_at,
               LENGTH(e.body) AS bytes, 0 AS held
        FROM   app.waybill_outbox AS e FORCE INDEX (id)
        WHERE (? = '' OR e.transport = (SELECT t.id FROM app.waybill_transport AS t WHERE t.name = ?))
        AND   (? = '' OR e.message_name = ?) AND e.id > GREATEST(0, ?)
        ORDER  BY e.id
        LIMIT  ?)
       UNION  ALL
       (SELECT u.transport, u.id, u.message_name, '', u.message_id, u.created_at, LENGTH(u.body), u.held
        FROM   app.waybill_outbox_unkeyed AS u FORCE INDEX (id)
        WHERE (? = '' OR u.transport = (SELECT t.id FROM app.waybill_transport AS t WHERE t.name = ?))
        AND   (? = '' OR u.message_name = ?) AND u.id > GREATEST(0, ?)
        ORDER  BY u.id
        LIMIT  ?)) AS o
JOIN   app.waybill_transport AS t ON t.id = o.transport
ORDER  BY o.id, o.partition_key = ''
LIMIT  ?;

-- name: outbox_of_key
-- The same of a key, which is looked for in its bucket alone.
SELECT o.id, t.name, o.message_name, o.partition_key, o.message_id,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.created_at), NULL, LENGTH(o.body),
       EXISTS (SELECT 1 FROM app.waybill_outbox_blocked AS b FORCE INDEX (PRIMARY)
               WHERE  b.transport = o.transport AND b.route = '' AND b.partition_key = o.partition_key)
       OR EXISTS (SELECT 1 FROM app.waybill_outbox_blocked AS b FORCE INDEX (PRIMARY)
                  WHERE b.transport = o.transport AND b.route = o.message_name)
FROM   app.waybill_transport AS t
CROSS  JOIN (SELECT CAST(? AS SIGNED) AS bucket UNION ALL SELECT CAST(? AS SIGNED) + 1024) AS h
STRAIGHT_JOIN app.waybill_outbox AS o FORCE INDEX (PRIMARY) ON o.transport = t.id AND o.bucket = h.bucket
WHERE (? = '' OR t.name = ?) AND o.partition_key = ? AND (? = '' OR o.message_name = ?)
AND    o.id > GREATEST(0, ?)
ORDER  BY o.id
LIMIT  ?;

-- name: delayed_list
-- In the order of the index: those that cannot be promoted come last.
SELECT d.id, COALESCE(t.name, CONCAT('queue://', d.queue)), d.message_name, d.partition_key, d.message_id,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', d.created_at),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', d.due_at), LENGTH(d.body), d.refused
FROM   app.waybill_delayed AS d FORCE INDEX (waybill_delayed_by_due_at)
LEFT   JOIN app.waybill_transport AS t ON t.id = d.transport
WHERE  (? = '' OR t.name = ? OR d.queue = ? OR CONCAT('queue://', d.queue) = ?)
AND   (d.refused > ? OR d.refused = ? AND (d.due_at > ? OR d.due_at = ? AND d.id > ?))
ORDER  BY d.refused, d.due_at, d.id
LIMIT  ?;

-- name: delayed_of
-- The same of a key or a name: all are read, for which the index would be a detour.
SELECT d.id, COALESCE(t.name, CONCAT('queue://', d.queue)), d.message_name, d.partition_key, d.message_id,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', d.created_at),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', d.due_at), LENGTH(d.body), d.refused
FROM   app.waybill_delayed AS d IGNORE INDEX (waybill_delayed_by_due_at)
LEFT   JOIN app.waybill_transport AS t ON t.id = d.transport
WHERE  (? = '' OR t.name = ? OR d.queue = ? OR CONCAT('queue://', d.queue) = ?)
AND    (? = '' OR d.partition_key = ?) AND (? = '' OR d.message_name = ?)
AND   (d.refused > ? OR d.refused = ? AND (d.due_at > ? OR d.due_at = ? AND d.id > ?))
ORDER  BY d.refused, d.due_at, d.id
LIMIT  ?;

-- name: blocked
-- The outbox is read once, however many entries there are. The empty branch keeps MariaDB
-- from reading it for each entry (LATERAL DERIVED, split_materialized).
SELECT t.name, b.route, b.partition_key,
       CASE WHEN b.route = '' AND b.partition_key = '' THEN b.row_id ELSE 0 END,
       b.message_id, b.message_name, b.failures,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', b.first_failed_at),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', CASE b.state WHEN 'retrying' THEN b.next_attempt_at END),
       b.last_error, b.state, b.policy,
       COALESCE(k.n, r.n, b.route = '' AND b.partition_key = ''), COALESCE(k.parked, 0)
FROM   app.waybill_outbox_blocked AS b
JOIN   app.waybill_transport AS t ON t.id = b.transport
LEFT   JOIN (SELECT o.transport, o.partition_key, COUNT(*) AS n, SUM(o.bucket > 1023) AS parked
             FROM   app.waybill_outbox AS o
             STRAIGHT_JOIN app.waybill_outbox_blocked AS e FORCE INDEX (waybill_outbox_blocked_by_bucket)
                    ON e.transport = o.transport AND e.bucket = o.bucket % 1024
                    AND e.partition_key = o.partition_key
             WHERE  o.id > 0 AND e.route = '' AND e.partition_key <> ''
             GROUP  BY o.transport, o.partition_key
             UNION  ALL
             SELECT 0, '', 0, 0 FROM DUAL WHERE FALSE) AS k
       ON k.transport = b.transport AND k.partition_key = b.partition_key AND b.route = ''
LEFT   JOIN (SELECT o.transport, o.message_name, COUNT(*) AS n
             FROM  (SELECT e.transport, e.message_name FROM app.waybill_outbox AS e WHERE e.id > 0
                    UNION  ALL
                    SELECT u.transport, u.message_name FROM app.waybill_outbox_unkeyed AS u WHERE u.id > 0) AS o
             WHERE (o.transport, o.message_name) IN (
                    SELECT e.transport, e.route FROM app.waybill_outbox_blocked AS e WHERE e.route <> '')
             GROUP  BY o.transport, o.message_name) AS r
       ON r.transport = b.transport AND r.message_name = b.route
WHERE  (? = '' OR t.name = ?)
ORDER  BY b.route = '', b.first_failed_at, b.partition_key, b.route, t.name, b.row_id
LIMIT  ?;

-- name: blocked_keys
-- The entries after another one, from the ninth parameter on; the eighth is whether there is one. The first three
-- are a key, for which alone messages are counted, in its bucket.
SELECT t.name, b.route, b.partition_key, CASE WHEN b.route = '' AND b.partition_key = '' THEN b.row_id ELSE 0 END,
       b.message_id, b.message_name, b.failures,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', b.first_failed_at),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', CASE b.state WHEN 'retrying' THEN b.next_attempt_at END),
       b.last_error, b.state, b.policy,
      (SELECT COUNT(*) FROM app.waybill_outbox AS o FORCE INDEX (PRIMARY)
       WHERE  ? <> '' AND o.transport = b.transport AND o.bucket = b.bucket
       AND    o.partition_key = b.partition_key)
    + (SELECT COUNT(*) FROM app.waybill_outbox AS o FORCE INDEX (PRIMARY)
       WHERE  ? <> '' AND o.transport = b.transport AND o.bucket = b.bucket + 1024
       AND    o.partition_key = b.partition_key),
      (SELECT COUNT(*) FROM app.waybill_outbox AS o FORCE INDEX (PRIMARY)
       WHERE  ? <> '' AND o.transport = b.transport AND o.bucket = b.bucket + 1024
       AND    o.partition_key = b.partition_key)
FROM   app.waybill_outbox_blocked AS b
JOIN   app.waybill_transport AS t ON t.id = b.transport
WHERE (? = '' OR t.name = ?) AND (? = '' OR b.partition_key = ?)
AND   (? = 0 OR (b.route = '', b.first_failed_at, b.partition_key, b.route, t.name,
                 CASE WHEN b.route = '' AND b.partition_key = '' THEN b.row_id ELSE 0 END) > (?, ?, ?, ?, ?, ?))
ORDER  BY b.route = '', b.first_failed_at, b.partition_key, b.route, t.name, b.row_id
LIMIT  ?;

-- name: entries
-- Blocked routes, keys and messages without a key, whether the row of a retrying one is
-- gone, and for how many buckets that holds.
SELECT b.transport, t.name, b.route, b.partition_key, b.row_id, b.bucket, b.failures, b.last_error,
       b.state = 'parked',
       b.state = 'retrying'
       AND NOT EXISTS (SELECT 1
                       FROM   app.waybill_outbox AS o FORCE INDEX (PRIMARY)
                       WHERE  o.transport = b.transport AND o.bucket = b.bucket AND o.id = b.row_id)
       AND NOT EXISTS (SELECT 1
                       FROM   app.waybill_outbox_unkeyed AS u FORCE INDEX (PRIMARY)
                       WHERE  b.bucket = -1 AND u.transport = b.transport AND u.held = 1 AND u.id = b.row_id),
       (SELECT CAST(m.value AS SIGNED) FROM app.waybill_meta AS m WHERE m.name = 'buckets')
FROM   app.waybill_outbox_blocked AS b
JOIN   app.waybill_transport AS t ON t.id = b.transport
WHERE  (? = '' OR t.name = ?) AND (? = '' OR b.partition_key = ? AND b.route = '') AND (? = '' OR b.route = ?)
AND    (? = 0 OR b.row_id = ? AND b.route = '' AND b.partition_key = '')
ORDER  BY b.transport, b.bucket, b.row_id;

-- name: lock_waiting
-- Entries whose next attempt is to come, but for entries that a relay is trying.
SELECT b.transport, b.route, b.partition_key, b.row_id
FROM   app.waybill_outbox_blocked AS b
WHERE  b.state = 'retrying' AND b.next_attempt_at > UTC_TIMESTAMP(6)
AND    (? = '' OR b.transport = (SELECT t.id FROM app.waybill_transport AS t WHERE t.name = ?))
AND    (? = '' OR b.partition_key = ? AND b.route = '') AND (? = '' OR b.route = ?)
AND    (? = 0 OR b.row_id = ? AND b.route = '' AND b.partition_key = '')
LIMIT  ?
FOR    UPDATE SKIP LOCKED;

-- name: any_waiting
-- The same with entries that a relay is trying.
SELECT b.transport, b.route, b.partition_key, b.row_id
FROM   app.waybill_outbox_blocked AS b
WHERE  b.state = 'retrying' AND b.next_attempt_at > UTC_TIMESTAMP(6)
AND    (? = '' OR b.transport = (SELECT t.id FROM app.waybill_transport AS t WHERE t.name = ?))
AND    (? = '' OR b.partition_key = ? AND b.route = '') AND (? = '' OR b.route = ?)
AND    (? = 0 OR b.row_id = ? AND b.route = '' AND b.partition_key = '')
LIMIT  1;

-- name: retry_now
UPDATE app.waybill_outbox_blocked
SET    next_attempt_at = UTC_TIMESTAMP(6)
WHERE  transport = ? AND route = ? AND partition_key = ? AND row_id = ?;

-- name: lock_entry
-- Before the bucket's lock, as a relay that retries does.
SELECT state
FROM   app.waybill_outbox_blocked FORCE INDEX (PRIMARY)
WHERE  transport = ? AND route = ? AND partition_key = ? AND row_id = ?
FOR    UPDATE;

-- name: try_entry
-- The same without waiting for a relay.
SELECT state
FROM   app.waybill_outbox_blocked FORCE INDEX (PRIMARY)
WHERE  transport = ? AND route = ? AND partition_key = ? AND row_id = ?
FOR    UPDATE SKIP LOCKED;

-- name: try_bucket
SELECT bucket
FROM   app.waybill_outbox_bucket FORCE INDEX (PRIMARY)
WHERE  transport = ? AND bucket = ?
FOR    UPDATE SKIP LOCKED;

-- name: lock_bucket
SELECT bucket
FROM   app.waybill_outbox_bucket FORCE INDEX (PRIMARY)
WHERE  transport = ? AND bucket = ?
FOR    UPDATE;

-- name: unblock_keys
-- Removes the entries of parked keys whose rows are back.
DELETE b
FROM   app.waybill_outbox_blocked AS b FORCE INDEX (PRIMARY)
WHERE  b.transport = ? AND b.route = '' AND b.partition_key IN (?);

-- name: outbox_stats
SELECT t.name, COALESCE(o.n, 0) + COALESCE(u.n, 0),
       COALESCE(TIMESTAMPDIFF(MICROSECOND, LEAST(COALESCE(o.first, u.first), COALESCE(u.first, o.first)),
                              UTC_TIMESTAMP(6)), 0) / 1000000,
       (SELECT COUNT(*) FROM app.waybill_outbox_blocked AS b WHERE b.transport = t.id),
       (SELECT COUNT(*) FROM app.waybill_delayed AS d WHERE d.transport = t.id),
       (SELECT COUNT(*) FROM app.waybill_failed AS f
        WHERE f.source = 'outbox' AND f.transport = t.name AND f.state <> 'removed')
FROM   app.waybill_transport AS t
LEFT   JOIN (SELECT transport, COUNT(*) AS n, MIN(created_at) AS first
             FROM   app.waybill_outbox
             WHERE  id > 0
             GROUP  BY transport) AS o ON o.transport = t.id
LEFT   JOIN (SELECT transport, COUNT(*) AS n, MIN(created_at) AS first
             FROM   app.waybill_outbox_unkeyed
             WHERE  id > 0
             GROUP  BY transport) AS u ON u.transport = t.id
ORDER  BY t.name;

-- name: queue_stats
SELECT queue, COUNT(*), COALESCE(TIMESTAMPDIFF(MICROSECOND, MIN(created_at), UTC_TIMESTAMP(6)), 0) / 1000000,
       COALESCE(SUM(held = 1 AND held_until > UTC_TIMESTAMP(6) AND holder IS NOT NULL), 0),
       COALESCE(SUM(held = 1 AND held_until > UTC_TIMESTAMP(6) AND holder IS NULL), 0)
FROM   app.waybill_queue
GROUP  BY queue
ORDER  BY queue;

-- name: relays
SELECT transport, host, pid, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', started_at),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', seen_at),
       TIMESTAMPDIFF(MICROSECOND, seen_at, UTC_TIMESTAMP(6)) / 1000000, problem,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', since)
FROM   app.waybill_workers
WHERE  kind = 'relay' AND seen_at > UTC_TIMESTAMP(6) - INTERVAL 60 SECOND
ORDER  BY transport, host, pid, started_at;

-- name: workers
SELECT report, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', started_at),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', seen_at),
       TIMESTAMPDIFF(MICROSECOND, seen_at, UTC_TIMESTAMP(6)) / 1000000,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', stop_requested_at)
FROM   app.waybill_workers
WHERE  kind = 'worker' AND seen_at > UTC_TIMESTAMP(6) - INTERVAL 60 SECOND
ORDER  BY started_at, id;

-- name: paused
SELECT transport, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', since), actor, reason
FROM   app.waybill_paused
ORDER  BY transport;

-- name: any_up_to
SELECT EXISTS (SELECT 1
               FROM   app.waybill_outbox AS o FORCE INDEX (PRIMARY)
               WHERE  o.transport = ? AND o.bucket = ? AND o.id BETWEEN 1 AND ?);

-- name: find
-- The messages with an id, and those with its text as causation id. No index has either: the newest of each
-- table are read, as many as the first parameters say. From the transports on, all would be read and sorted.
SELECT m.source, m.transport, m.id, m.message_id, m.message_name, m.partition_key, m.headers,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', m.created_at)
FROM ((SELECT 'outbox' AS source, t.name AS transport, o.id, o.message_id, o.message_name, o.partition_key,
              o.headers, o.created_at
       FROM   app.waybill_outbox AS o FORCE INDEX (id)
       STRAIGHT_JOIN app.waybill_transport AS t ON t.id = o.transport
       WHERE  o.id > 0
       ORDER  BY o.id DESC
       LIMIT  ?)
      UNION  ALL
      (SELECT 'outbox', t.name, u.id, u.message_id, u.message_name, '', u.headers, u.created_at
       FROM   app.waybill_outbox_unkeyed AS u FORCE INDEX (id)
       STRAIGHT_JOIN app.waybill_transport AS t ON t.id = u.transport
       WHERE  u.id > 0
       ORDER  BY u.id DESC
       LIMIT  ?)
      UNION  ALL
      (SELECT 'delayed', COALESCE(t.name, CONCAT('queue://', d.queue)), d.id, d.message_id, d.message_name,
              d.partition_key, d.headers, d.created_at
       FROM   app.waybill_delayed AS d
       LEFT   JOIN app.waybill_transport AS t ON t.id = d.transport
       ORDER  BY d.id DESC
       LIMIT  ?)
      UNION  ALL
      (SELECT 'queue', CONCAT('queue://', q.queue), q.id, q.message_id, q.message_name, q.partition_key,
              q.headers, q.created_at
       FROM   app.waybill_queue AS q
       ORDER  BY q.id DESC
       LIMIT  ?)
      UNION  ALL
      (SELECT 'retries', r.queue, r.id, r.message_id, r.message_name, r.partition_key, r.headers, r.created_at
       FROM   app.waybill_retry AS r
       ORDER  BY r.id DESC
       LIMIT  ?)
      UNION  ALL
      (SELECT 'failed', f.transport, f.id, f.message_id, f.message_name, f.partition_key, f.headers,
              f.created_at
       FROM   app.waybill_failed AS f
       ORDER  BY f.id DESC
       LIMIT  ?)) AS m
WHERE  m.message_id = ? OR JSON_UNQUOTE(JSON_EXTRACT(m.headers, '$."x-causation-id"')) = ?
ORDER  BY m.created_at, m.message_id, m.source;

-- name: sample
-- The oldest and the newest messages of each source, transport and name, as many as the parameters say. The
-- names of all messages are read, and the bodies of these by their ids.
SELECT r.source, r.transport, r.message_name, r.messages, r.id,
       COALESCE(o.message_id, u.message_id, d.message_id, q.message_id, w.message_id, f.message_id),
       COALESCE(o.partition_key, d.partition_key, q.partition_key, w.partition_key, f.partition_key, ''),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', r.created_at),
       COALESCE(o.headers, u.headers, d.headers, q.headers, w.headers, f.headers),
       COALESCE(o.body, u.body, d.body, q.body, w.body, f.body)
FROM  (SELECT s.*, COUNT(*) OVER (PARTITION BY s.source, s.transport, s.message_name) AS messages,
              ROW_NUMBER() OVER (PARTITION BY s.source, s.transport, s.message_name
                                 ORDER BY s.created_at, s.id) AS nth
       FROM  (SELECT 'outbox' AS source, 1 AS kind, t.name AS transport, e.id, e.message_name, e.created_at
              FROM   app.waybill_outbox AS e
              JOIN   app.waybill_transport AS t ON t.id = e.transport
              WHERE  e.id > 0
              UNION  ALL
              SELECT 'outbox', 2, t.name, e.id, e.message_name, e.created_at
              FROM   app.waybill_outbox_unkeyed AS e
              JOIN   app.waybill_transport AS t ON t.id = e.transport
              WHERE  e.id > 0
              UNION  ALL
              SELECT 'delayed', 3, COALESCE(t.name, CONCAT('queue://', e.queue)), e.id, e.message_name,
                     e.created_at
              FROM   app.waybill_delayed AS e
              LEFT   JOIN app.waybill_transport AS t ON t.id = e.transport
              UNION  ALL
              SELECT 'queue', 4, CONCAT('queue://', e.queue), e.id, e.message_name, e.created_at
              FROM   app.waybill_queue AS e
              UNION  ALL
              SELECT 'retries', 5, e.queue, e.id, e.message_name, e.created_at
              FROM   app.waybill_retry AS e
              UNION  ALL
              SELECT 'failed', 6, e.transport, e.id, e.message_name, e.created_at
              FROM   app.waybill_failed AS e
              WHERE  e.state <> 'removed') AS s) AS r
LEFT   JOIN app.waybill_outbox AS o ON r.kind = 1 AND o.id = r.id
LEFT   JOIN app.waybill_outbox_unkeyed AS u ON r.kind = 2 AND u.id = r.id
LEFT   JOIN app.waybill_delayed AS d ON r.kind = 3 AND d.id = r.id
LEFT   JOIN app.waybill_queue AS q ON r.kind = 4 AND q.id = r.id
LEFT   JOIN app.waybill_retry AS w ON r.kind = 5 AND w.id = r.id
LEFT   JOIN app.waybill_failed AS f ON r.kind = 6 AND f.id = r.id
WHERE  r.nth <= ? OR r.nth + ? > r.messages;
