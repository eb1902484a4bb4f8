-- Settling and releasing. Locks are taken in one order, so settles cannot deadlock: entries, which the claim
-- of Retries has locked, then versions of buckets, ascending, then the transport's row.

-- name: bump_buckets
-- New versions for buckets with changed blocked keys.
INSERT INTO public.waybill_outbox_version AS v (transport, bucket)
SELECT DISTINCT $1::smallint, b FROM unnest($2::smallint[]) AS b ORDER BY b
ON CONFLICT (transport, bucket) DO UPDATE SET version = v.version + 1;

-- name: bump_routes
UPDATE public.waybill_transport SET route_version = route_version + 1 WHERE id = $1::smallint;

-- name: delete_outbox
-- Exactly the confirmed rows, at the ctids that the claim has read. A row moved since (only an UPDATE by hand
-- does that) stays. No condition is a prefix of an index: with the transport among the conditions, deletions
-- slowed down with the number of dead rows. One scan of all ctids takes less than half of the time of a join,
-- which scans for each; IS TRUE keeps the ids from becoming one.
DELETE FROM public.waybill_outbox AS o
WHERE  o.ctid = ANY ($1::tid[]) AND (o.id IN (SELECT unnest($2::bigint[]))) IS TRUE;

-- name: delete_unkeyed
DELETE FROM public.waybill_outbox_unkeyed AS o
WHERE  o.ctid = ANY ($1::tid[]) AND (o.id IN (SELECT unnest($2::bigint[]))) IS TRUE;

-- name: block
-- The first refusal of a row. Another row may have blocked the route already.
INSERT INTO public.waybill_outbox_blocked (
       transport, route, partition_key, row_id, bucket, message_id, message_name, failures,
       next_attempt_at, last_error, policy, state)
VALUES ($1::smallint, $2::text, $3::text, $4::bigint, $5::smallint, $6::uuid, $7::text, $8::int,
        clock_timestamp() + make_interval(secs => $9::float8), $10::text, $11::text, $12::text)
ON CONFLICT DO NOTHING;

-- name: join_route
-- After block of a route, or of a message without key: refused messages without a key are held for their
-- route, if it is blocked, and their own entries are deleted.
WITH own AS (
    DELETE FROM public.waybill_outbox_blocked
    WHERE  ctid = ANY (ARRAY(
           SELECT b.ctid FROM public.waybill_outbox_blocked AS b
           WHERE  b.transport = $1::smallint
           AND    b.route = ''
           AND    b.partition_key = ''
           AND    b.message_name = $2::text
           AND    EXISTS (SELECT 1 FROM public.waybill_outbox_blocked AS r
                          WHERE r.transport = $1::smallint AND r.route = $2 AND r.route <> '')
           FOR    UPDATE SKIP LOCKED))
    RETURNING row_id)
UPDATE public.waybill_outbox_unkeyed AS o
SET    held = 1
FROM   own
WHERE  o.transport = $1::smallint
AND    o.held = 2
AND    o.id = own.row_id;

-- name: hold
-- After block: holds a message without a key for its own entry (2) or for its route's (1).
UPDATE public.waybill_outbox_unkeyed AS o
SET    held = CASE WHEN EXISTS (SELECT 1 FROM public.waybill_outbox_blocked AS b
                                WHERE  b.transport = o.transport
                                AND    b.bucket = -1
                                AND    b.partition_key = ''
                                AND    b.row_id = o.id
                                AND    b.route IN ('', o.message_name)) THEN 2 ELSE 1 END
WHERE  o.transport = $1::smallint
AND    o.held = 0
AND    o.id = $2::bigint;

-- name: refused_again
UPDATE public.waybill_outbox_blocked
SET    failures = failures + $5::int, next_attempt_at = clock_timestamp() + make_interval(secs => $6::float8),
       last_error = $7::text, policy = $8::text, state = $9::text
WHERE  transport = $1::smallint AND route = $2::text AND partition_key = $3::text AND row_id = $4::bigint;

-- name: unblock
DELETE FROM public.waybill_outbox_blocked AS b
USING  unnest($2::text[], $3::text[], $4::bigint[]) AS u (route, partition_key, row_id)
WHERE  b.transport = $1::smallint
AND    b.route = u.route
AND    b.partition_key = u.partition_key
AND    b.row_id = u.row_id;

