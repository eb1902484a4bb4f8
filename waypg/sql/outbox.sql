-- Writing, claiming and promoting. docs/schema.md describes the columns.

-- name: known
-- The number of buckets and the ids of the transports. It runs in the caller's transaction, or outside any.
SELECT public.waybill_buckets(),
       coalesce((SELECT jsonb_object_agg(name, id) FROM public.waybill_transport), '{}');

-- name: add_transports
INSERT INTO public.waybill_transport (name)
SELECT n FROM unnest($1::text[]) AS n ORDER BY n
ON CONFLICT (name) DO NOTHING;

-- name: check_tables
SELECT coalesce((SELECT m.value FROM public.waybill_meta AS m WHERE m.name = 'buckets'), 'no'),
       coalesce((SELECT m.value FROM public.waybill_meta AS m WHERE m.name = 'hash'), 'no hash'),
       public.waybill_buckets(),
       (SELECT s.seqcache FROM pg_sequence AS s WHERE s.seqrelid = 'public.waybill_outbox_id_seq'::regclass),
       odd.name, odd.n
FROM  (SELECT 1) AS one
LEFT   JOIN (SELECT t.name, count(b.bucket) AS n
             FROM   public.waybill_transport AS t
             LEFT   JOIN public.waybill_outbox_bucket AS b ON b.transport = t.id
             GROUP  BY t.id, t.name
             HAVING count(b.bucket) <> public.waybill_buckets()
             ORDER  BY t.name
             LIMIT  1) AS odd ON true;

-- name: buckets_wrong
SELECT EXISTS (
    SELECT 1 FROM public.waybill_transport AS t
    WHERE (SELECT count(*) FROM public.waybill_outbox_bucket AS b WHERE b.transport = t.id)
          <> public.waybill_buckets());

-- name: add_buckets
-- After add_transports, whose lock keeps a rebucket out: the number of buckets is current.
INSERT INTO public.waybill_outbox_bucket (transport, bucket)
SELECT t.id, b FROM public.waybill_transport AS t, generate_series(0, public.waybill_buckets() - 1) AS b
ON CONFLICT DO NOTHING;

-- name: remove_buckets
DELETE FROM public.waybill_outbox_bucket WHERE bucket >= public.waybill_buckets();

-- name: insert_one
-- One message: the bucket's dispatch lock, which is held to commit, and then the row, whose id is given under
-- the lock. A bucket or transport that differs from the process's cache is NULL, which the table refuses. NULL
-- is the number of a lock that was taken before.
WITH lock AS MATERIALIZED (
    SELECT pg_advisory_xact_lock($1::int, $2::int),
           CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
                THEN set_config('synchronous_commit', 'on', true) END)
INSERT INTO public.waybill_outbox (
       transport, bucket, message_id, message_name, partition_key, headers, body, created_at)
SELECT (SELECT t.id FROM public.waybill_transport AS t WHERE t.id = $3::smallint AND t.name = $4::text),
       CASE WHEN public.waybill_buckets() = $5::int THEN $6::smallint END,
       $7::uuid, $8::text, $9::text, $10::jsonb, $11::bytea, $12::timestamptz
FROM   lock;

-- name: lock_many
-- The dispatch locks of several buckets, in the order of the array, which ascends: units of work cannot
-- deadlock with each other. The array may be empty; the commit is durable all the same.
SELECT count(*), CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
                      THEN set_config('synchronous_commit', 'on', true) END
FROM  (SELECT pg_advisory_xact_lock($1::int, k) FROM unnest($2::int[]) AS u (k) OFFSET 0) AS locks;

-- name: insert_many
-- Several messages of one transport, in the order of the arrays, under locks taken before.
INSERT INTO public.waybill_outbox (
       transport, bucket, message_id, message_name, partition_key, headers, body, created_at)
SELECT (SELECT t.id FROM public.waybill_transport AS t WHERE t.id = $1::smallint AND t.name = $2::text),
       CASE WHEN public.waybill_buckets() = $3::int THEN u.bucket END,
       encode(u.message_id, 'hex')::uuid, u.message_name, u.partition_key, u.headers, u.body, u.created_at
