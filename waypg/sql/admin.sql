-- name: outbox_list
SELECT o.id, l.name, o.message_name, o.partition_key, o.message_id, o.created_at, NULL::timestamptz, octet_length(o.body),
       EXISTS (SELECT 1 FROM public.waybill_outbox_blocked AS b
               WHERE  b.lane = o.lane AND (b.route = '' AND b.partition_key = o.partition_key AND b.row_id = CASE WHEN o.partition_key = '' THEN o.id ELSE 0 END
                                           OR b.route <> '' AND b.route = o.message_name))
FROM   public.waybill_outbox AS o JOIN public.waybill_outbox_lane AS l ON l.id = o.lane
WHERE  ($1 = '' OR l.name = $1) AND ($2 = '' OR o.partition_key = $2) AND ($3 = '' OR o.message_name = $3) AND o.id > $4
ORDER  BY o.id LIMIT $5;

-- name: delayed_list
SELECT d.id, coalesce(l.name, 'queue://' || d.queue), d.message_name, d.partition_key, d.message_id, d.created_at, d.due_at, octet_length(d.body), false
FROM   public.waybill_delayed AS d LEFT JOIN public.waybill_outbox_lane AS l ON l.id = d.lane
WHERE  ($1 = '' OR l.name = $1 OR d.queue = $1) AND ($2 = '' OR d.partition_key = $2) AND ($3 = '' OR d.message_name = $3)
ORDER  BY d.due_at, d.id LIMIT $4;

-- name: blocked
-- The head of a parked key is in the failure store, if anything of it is there.
SELECT l.name, b.route, b.partition_key, b.row_id, coalesce(p.message_id, b.message_id), coalesce(p.message_name, b.message_name), b.failures, b.first_failed_at,
       CASE b.state WHEN 'retrying' THEN b.next_attempt_at ELSE b.release_at END, b.last_error, b.state, b.policy,
       CASE WHEN b.route <> '' THEN (SELECT count(*) FROM public.waybill_outbox AS o WHERE o.lane = b.lane AND o.message_name = b.route)
            WHEN b.partition_key = '' THEN 1
            ELSE (SELECT count(*) FROM public.waybill_outbox AS o WHERE o.lane = b.lane AND o.bucket = b.bucket AND o.partition_key = b.partition_key) END,
       CASE WHEN b.state = 'retrying' THEN 0
            ELSE (SELECT count(*) FROM public.waybill_failed AS f WHERE f.transport = l.name AND f.partition_key = b.partition_key AND f.state = 'parked') END
FROM   public.waybill_outbox_blocked AS b JOIN public.waybill_outbox_lane AS l ON l.id = b.lane
LEFT   JOIN LATERAL (SELECT f.message_id, f.message_name FROM public.waybill_failed AS f
                     WHERE  b.state <> 'retrying' AND f.transport = l.name AND f.partition_key = b.partition_key AND f.state = 'parked' ORDER BY f.id LIMIT 1) AS p ON true
WHERE  ($1 = '' OR l.name = $1)
ORDER  BY b.route = '', b.first_failed_at, b.partition_key LIMIT $2;

-- name: release
-- Lets blocked keys and routes be tried at once. A parked key goes on with what is
-- parked of it, and counts its failures anew.
UPDATE public.waybill_outbox_blocked AS b SET
       next_attempt_at = CASE b.state WHEN 'retrying' THEN now() ELSE b.next_attempt_at END,
       release_at = CASE b.state WHEN 'retrying' THEN NULL ELSE now() END,
       failures = CASE b.state WHEN 'parked' THEN 0 ELSE b.failures END,
       state = CASE b.state WHEN 'retrying' THEN 'retrying' ELSE 'releasing' END
FROM   public.waybill_outbox_lane AS l
WHERE  l.id = b.lane AND ($1 = '' OR l.name = $1) AND ($2 = '' OR b.partition_key = $2 AND b.route = '') AND ($3 = '' OR b.route = $3) AND ($4 = 0 OR b.row_id = $4);

-- name: forget_gone
-- Removes entries of which nothing is left in the outbox: an operator may have
-- deleted the rows. What is parked is elsewhere.
DELETE FROM public.waybill_outbox_blocked AS b
USING  public.waybill_outbox_lane AS l
WHERE  l.id = b.lane AND b.state = 'retrying' AND ($1 = '' OR l.name = $1) AND ($2 = '' OR b.partition_key = $2 AND b.route = '') AND ($3 = '' OR b.route = $3) AND ($4 = 0 OR b.row_id = $4)
AND    NOT EXISTS (SELECT 1 FROM public.waybill_outbox AS o
                   WHERE  o.lane = b.lane AND CASE WHEN b.route <> '' THEN o.message_name = b.route
                                                   WHEN b.row_id > 0 THEN o.bucket = -1 AND o.id = b.row_id
                                                   ELSE o.bucket = b.bucket AND o.partition_key = b.partition_key END);

-- name: release_bump
UPDATE public.waybill_outbox_lane SET blocked_version = blocked_version + 1 WHERE $1 = '' OR name = $1;

-- name: outbox_stats
SELECT l.name, count(o.id), coalesce(extract(epoch FROM clock_timestamp() - min(o.created_at)), 0)::float8,
       (SELECT count(*) FROM public.waybill_outbox_blocked AS b WHERE b.lane = l.id),
       (SELECT count(*) FROM public.waybill_delayed AS d WHERE d.lane = l.id),
       (SELECT count(*) FROM public.waybill_failed AS f WHERE f.transport = l.name AND f.state <> 'removed')
FROM   public.waybill_outbox_lane AS l LEFT JOIN public.waybill_outbox AS o ON o.lane = l.id
GROUP  BY l.id, l.name ORDER BY l.name;

-- name: queue_stats
SELECT queue, count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8,
       count(*) FILTER (WHERE held_until > now() AND holder IS NOT NULL), count(*) FILTER (WHERE held_until > now() AND holder IS NULL)
FROM   public.waybill_queue GROUP BY queue ORDER BY queue;

-- name: relays
SELECT transport, host, pid, started_at, seen_at, problem, since FROM public.waybill_workers
WHERE  kind = 'relay' AND seen_at > now() - interval '60 seconds' ORDER BY transport, host, pid, started_at;
