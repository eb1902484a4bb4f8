-- name: add_lane
INSERT INTO public.waybill_outbox_lane (name) VALUES ($1) ON CONFLICT (name) DO NOTHING;

-- name: add_buckets
INSERT INTO public.waybill_outbox_bucket (lane, bucket)
SELECT l.id, b FROM public.waybill_outbox_lane AS l, generate_series(0, $2::int - 1) AS b
WHERE  l.name = ANY ($1::text[]) ON CONFLICT DO NOTHING;

-- name: lanes
SELECT id, name FROM public.waybill_outbox_lane;

-- name: is_ours
-- Whether a transaction that somebody else began is in the outbox's database.
SELECT current_database() = $1::text AND NOT EXISTS (
    SELECT 1 FROM jsonb_each_text($2::jsonb) AS ours (name, id)
    WHERE  NOT EXISTS (SELECT 1 FROM public.waybill_outbox_lane AS l WHERE l.id = ours.id::smallint AND l.name = ours.name));

-- name: insert_one
-- One message: the bucket's dispatch lock, which is held to commit, and then
-- the row, whose id is given under the lock. A lock number of NULL takes none.
WITH lock AS MATERIALIZED (
    SELECT pg_advisory_xact_lock($1::int, $2::int),
           CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN set_config('synchronous_commit', 'on', true) END)
INSERT INTO public.waybill_outbox (lane, bucket, message_id, message_name, partition_key, headers, body, created_at)
SELECT $3::smallint, $4::smallint, $5::uuid, $6::text, $7::text, $8::jsonb, $9::bytea, $10::timestamptz FROM lock;

-- name: lock_many
-- The dispatch locks of several buckets, in the order of the array, which
-- ascends: units of work cannot deadlock with each other. There may be none;
-- the commit is durable all the same.
SELECT count(*), CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN set_config('synchronous_commit', 'on', true) END
FROM  (SELECT pg_advisory_xact_lock($1::int, k) FROM unnest($2::int[]) AS u (k) OFFSET 0) AS locks;

-- name: lock_one
SELECT pg_advisory_xact_lock($1::int, $2::int),
       CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN set_config('synchronous_commit', 'on', true) END;

-- name: insert_many
-- Several messages, in the order of the arrays, under locks taken before.
INSERT INTO public.waybill_outbox (lane, bucket, message_id, message_name, partition_key, headers, body, created_at)
SELECT lane, bucket, encode(message_id, 'hex')::uuid, message_name, partition_key, headers, body, created_at
FROM   unnest($1::smallint[], $2::smallint[], $3::bytea[], $4::text[], $5::text[], $6::jsonb[], $7::bytea[], $8::timestamptz[])
       WITH ORDINALITY AS u (lane, bucket, message_id, message_name, partition_key, headers, body, created_at, n)
ORDER  BY n;

-- name: insert_row
-- One message under a lock taken before, for drivers without arrays.
INSERT INTO public.waybill_outbox (lane, bucket, message_id, message_name, partition_key, headers, body, created_at)
VALUES ($1::smallint, $2::smallint, $3::uuid, $4::text, $5::text, $6::jsonb, $7::bytea, $8::timestamptz);

-- name: insert_delayed
INSERT INTO public.waybill_delayed (due_at, lane, queue, bucket, message_id, message_name, partition_key, headers, body, created_at)
VALUES ($1::timestamptz, $2::smallint, $3::text, $4::smallint, $5::uuid, $6::text, $7::text, $8::jsonb, $9::bytea, $10::timestamptz);

-- name: settings
-- What a claim needs of its transaction, and who answers. The statistics of an
-- outbox are always wrong, so the plan is pinned; and without jit = off the
-- cost of a disabled plan would have each claim compiled. A plan that holds for
-- all values is made once. Another server, or a truncated table, gives ids anew:
-- marks are worth nothing then.
SELECT pg_postmaster_start_time(), pg_relation_filenode('public.waybill_outbox'::regclass),
       set_config('idle_in_transaction_session_timeout', $1::text, true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true);