FROM   unnest($4::smallint[], $5::bytea[], $6::text[], $7::text[], $8::jsonb[], $9::bytea[],
              $10::timestamptz[])
       WITH ORDINALITY AS u (bucket, message_id, message_name, partition_key, headers, body, created_at, n)
ORDER  BY u.n;

-- name: insert_unkeyed
INSERT INTO public.waybill_outbox_unkeyed (transport, message_id, message_name, headers, body, created_at)
VALUES ((SELECT t.id FROM public.waybill_transport AS t WHERE t.id = $1::smallint AND t.name = $2::text),
        $3::uuid, $4::text, $5::jsonb, $6::bytea, $7::timestamptz);

-- name: insert_delayed
-- A transport that differs from the process's cache is NULL, as is the queue then, which the table refuses.
INSERT INTO public.waybill_delayed (
       transport, queue, due_at, message_id, message_name, partition_key, headers, body, created_at)
VALUES ((SELECT t.id FROM public.waybill_transport AS t WHERE t.id = $1::smallint AND t.name = $2::text),
        $3::text, $4::timestamptz, $5::uuid, $6::text, $7::text, $8::jsonb, $9::bytea, $10::timestamptz);

-- name: settings
-- The settings of a claim's transaction, the name of its transport, and the server's identity. The statistics
-- of an outbox are always wrong, so the plan is pinned; and without jit = off the cost of a disabled plan
-- would have each claim compiled. A generic plan is made once. Another server or a truncated table
-- gives ids anew, which invalidates low-water marks.
SELECT coalesce((SELECT t.name FROM public.waybill_transport AS t WHERE t.id = $2::smallint), ''),
       pg_postmaster_start_time(), pg_relation_filenode('public.waybill_outbox'::regclass),
       set_config('idle_in_transaction_session_timeout', $1::text, true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true);

-- name: lock_buckets
-- Locks, until this transaction ends, up to $7 buckets of transport $1 that have rows above the cursors $2
-- or, if the versions $4 and $5 are out of date, above the low-water marks $3. No bucket while relays are
-- paused. $6 rotates the order of the buckets.
SELECT set_config('waybill.locked', coalesce(array_agg(locked.bucket)::text, '{}'), true)
FROM  (SELECT b.bucket
       FROM   public.waybill_transport AS t
       JOIN   public.waybill_outbox_bucket AS b ON b.transport = t.id,
              LATERAL (SELECT 1 FROM public.waybill_outbox AS o
                       WHERE  o.transport = b.transport
                       AND    o.bucket = b.bucket
                       AND    o.id > CASE WHEN ($4::bigint[])[b.bucket + 1] >= 0
                                          AND t.route_version = $5::bigint
                                          AND ($4::bigint[])[b.bucket + 1] = coalesce((
                                              SELECT v.version FROM public.waybill_outbox_version AS v
                                              WHERE v.transport = b.transport AND v.bucket = b.bucket), 0)
                                          THEN ($2::bigint[])[b.bucket + 1]
                                          ELSE ($3::bigint[])[b.bucket + 1] END
                       ORDER  BY o.id
                       LIMIT  1) AS any_row
       WHERE  t.id = $1::smallint
       AND    NOT EXISTS (SELECT 1 FROM public.waybill_meta AS m
                          WHERE m.name = 'relays_paused_until' AND m.value::timestamptz > now())
       ORDER  BY (b.bucket + $6::int) % cardinality($2::bigint[])
       LIMIT  $7
       FOR    UPDATE OF b SKIP LOCKED) AS locked;

-- name: claim_state
-- The blocked routes, the versions of the locked buckets and whether they have blocked keys, the number of
-- buckets, and whether delayed messages are due. It is read after the buckets are locked: no other
-- transaction blocks a key of theirs from then on, though one may be unblocked. A next id that went back
-- shows that ids are given anew. The sequence is locked after the table, as by TRUNCATE.
SELECT public.waybill_buckets(),
       (SELECT s.last_value + s.is_called::int FROM public.waybill_outbox_id_seq AS s), t.route_version,
       ARRAY(SELECT r.route FROM public.waybill_outbox_blocked AS r
             WHERE r.transport = t.id AND r.route <> ''),
       EXISTS (SELECT 1 FROM public.waybill_delayed AS d WHERE d.due_at <= now()),
       l.bucket, coalesce(v.version, 0),
       (SELECT 1 FROM public.waybill_outbox_blocked AS k
        WHERE k.transport = t.id AND k.bucket = l.bucket AND k.partition_key <> '' LIMIT 1) IS NOT NULL
