-- name: outbox_list
SELECT o.id, t.name, o.message_name, o.partition_key, o.message_id, o.created_at, NULL, length(o.body),
       o.held = 1 OR o.partition_key <> '' AND EXISTS (
       SELECT 1 FROM waybill_outbox_blocked AS b
       WHERE  b.transport = o.transport AND b.partition_key = o.partition_key)
FROM   waybill_outbox AS o JOIN waybill_transport AS t ON t.id = o.transport
WHERE  (?1 = '' OR t.name = ?1) AND (?2 = '' OR o.partition_key = ?2)
AND    (?3 = '' OR o.message_name = ?3) AND o.id > ?4
ORDER  BY o.id LIMIT ?5;

-- name: delayed_list
SELECT d.id, coalesce(t.name, 'queue://' || d.queue), d.message_name, d.partition_key, d.message_id,
       d.created_at, d.due_at, length(d.body), d.refused
FROM   waybill_delayed AS d LEFT JOIN waybill_transport AS t ON t.id = d.transport
WHERE  (?1 = '' OR t.name = ?1 OR d.queue = ?1 OR 'queue://' || d.queue = ?1)
AND    (?2 = '' OR d.partition_key = ?2)
AND    (?3 = '' OR d.message_name = ?3) AND (d.due_at, d.id) > (?4, ?5)
ORDER  BY d.due_at, d.id LIMIT ?6;

-- name: blocked
WITH waiting AS MATERIALIZED (
    SELECT o.transport, o.partition_key, count(*) AS n, sum(o.bucket = 1024) AS parked
    FROM   waybill_outbox AS o
    WHERE  o.partition_key <> '' AND EXISTS (
           SELECT 1 FROM waybill_outbox_blocked AS b
           WHERE  b.transport = o.transport AND b.partition_key = o.partition_key)
    GROUP  BY o.transport, o.partition_key)
SELECT t.name, b.partition_key, iif(b.partition_key = '', b.row_id, 0), b.message_id, b.message_name,
       b.failures, b.first_failed_at, iif(b.state = 'parked', NULL, b.next_attempt_at), b.last_error,
       b.state, b.policy, coalesce(w.n, b.partition_key = ''), coalesce(w.parked, 0)
FROM   waybill_outbox_blocked AS b JOIN waybill_transport AS t ON t.id = b.transport
LEFT   JOIN waiting AS w ON w.transport = b.transport AND w.partition_key = b.partition_key
WHERE  ?1 = '' OR t.name = ?1
ORDER  BY b.first_failed_at, b.partition_key, t.name, b.row_id LIMIT ?2;

-- name: blocked_keys
-- The entries after the one of ?3 to ?6, if there is one. Messages are counted for the key ?2 alone.
SELECT t.name, b.partition_key, iif(b.partition_key = '', b.row_id, 0) AS row, b.message_id, b.message_name,
       b.failures, b.first_failed_at, iif(b.state = 'parked', NULL, b.next_attempt_at), b.last_error,
       b.state, b.policy,
      (SELECT count(*) FROM waybill_outbox AS o
       WHERE  ?2 <> '' AND o.transport = b.transport AND o.partition_key = b.partition_key),
      (SELECT count(*) FROM waybill_outbox AS o
       WHERE  ?2 <> '' AND o.transport = b.transport AND o.partition_key = b.partition_key AND o.bucket = 1024)
FROM   waybill_outbox_blocked AS b JOIN waybill_transport AS t ON t.id = b.transport
WHERE  (?1 = '' OR t.name = ?1) AND (?2 = '' OR b.partition_key = ?2)
AND    (?3 IS NULL OR (b.first_failed_at, b.partition_key, t.name, row) > (?3, ?4, ?5, ?6))
ORDER  BY b.first_failed_at, b.partition_key, t.name, row LIMIT ?7;

-- name: release_list
-- The entries that match an operator's query.
SELECT b.transport, t.name, b.partition_key, b.row_id
FROM   waybill_outbox_blocked AS b JOIN waybill_transport AS t ON t.id = b.transport
WHERE  (?1 = '' OR t.name = ?1) AND (?2 = '' OR b.partition_key = ?2)
AND    (?3 = 0 OR b.row_id = ?3 AND b.partition_key = '');

-- name: hurry
-- Makes an entry due, unless it is parked or its row is gone.
UPDATE waybill_outbox_blocked SET next_attempt_at = CAST(unixepoch('subsec') * 1000000 AS INTEGER)
WHERE  transport = ?1 AND partition_key = ?2 AND row_id = ?3 AND state = 'retrying'
AND    EXISTS (SELECT 1 FROM waybill_outbox WHERE id = ?3);

-- name: bring_back
-- The oldest rows of a parked key, under their old ids.
UPDATE waybill_outbox SET bucket = 0 WHERE id IN (
    SELECT id FROM waybill_outbox INDEXED BY waybill_outbox_parked
    WHERE  transport = ?1 AND partition_key = ?2 AND bucket = 1024
    ORDER  BY id LIMIT ?3);

-- name: outbox_stats
SELECT t.name, coalesce(o.n, 0), o.oldest,
       (SELECT count(*) FROM waybill_outbox_blocked AS b WHERE b.transport = t.id),
       (SELECT count(*) FROM waybill_delayed AS d WHERE d.transport = t.id),
       (SELECT count(*) FROM waybill_failed AS f
        WHERE  f.source = 'outbox' AND f.transport = t.name AND f.state <> 'removed')
FROM   waybill_transport AS t
LEFT   JOIN (
       SELECT transport, count(*) AS n, min(created_at) AS oldest
       FROM   waybill_outbox GROUP BY transport) AS o ON o.transport = t.id