-- name: lock_buckets
-- Nothing while relays are paused.
-- Takes up to $5 buckets of lane $1 that have rows above the cursors $2, or,
-- where something waited and need not any more, above the marks $6. Nobody else
-- relays them until this transaction ends. $3 of $4 is where the turn begins.
SELECT b.bucket
FROM   public.waybill_outbox_lane AS l JOIN public.waybill_outbox_bucket AS b ON b.lane = l.id,
       LATERAL (SELECT 1 FROM public.waybill_outbox AS o
                WHERE  o.lane = b.lane AND o.bucket = b.bucket
                AND    o.id > CASE WHEN l.blocked_version = $8::bigint AND now() < ($7::timestamptz[])[b.bucket + 1]
                                   THEN ($2::bigint[])[b.bucket + 1] ELSE ($6::bigint[])[b.bucket + 1] END
                ORDER  BY o.id LIMIT 1) AS any_row
WHERE  l.id = $1::smallint AND NOT EXISTS (SELECT 1 FROM public.waybill_meta AS m WHERE m.name = 'relays_paused_until' AND m.value::timestamptz > now())
ORDER  BY (b.bucket + $3::int) % $4::int LIMIT $5
FOR    UPDATE OF b SKIP LOCKED;

-- name: lock_buckets_unserialized
-- The same where unserialized rows may be there, which are in buckets from 1024
-- on: they go with the lock on their keys' bucket below, and are looked for without
-- a mark. $10 are those of them to leave out, $9 has them before the others.
SELECT (b.bucket + part.of)::smallint
FROM   public.waybill_outbox_lane AS l JOIN public.waybill_outbox_bucket AS b ON b.lane = l.id,
       LATERAL ((SELECT 0 AS of FROM public.waybill_outbox AS o
                 WHERE  o.lane = b.lane AND o.bucket = b.bucket
                 AND    o.id > CASE WHEN l.blocked_version = $8::bigint AND now() < ($7::timestamptz[])[b.bucket + 1]
                                    THEN ($2::bigint[])[b.bucket + 1] ELSE ($6::bigint[])[b.bucket + 1] END
                 ORDER  BY o.id LIMIT 1)
                UNION ALL
                (SELECT 1024 FROM public.waybill_outbox AS o
                 WHERE  o.lane = b.lane AND o.bucket = b.bucket + 1024 AND b.bucket + 1024 <> ALL ($10::smallint[])
                 ORDER  BY o.id LIMIT 1)) AS part
WHERE  l.id = $1::smallint AND NOT EXISTS (SELECT 1 FROM public.waybill_meta AS m WHERE m.name = 'relays_paused_until' AND m.value::timestamptz > now())
ORDER  BY (b.bucket + $3::int) % $4::int, (part.of > 0) <> $9::boolean LIMIT $5
FOR    UPDATE OF b SKIP LOCKED;

-- name: claim_unkeyed
-- Rows without a key have no order: relays share them row by row.
WITH picked AS MATERIALIZED (
    SELECT o.id, octet_length(o.body) + pg_column_size(o.headers) AS size, b.failures
    FROM   public.waybill_outbox AS o
    LEFT   JOIN LATERAL (SELECT i.failures, i.next_attempt_at FROM public.waybill_outbox_blocked AS i
                         WHERE  i.lane = o.lane AND i.route = '' AND i.partition_key = '' AND i.row_id = o.id LIMIT 1) AS b ON true
    WHERE  o.lane = $1::smallint AND o.bucket = -1
    AND    NOT EXISTS (SELECT 1 FROM public.waybill_meta AS m WHERE m.name = 'relays_paused_until' AND m.value::timestamptz > now())
    AND    (b.next_attempt_at IS NULL OR b.next_attempt_at <= now())
    AND    NOT EXISTS (SELECT 1 FROM public.waybill_outbox_blocked AS r
                       WHERE  r.lane = o.lane AND r.route = o.message_name AND r.partition_key = '' AND r.row_id = 0 AND r.next_attempt_at > now())
    ORDER  BY o.id LIMIT $2
    FOR    UPDATE OF o SKIP LOCKED),