FROM   public.waybill_transport AS t
LEFT   JOIN unnest(current_setting('waybill.locked')::smallint[]) WITH ORDINALITY AS l (bucket, n) ON true
LEFT   JOIN public.waybill_outbox_version AS v ON v.transport = $1::smallint AND v.bucket = l.bucket
WHERE  t.id = $1::smallint
ORDER  BY l.n;

-- name: claim
-- The oldest rows of the locked buckets $2, each above its own position ($3), without the key $4 and without
-- blocked keys, which are looked up where the bucket has any ($5). It must be a statement after the one that
-- locks, or it would see rows that the last owner has published. Rows of a blocked route ($6) come without
-- their bodies, because the rows behind them in their keys must wait with them. A bucket without a
-- publishable row yields one row, with its last id. Buckets come in the order of the array, which changes
-- from claim to claim: large rows of one must not starve another. The first column is false if a key of a
-- bucket was unblocked since its version $9 was read: its rows would be read from behind its head.
SELECT NOT EXISTS (SELECT 1 FROM unnest($2::smallint[], $5::boolean[], $9::bigint[])
                                 AS k (bucket, blocked, version)
                   WHERE  k.blocked
                   AND    k.version <> (SELECT v.version FROM public.waybill_outbox_version AS v
                                        WHERE v.transport = $1::smallint AND v.bucket = k.bucket)),
       r.bucket, r.ctid, r.id, r.message_id, r.message_name, r.partition_key, r.headers,
       CASE WHEN NOT r.held THEN r.body END, r.created_at, r.held,
       CASE WHEN r.id IS NULL THEN (SELECT e.id FROM public.waybill_outbox AS e
                                    WHERE  e.transport = $1::smallint
                                    AND    e.bucket = r.bucket
                                    AND    e.id > r.after
                                    ORDER  BY e.id DESC
                                    LIMIT  1) END
FROM  (SELECT k.bucket, k.after, k.n, o.*, sum(o.size) OVER (ORDER BY k.n, o.id) - o.size AS before
       FROM   unnest($2::smallint[], $3::bigint[], $4::text[], $5::boolean[])
              WITH ORDINALITY AS k (bucket, after, skip, blocked, n)
       LEFT   JOIN LATERAL (
              SELECT e.ctid, e.id, e.message_id, e.message_name, e.partition_key, e.headers, e.body,
                     e.created_at, w.held,
                     CASE WHEN w.held THEN 0 ELSE octet_length(e.body) END + pg_column_size(e.headers) AS size
              FROM   public.waybill_outbox AS e,
                     LATERAL (SELECT e.message_name = ANY ($6::text[]) AS held OFFSET 0) AS w
              WHERE  e.transport = $1::smallint
              AND    e.bucket = k.bucket
              AND    e.id > k.after
              AND    e.partition_key <> k.skip
              AND    (NOT k.blocked OR (SELECT 1 FROM public.waybill_outbox_blocked AS b
                                        WHERE  b.transport = e.transport
                                        AND    b.bucket = e.bucket
                                        AND    b.partition_key = e.partition_key
                                        AND    b.partition_key <> ''
                                        LIMIT  1) IS NULL)
              ORDER  BY e.id
              LIMIT  $7) AS o ON true) AS r
WHERE  r.id IS NULL OR r.before < $8
ORDER  BY r.n, r.id;

-- name: claim_unkeyed
-- Rows without a key have no order: relays share them row by row, behind an id ($4). Rows of a blocked route
-- are held, so that they are not read again; by ctid, because the array of their ids would be compared with
-- all rows that wait. The last column is the last id read or, with nothing to read, the last one given out.
WITH picked AS MATERIALIZED (
    SELECT o.id, o.ctid, octet_length(o.body) + pg_column_size(o.headers) AS size,
           (SELECT 1 FROM public.waybill_outbox_blocked AS r
            WHERE  r.transport = o.transport
            AND    r.route = o.message_name
            AND    r.route <> ''
            LIMIT  1) IS NOT NULL AS waits
    FROM   public.waybill_outbox_unkeyed AS o
    WHERE  o.transport = $1::smallint
    AND    o.held = 0
    AND    o.id > $4
    AND    NOT EXISTS (SELECT 1 FROM public.waybill_meta AS m
                       WHERE m.name = 'relays_paused_until' AND m.value::timestamptz > now())
    ORDER  BY o.id
    LIMIT  $2
    FOR    UPDATE OF o SKIP LOCKED),
