-- Retry queues. The other statements of their table are those of queue.sql, for waybill_retry.

-- name: contains
-- Whether the queue has the message of an id, or one of its key, in the order of the arrays. The limits and
-- the order pin the indexes: where most rows are of one key, the server would look for any other in all rows.
SELECT EXISTS (SELECT 1 FROM (
               SELECT 1 FROM public.waybill_retry AS q
               WHERE  q.queue = $1
               AND    q.message_id = u.id
               LIMIT  1) AS same)
OR     u.key <> ''
AND    EXISTS (SELECT 1 FROM (
               SELECT 1 FROM public.waybill_retry AS q
               WHERE  q.queue = $1
               AND    q.partition_key = u.key
               AND    q.partition_key <> ''
               ORDER  BY q.queue, q.partition_key, q.held
               LIMIT  1) AS earlier)
FROM   unnest($2::uuid[], $3::text[]) WITH ORDINALITY AS u (id, key, n)
ORDER  BY u.n;

-- name: add
-- Inserts messages in the order of the arrays, and the attempts of those with a time, unless the queue has
-- them already. Messages for the dead letters have the holder $2, for bury. The numbers of attempts continue
-- after a replay. An attempt is recorded once, also if its message was added before and the answer was lost.
WITH given AS (
    SELECT encode(u.message_id, 'hex')::uuid AS id, u.*
    FROM   unnest($3::bytea[], $4::text[], $5::text[], $6::jsonb[], $7::bytea[], $8::timestamptz[], $9::int[],
                  $10::float8[], $11::boolean[], $12::timestamptz[], $13::text[], $14::text[], $15::text[],
                  $16::text[], $17::text[], $18::text[])
           WITH ORDINALITY AS u (
           message_id, message_name, partition_key, headers, body, created_at, failures,
           delay, parked, at, worker, handler, error_type,
           error, stack, fingerprint, n)),
added AS (
    INSERT INTO public.waybill_retry (
           queue, message_id, message_name, partition_key, headers, body, created_at, failures, held,
           held_until, holder)
    SELECT $1::text, g.id, g.message_name, g.partition_key, g.headers, g.body, g.created_at,
           g.failures + (g.at IS NOT NULL)::int, (g.parked OR g.delay > 0 OR $2::uuid IS NOT NULL)::int,
           CASE WHEN g.parked THEN 'infinity'
                WHEN g.delay > 0 THEN clock_timestamp() + make_interval(secs => g.delay)
                ELSE '-infinity' END,
           $2
    FROM   given AS g
    ORDER  BY g.n
    ON     CONFLICT (queue, message_id) DO NOTHING
    RETURNING message_id, failures)
INSERT INTO public.waybill_failed_attempt (
       transport, message_id, attempt, at, worker, handler, error_type, error, stack, fingerprint)
SELECT $1, g.id, greatest(a.failures, 1 + b.last), g.at, g.worker, g.handler, g.error_type,
       g.error, g.stack, g.fingerprint
FROM   added AS a
JOIN   given AS g ON g.id = a.message_id AND g.at IS NOT NULL
CROSS  JOIN LATERAL (
       SELECT coalesce(max(t.attempt), 0) AS last, coalesce(bool_or(t.at = g.at), false) AS known
       FROM   public.waybill_failed_attempt AS t
       WHERE  t.transport = $1
       AND    t.message_id = g.id) AS b
WHERE  NOT b.known;

-- name: move
-- Settles a delivery with its attempt of $8, unless its row has been leased again. A message for the dead
-- letters keeps its holder, for bury.
WITH moved AS (
    UPDATE public.waybill_retry AS q
    SET    failures = q.failures + ($8::timestamptz IS NOT NULL)::int, headers = $4::jsonb, crashes = 0,
           holder = CASE WHEN $5::boolean THEN q.holder END,
           held = ($5 OR $7::boolean OR $6::float8 > 0)::int,
           held_until = CASE WHEN $5 THEN q.held_until
                             WHEN $7 THEN 'infinity'
                             WHEN $6 > 0 THEN clock_timestamp() + make_interval(secs => $6)
                             ELSE '-infinity' END
    WHERE  q.id = $2::bigint
    AND    q.lease = $3::bigint
    AND    q.holder = $1::uuid
    RETURNING q.id, q.lease, q.partition_key, q.queue, q.message_id, q.failures),
attempt AS (
    INSERT INTO public.waybill_failed_attempt (
           transport, message_id, attempt, at, worker, handler, error_type, error, stack, fingerprint)
    SELECT m.queue, m.message_id, greatest(m.failures, 1 + b.last), $8, $9::text, $10::text, $11::text,
           $12::text, $13::text, $14::text
    FROM   moved AS m,
           LATERAL (SELECT coalesce(max(t.attempt), 0) AS last FROM public.waybill_failed_attempt AS t
                    WHERE  t.transport = m.queue AND t.message_id = m.message_id) AS b
    WHERE  $8 IS NOT NULL)
SELECT id, lease, partition_key FROM moved;

-- name: bury
-- Moves a message that add or move has left for it to the dead letters, with its last attempt. An entry of
-- the same message is changed.
WITH gone AS (
    DELETE FROM public.waybill_retry AS q
    WHERE  q.queue = $1::text
    AND    q.message_id = $2::uuid
    AND    q.holder = $3::uuid
    AND    q.lease = $4::bigint
    RETURNING q.*)