sized AS (SELECT id, failures, sum(size) OVER (ORDER BY id) - size AS before FROM picked)
SELECT o.bucket, o.ctid, o.id, o.message_id, o.message_name, o.partition_key, o.headers, o.body, o.created_at,
       coalesce(s.failures, 0), s.failures IS NOT NULL,
       coalesce((SELECT r.failures FROM public.waybill_outbox_blocked AS r WHERE r.lane = o.lane AND r.route = o.message_name AND r.partition_key = '' AND r.row_id = 0), 0)
FROM   sized AS s JOIN public.waybill_outbox AS o ON o.lane = $1::smallint AND o.bucket = -1 AND o.id = s.id
WHERE  s.before < $3
ORDER  BY o.id;

-- name: blocked_state
-- Which state of the lane's blocked keys the rows are read by, whether there are
-- any, and when the next of them is due; how many buckets there are, and whether
-- delayed messages are due. It is read after buckets and rows are locked.
SELECT l.blocked_version, EXISTS (SELECT 1 FROM public.waybill_outbox_blocked AS a WHERE a.lane = l.id), now(),
       (SELECT m.value::int FROM public.waybill_meta AS m WHERE m.name = 'buckets'),
       EXISTS (SELECT 1 FROM public.waybill_delayed AS d WHERE d.due_at <= now()), b.bucket, min(b.next_attempt_at)
FROM   public.waybill_outbox_lane AS l
LEFT   JOIN public.waybill_outbox_blocked AS b ON b.lane = l.id AND b.next_attempt_at > now()
WHERE  l.id = $1::smallint
GROUP  BY l.id, b.bucket;

-- name: claim_free
-- The oldest rows of locked buckets of a lane in which nothing is blocked, each
-- from behind a mark of its own. All that claim says below holds here, too.
SELECT (SELECT l.blocked_version FROM public.waybill_outbox_lane AS l WHERE l.id = $1::smallint),
       r.bucket, r.ctid, r.id, r.message_id, r.message_name, r.partition_key, r.headers, r.body, r.created_at
FROM  (SELECT k.bucket, k.n, o.*, sum(o.size) OVER (ORDER BY k.n, o.id) - o.size AS before
       FROM   unnest($2::smallint[], $3::bigint[]) WITH ORDINALITY AS k (bucket, after, n),
              LATERAL (SELECT e.ctid, e.id, e.message_id, e.message_name, e.partition_key, e.headers, e.body, e.created_at,
                              octet_length(e.body) + pg_column_size(e.headers) AS size
                       FROM   public.waybill_outbox AS e
                       WHERE  e.lane = $1::smallint AND e.bucket = k.bucket AND e.id > k.after
                       ORDER  BY e.id LIMIT $4) AS o) AS r
WHERE  r.before < $5
ORDER  BY r.n, r.id;

-- name: claim
-- The oldest rows of locked buckets, each from behind a mark or cursor of its
-- own, without those of keys that wait. It must be a statement after the one
-- that locks, or it would see rows that the last owner has published. Rows of a
-- route that waits come without their bodies, because what follows them in
-- their keys must wait with them. A bucket has a row also when nothing of it may
-- be published, so that its last id is known. Buckets come in the order of the
-- array, which changes from claim to claim: large rows of one must not starve
-- another. The version is that of the blocked keys which this statement sees. Each
-- is looked up on its own (LIMIT 1): a join would, without statistics, read all of
-- them for every row.
SELECT (SELECT l.blocked_version FROM public.waybill_outbox_lane AS l WHERE l.id = $1::smallint),
       r.bucket, r.last, r.ctid, r.id, r.message_id, r.message_name, r.partition_key, r.headers,
       CASE WHEN r.held THEN NULL ELSE r.body END, r.created_at, r.failures, r.key_blocked, r.route_failures, r.held