ORDER  BY t.name;

-- name: queue_stats
SELECT queue, count(*), min(created_at),
       sum(held = 1 AND held_until > ?1 AND holder IS NOT NULL), sum(held = 1 AND held_until > ?1 AND holder IS NULL)
FROM   waybill_queue GROUP BY queue ORDER BY queue;

-- name: workers
SELECT report, started_at, seen_at, unixepoch('subsec') - seen_at / 1000000.0, stop_requested_at
FROM   waybill_workers
WHERE  seen_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 60000000 ORDER BY started_at, id;

-- name: report_workers
INSERT INTO waybill_workers (id, started_at, seen_at, report)
VALUES (?, CAST(unixepoch('subsec') * 1000000 AS INTEGER), CAST(unixepoch('subsec') * 1000000 AS INTEGER), ?)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, report = excluded.report
RETURNING stop_requested_at IS NOT NULL, (SELECT json_group_array(transport) FROM waybill_paused);

-- name: forget_workers
DELETE FROM waybill_workers
WHERE  id = ? OR seen_at < CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 3600000000;

-- name: paused
SELECT transport, since, actor, reason FROM waybill_paused ORDER BY transport;

-- name: find
-- The messages with the id ?1, and those with its text ?2 as causation id. No index has either: the newest ?3 of
-- each table are read.
SELECT m.source, m.transport, m.id, m.message_id, m.message_name, m.partition_key, m.headers, m.created_at
FROM  (SELECT * FROM (SELECT 'outbox' AS source, t.name AS transport, o.id, o.message_id, o.message_name,
                             o.partition_key, o.headers, o.created_at
                      FROM   waybill_outbox AS o JOIN waybill_transport AS t ON t.id = o.transport
                      ORDER  BY o.id DESC LIMIT ?3)
       UNION  ALL
       SELECT * FROM (SELECT 'delayed', coalesce(t.name, 'queue://' || d.queue), d.id, d.message_id,
                             d.message_name, d.partition_key, d.headers, d.created_at
                      FROM   waybill_delayed AS d LEFT JOIN waybill_transport AS t ON t.id = d.transport
                      ORDER  BY d.id DESC LIMIT ?3)
       UNION  ALL
       SELECT * FROM (SELECT 'queue', 'queue://' || q.queue, q.id, q.message_id, q.message_name,
                             q.partition_key, q.headers, q.created_at
                      FROM   waybill_queue AS q ORDER BY q.id DESC LIMIT ?3)
       UNION  ALL
       SELECT * FROM (SELECT 'retries', r.queue, r.id, r.message_id, r.message_name, r.partition_key,
                             r.headers, r.created_at
                      FROM   waybill_retry AS r ORDER BY r.id DESC LIMIT ?3)
       UNION  ALL
       SELECT * FROM (SELECT 'failed', f.transport, f.id, f.message_id, f.message_name, f.partition_key,
                             f.headers, f.created_at
                      FROM   waybill_failed AS f ORDER BY f.id DESC LIMIT ?3)) AS m
WHERE  m.message_id = ?1
OR     CASE WHEN json_valid(m.headers) THEN json_extract(m.headers, '$."x-causation-id"') = ?2 END
ORDER  BY m.created_at, m.message_id, m.source;

-- name: sample
-- The ?1 oldest and the ?2 newest messages of each source, transport and name. The names of all messages are
-- read, and the bodies of these by their ids.
SELECT r.source, r.transport, r.message_name, r.messages, r.id,
       coalesce(o.message_id, d.message_id, q.message_id, w.message_id, f.message_id),
       coalesce(o.partition_key, d.partition_key, q.partition_key, w.partition_key, f.partition_key),
       r.created_at, coalesce(o.headers, d.headers, q.headers, w.headers, f.headers),
       coalesce(o.body, d.body, q.body, w.body, f.body)
FROM  (SELECT s.*, count(*) OVER (PARTITION BY s.source, s.transport, s.message_name) AS messages,
              row_number() OVER (PARTITION BY s.source, s.transport, s.message_name
                                 ORDER BY s.created_at, s.id) AS nth
       FROM  (SELECT 'outbox' AS source, t.name AS transport, e.id, e.message_name, e.created_at
              FROM   waybill_outbox AS e JOIN waybill_transport AS t ON t.id = e.transport
              UNION  ALL
              SELECT 'delayed', coalesce(t.name, 'queue://' || e.queue), e.id, e.message_name, e.created_at
              FROM   waybill_delayed AS e LEFT JOIN waybill_transport AS t ON t.id = e.transport
              UNION  ALL
              SELECT 'queue', 'queue://' || e.queue, e.id, e.message_name, e.created_at FROM waybill_queue AS e
              UNION  ALL
              SELECT 'retries', e.queue, e.id, e.message_name, e.created_at FROM waybill_retry AS e
              UNION  ALL
              SELECT 'failed', e.transport, e.id, e.message_name, e.created_at
              FROM   waybill_failed AS e WHERE e.state <> 'removed') AS s) AS r
LEFT   JOIN waybill_outbox AS o ON r.source = 'outbox' AND o.id = r.id
LEFT   JOIN waybill_delayed AS d ON r.source = 'delayed' AND d.id = r.id
LEFT   JOIN waybill_queue AS q ON r.source = 'queue' AND q.id = r.id
LEFT   JOIN waybill_retry AS w ON r.source = 'retries' AND w.id = r.id
LEFT   JOIN waybill_failed AS f ON r.source = 'failed' AND f.id = r.id
WHERE  r.nth <= ?1 OR r.nth + ?2 > r.messages;