INSERT INTO public.waybill_failed AS f (
       source, transport, failure_transport, state, message_id, message_name, partition_key, headers, body,
       created_at, failures, first_failed_at, last_error, handler, error_type, fingerprint)
SELECT 'worker', g.queue, $5::text, 'failed', g.message_id, g.message_name, g.partition_key, g.headers,
       g.body, g.created_at, greatest(g.failures, a.attempt), coalesce(a.first_at, clock_timestamp()),
       coalesce(a.error, ''), coalesce(a.handler, ''), coalesce(a.error_type, ''), coalesce(a.fingerprint, '')
FROM   gone AS g
LEFT   JOIN LATERAL (SELECT t.*, min(t.at) OVER () AS first_at
                     FROM   public.waybill_failed_attempt AS t
                     WHERE  t.transport = g.queue AND t.message_id = g.message_id
                     ORDER  BY t.attempt DESC
                     LIMIT  1) AS a ON true
ON     CONFLICT (transport, message_id) WHERE source = 'worker' DO UPDATE
SET    state = 'failed', failure_transport = excluded.failure_transport, message_name = excluded.message_name,
       partition_key = excluded.partition_key, headers = excluded.headers, body = excluded.body,
       failures = greatest(f.failures, excluded.failures), failed_at = clock_timestamp(),
       last_error = excluded.last_error, handler = excluded.handler, error_type = excluded.error_type,
       fingerprint = excluded.fingerprint, removed_at = NULL;

-- name: take_parked
-- Gives the parked row of each key a holder, for bury.
UPDATE public.waybill_retry AS q SET holder = $3::uuid
WHERE  q.id = ANY (ARRAY(
       SELECT min(p.id) FROM public.waybill_retry AS p
       WHERE  p.queue = $1
       AND    ($2 = '' OR p.partition_key = $2)
       AND    p.held_until = 'infinity'
       AND    p.holder IS NULL
       GROUP  BY p.partition_key))
AND    q.held_until = 'infinity'
AND    q.holder IS NULL
RETURNING q.message_id, q.lease, q.partition_key;

-- name: ack
-- Ends deliveries, unless their rows have been leased again, and forgets the failures of their messages. Their
-- attempts, which never change, and dead letters are looked up one by one: joined, all would be read.
WITH done AS (
    DELETE FROM public.waybill_retry AS q
    WHERE  q.id = ANY ($2::bigint[])
    AND    q.holder = $1::uuid
    AND   ((q.id, q.lease) IN (SELECT * FROM unnest($2::bigint[], $3::bigint[]))) IS TRUE
    RETURNING q.id, q.lease, q.partition_key, q.queue, q.message_id),
attempts AS (
    DELETE FROM public.waybill_failed_attempt AS t WHERE t.ctid = ANY (ARRAY(
           SELECT a.ctid
           FROM   done AS d
           CROSS  JOIN LATERAL (
                  SELECT a.ctid FROM public.waybill_failed_attempt AS a
                  WHERE  a.transport = d.queue
                  AND    a.message_id = d.message_id
                  ORDER  BY a.transport, a.message_id, a.attempt) AS a))),
entries AS (
    DELETE FROM public.waybill_failed AS t WHERE t.id = ANY (ARRAY(
           SELECT f.id
           FROM   done AS d
           CROSS  JOIN LATERAL (
                  SELECT f.id FROM public.waybill_failed AS f
                  WHERE  f.source = 'worker'
                  AND    f.transport = d.queue
                  AND    f.message_id = d.message_id
                  LIMIT  1) AS f)))
SELECT id, lease, partition_key FROM done;

-- name: begin
-- A start counts as a crash when the next lease begins its handlers too, without a settlement between them.
UPDATE public.waybill_retry AS q
SET    crashes = q.crashes + (q.redelivered AND q.begun = q.lease - 1)::int, begun = q.lease
WHERE  q.id = $2::bigint AND q.lease = $3::bigint AND q.holder = $1::uuid
RETURNING q.crashes;

-- name: list
SELECT q.id, q.queue, q.message_name, q.partition_key, q.message_id, q.created_at, q.failures, q.crashes,
       CASE WHEN q.held = 1 AND isfinite(q.held_until) AND q.holder IS NULL THEN q.held_until END,
       q.held_until = 'infinity' AND q.holder IS NULL,
       q.held = 1 AND q.held_until > now() AND q.holder IS NOT NULL,
       octet_length(q.body), coalesce(a.error, '')
FROM   public.waybill_retry AS q
LEFT   JOIN LATERAL (SELECT t.error FROM public.waybill_failed_attempt AS t
                     WHERE  t.transport = q.queue AND t.message_id = q.message_id
                     ORDER  BY t.attempt DESC
                     LIMIT  1) AS a ON true
WHERE  ($1 = '' OR q.queue = $1)
AND    ($2 = '' OR q.partition_key = $2)
AND    q.id > $3
ORDER  BY q.id
LIMIT  $4;

-- name: attempts
SELECT attempt, at, worker, handler, error_type, error, stack, fingerprint
FROM   public.waybill_failed_attempt
WHERE  transport = $1 AND message_id = $2::uuid
ORDER  BY attempt;
