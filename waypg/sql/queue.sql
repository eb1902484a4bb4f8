-- name: insert
INSERT INTO public.waybill_queue (queue, message_id, message_name, partition_key, headers, body, created_at)
VALUES ($1::text, $2::uuid, $3::text, $4::text, $5::jsonb, $6::bytea, $7::timestamptz);

-- name: one_claimer
-- Claims of a queue take turns, so that none sees a key free that another is
-- just taking. It is a separate statement: the next one sees the rows that the
-- last claimer has committed.
SELECT pg_advisory_xact_lock($1::int, hashtext($2::text));

-- name: any
-- Whether claim would find something, without waiting for a turn.
SELECT EXISTS (
    SELECT 1 FROM public.waybill_queue AS q
    WHERE  q.queue = $1
    AND    q.held_until <= now()
    AND    (q.partition_key = '' OR NOT EXISTS (
           SELECT 1 FROM public.waybill_queue AS h
           WHERE  h.queue = $1
           AND    h.partition_key = q.partition_key
           AND    h.held_until > now()
           AND    h.held_until > '-infinity')));

-- name: claim
-- Leases up to $4 rows to holder $2 for $3 seconds, oldest first. A key that has a
-- leased row, or whose head waits for a retry, is left alone, so that it keeps its
-- order. The caller sorts by id.
UPDATE public.waybill_queue AS q
SET    held_until = clock_timestamp() + make_interval(secs => $3::float8), holder = $2::uuid,
       lease = q.lease + 1
WHERE  q.id IN (
       SELECT c.id FROM public.waybill_queue AS c
       WHERE  c.queue = $1
       AND    c.held_until <= now()
       AND    (c.partition_key = '' OR NOT EXISTS (
              SELECT 1 FROM public.waybill_queue AS h
              WHERE  h.queue = $1
              AND    h.partition_key = c.partition_key
              AND    h.held_until > now()
              AND    h.held_until > '-infinity'))
       ORDER  BY c.id
       LIMIT  $4)
RETURNING q.id, q.message_id, q.message_name, q.partition_key, q.headers, q.body, q.created_at, q.failures,
          q.lease;

-- name: ack
-- Ends deliveries, unless their rows have been leased again.
DELETE FROM public.waybill_queue AS q USING unnest($2::bigint[], $3::bigint[]) AS u (id, lease)
WHERE  q.id = u.id AND q.lease = u.lease AND q.holder = $1::uuid RETURNING q.id, q.lease;

-- name: release
UPDATE public.waybill_queue AS q SET held_until = '-infinity', holder = NULL
FROM   unnest($2::bigint[], $3::bigint[]) AS u (id, lease)
WHERE  q.id = u.id AND q.lease = u.lease AND q.holder = $1::uuid RETURNING q.id, q.lease;

-- name: renew
UPDATE public.waybill_queue AS q SET held_until = clock_timestamp() + make_interval(secs => $4::float8)
FROM   unnest($2::bigint[], $3::bigint[]) AS u (id, lease)
WHERE  q.id = u.id AND q.lease = u.lease AND q.holder = $1::uuid RETURNING q.id, q.lease;

-- name: retry
-- Counts a failure and lets the row, and its key behind it, wait.
UPDATE public.waybill_queue AS q
SET    failures = q.failures + 1, headers = $5::jsonb, holder = NULL,
       held_until = clock_timestamp() + make_interval(secs => $4::float8)
FROM   unnest($2::bigint[], $3::bigint[]) AS u (id, lease)
WHERE  q.id = u.id
AND    q.lease = u.lease
AND    q.holder = $1::uuid
RETURNING q.id, q.lease;
