-- Queues. held is 0 for a claimable row, 1 for one in flight (leased, or waiting for a retry), 2 for one set
-- aside behind a row of its key in flight. A claim waits for no row, and a settling transaction locks rows
-- in ascending order, so none deadlocks with another.

-- name: insert_one
-- One message, under the dispatch lock of its key's bucket, or under NULL. Its id is given under the lock.
WITH lock AS MATERIALIZED (
    SELECT pg_advisory_xact_lock($1::int, $2::int),
           CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
                THEN set_config('synchronous_commit', 'on', true) END)
INSERT INTO public.waybill_queue (queue, message_id, message_name, partition_key, headers, body, created_at)
SELECT $3::text, $4::uuid, $5::text, $6::text, $7::jsonb, $8::bytea, $9::timestamptz
FROM   lock;

-- name: insert_many
-- Several messages of one queue, in the order of the arrays, under locks taken before.
INSERT INTO public.waybill_queue (queue, message_id, message_name, partition_key, headers, body, created_at)
SELECT $1::text, encode(u.message_id, 'hex')::uuid, u.message_name, u.partition_key, u.headers, u.body,
       u.created_at
FROM   unnest($2::bytea[], $3::text[], $4::text[], $5::jsonb[], $6::bytea[], $7::timestamptz[])
       WITH ORDINALITY AS u (message_id, message_name, partition_key, headers, body, created_at, n)
ORDER  BY u.n;

-- name: any
-- Whether a claim may find something, without waiting for a turn. The order pins the index.
SELECT EXISTS (SELECT 1 FROM (
               SELECT 1 FROM public.waybill_queue AS q
               WHERE  q.queue = $1
               AND    q.held_until <= now()
               ORDER  BY q.queue, q.held_until, q.id
               LIMIT  1) AS first);

-- name: turn
-- Claims of a queue take turns, so that none sees a key free that another is just taking. It is a separate
-- statement: the next ones see the rows that the last claim has committed. The turn of a process that is
-- silent for $3 milliseconds ends. The statistics of a queue are always wrong, so the plans are pinned.
SELECT pg_advisory_xact_lock($1::int, hashtext($2::text)),
       set_config('idle_in_transaction_session_timeout', $3::text, true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true);

-- name: pin
-- The plans of a transaction that settles, for the same reason.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('jit', 'off', true);

-- name: due
-- Rows without a key whose lease has ended, or whose retry is due, to be leased. Those of keys become
-- claimable. Rows set aside come back after a while even if the row before them was deleted by hand.
WITH due AS MATERIALIZED (
    SELECT d.id, d.partition_key AS key
    FROM   public.waybill_queue AS d
    WHERE  d.queue = $1
    AND    d.held_until > '-infinity'
    AND    d.held_until <= now()
    ORDER  BY d.queue, d.held_until
    LIMIT  $2
    FOR    UPDATE SKIP LOCKED),
claimable AS (
    UPDATE public.waybill_queue AS q SET held = 0, held_until = '-infinity'
    WHERE  q.id = ANY (ARRAY(SELECT d.id FROM due AS d WHERE d.key <> '')))
SELECT d.id FROM due AS d WHERE d.key = '';

-- name: read
-- The oldest $2 claimable rows and, of each of their keys, one row in flight and the oldest $3 rows set aside.
-- With held = 2 the primary key would have the order too, and the rows of all keys. It is one statement:
-- settling transactions make rows claimable meanwhile.
WITH found AS MATERIALIZED (
    SELECT q.id, q.partition_key AS key
    FROM   public.waybill_queue AS q
    WHERE  q.queue = $1
    AND    q.held_until = '-infinity'
    ORDER  BY q.queue, q.held_until, q.id
    LIMIT  $2)
SELECT f.id, f.key, 0 FROM found AS f
UNION  ALL
SELECT h.id, k.key, h.held
FROM  (SELECT DISTINCT f.key FROM found AS f WHERE f.key <> '') AS k, LATERAL (
      (SELECT q.id, q.held FROM public.waybill_queue AS q
       WHERE  q.queue = $1
       AND    q.partition_key = k.key
       AND    q.partition_key <> ''
       AND    q.held = 1
       LIMIT  1)
       UNION  ALL
      (SELECT q.id, q.held FROM public.waybill_queue AS q
       WHERE  q.queue = $1
       AND    q.partition_key = k.key
       AND    q.partition_key <> ''
       AND    q.held > 1
       ORDER  BY q.queue, q.partition_key, q.held, q.id
       LIMIT  $3)) AS h;