FROM  (SELECT k.bucket, k.n, m.last, o.*, sum(o.size) OVER (ORDER BY k.n, o.id) - o.size AS before
       FROM   unnest($2::smallint[], $3::bigint[]) WITH ORDINALITY AS k (bucket, after, n)
       LEFT   JOIN LATERAL (SELECT e.id AS last FROM public.waybill_outbox AS e
                            WHERE  e.lane = $1::smallint AND e.bucket = k.bucket AND e.id > k.after ORDER BY e.id DESC LIMIT 1) AS m ON true
       LEFT   JOIN LATERAL (SELECT e.ctid, e.id, e.message_id, e.message_name, e.partition_key, e.headers, e.body, e.created_at,
                                   CASE WHEN b.message_id = e.message_id THEN b.failures ELSE 0 END AS failures,
                                   b.lane IS NOT NULL AS key_blocked, coalesce(r.failures, 0) AS route_failures,
                                   coalesce(r.next_attempt_at > now(), false) AS held,
                                   CASE WHEN r.next_attempt_at > now() THEN 0 ELSE octet_length(e.body) END + pg_column_size(e.headers) AS size
                            FROM   public.waybill_outbox AS e
                            LEFT   JOIN LATERAL (SELECT i.lane, i.message_id, i.failures, i.next_attempt_at FROM public.waybill_outbox_blocked AS i
                                                 WHERE  i.lane = e.lane AND i.route = '' AND i.partition_key = e.partition_key AND i.row_id = 0 LIMIT 1) AS b ON true
                            LEFT   JOIN LATERAL (SELECT i.failures, i.next_attempt_at FROM public.waybill_outbox_blocked AS i
                                                 WHERE  i.lane = e.lane AND i.route = e.message_name AND i.partition_key = '' AND i.row_id = 0 LIMIT 1) AS r ON true
                            WHERE  e.lane = $1::smallint AND e.bucket = k.bucket AND e.id > k.after
                            AND    (b.next_attempt_at IS NULL OR b.next_attempt_at <= now())
                            ORDER  BY e.id LIMIT $4) AS o ON true) AS r
WHERE  r.id IS NULL OR r.before < $5
ORDER  BY r.n, r.id;

-- name: claim_unserialized
-- claim for buckets that have no cursor, while a route waits: without its rows,
-- and without those behind one in their keys.
SELECT (SELECT l.blocked_version FROM public.waybill_outbox_lane AS l WHERE l.id = $1::smallint),
       r.bucket, NULL::bigint, r.ctid, r.id, r.message_id, r.message_name, r.partition_key, r.headers, r.body, r.created_at, r.failures, r.key_blocked, r.route_failures, false
FROM  (SELECT k.bucket, k.n, o.*, sum(o.size) OVER (ORDER BY k.n, o.id) - o.size AS before
       FROM   unnest($2::smallint[], $3::bigint[]) WITH ORDINALITY AS k (bucket, after, n)
       LEFT   JOIN LATERAL (SELECT e.ctid, e.id, e.message_id, e.message_name, e.partition_key, e.headers, e.body, e.created_at,
                                   CASE WHEN b.message_id = e.message_id THEN b.failures ELSE 0 END AS failures,
                                   b.lane IS NOT NULL AS key_blocked, coalesce(r.failures, 0) AS route_failures,
                                   octet_length(e.body) + pg_column_size(e.headers) AS size
                            FROM  (SELECT h.id, bool_or(EXISTS (SELECT 1 FROM public.waybill_outbox_blocked AS i
                                                                WHERE  i.lane = h.lane AND i.route = h.message_name AND i.partition_key = '' AND i.row_id = 0
                                                                AND    i.next_attempt_at > now())) OVER (PARTITION BY h.partition_key ORDER BY h.id) AS waits
                                   FROM   public.waybill_outbox AS h WHERE h.lane = $1::smallint AND h.bucket = k.bucket AND h.id > k.after) AS w
                            JOIN   public.waybill_outbox AS e ON e.lane = $1::smallint AND e.bucket = k.bucket AND e.id = w.id
                            LEFT   JOIN LATERAL (SELECT i.lane, i.message_id, i.failures, i.next_attempt_at FROM public.waybill_outbox_blocked AS i
                                                 WHERE  i.lane = e.lane AND i.route = '' AND i.partition_key = e.partition_key AND i.row_id = 0 LIMIT 1) AS b ON true
                            LEFT   JOIN LATERAL (SELECT i.failures FROM public.waybill_outbox_blocked AS i
                                                 WHERE  i.lane = e.lane AND i.route = e.message_name AND i.partition_key = '' AND i.row_id = 0 LIMIT 1) AS r ON true
                            WHERE  NOT w.waits AND (b.next_attempt_at IS NULL OR b.next_attempt_at <= now())
                            ORDER  BY e.id LIMIT $4) AS o ON true) AS r