waiting AS (
    UPDATE public.waybill_outbox_unkeyed AS o
    SET    held = 1
    FROM   picked AS p
    WHERE  p.waits
    AND    o.ctid = p.ctid
    RETURNING 1),
sized AS (
    SELECT id, sum(size) OVER (ORDER BY id) - size AS before
    FROM   picked
    WHERE  NOT waits)
SELECT w.n > 0, -1::smallint, o.at, o.id, o.message_id, o.message_name, '', o.headers, o.body, o.created_at,
       0, '', '',
       coalesce((SELECT max(p.id) FROM picked AS p),
                (SELECT s.last_value FROM public.waybill_outbox_unkeyed_id_seq AS s))
FROM  (SELECT count(*) AS n FROM waiting) AS w
LEFT   JOIN (sized AS s CROSS JOIN LATERAL (
             SELECT e.ctid AS at, e.id, e.message_id, e.message_name, e.headers, e.body, e.created_at
             FROM   public.waybill_outbox_unkeyed AS e
             WHERE  e.transport = $1::smallint
             AND    e.held = 0
             AND    e.id = s.id
             OFFSET 0) AS o) ON s.before < $3
ORDER  BY o.id;

-- name: claim_retries
-- Due entries with their messages. The lock on an entry gives the sole right to publish its message, because
-- no other claim touches a blocked key. Entries of messages with a blocked route are put off until the route
-- was tried.
WITH picked AS MATERIALIZED (
    SELECT b.ctid, b.route, b.partition_key, b.row_id, b.bucket, b.failures, b.next_attempt_at,
           (SELECT greatest(r.next_attempt_at, now()) + interval '1 second'
            FROM   public.waybill_outbox_blocked AS r
            WHERE  b.route = ''
            AND    r.transport = b.transport
            AND    r.route = b.message_name
            AND    r.route <> ''
            LIMIT  1) AS after_route
    FROM   public.waybill_outbox_blocked AS b
    WHERE  b.transport = $1::smallint
    AND    b.state = 'retrying'
    AND    b.next_attempt_at <= now()
    AND    NOT EXISTS (SELECT 1 FROM public.waybill_meta AS m
                       WHERE m.name = 'relays_paused_until' AND m.value::timestamptz > now())
    ORDER  BY b.next_attempt_at
    LIMIT  $2
    FOR    UPDATE OF b SKIP LOCKED),
waiting AS (
    UPDATE public.waybill_outbox_blocked AS b
    SET    next_attempt_at = p.after_route
    FROM   picked AS p
    WHERE  p.after_route IS NOT NULL
    AND    b.ctid = p.ctid
    RETURNING 1),
sized AS (
    SELECT p.*, h.*,
           sum(h.size) OVER (ORDER BY p.next_attempt_at, p.bucket, p.row_id, p.route) - h.size AS before
    FROM   picked AS p
    LEFT   JOIN LATERAL (
           SELECT o.ctid AS at, o.message_id, o.message_name, o.headers, o.body, o.created_at,
                  octet_length(o.body) + pg_column_size(o.headers) AS size, o.partition_key AS row_key
           FROM   public.waybill_outbox AS o
           WHERE  p.bucket >= 0
           AND    o.transport = $1::smallint
           AND    o.bucket = p.bucket
           AND    o.id = p.row_id
           UNION  ALL
           SELECT u.ctid, u.message_id, u.message_name, u.headers, u.body, u.created_at,
                  octet_length(u.body) + pg_column_size(u.headers), ''
           FROM   public.waybill_outbox_unkeyed AS u
           WHERE  p.bucket < 0
           AND    u.transport = $1::smallint
           AND    u.held = 2
           AND    u.id = p.row_id) AS h ON true
    WHERE  p.after_route IS NULL)
