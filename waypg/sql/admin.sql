-- name: outbox_list
-- The first rows of each bucket that there is, and of them the first, above the id $4 or, without a key, $5.
-- A key is looked for in its bucket alone, a name in the whole table.
WITH RECURSIVE part (transport, bucket) AS (
   (SELECT o.transport, o.bucket FROM public.waybill_outbox AS o ORDER BY o.transport, o.bucket LIMIT 1)
    UNION  ALL
    SELECT n.transport, n.bucket
    FROM   part AS p,
           LATERAL (SELECT o.transport, o.bucket FROM public.waybill_outbox AS o
                    WHERE  (o.transport, o.bucket) > (p.transport, p.bucket)
                    ORDER  BY o.transport, o.bucket
                    LIMIT  1) AS n),
target AS (
    SELECT t.id, t.name FROM public.waybill_transport AS t WHERE $1 = '' OR t.name = $1),
page AS (
    SELECT p.transport, p.bucket, -1 AS held, r.id
    FROM   part AS p
    JOIN   target AS t ON t.id = p.transport,
           LATERAL (SELECT o.id FROM public.waybill_outbox AS o
                    WHERE  o.transport = p.transport AND o.bucket = p.bucket AND o.id > $4
                    AND    ($2 = '' OR o.partition_key = $2)
                    ORDER  BY o.id
                    LIMIT  $6) AS r
    WHERE  $3 = ''
    AND    ($2 = '' OR p.bucket % 1024 = public.waybill_bucket_of($2, public.waybill_buckets()))
    UNION  ALL
    SELECT o.transport, o.bucket, -1, o.id
    FROM   public.waybill_outbox AS o
    JOIN   target AS t ON t.id = o.transport
    WHERE  $3 <> '' AND o.message_name = $3 AND o.id > $4 AND ($2 = '' OR o.partition_key = $2)
    UNION  ALL
    SELECT t.id, -1, h.held, r.id
    FROM   target AS t
    CROSS  JOIN generate_series(0, 2) AS h (held),
           LATERAL (SELECT u.id FROM public.waybill_outbox_unkeyed AS u
                    WHERE  u.transport = t.id AND u.held = h.held AND u.id > $5
                    AND    ($3 = '' OR u.message_name = $3)
                    ORDER  BY u.id
                    LIMIT  $6) AS r
    WHERE  $2 = ''
    ORDER  BY 4, 3
    LIMIT  $6)
SELECT p.id, t.name, m.message_name, m.partition_key, m.message_id, m.created_at, NULL::timestamptz, m.bytes,
       p.held > 0
       OR EXISTS (SELECT 1 FROM public.waybill_outbox_blocked AS b
                  WHERE  b.transport = p.transport AND b.bucket = p.bucket % 1024
                  AND    b.partition_key <> '' AND b.partition_key = m.partition_key)
       OR EXISTS (SELECT 1 FROM public.waybill_outbox_blocked AS b
                  WHERE  b.transport = p.transport AND b.route <> '' AND b.route = m.message_name)
FROM   page AS p
JOIN   target AS t ON t.id = p.transport,
       LATERAL (SELECT o.message_name, o.partition_key, o.message_id, o.created_at, octet_length(o.body) AS bytes
                FROM   public.waybill_outbox AS o
                WHERE  p.held < 0 AND o.transport = p.transport AND o.bucket = p.bucket AND o.id = p.id
                UNION  ALL
                SELECT u.message_name, '', u.message_id, u.created_at, octet_length(u.body)
                FROM   public.waybill_outbox_unkeyed AS u
                WHERE  p.held >= 0 AND u.transport = p.transport AND u.held = p.held AND u.id = p.id) AS m
ORDER  BY p.id, p.held;

-- name: delayed_list
SELECT d.id, coalesce(t.name, 'queue://' || d.queue), d.message_name, d.partition_key, d.message_id,
       d.created_at, d.due_at, octet_length(d.body), d.due_at > '9999-01-01 UTC'
FROM   public.waybill_delayed AS d
LEFT   JOIN public.waybill_transport AS t ON t.id = d.transport
WHERE  ($1 = '' OR t.name = $1 OR d.queue = $1 OR 'queue://' || d.queue = $1)
AND    ($2 = '' OR d.partition_key = $2)
AND    ($3 = '' OR d.message_name = $3)
AND    (d.due_at, d.id) > ($4::timestamptz, $5::bigint)
ORDER  BY d.due_at, d.id
LIMIT  $6;

-- name: blocked
-- The outbox is read once, however many entries there are.
WITH shown AS (
    SELECT b.*, t.name
    FROM   public.waybill_outbox_blocked AS b
    JOIN   public.waybill_transport AS t ON t.id = b.transport
    WHERE  ($1 = '' OR t.name = $1)
    ORDER  BY b.route = '', b.first_failed_at, b.partition_key, b.route, t.name, b.row_id
    LIMIT  $2),
keys AS (
    SELECT o.transport, o.partition_key, count(*) AS n, count(*) FILTER (WHERE o.bucket > 1023) AS parked
    FROM   shown AS s
    JOIN   public.waybill_outbox AS o ON o.transport = s.transport AND o.bucket % 1024 = s.bucket
                                     AND o.partition_key = s.partition_key
    WHERE  s.partition_key <> ''
    GROUP  BY o.transport, o.partition_key),