-- name: due_with_route
-- Messages that were refused before their route was blocked are due when the route is unblocked.
UPDATE public.waybill_outbox_blocked
SET    next_attempt_at = now()
WHERE  ctid = ANY (ARRAY(
       SELECT b.ctid FROM public.waybill_outbox_blocked AS b
       WHERE  b.transport = $1::smallint
       AND    b.route = ''
       AND    b.message_name = ANY ($2::text[])
       AND    b.state = 'retrying'
       FOR    UPDATE SKIP LOCKED));

-- name: set_aside
-- Moves the rows of a parked key aside, so that claims do not read past them. Rows beyond $4 stay and wait
-- all the same.
UPDATE public.waybill_outbox
SET    bucket = bucket + 1024
WHERE  bucket + 0 = $2::smallint
AND    ctid = ANY (ARRAY(
       SELECT o.ctid FROM public.waybill_outbox AS o
       WHERE  o.transport = $1::smallint
       AND    o.bucket = $2::smallint
       AND    o.partition_key = $3::text
       ORDER  BY o.id
       LIMIT  $4));

-- name: skip
-- Moves a row to the dead letters, with the history of its entry, if it has one.
WITH keyed AS (
    DELETE FROM public.waybill_outbox AS o
    WHERE  $2::smallint >= 0
    AND    o.transport = $1::smallint
    AND    o.bucket = $2
    AND    o.id = $3::bigint
    RETURNING o.id, o.transport, o.message_id, o.message_name, o.partition_key, o.headers, o.body,
              o.created_at),
unkeyed AS (
    DELETE FROM public.waybill_outbox_unkeyed AS o
    WHERE  $2::smallint < 0
    AND    o.transport = $1::smallint
    AND    o.held = ANY ('{0,1,2}'::smallint[])
    AND    o.id = $3::bigint
    RETURNING o.id, o.transport, o.message_id, o.message_name, '' COLLATE "C", o.headers, o.body,
              o.created_at)
INSERT INTO public.waybill_failed (
       transport, state, message_id, message_name, partition_key, headers, body, created_at, failures,
       first_failed_at, last_error)
SELECT t.name, 'skipped', g.message_id, g.message_name, g.partition_key, g.headers, g.body, g.created_at,
       coalesce(b.failures, 0) + $4::int, coalesce(b.first_failed_at, clock_timestamp()),
       coalesce(nullif($5::text, ''), b.last_error, '')
FROM  (SELECT * FROM keyed UNION ALL SELECT * FROM unkeyed) AS g
JOIN   public.waybill_transport AS t ON t.id = g.transport
LEFT   JOIN public.waybill_outbox_blocked AS b
       ON  b.transport = g.transport
       AND b.route = ''
       AND b.partition_key = g.partition_key
       AND b.row_id = g.id;

-- name: stale
-- Entries without a message in the outbox: an operator may have deleted it. In batches of $9, after an entry
-- ($5 to $8). An entry locked by a retry is left to its relay.
SELECT b.route, b.partition_key, b.row_id, b.bucket, b.transport
FROM   public.waybill_outbox_blocked AS b
JOIN   public.waybill_transport AS t ON t.id = b.transport
WHERE  b.state = 'retrying'
AND    ($1 = '' OR t.name = $1)
AND    ($2 = '' OR b.partition_key = $2)
AND    ($3 = '' OR b.route = $3)
AND    ($4 = 0 OR b.row_id = $4 AND b.bucket = -1 AND b.route = '')
AND    NOT EXISTS (SELECT 1 FROM public.waybill_outbox AS o
                   WHERE  b.bucket >= 0
                   AND    o.transport = b.transport
                   AND    o.bucket = b.bucket
                   AND    o.id = b.row_id)
AND    NOT EXISTS (SELECT 1 FROM public.waybill_outbox_unkeyed AS o
                   WHERE  b.bucket < 0
                   AND    o.transport = b.transport
                   AND    o.held = 2
                   AND    o.id = b.row_id)
AND    (b.transport, b.route, b.partition_key, b.row_id) > ($5::smallint, $6::text, $7::text, $8::bigint)
ORDER  BY b.transport, b.route, b.partition_key, b.row_id
LIMIT  $9
FOR    UPDATE OF b SKIP LOCKED;

-- name: due_now
-- An entry locked by a retry counts, too.
WITH picked AS MATERIALIZED (
    SELECT b.ctid
    FROM   public.waybill_outbox_blocked AS b
    JOIN   public.waybill_transport AS t ON t.id = b.transport
    WHERE  b.state = 'retrying'
    AND    ($1 = '' OR t.name = $1)
    AND    ($2 = '' OR b.partition_key = $2)
    AND    ($3 = '' OR b.route = $3)
    AND    ($4 = 0 OR b.row_id = $4 AND b.bucket = -1 AND b.route = '')
    FOR    UPDATE OF b SKIP LOCKED),