SELECT w.n > 0, s.bucket, s.at, s.row_id, s.message_id, s.message_name, coalesce(s.row_key, s.partition_key),
       s.headers, s.body, s.created_at, s.failures, s.route, s.partition_key, NULL::bigint
FROM  (SELECT count(*) AS n FROM waiting) AS w
LEFT   JOIN sized AS s ON s.at IS NULL OR s.before < $3
ORDER  BY s.row_id;

-- name: first_id
-- The lowest id of a bucket, in case a row came in below the mark.
SELECT min(id)
FROM  (SELECT id FROM public.waybill_outbox
       WHERE  transport = $1::smallint
       AND    bucket = $2::smallint
       ORDER  BY id
       LIMIT  1) AS first;

-- name: mend_clock
-- An entry whose next attempt is farther away than any delay was made before the clock went back. now() makes
-- it a range of the index, but an entry that is made while this waits is later than it.
UPDATE public.waybill_outbox_blocked
SET    next_attempt_at = now()
WHERE  transport = $1::smallint
AND    state = 'retrying'
AND    next_attempt_at > now() + make_interval(secs => $2::float8)
AND    next_attempt_at > clock_timestamp() + make_interval(secs => $2::float8);

-- name: held_for_nothing
-- The routes of held messages without a key that are no longer blocked. A loose index scan jumps from one
-- name to the next.
WITH RECURSIVE names (name) AS (
    (SELECT u.message_name FROM public.waybill_outbox_unkeyed AS u
     WHERE  u.transport = $1::smallint
     AND    u.held = 1
     ORDER  BY u.transport, u.message_name
     LIMIT  1)
    UNION  ALL
    SELECT (SELECT u.message_name FROM public.waybill_outbox_unkeyed AS u
            WHERE  u.transport = $1::smallint
            AND    u.held = 1
            AND    u.message_name > n.name
            ORDER  BY u.transport, u.message_name
            LIMIT  1)
    FROM   names AS n
    WHERE  n.name IS NOT NULL)
SELECT n.name
FROM   names AS n
WHERE  n.name IS NOT NULL
AND    NOT EXISTS (SELECT 1 FROM public.waybill_outbox_blocked AS r
                   WHERE r.transport = $1::smallint AND r.route = n.name AND r.route <> '');

-- name: unhold
-- held + 0 is compared again with a row that another session has changed, and leads to no index.
UPDATE public.waybill_outbox_unkeyed SET held = 0
WHERE  held + 0 = 1 AND ctid = ANY (ARRAY(
       SELECT u.ctid FROM public.waybill_outbox_unkeyed AS u
       WHERE  u.transport = $1::smallint AND u.held = 1 AND u.message_name = $2::text ORDER BY u.id LIMIT 1000
       FOR    UPDATE SKIP LOCKED));

-- name: end_stuck
-- Ends the sessions of relays and workers that hold rows and have been silent for longer than any may: the
-- idle timeout does not cover a server that is blocked in sending to a frozen client. Only claims, settles and
-- releases lock rows of these tables.
SELECT count(pg_terminate_backend(a.pid))
FROM  (SELECT DISTINCT l.pid FROM pg_locks AS l
       WHERE  l.locktype = 'relation'
       AND    l.mode = 'RowShareLock'
       AND    l.relation IN ('public.waybill_outbox_bucket'::regclass,
                             'public.waybill_outbox_unkeyed'::regclass,
                             'public.waybill_outbox_blocked'::regclass,
                             'public.waybill_queue'::regclass, 'public.waybill_retry'::regclass)) AS l
JOIN   pg_stat_activity AS a ON a.pid = l.pid
WHERE  a.datname = current_database()
AND    a.usename = current_user
AND    a.state_change < now() - make_interval(secs => $1::float8);

-- name: any_due
-- The order pins the index.
SELECT EXISTS (SELECT 1 FROM (
               SELECT d.due_at FROM public.waybill_delayed AS d
               ORDER  BY d.due_at, d.id
               LIMIT  1) AS first
               WHERE  first.due_at <= now());

