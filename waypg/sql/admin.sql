-- name: outbox_list
SELECT o.id, t.name, o.message_name, o.partition_key, o.message_id, o.created_at, NULL::timestamptz,
       octet_length(o.body), o.blocked
FROM  (SELECT e.transport, e.id, e.message_name, e.partition_key, e.message_id, e.created_at, e.body,
              EXISTS (SELECT 1 FROM public.waybill_outbox_blocked AS b
                      WHERE  b.transport = e.transport AND b.bucket = e.bucket % 1024
                      AND    b.partition_key = e.partition_key)
              OR EXISTS (SELECT 1 FROM public.waybill_outbox_blocked AS b
                         WHERE b.transport = e.transport AND b.route = e.message_name) AS blocked
       FROM   public.waybill_outbox AS e
       UNION  ALL
       SELECT u.transport, u.id, u.message_name, '', u.message_id, u.created_at, u.body,
              u.held > 0 OR EXISTS (SELECT 1 FROM public.waybill_outbox_blocked AS b
                                    WHERE b.transport = u.transport AND b.route = u.message_name)
       FROM   public.waybill_outbox_unkeyed AS u) AS o
JOIN   public.waybill_transport AS t ON t.id = o.transport
WHERE  ($1 = '' OR t.name = $1)
AND    ($2 = '' OR o.partition_key = $2)
AND    ($3 = '' OR o.message_name = $3)
AND    o.id > $4
ORDER  BY o.id, o.partition_key
LIMIT  $5;

-- name: delayed_list
SELECT d.id, coalesce(t.name, 'queue://' || d.queue), d.message_name, d.partition_key, d.message_id,
       d.created_at, d.due_at, octet_length(d.body), d.due_at > '9999-01-01 UTC'
FROM   public.waybill_delayed AS d
LEFT   JOIN public.waybill_transport AS t ON t.id = d.transport
WHERE  ($1 = '' OR t.name = $1 OR d.queue = $1)
AND    ($2 = '' OR d.partition_key = $2)
AND    ($3 = '' OR d.message_name = $3)
ORDER  BY d.due_at, d.id
LIMIT  $4;

-- name: blocked
SELECT t.name, b.route, b.partition_key,
       CASE WHEN b.route = '' AND b.partition_key = '' THEN b.row_id ELSE 0 END,
       b.message_id, b.message_name, b.failures, b.first_failed_at,
       CASE b.state WHEN 'retrying' THEN b.next_attempt_at END, b.last_error, b.state, b.policy,
       CASE WHEN b.route <> '' THEN (SELECT count(*) FROM public.waybill_outbox AS o
                                     WHERE o.transport = b.transport AND o.message_name = b.route)
                                  + (SELECT count(*) FROM public.waybill_outbox_unkeyed AS o
                                     WHERE o.transport = b.transport AND o.message_name = b.route)
            WHEN b.partition_key = '' THEN 1
            ELSE (SELECT count(*) FROM public.waybill_outbox AS o
                  WHERE  o.transport = b.transport AND o.bucket = b.bucket
                  AND    o.partition_key = b.partition_key) + p.n END,
       p.n
FROM   public.waybill_outbox_blocked AS b
JOIN   public.waybill_transport AS t ON t.id = b.transport,
       LATERAL (SELECT count(*) AS n FROM public.waybill_outbox AS o
                WHERE  b.state = 'parked' AND o.transport = b.transport AND o.bucket = b.bucket + 1024
                AND    o.partition_key = b.partition_key) AS p
WHERE  ($1 = '' OR t.name = $1)
ORDER  BY b.route = '', b.first_failed_at, b.partition_key
LIMIT  $2;

-- name: outbox_stats
SELECT t.name, k.n + u.n,
       coalesce(extract(epoch FROM clock_timestamp() - least(k.oldest, u.oldest)), 0)::float8,
       (SELECT count(*) FROM public.waybill_outbox_blocked AS b WHERE b.transport = t.id),
       (SELECT count(*) FROM public.waybill_delayed AS d WHERE d.transport = t.id),
       (SELECT count(*) FROM public.waybill_failed AS f
        WHERE f.source = 'outbox' AND f.transport = t.name AND f.state <> 'removed')
FROM   public.waybill_transport AS t,
       LATERAL (SELECT count(*) AS n, min(o.created_at) AS oldest
                FROM   public.waybill_outbox AS o
                WHERE  o.transport = t.id) AS k,
       LATERAL (SELECT count(*) AS n, min(o.created_at) AS oldest
                FROM   public.waybill_outbox_unkeyed AS o
                WHERE  o.transport = t.id) AS u