due AS (
    UPDATE public.waybill_outbox_blocked AS b
    SET    next_attempt_at = now()
    FROM   picked AS p
    WHERE  b.ctid = p.ctid)
SELECT count(*)
FROM   public.waybill_outbox_blocked AS b
JOIN   public.waybill_transport AS t ON t.id = b.transport
WHERE  b.state = 'retrying'
AND    ($1 = '' OR t.name = $1)
AND    ($2 = '' OR b.partition_key = $2)
AND    ($3 = '' OR b.route = $3)
AND    ($4 = 0 OR b.row_id = $4 AND b.bucket = -1 AND b.route = '');

-- name: heads
-- Refused messages to skip before a release, in batches as in stale. Without SKIP LOCKED: a head that a relay
-- is trying may be published.
SELECT b.route, b.partition_key, b.row_id, b.bucket, b.transport
FROM   public.waybill_outbox_blocked AS b
JOIN   public.waybill_transport AS t ON t.id = b.transport
WHERE  b.state = $5
AND    b.route = ''
AND    $3 = ''
AND    ($1 = '' OR t.name = $1)
AND    ($2 = '' OR b.partition_key = $2)
AND    ($4 = 0 OR b.row_id = $4 AND b.bucket = -1)
AND    (b.transport, b.route, b.partition_key, b.row_id) > ($6::smallint, $7::text, $8::text, $9::bigint)
ORDER  BY b.transport, b.route, b.partition_key, b.row_id
LIMIT  $10
FOR    UPDATE OF b;

-- name: parked_buckets
-- Those with a key that was parked before $5.
SELECT DISTINCT b.transport, b.bucket, t.name
FROM   public.waybill_outbox_blocked AS b
JOIN   public.waybill_transport AS t ON t.id = b.transport
WHERE  b.state = 'parked'
AND    b.partition_key <> ''
AND    b.first_failed_at <= $5::timestamptz
AND    $3 = ''
AND    $4 = 0
AND    ($1 = '' OR t.name = $1)
AND    ($2 = '' OR b.partition_key = $2)
ORDER  BY b.transport, b.bucket;

-- name: keep_buckets
-- A rebucket waits for the transaction, or this for it, before either holds anything else: the buckets of
-- entries that are read later are those of their rows.
LOCK TABLE public.waybill_outbox IN ROW EXCLUSIVE MODE;

-- name: now
SELECT clock_timestamp();

-- name: releasable
-- Up to $5 keys of a bucket that were parked before $4, or only the key $3.
SELECT b.partition_key
FROM   public.waybill_outbox_blocked AS b
WHERE  b.transport = $1::smallint AND b.bucket = $2::smallint AND b.state = 'parked' AND b.partition_key <> ''
AND   ($3::text = '' OR b.partition_key = $3) AND b.first_failed_at <= $4::timestamptz
ORDER  BY b.partition_key LIMIT $5;

-- name: bring_back
-- After bump_buckets: the oldest set-aside rows of some keys of a bucket.
WITH moved AS (
    UPDATE public.waybill_outbox
    SET    bucket = bucket - 1024
    WHERE  bucket + 0 = $2::smallint + 1024
    AND    ctid = ANY (ARRAY(
           SELECT o.ctid FROM public.waybill_outbox AS o
           WHERE  o.transport = $1::smallint
           AND    o.bucket = $2::smallint + 1024
           AND    o.partition_key = ANY ($3::text[])
           ORDER  BY o.id
           LIMIT  $4))
    RETURNING id)
SELECT coalesce(max(id), 0) FROM moved;

-- name: end_release
-- After bring_back: keys without set-aside rows are blocked no longer.
DELETE FROM public.waybill_outbox_blocked AS b
WHERE  b.transport = $1::smallint
AND    b.route = ''
AND    b.partition_key = ANY ($3::text[])
AND    b.state = 'parked'
AND    b.partition_key NOT IN (
       SELECT o.partition_key FROM public.waybill_outbox AS o
       WHERE  o.transport = $1::smallint
       AND    o.bucket = $2::smallint + 1024
       AND    o.partition_key = ANY ($3::text[]));

-- name: any_up_to
SELECT EXISTS (SELECT 1 FROM public.waybill_outbox AS o
               WHERE o.transport = $1::smallint AND o.bucket = $2::smallint AND o.id <= $3);
