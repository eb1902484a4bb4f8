-- name: pause
-- Relays claim nothing until then: an open claim holds table locks while it publishes. The pause ends by
-- itself, in case the process dies.
INSERT INTO public.waybill_meta (name, value)
VALUES ('relays_paused_until', (clock_timestamp() + make_interval(secs => $1::float8))::text)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: resume
DELETE FROM public.waybill_meta WHERE name = 'relays_paused_until';

-- name: lock
-- Open dispatches, claims, promotions and add_transports end first, and new ones wait.
LOCK TABLE public.waybill_transport, public.waybill_outbox, public.waybill_outbox_bucket,
           public.waybill_delayed
IN ACCESS EXCLUSIVE MODE;

-- name: count
SELECT count(*) FROM public.waybill_outbox;

-- name: move
-- Set-aside rows stay set aside, 1024 above their new bucket.
UPDATE public.waybill_outbox
SET    bucket = public.waybill_bucket_of(partition_key, $1::int)
                + CASE WHEN bucket >= 1024 THEN 1024 ELSE 0 END
WHERE  bucket <> public.waybill_bucket_of(partition_key, $1::int)
                 + CASE WHEN bucket >= 1024 THEN 1024 ELSE 0 END;

-- name: move_blocked
-- A route's entry has the bucket of its row.
UPDATE public.waybill_outbox_blocked AS b
SET    bucket = CASE WHEN b.partition_key <> '' THEN public.waybill_bucket_of(b.partition_key, $1::int)
                     ELSE coalesce((SELECT o.bucket FROM public.waybill_outbox AS o
                                    WHERE  o.transport = b.transport
                                    AND    o.id = b.row_id
                                    AND    o.message_id = b.message_id), -1) END
WHERE  b.bucket >= 0;

-- name: bump
-- Invalidates the read positions of relays.
INSERT INTO public.waybill_outbox_version AS v (transport, bucket)
SELECT b.transport, b.bucket FROM public.waybill_outbox_bucket AS b
ON CONFLICT (transport, bucket) DO UPDATE SET version = v.version + 1;

-- name: record
INSERT INTO public.waybill_meta (name, value) VALUES ('buckets', $1::text)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: number
-- %d is the number of buckets: DDL takes no parameters.
CREATE OR REPLACE FUNCTION public.waybill_buckets() RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE AS $$ SELECT %d $$;