ORDER  BY t.name;

-- name: queue_stats
SELECT queue, count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8,
       count(*) FILTER (WHERE held = 1 AND held_until > now() AND holder IS NOT NULL),
       count(*) FILTER (WHERE held = 1 AND held_until > now() AND holder IS NULL)
FROM   public.waybill_queue
GROUP  BY queue
ORDER  BY queue;

-- name: relays
SELECT transport, host, pid, started_at, seen_at, problem, since FROM public.waybill_workers
WHERE  kind = 'relay' AND seen_at > now() - interval '60 seconds' ORDER BY transport, host, pid, started_at;

-- name: workers
SELECT report, started_at, seen_at, stop_requested_at FROM public.waybill_workers
WHERE  kind = 'worker' AND seen_at > now() - interval '60 seconds' ORDER BY started_at, id;

-- name: sample
-- The $1 oldest and the $2 newest messages of each source, transport and name. The names of all messages are
-- read, and the bodies of these by their primary keys.
WITH stored AS (
    SELECT 'outbox' AS source, 1 AS kind, t.name AS transport, o.transport AS number, o.bucket AS part, o.id,
           o.message_name, o.created_at
    FROM   public.waybill_outbox AS o
    JOIN   public.waybill_transport AS t ON t.id = o.transport
    UNION  ALL
    SELECT 'outbox', 2, t.name, u.transport, u.held, u.id, u.message_name, u.created_at
    FROM   public.waybill_outbox_unkeyed AS u
    JOIN   public.waybill_transport AS t ON t.id = u.transport
    UNION  ALL
    SELECT 'delayed', 3, coalesce(t.name, 'queue://' || d.queue), 0, 0, d.id, d.message_name, d.created_at
    FROM   public.waybill_delayed AS d
    LEFT   JOIN public.waybill_transport AS t ON t.id = d.transport
    UNION  ALL
    SELECT 'queue', 4, 'queue://' || q.queue, 0, 0, q.id, q.message_name, q.created_at
    FROM   public.waybill_queue AS q
    UNION  ALL
    SELECT 'retries', 5, r.queue, 0, 0, r.id, r.message_name, r.created_at
    FROM   public.waybill_retry AS r
    UNION  ALL
    SELECT 'failed', 6, f.transport, 0, 0, f.id, f.message_name, f.created_at
    FROM   public.waybill_failed AS f
    WHERE  f.state <> 'removed'),
ranked AS (
    SELECT s.*, count(*) OVER (PARTITION BY s.source, s.transport, s.message_name) AS messages,
           row_number() OVER (PARTITION BY s.source, s.transport, s.message_name
                              ORDER BY s.created_at, s.id) AS nth
    FROM   stored AS s)
SELECT r.source, r.transport, r.message_name, r.messages, r.id, m.message_id, m.partition_key, r.created_at,
       m.headers, m.body
FROM   ranked AS r
CROSS  JOIN LATERAL (
       SELECT o.message_id, o.partition_key, o.headers, o.body FROM public.waybill_outbox AS o
       WHERE  r.kind = 1 AND o.transport = r.number AND o.bucket = r.part AND o.id = r.id
       UNION  ALL
       SELECT u.message_id, '', u.headers, u.body FROM public.waybill_outbox_unkeyed AS u
       WHERE  r.kind = 2 AND u.transport = r.number AND u.held = r.part AND u.id = r.id
       UNION  ALL
       SELECT d.message_id, d.partition_key, d.headers, d.body FROM public.waybill_delayed AS d
       WHERE  r.kind = 3 AND d.id = r.id
       UNION  ALL
       SELECT q.message_id, q.partition_key, q.headers, q.body FROM public.waybill_queue AS q
       WHERE  r.kind = 4 AND q.id = r.id
       UNION  ALL
       SELECT q.message_id, q.partition_key, q.headers, q.body FROM public.waybill_retry AS q
       WHERE  r.kind = 5 AND q.id = r.id
       UNION  ALL
       SELECT f.message_id, f.partition_key, f.headers, f.body FROM public.waybill_failed AS f
       WHERE  r.kind = 6 AND f.id = r.id) AS m
WHERE  r.nth <= $1::bigint OR r.nth + $2::bigint > r.messages;
