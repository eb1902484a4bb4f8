-- Dead letters: messages that were skipped by a relay, or failed in a worker.

-- name: list
-- Without bodies.
SELECT id, state, transport, message_name, partition_key, message_id, created_at, failures, first_failed_at,
       failed_at, last_error, removed_at, octet_length(body), source, failure_transport, handler, error_type,
       fingerprint
FROM   public.waybill_failed
WHERE  CASE WHEN $1::text = '' THEN state <> 'removed' ELSE state = $1 END
AND    ($2::text = '' OR transport = $2)
AND    ($3::text = '' OR partition_key = $3)
AND    ($4::text = '' OR message_name = $4)
AND    ($5::bigint[] IS NULL OR id = ANY ($5))
AND    ($6::text = '' OR source = $6)
AND    ($7::text = '' OR failure_transport = $7)
AND    ($8::text = '' OR handler = $8)
AND    ($9::text = '' OR fingerprint = $9)
AND    ($10::text = '' OR strpos(lower(last_error), lower($10)) > 0)
AND    ($11::timestamptz IS NULL OR failed_at >= $11)
AND    ($12::timestamptz IS NULL OR failed_at < $12)
AND    id > $13
AND    id <= $14
ORDER  BY id
LIMIT  $15;

-- name: groups
-- The text of one error of each is read: all of them would be held in memory, and an array takes 1 GB.
SELECT g.fingerprint, g.messages, g.first_at, g.last_at, g.names, g.handlers, g.example, e.last_error
FROM  (SELECT max(fingerprint) AS fingerprint, count(*) AS messages,
              min(coalesce(first_failed_at, failed_at)) AS first_at, max(failed_at) AS last_at,
              array_agg(DISTINCT message_name ORDER BY message_name) AS names,
              coalesce(array_agg(DISTINCT handler ORDER BY handler) FILTER (WHERE handler <> ''), '{}')
                  AS handlers,
              max(id) AS example
       FROM   public.waybill_failed
       WHERE  CASE WHEN $1::text = '' THEN state <> 'removed' ELSE state = $1 END
       AND    ($2::text = '' OR transport = $2)
       AND    ($3::text = '' OR partition_key = $3)
       AND    ($4::text = '' OR message_name = $4)
       AND    ($5::bigint[] IS NULL OR id = ANY ($5))
       AND    ($6::text = '' OR source = $6)
       AND    ($7::text = '' OR failure_transport = $7)
       AND    ($8::text = '' OR handler = $8)
       AND    ($9::text = '' OR fingerprint = $9)
       AND    ($10::text = '' OR strpos(lower(last_error), lower($10)) > 0)
       AND    ($11::timestamptz IS NULL OR failed_at >= $11)
       AND    ($12::timestamptz IS NULL OR failed_at < $12)
       GROUP  BY fingerprint, CASE WHEN fingerprint = '' THEN last_error ELSE '' END) AS g
JOIN   public.waybill_failed AS e ON e.id = g.example
ORDER  BY g.messages DESC, g.example;

-- name: hours
-- By the hours before $13.
SELECT fingerprint, CASE WHEN fingerprint = '' THEN last_error ELSE '' END,
       floor(extract(epoch FROM $13::timestamptz - failed_at) / 3600)::int, count(*)
FROM   public.waybill_failed
WHERE  CASE WHEN $1::text = '' THEN state <> 'removed' ELSE state = $1 END
AND    ($2::text = '' OR transport = $2)
AND    ($3::text = '' OR partition_key = $3)
AND    ($4::text = '' OR message_name = $4)
AND    ($5::bigint[] IS NULL OR id = ANY ($5))
AND    ($6::text = '' OR source = $6)
AND    ($7::text = '' OR failure_transport = $7)
AND    ($8::text = '' OR handler = $8)
AND    ($9::text = '' OR fingerprint = $9)
AND    ($10::text = '' OR strpos(lower(last_error), lower($10)) > 0)
AND    ($11::timestamptz IS NULL OR failed_at >= $11)
AND    ($12::timestamptz IS NULL OR failed_at < $12)
GROUP  BY 1, 2, 3;

-- name: failed_again
SELECT count(*) FROM unnest($1::text[], $2::uuid[]) AS r (transport, message_id)
WHERE  EXISTS (SELECT 1 FROM (
               SELECT f.state FROM public.waybill_failed AS f
               WHERE  f.transport = r.transport AND f.message_id = r.message_id AND f.source = 'worker'
               LIMIT  1) AS worker
               WHERE  worker.state = 'failed')
OR    (r.transport, r.message_id)
       IN (SELECT s.transport, s.message_id FROM public.waybill_failed AS s
           WHERE  s.source = 'outbox' AND s.state = 'skipped')
OR     EXISTS (SELECT 1 FROM public.waybill_retry AS q
               WHERE q.queue = r.transport AND q.message_id = r.message_id AND q.failures > 0);