-- name: lock
-- Rows without a key that are due count as claimable.
SELECT q.id, CASE WHEN q.partition_key <> '' OR q.held_until > now() THEN q.held ELSE 0 END
FROM   public.waybill_queue AS q
WHERE  q.id = ANY ($1::bigint[])
FOR    UPDATE SKIP LOCKED;

-- name: lease
-- Leases rows to holder $2 for $3 seconds, except locked ones, and those in flight that are not due. The
-- caller sorts by id.
UPDATE public.waybill_queue AS q
SET    held = 1, held_until = clock_timestamp() + make_interval(secs => $3::float8), holder = $2::uuid,
       lease = q.lease + 1, redelivered = q.holder IS NOT NULL
WHERE  q.id = ANY (ARRAY(
       SELECT l.id FROM public.waybill_queue AS l
       WHERE  l.id = ANY ($1::bigint[])
       AND    (l.held <> 1 OR l.held_until <= now())
       FOR    UPDATE SKIP LOCKED))
RETURNING q.id, q.message_id, q.message_name, q.partition_key, q.headers, q.body, q.created_at, q.failures,
          q.lease, q.redelivered;

-- name: make_claimable
UPDATE public.waybill_queue AS q SET held = 0, held_until = '-infinity' WHERE q.id = ANY ($1::bigint[]);

-- name: set_aside
UPDATE public.waybill_queue AS q SET held = 2, held_until = clock_timestamp() + interval '10 minutes'
WHERE  q.id = ANY ($1::bigint[]);

-- name: ack
-- Ends deliveries, unless their rows have been leased again. This and the other statements that settle meet, and
-- lock, rows in the order of the primary key. IS TRUE keeps the pairs a filter: as a join they would come first.
DELETE FROM public.waybill_queue AS q
WHERE  q.id = ANY ($2::bigint[])
AND    q.holder = $1::uuid
AND   ((q.id, q.lease) IN (SELECT * FROM unnest($2::bigint[], $3::bigint[]))) IS TRUE
RETURNING q.id, q.lease, q.partition_key;

-- name: next
-- Makes the oldest row set aside of each key of $2 claimable, unless the key has a row in flight: that one
-- brings it back then. A statement after the one that deletes, because it must see the rows set aside
-- behind these rows until they were locked. A row in flight that is locked is being settled, maybe by a
-- transaction that does not see that this one's row is gone: it does not count. held > 1 is for the index.
UPDATE public.waybill_queue AS q SET held = 0, held_until = '-infinity'
WHERE  q.id = ANY (ARRAY(
       SELECT a.id
       FROM   unnest($2::text[]) AS k (key)
       CROSS  JOIN LATERAL (
              SELECT q.id FROM public.waybill_queue AS q
              WHERE  q.queue = $1
              AND    q.partition_key = k.key
              AND    q.partition_key <> ''
              AND    q.held > 1
              ORDER  BY q.queue, q.partition_key, q.held, q.id
              LIMIT  1
              FOR    UPDATE SKIP LOCKED) AS a
       LEFT   JOIN LATERAL (
              SELECT q.id FROM public.waybill_queue AS q
              WHERE  q.queue = $1
              AND    q.partition_key = k.key
              AND    q.partition_key <> ''
              AND    q.held = 1
              ORDER  BY q.queue, q.partition_key, q.held, q.id
              LIMIT  1
              FOR    UPDATE SKIP LOCKED) AS h ON true
       WHERE  h.id IS NULL));

-- name: release
UPDATE public.waybill_queue AS q SET held = 0, held_until = '-infinity', holder = NULL
WHERE  q.id = ANY ($2::bigint[])
AND    q.holder = $1::uuid
AND   ((q.id, q.lease) IN (SELECT * FROM unnest($2::bigint[], $3::bigint[]))) IS TRUE
RETURNING q.id, q.lease, q.partition_key;

-- name: renew
UPDATE public.waybill_queue AS q
SET    held = 1, held_until = clock_timestamp() + make_interval(secs => $4::float8)
WHERE  q.id = ANY ($2::bigint[])
AND    q.holder = $1::uuid
AND   ((q.id, q.lease) IN (SELECT * FROM unnest($2::bigint[], $3::bigint[]))) IS TRUE
RETURNING q.id, q.lease, q.partition_key;

-- name: retry
-- Counts a failure and lets the row, and its key behind it, wait.
UPDATE public.waybill_queue AS q
SET    failures = q.failures + 1, headers = $5::jsonb, holder = NULL, held = 1,
       held_until = clock_timestamp() + make_interval(secs => $4::float8)
WHERE  q.id = ANY ($2::bigint[])
AND    q.holder = $1::uuid
AND   ((q.id, q.lease) IN (SELECT * FROM unnest($2::bigint[], $3::bigint[]))) IS TRUE
RETURNING q.id, q.lease, q.partition_key;