WHERE  r.id IS NULL OR r.before < $5
ORDER  BY r.n, r.id;

-- name: delete_outbox
-- Exactly the confirmed rows, each where the claim has read it. One that was
-- moved since (only an UPDATE by hand does that) stays. Nothing here is the
-- beginning of an index: with the lane among the conditions deletions were seen
-- to get slower with all that is dead.
DELETE FROM public.waybill_outbox AS o
USING  unnest($1::tid[], $2::bigint[]) AS u (at, id)
WHERE  o.ctid = u.at AND o.id = u.id;

-- name: block
-- Counts a refusal of the head of a key, of a row without key, or of a route.
INSERT INTO public.waybill_outbox_blocked AS b (lane, route, partition_key, row_id, bucket, message_id, message_name, failures, first_failed_at, next_attempt_at, last_error, policy)
VALUES ($1::smallint, $2::text, $3::text, $4::bigint, $5::smallint, $6::uuid, $7::text, 1, clock_timestamp(), clock_timestamp() + make_interval(secs => $8::float8), $9::text, $10::text)
ON CONFLICT (lane, route, partition_key, row_id) DO UPDATE SET
    policy = excluded.policy, message_id = excluded.message_id, message_name = excluded.message_name,
    failures = CASE WHEN b.route <> '' OR b.message_id = excluded.message_id THEN b.failures + 1 ELSE 1 END, next_attempt_at = excluded.next_attempt_at, last_error = excluded.last_error;

-- name: unblock
-- In the transaction that deletes the heads that got through. Each is looked up
-- on its own, as in claim. Nobody else changes what is blocked meanwhile, because
-- all of them begin with the lane's row.
DELETE FROM public.waybill_outbox_blocked
WHERE  ctid = ANY (ARRAY (
    SELECT b.ctid FROM unnest($2::text[], $3::bigint[]) AS u (partition_key, row_id),
           LATERAL (SELECT i.ctid FROM public.waybill_outbox_blocked AS i
                    WHERE  i.lane = $1::smallint AND i.route = '' AND i.partition_key = u.partition_key AND i.row_id = u.row_id LIMIT 1) AS b));

-- name: unblock_routes
-- A route that works again frees the keys that were blocked for its sake before
-- it was.
DELETE FROM public.waybill_outbox_blocked AS b
WHERE  b.lane = $1::smallint AND (b.route = ANY ($2::text[]) OR b.route = '' AND b.message_name = ANY ($2::text[]) AND b.state = 'retrying');

-- name: bump_blocked
UPDATE public.waybill_outbox_lane SET blocked_version = blocked_version + 1 WHERE id = $1::smallint;

-- name: first_id
-- The lowest id of a bucket, in case a row came in below the mark.
SELECT min(id) FROM (SELECT id FROM public.waybill_outbox WHERE lane = $1::smallint AND bucket = $2::smallint ORDER BY id LIMIT 1) AS first;

