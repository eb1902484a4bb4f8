-- How keys are parked, messages skipped, and parked keys released. See
-- docs/schema.md. Whatever changes what is blocked begins with the lane's row.

-- name: park
-- After block. A parked key is never due.
UPDATE public.waybill_outbox_blocked SET state = 'parked', next_attempt_at = '9999-12-31 UTC', release_at = NULL
WHERE  lane = $1::smallint AND route = '' AND partition_key = $2::text AND row_id = 0;

-- name: park_rows
-- Up to $4 rows of a key that are in the outbox, in order. They have the bucket's
-- lock, so there are none before them.
WITH gone AS (
    DELETE FROM public.waybill_outbox AS o WHERE o.lane = $1::smallint AND o.bucket = $2::smallint AND o.id = ANY (ARRAY (
        SELECT e.id FROM public.waybill_outbox AS e WHERE e.lane = $1::smallint AND e.bucket = $2::smallint AND e.partition_key = $3::text ORDER BY e.id LIMIT $4))
    RETURNING o.id, o.lane, o.message_id, o.message_name, o.partition_key, o.headers, o.body, o.created_at)
INSERT INTO public.waybill_failed (transport, state, message_id, message_name, partition_key, headers, body, created_at, failures, first_failed_at, last_error)
SELECT l.name, 'parked', g.message_id, g.message_name, g.partition_key, g.headers, g.body, g.created_at,
       CASE WHEN g.message_id = b.message_id THEN b.failures ELSE 0 END, CASE WHEN g.message_id = b.message_id THEN b.first_failed_at END,
       CASE WHEN g.message_id = b.message_id THEN b.last_error ELSE '' END
FROM   gone AS g JOIN public.waybill_outbox_lane AS l ON l.id = g.lane
       JOIN public.waybill_outbox_blocked AS b ON b.lane = g.lane AND b.route = '' AND b.partition_key = g.partition_key AND b.row_id = 0
ORDER  BY g.id;

-- name: skip
-- After block. The row $3 of bucket $2 goes, and its key, or the entry of a message
-- without one ($5), waits no more.
WITH gone AS (
    DELETE FROM public.waybill_outbox AS o WHERE o.lane = $1::smallint AND o.bucket = $2::smallint AND o.id = $3::bigint
    RETURNING o.lane, o.message_id, o.message_name, o.partition_key, o.headers, o.body, o.created_at),
freed AS (
    DELETE FROM public.waybill_outbox_blocked AS b WHERE b.lane = $1::smallint AND b.route = '' AND b.partition_key = $4::text AND b.row_id = $5::bigint
    RETURNING b.failures, b.first_failed_at, b.last_error)
INSERT INTO public.waybill_failed (transport, state, message_id, message_name, partition_key, headers, body, created_at, failures, first_failed_at, last_error)
SELECT l.name, 'skipped', g.message_id, g.message_name, g.partition_key, g.headers, g.body, g.created_at, f.failures, f.first_failed_at, f.last_error
FROM   gone AS g JOIN public.waybill_outbox_lane AS l ON l.id = g.lane, freed AS f;

-- name: any_releasing
SELECT EXISTS (SELECT 1 FROM public.waybill_outbox_blocked AS b WHERE b.lane = $1::smallint AND b.release_at <= now());

-- name: lock_releasing
-- The buckets of released keys that are due, as lock_buckets has them. A key whose
-- first row waits for its route is not, or it would be in the way of others.
SELECT b.bucket FROM public.waybill_outbox_bucket AS b
WHERE  b.lane = $1::smallint AND b.bucket = ANY (ARRAY (
       SELECT k.bucket % 1024 FROM public.waybill_outbox_blocked AS k
       WHERE  k.lane = $1::smallint AND k.release_at <= now() AND NOT EXISTS (
           SELECT 1 FROM public.waybill_outbox_blocked AS w
           WHERE  w.lane = k.lane AND w.partition_key = '' AND w.row_id = 0 AND w.next_attempt_at > now() AND w.route = (
                  SELECT e.message_name FROM public.waybill_failed AS e
                  WHERE  e.transport = $2::text AND e.partition_key = k.partition_key AND e.state = 'parked' ORDER BY e.id LIMIT 1))))
AND    NOT EXISTS (SELECT 1 FROM public.waybill_meta AS m WHERE m.name = 'relays_paused_until' AND m.value::timestamptz > now())
ORDER  BY b.bucket LIMIT $3
FOR    UPDATE OF b SKIP LOCKED;