-- name: promote
-- Moves up to $2 due messages and $3 bytes to their targets, in order of the time they are due, from a
-- position ($5, $6) on; with $7 that one alone. One promoter at a time, or two would invert a key; and under
-- the dispatch locks, because the ids the messages get now must be commit-ordered. It only tries the locks:
-- messages whose lock another session holds, or held before ($4), stay. A message that another promoter has
-- moved since this statement began is not deleted again, and only a deleted one is inserted. The bucket is
-- computed with the present number; queues always have 64.
WITH promoter AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($1::int, -1) AS mine),
oldest AS MATERIALIZED (
    SELECT d.id, d.due_at, d.transport, d.partition_key, octet_length(d.body) AS size
    FROM   promoter, public.waybill_delayed AS d
    WHERE  promoter.mine
    AND    d.due_at <= now()
    AND    (d.due_at, d.id) > ($5::timestamptz, $6::bigint)
    AND    ($7::bigint IS NULL OR d.id = $7)
    ORDER  BY d.due_at, d.id
    LIMIT  $2),
seen AS MATERIALIZED (
    SELECT s.id, s.due_at, s.transport,
           CASE WHEN s.partition_key = '' THEN -1
                ELSE public.waybill_bucket_of(s.partition_key, CASE WHEN s.transport IS NULL THEN 64
                                                                    ELSE public.waybill_buckets() END)
                END AS bucket
    FROM  (SELECT o.*, sum(o.size) OVER (ORDER BY o.due_at, o.id) - o.size AS before FROM oldest AS o) AS s
    WHERE  s.before < $3),
locks AS MATERIALIZED (
    SELECT b.lock, pg_try_advisory_xact_lock($1::int, b.lock) AS mine
    FROM  (SELECT DISTINCT coalesce(transport, 0) * 65536 + bucket AS lock
           FROM   seen
           WHERE  bucket >= 0
           OFFSET 0) AS b
    WHERE  b.lock <> ALL ($4::int[])),
due AS MATERIALIZED (
    SELECT s.*
    FROM   seen AS s
    LEFT   JOIN locks AS l ON l.lock = coalesce(s.transport, 0) * 65536 + s.bucket
    WHERE  s.bucket < 0 OR l.mine),
gone AS (
    DELETE FROM public.waybill_delayed AS d
    USING  due
    WHERE  d.id = due.id
    RETURNING d.*, due.bucket),
keyed AS (
    INSERT INTO public.waybill_outbox (
           transport, bucket, message_id, message_name, partition_key, headers, body, created_at)
    SELECT transport, bucket, message_id, message_name, partition_key, headers, body, due_at
    FROM   gone
    WHERE  transport IS NOT NULL
    AND    bucket >= 0
    ORDER  BY due_at, id),
unkeyed AS (
    INSERT INTO public.waybill_outbox_unkeyed (transport, message_id, message_name, headers, body, created_at)
    SELECT transport, message_id, message_name, headers, body, due_at
    FROM   gone
    WHERE  transport IS NOT NULL
    AND    bucket < 0
    ORDER  BY due_at, id),
queued AS (
    INSERT INTO public.waybill_queue (
           queue, message_id, message_name, partition_key, headers, body, created_at)
    SELECT queue, message_id, message_name, partition_key, headers, body, due_at
    FROM   gone
    WHERE  queue IS NOT NULL
    ORDER  BY due_at, id)
SELECT (SELECT count(*) FROM seen), (SELECT count(*) FROM gone),
       (SELECT count(*) FROM seen) < (SELECT count(*) FROM oldest) OR (SELECT count(*) FROM oldest) = $2,
       coalesce(last.due_at, $5), coalesce(last.id, $6), ARRAY(SELECT lock FROM locks WHERE NOT mine)
FROM  (SELECT 1) AS one
LEFT   JOIN (SELECT due_at, id FROM seen ORDER BY due_at DESC, id DESC LIMIT 1) AS last ON true;

-- name: wait_for_lock
SELECT set_config('lock_timeout', $3::text, true), pg_advisory_xact_lock($1::int, $2::int);

-- name: due_ids
SELECT id FROM public.waybill_delayed WHERE due_at <= now() ORDER BY due_at, id LIMIT $1;

-- name: refuse_delayed
-- A delayed message that the target table refuses is never due.
UPDATE public.waybill_delayed SET due_at = '9999-12-31 UTC' WHERE id = $1;