-- name: end_stuck
-- Ends the sessions of relays that hold rows and have been silent for longer
-- than any relay may: the idle timeout does not cover a server that is blocked in
-- sending to a frozen client. Nobody but a claim locks rows of the buckets.
SELECT count(pg_terminate_backend(a.pid))
FROM   pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE  l.locktype = 'relation' AND l.relation = 'public.waybill_outbox_bucket'::regclass AND l.mode = 'RowShareLock'
AND    a.datname = current_database() AND a.usename = current_user AND a.state_change < now() - make_interval(secs => $1::float8);

-- name: any_due
SELECT EXISTS (SELECT 1 FROM public.waybill_delayed WHERE due_at <= now());

-- name: unserialized
SELECT EXISTS (SELECT 1 FROM public.waybill_meta WHERE name = 'unserialized');

-- name: allow_unserialized
INSERT INTO public.waybill_meta (name, value) VALUES ('unserialized', '1') ON CONFLICT DO NOTHING;

-- name: move_due
-- Moves delayed messages that are due to where they go, in order of the time
-- they are due, from a place on. One mover at a time, or two would invert a key; and
-- under the dispatch locks, because the ids they get now must be commit-ordered. It
-- waits for none: messages whose lock somebody holds, or held before, stay. What
-- another mover has moved since this statement began is not deleted again, and
-- only what is deleted here is inserted. The bucket is the one that the key has
-- now, from 1024 on for an unserialized message; queues have 64 for ever.
WITH mover AS MATERIALIZED (SELECT pg_try_advisory_xact_lock($1::int, -1) AS mine),
seen AS MATERIALIZED (
    SELECT d.id, d.due_at, d.lane, CASE WHEN d.partition_key = '' THEN -1 ELSE
           (get_byte(sha256(convert_to(d.partition_key, 'UTF8')), 0) * 256 + get_byte(sha256(convert_to(d.partition_key, 'UTF8')), 1))
           % CASE WHEN d.lane IS NULL THEN 64 ELSE (SELECT m.value::int FROM public.waybill_meta AS m WHERE m.name = 'buckets') END END AS bucket
    FROM   mover, public.waybill_delayed AS d
    WHERE  mover.mine AND d.due_at <= now() AND (d.due_at, d.id) > ($4::timestamptz, $5::bigint) ORDER BY d.due_at, d.id LIMIT $2),
locks AS MATERIALIZED (
    SELECT b.lock, pg_try_advisory_xact_lock($1::int, b.lock) AS mine FROM (
        SELECT DISTINCT coalesce(lane, 0) * 65536 + bucket AS lock FROM seen WHERE bucket >= 0 OFFSET 0) AS b WHERE b.lock <> ALL ($3::int[])),
due AS MATERIALIZED (
    SELECT s.* FROM seen AS s LEFT JOIN locks AS l ON l.lock = coalesce(s.lane, 0) * 65536 + s.bucket WHERE s.bucket < 0 OR l.mine),
gone AS (
    DELETE FROM public.waybill_delayed AS d USING due WHERE d.id = due.id RETURNING d.*, due.bucket + CASE WHEN d.bucket >= 1024 THEN 1024 ELSE 0 END AS now_bucket),
to_outbox AS (
    INSERT INTO public.waybill_outbox (lane, bucket, message_id, message_name, partition_key, headers, body, created_at)
    SELECT lane, now_bucket, message_id, message_name, partition_key, headers, body, due_at FROM gone WHERE lane IS NOT NULL ORDER BY due_at, id),
to_queue AS (
    INSERT INTO public.waybill_queue (queue, message_id, message_name, partition_key, headers, body, created_at)
    SELECT queue, message_id, message_name, partition_key, headers, body, due_at FROM gone WHERE queue IS NOT NULL ORDER BY due_at, id)
SELECT (SELECT count(*) FROM seen), (SELECT count(*) FROM gone), coalesce(last.due_at, $4), coalesce(last.id, $5), ARRAY(SELECT lock FROM locks WHERE NOT mine)
FROM   (SELECT 1) AS one LEFT JOIN (SELECT due_at, id FROM seen ORDER BY due_at DESC, id DESC LIMIT 1) AS last ON true;