-- name: limit_silence
-- The server ends the transaction of a process that is silent for so many milliseconds.
SELECT set_config('idle_in_transaction_session_timeout', $1::bigint::text, true);

-- name: audit
INSERT INTO public.waybill_audit (actor, action, filter, messages) VALUES ($1, $2, $3, $4);

-- name: stop_workers
UPDATE public.waybill_workers SET stop_requested_at = clock_timestamp()
WHERE  id = $1::uuid AND kind = 'worker' AND seen_at > now() - interval '60 seconds';

-- name: pause
INSERT INTO public.waybill_paused (transport, actor, reason) VALUES ($1, $2, $3)
ON CONFLICT (transport) DO NOTHING;

-- name: resume
DELETE FROM public.waybill_paused WHERE transport = $1;

-- name: audit_list
SELECT id, at, actor, action, filter, messages
FROM   public.waybill_audit
WHERE  ($1::bigint = 0 OR id < $1)
ORDER  BY id DESC
LIMIT  $2;

-- name: edit
UPDATE public.waybill_failed SET body = $1
WHERE  id = $2 AND body = $3 AND state IN ('skipped', 'failed');

-- name: add_as_new
-- Adds a worker's message under the id $1 to its retry queue, where all its handlers run: $2 is the header of
-- these, $3 that of the old id.
INSERT INTO public.waybill_retry (queue, message_id, message_name, partition_key, headers, body)
SELECT transport, $1::uuid, message_name, partition_key,
       headers - $2::text || jsonb_build_object($3::text, message_id), body
FROM   public.waybill_failed
WHERE  id = $4 AND source = 'worker' AND state = 'failed'
FOR    UPDATE;

-- name: worker_stats
SELECT transport, sum(retrying)::bigint, sum(parked)::bigint, sum(failed)::bigint
FROM  (SELECT queue AS transport, count(*) AS retrying,
              count(*) FILTER (WHERE held_until = 'infinity' AND holder IS NULL) AS parked, 0 AS failed
       FROM   public.waybill_retry
       GROUP  BY queue
       UNION  ALL
       SELECT transport, 0, 0, count(*) FROM public.waybill_failed
       WHERE  source = 'worker' AND state = 'failed'
       GROUP  BY transport) AS n
GROUP  BY transport
ORDER  BY transport;

-- name: content
SELECT headers, body FROM public.waybill_failed WHERE id = $1;

-- name: take
-- A skipped message that is dispatched again, in the same transaction.
DELETE FROM public.waybill_failed WHERE id = $1 AND state = 'skipped'
RETURNING transport, message_id, message_name, partition_key, headers, body, created_at;

-- name: remove
-- The row stays, as a record of the missing message. Rows are locked in ascending order, as replay and take lock
-- them: an UPDATE alone locks them as it finds them, and operators at once deadlock.
WITH chosen AS (
    SELECT f.id FROM public.waybill_failed AS f
    WHERE  f.id = ANY ($1::bigint[]) AND f.state IN ('skipped', 'failed')
    ORDER  BY f.id
    FOR    UPDATE)
UPDATE public.waybill_failed AS f
SET    state = 'removed', body = '', headers = '{}', removed_at = clock_timestamp()
FROM   chosen AS c
WHERE  f.id = c.id;

-- name: release_parked
UPDATE public.waybill_retry SET held = 0, held_until = '-infinity'
WHERE  queue = $1 AND ($2 = '' OR partition_key = $2) AND held_until = 'infinity' AND holder IS NULL;

-- name: replay
-- Puts workers' messages into the retry queues again. Their failures begin anew. A message that is in its retry
-- queue already stays as it is there. An entry whose row was deleted by hand is replayed too. One that another
-- operator has replayed while this statement waited for its lock seems to be such a one, by a snapshot from
-- before, and is not counted: its row is there.
WITH chosen AS (
    SELECT f.* FROM public.waybill_failed AS f
    WHERE  f.id = ANY ($1::bigint[])
    AND    f.source = 'worker'
    AND   (f.state = 'failed'
           OR f.state = 'retrying'
           AND NOT EXISTS (SELECT 1 FROM public.waybill_retry AS q
                           WHERE q.queue = f.transport AND q.message_id = f.message_id))
    ORDER  BY f.id
    FOR    UPDATE),
replayed AS (
    INSERT INTO public.waybill_retry (
           queue, message_id, message_name, partition_key, headers, body, created_at)
    SELECT c.transport, c.message_id, c.message_name, c.partition_key, c.headers, c.body, c.created_at
    FROM   chosen AS c
    ORDER  BY c.id
    ON     CONFLICT (queue, message_id) DO NOTHING
    RETURNING queue, message_id)
UPDATE public.waybill_failed AS f SET state = 'retrying' FROM chosen AS c
WHERE  f.id = c.id
AND   (c.state = 'failed' OR (c.transport, c.message_id) IN (SELECT r.queue, r.message_id FROM replayed AS r));