-- name: backlog
-- Pending, blocked and delayed rows. Blocked are rows of parked keys, of keys and routes that are not due,
-- behind a row of such a route in its key, in a bucket that no relay reads, and delayed ones that were
-- refused. Rows due for a retry count as pending alone, or a drain would leave them.
WITH waiting AS MATERIALIZED (
    SELECT b.route, b.partition_key, b.bucket, b.row_id
    FROM   public.waybill_outbox_blocked AS b
    JOIN   public.waybill_transport AS t ON t.id = b.transport
    WHERE  t.name = $1::text
    AND    (b.state = 'parked' OR b.next_attempt_at > now())),
keyed AS (
    SELECT o.bucket NOT BETWEEN 0 AND public.waybill_buckets() - 1
           OR EXISTS (SELECT 1 FROM waiting AS w
                      WHERE w.partition_key = o.partition_key AND w.bucket = o.bucket)
           OR bool_or(EXISTS (SELECT 1 FROM waiting AS w WHERE w.route = o.message_name))
              OVER (PARTITION BY o.bucket, o.partition_key ORDER BY o.id) AS blocked
    FROM   public.waybill_outbox AS o
    JOIN   public.waybill_transport AS t ON t.id = o.transport
    WHERE  t.name = $1::text),
unkeyed AS (
    SELECT EXISTS (SELECT 1 FROM waiting AS w WHERE w.route = o.message_name)
           OR EXISTS (SELECT 1 FROM waiting AS w WHERE w.bucket = -1 AND w.row_id = o.id) AS blocked
    FROM   public.waybill_outbox_unkeyed AS o
    JOIN   public.waybill_transport AS t ON t.id = o.transport
    WHERE  t.name = $1::text)
SELECT count(blocked), count(*) FILTER (WHERE blocked), count(*) FILTER (WHERE blocked IS NULL)
FROM  (SELECT blocked FROM keyed
       UNION ALL
       SELECT blocked FROM unkeyed
       UNION ALL
       SELECT CASE WHEN d.due_at > '9999-01-01 UTC' THEN true END
       FROM   public.waybill_delayed AS d
       JOIN   public.waybill_transport AS t ON t.id = d.transport
       WHERE  t.name = $1::text) AS rows;

-- name: report
INSERT INTO public.waybill_workers AS w (id, kind, transport, host, pid, problem, since)
VALUES ($1::uuid, 'relay', $2::text, $3::text, $4::int, $5::text,
        CASE WHEN $5::text = '' THEN NULL ELSE clock_timestamp() END)
ON CONFLICT (id) DO UPDATE
SET    seen_at = clock_timestamp(), problem = excluded.problem,
       since = CASE WHEN excluded.problem = '' THEN NULL
                    WHEN (excluded.problem LIKE 'degraded: %') <> (w.problem LIKE 'degraded: %')
                    THEN excluded.since
                    ELSE coalesce(w.since, excluded.since) END;

-- name: forget_report
DELETE FROM public.waybill_workers WHERE id = $1::uuid OR seen_at < now() - interval '1 hour';

-- name: report_workers
INSERT INTO public.waybill_workers AS w (id, kind, transport, host, pid, report)
VALUES ($1::uuid, 'worker', '', $2::text, $3::int, $4::text)
ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp(), report = excluded.report
RETURNING w.stop_requested_at IS NOT NULL, ARRAY(SELECT p.transport FROM public.waybill_paused AS p);

-- name: bad_settings
-- Settings of this session that prevent a relay: a standby, read-only transactions, and timeouts below its
-- idle timeout ($1, milliseconds). transaction_timeout exists from PostgreSQL 17.
SELECT 'pg_is_in_recovery', 'true', ''
WHERE  pg_is_in_recovery()
UNION  ALL
SELECT name, setting || coalesce(' ' || unit, ''), 'off or at least ' || $1::bigint || ' ms'
FROM   pg_settings
WHERE  CASE WHEN name IN ('statement_timeout', 'transaction_timeout')
            THEN setting::bigint BETWEEN 1 AND $1::bigint - 1 END
UNION  ALL
SELECT name, setting, 'off'
FROM   pg_settings
WHERE  name = 'default_transaction_read_only'
AND    setting = 'on';