-- name: wait_for_lock
SELECT set_config('lock_timeout', $3::text, true), pg_advisory_xact_lock($1::int, $2::int);

-- name: left
-- Parked rows count once their key is released and due, and its first row does not
-- wait for its route; until then what is behind them waits. Blocked are the rows of keys and routes that wait; those that are due count as
-- pending alone, or a drain would leave them to nobody. What has a row of a
-- waiting route in its key waits with it.
SELECT count(*) + (SELECT count(*) FROM public.waybill_outbox_blocked AS b JOIN public.waybill_outbox_lane AS l ON l.id = b.lane
                   JOIN public.waybill_failed AS f ON f.transport = l.name AND f.partition_key = b.partition_key AND f.state = 'parked'
                   WHERE l.name = $1::text AND b.release_at <= now() AND NOT EXISTS (
                         SELECT 1 FROM public.waybill_outbox_blocked AS w
                         WHERE  w.lane = b.lane AND w.partition_key = '' AND w.row_id = 0 AND w.next_attempt_at > now() AND w.route = (
                                SELECT e.message_name FROM public.waybill_failed AS e
                                WHERE  e.transport = l.name AND e.partition_key = b.partition_key AND e.state = 'parked' ORDER BY e.id LIMIT 1))),
       count(*) FILTER (WHERE blocked), (SELECT count(*) FROM public.waybill_delayed AS d JOIN public.waybill_outbox_lane AS l ON l.id = d.lane WHERE l.name = $1::text)
FROM  (SELECT EXISTS (SELECT 1 FROM public.waybill_outbox_blocked AS b
                      WHERE  b.lane = o.lane AND b.next_attempt_at > now()
                      AND   (b.route = '' AND b.partition_key = o.partition_key AND b.row_id = CASE WHEN o.partition_key = '' THEN o.id ELSE 0 END
                             OR b.route <> '' AND b.route = o.message_name))
              OR o.partition_key <> '' AND (o.bucket, o.partition_key) IN (
                      SELECT p.bucket, p.partition_key FROM public.waybill_outbox_blocked AS r
                      JOIN   public.waybill_outbox AS p ON p.lane = r.lane AND p.message_name = r.route
                      JOIN   public.waybill_outbox_lane AS m ON m.id = r.lane
                      WHERE  r.route <> '' AND r.next_attempt_at > now() AND m.name = $1::text) AS blocked
       FROM public.waybill_outbox AS o JOIN public.waybill_outbox_lane AS l ON l.id = o.lane WHERE l.name = $1::text) AS rows;

-- name: report
INSERT INTO public.waybill_workers AS w (id, kind, transport, host, pid, problem, since)
VALUES ($1::uuid, 'relay', $2::text, $3::text, $4::int, $5::text, CASE WHEN $5::text = '' THEN NULL ELSE clock_timestamp() END)
ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp(), problem = excluded.problem,
    since = CASE WHEN excluded.problem = '' THEN NULL
                 WHEN (excluded.problem LIKE 'degraded: %') <> (w.problem LIKE 'degraded: %') THEN excluded.since
                 ELSE coalesce(w.since, excluded.since) END;

-- name: forget_report
DELETE FROM public.waybill_workers WHERE id = $1::uuid OR seen_at < now() - interval '1 hour';

-- name: hindrances
-- Settings of this session, whoever made them, under which a relay cannot hold
-- its rows for as long as it may be silent ($1, milliseconds). transaction_timeout
-- is there from PostgreSQL 17.
SELECT name, setting || coalesce(' ' || unit, ''), 'off or at least ' || $1::bigint || ' ms' FROM pg_settings
WHERE  CASE WHEN name IN ('statement_timeout', 'transaction_timeout') THEN setting::bigint BETWEEN 1 AND $1::bigint - 1 END
UNION ALL
SELECT name, setting, 'off' FROM pg_settings WHERE name = 'default_transaction_read_only' AND setting = 'on'
UNION ALL
SELECT 'pg_is_in_recovery', 'true', 'false (the primary)' WHERE pg_is_in_recovery();