-- name: claim_releasing
-- The oldest parked rows of released keys in locked buckets, in a statement after
-- the one that locks. A key of which nothing is left has a row without one.
SELECT r.partition_key, r.bucket, r.id, r.message_id, r.message_name, r.headers, r.body, r.created_at, r.failures, r.route_failures, r.held
FROM  (SELECT k.partition_key, k.bucket, k.release_at, f.*, sum(f.size) OVER (ORDER BY k.release_at, k.partition_key, f.id) - f.size AS before
       FROM   public.waybill_outbox_blocked AS k
       LEFT   JOIN LATERAL (SELECT e.id, e.message_id, e.message_name, e.headers, e.body, e.created_at, octet_length(e.body) + pg_column_size(e.headers) AS size,
                                   CASE WHEN k.message_id = e.message_id THEN k.failures ELSE 0 END AS failures,
                                   coalesce(w.failures, 0) AS route_failures, coalesce(w.next_attempt_at > now(), false) AS held
                            FROM   public.waybill_failed AS e
                            LEFT   JOIN LATERAL (SELECT i.failures, i.next_attempt_at FROM public.waybill_outbox_blocked AS i
                                                 WHERE  i.lane = k.lane AND i.route = e.message_name AND i.partition_key = '' AND i.row_id = 0 LIMIT 1) AS w ON true
                            WHERE  e.transport = $2::text AND e.partition_key = k.partition_key AND e.state = 'parked'
                            ORDER  BY e.id LIMIT $4) AS f ON true
       WHERE  k.lane = $1::smallint AND k.release_at <= now() AND k.bucket % 1024 = ANY ($3::smallint[]) AND NOT EXISTS (
           SELECT 1 FROM public.waybill_outbox_blocked AS w
           WHERE  w.lane = k.lane AND w.partition_key = '' AND w.row_id = 0 AND w.next_attempt_at > now() AND w.route = (
                  SELECT e.message_name FROM public.waybill_failed AS e
                  WHERE  e.transport = $2::text AND e.partition_key = k.partition_key AND e.state = 'parked' ORDER BY e.id LIMIT 1))) AS r
WHERE  r.id IS NULL OR r.before < $5
ORDER  BY r.release_at, r.partition_key, r.id LIMIT $4;

-- name: delete_failed
DELETE FROM public.waybill_failed WHERE id = ANY ($1::bigint[]) AND state = 'parked';

-- name: end_release
-- The keys that have nothing parked any more go on in the outbox.
DELETE FROM public.waybill_outbox_blocked AS b
WHERE  b.lane = $1::smallint AND b.route = '' AND b.row_id = 0 AND b.partition_key = ANY ($3::text[]) AND b.release_at IS NOT NULL
AND    NOT EXISTS (SELECT 1 FROM public.waybill_failed AS f WHERE f.transport = $2::text AND f.partition_key = b.partition_key AND f.state = 'parked');

-- name: retry_release
-- A parked row was refused.
UPDATE public.waybill_outbox_blocked AS b SET message_id = $3::uuid, message_name = $4::text,
       failures = CASE WHEN b.message_id = $3::uuid THEN b.failures + 1 ELSE 1 END, policy = $5::text, last_error = $6::text,
       release_at = clock_timestamp() + make_interval(secs => $7::float8)
WHERE  b.lane = $1::smallint AND b.route = '' AND b.partition_key = $2::text AND b.row_id = 0;

-- name: failed_again
-- After retry_release, for the row itself: it stays parked, or is skipped.
UPDATE public.waybill_failed AS f SET state = $2::text, failures = b.failures, first_failed_at = coalesce(f.first_failed_at, clock_timestamp()), failed_at = clock_timestamp(), last_error = b.last_error
FROM   public.waybill_outbox_blocked AS b
WHERE  f.id = $1::bigint AND b.lane = $3::smallint AND b.route = '' AND b.partition_key = f.partition_key AND b.row_id = 0;

-- name: list
-- Without bodies.
SELECT id, state, transport, message_name, partition_key, message_id, created_at, failures, first_failed_at, failed_at, last_error, removed_at, octet_length(body)
FROM   public.waybill_failed
WHERE  CASE WHEN $1::text = '' THEN state <> 'removed' ELSE state = $1 END AND ($2::text = '' OR transport = $2) AND ($3::text = '' OR partition_key = $3) AND ($4::text = '' OR message_name = $4)
AND    ($5::bigint[] IS NULL OR id = ANY ($5)) AND id > $6
ORDER  BY id LIMIT $7;

-- name: content
SELECT headers, body FROM public.waybill_failed WHERE id = $1;

-- name: take
-- A skipped message that is dispatched again, in the same transaction.
DELETE FROM public.waybill_failed WHERE id = $1 AND state = 'skipped'
RETURNING transport, message_id, message_name, partition_key, headers, body, created_at;

-- name: remove
-- The rest stays, so that it is known what is missing. A relay may have those of a
-- key that is being released in hand.
UPDATE public.waybill_failed AS f SET state = 'removed', body = '', headers = '{}', removed_at = clock_timestamp()
WHERE  f.id = ANY ($1::bigint[]) AND (f.state = 'skipped' OR f.state = 'parked' AND NOT EXISTS (
       SELECT 1 FROM public.waybill_outbox_lane AS l JOIN public.waybill_outbox_blocked AS b ON b.lane = l.id
       WHERE  l.name = f.transport AND b.route = '' AND b.partition_key = f.partition_key AND b.row_id = 0 AND b.state = 'releasing'));