routes AS (
    SELECT o.transport, o.message_name, count(*) AS n
    FROM   shown AS s
    JOIN  (SELECT e.transport, e.message_name FROM public.waybill_outbox AS e
           UNION  ALL
           SELECT u.transport, u.message_name FROM public.waybill_outbox_unkeyed AS u) AS o
           ON o.transport = s.transport AND o.message_name = s.route
    WHERE  s.route <> ''
    GROUP  BY o.transport, o.message_name)
SELECT s.name, s.route, s.partition_key,
       CASE WHEN s.route = '' AND s.partition_key = '' THEN s.row_id ELSE 0 END,
       s.message_id, s.message_name, s.failures, s.first_failed_at,
       CASE s.state WHEN 'retrying' THEN s.next_attempt_at END, s.last_error, s.state, s.policy,
       coalesce(k.n, r.n, (s.route = '' AND s.partition_key = '')::int), coalesce(k.parked, 0)
FROM   shown AS s
LEFT   JOIN keys AS k ON k.transport = s.transport AND k.partition_key = s.partition_key AND s.route = ''
LEFT   JOIN routes AS r ON r.transport = s.transport AND r.message_name = s.route
ORDER  BY s.route = '', s.first_failed_at, s.partition_key, s.route, s.name, s.row_id;

-- name: blocked_keys
-- The entries after the one of $3 to $8. Messages are counted for the key $2 alone, in its bucket.
SELECT t.name, b.route, b.partition_key, n.row,
       b.message_id, b.message_name, b.failures, b.first_failed_at,
       CASE b.state WHEN 'retrying' THEN b.next_attempt_at END, b.last_error, b.state, b.policy,
      (SELECT count(*) FROM public.waybill_outbox AS o
       WHERE  $2 <> '' AND o.transport = b.transport AND o.bucket IN (b.bucket, b.bucket + 1024)
       AND    o.partition_key = b.partition_key),
      (SELECT count(*) FROM public.waybill_outbox AS o
       WHERE  $2 <> '' AND o.transport = b.transport AND o.bucket = b.bucket + 1024
       AND    o.partition_key = b.partition_key)
FROM   public.waybill_outbox_blocked AS b
JOIN   public.waybill_transport AS t ON t.id = b.transport,
       LATERAL (SELECT CASE WHEN b.route = '' AND b.partition_key = '' THEN b.row_id ELSE 0 END AS row) AS n
WHERE  ($1 = '' OR t.name = $1)
AND    ($2 = '' OR b.partition_key = $2)
AND    ($4::timestamptz IS NULL
        OR (b.route = '', b.first_failed_at, b.partition_key, b.route, t.name, n.row)
           > ($3::boolean, $4, $5, $6, $7, $8))
ORDER  BY b.route = '', b.first_failed_at, b.partition_key, b.route, t.name, n.row
LIMIT  $9;

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
SELECT transport, host, pid, started_at, seen_at, extract(epoch FROM clock_timestamp() - seen_at)::float8,
       problem, since
FROM   public.waybill_workers
WHERE  kind = 'relay' AND seen_at > now() - interval '60 seconds' ORDER BY transport, host, pid, started_at;

-- name: workers
SELECT report, started_at, seen_at, extract(epoch FROM clock_timestamp() - seen_at)::float8,
       stop_requested_at
FROM   public.waybill_workers
WHERE  kind = 'worker' AND seen_at > now() - interval '60 seconds' ORDER BY started_at, id;

-- name: paused
SELECT transport, since, actor, reason FROM public.waybill_paused ORDER BY transport;

-- name: find
-- The messages with the id $1, and those with its text $2 as causation id. No index has either: the newest $3 of
-- each table are read, and any $3 of the outbox, which has no index by age.
SELECT m.source, m.transport, m.id, m.message_id, m.message_name, m.partition_key, m.headers, m.created_at
FROM ((SELECT 'outbox' AS source, t.name AS transport, o.id, o.message_id, o.message_name, o.partition_key,
              o.headers, o.created_at
       FROM   public.waybill_outbox AS o
       JOIN   public.waybill_transport AS t ON t.id = o.transport
       LIMIT  $3)
      UNION  ALL
      (SELECT 'outbox', t.name, u.id, u.message_id, u.message_name, '', u.headers, u.created_at
       FROM   public.waybill_outbox_unkeyed AS u
       JOIN   public.waybill_transport AS t ON t.id = u.transport
       LIMIT  $3)
      UNION  ALL
      (SELECT 'delayed', coalesce(t.name, 'queue://' || d.queue), d.id, d.message_id, d.message_name,
              d.partition_key, d.headers, d.created_at
       FROM   public.waybill_delayed AS d
       LEFT   JOIN public.waybill_transport AS t ON t.id = d.transport
       ORDER  BY d.id DESC
       LIMIT  $3)
      UNION  ALL
      (SELECT 'queue', 'queue://' || q.queue, q.id, q.message_id, q.message_name, q.partition_key, q.headers,
              q.created_at
       FROM   public.waybill_queue AS q
       ORDER  BY q.id DESC
       LIMIT  $3)
      UNION  ALL
      (SELECT 'retries', r.queue, r.id, r.message_id, r.message_name, r.partition_key, r.headers, r.created_at
       FROM   public.waybill_retry AS r
       ORDER  BY r.id DESC
       LIMIT  $3)
      UNION  ALL
      (SELECT 'failed', f.transport, f.id, f.message_id, f.message_name, f.partition_key, f.headers,
              f.created_at
       FROM   public.waybill_failed AS f
       ORDER  BY f.id DESC
       LIMIT  $3)) AS m
WHERE  m.message_id = $1::uuid OR m.headers->>'x-causation-id' = $2
ORDER  BY m.created_at, m.message_id, m.source;

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
