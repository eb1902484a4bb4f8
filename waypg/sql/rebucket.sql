-- name: pause
-- Relays claim nothing until then: they hold a table for as long as they publish.
-- It ends by itself, in case that who paused them dies.
INSERT INTO public.waybill_meta (name, value) VALUES ('relays_paused_until', (clock_timestamp() + make_interval(secs => $1::float8))::text)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: resume
DELETE FROM public.waybill_meta WHERE name = 'relays_paused_until';

-- name: lock
-- All that dispatches, relays or moves messages ends first, and begins after.
LOCK TABLE public.waybill_outbox, public.waybill_outbox_bucket, public.waybill_delayed, public.waybill_outbox_lane IN ACCESS EXCLUSIVE MODE;

-- name: count
SELECT count(*) FROM public.waybill_outbox WHERE bucket >= 0;

-- name: move
-- Buckets of unserialized messages begin at 1024, however many there are.
UPDATE public.waybill_outbox
SET    bucket = (get_byte(sha256(convert_to(partition_key, 'UTF8')), 0) * 256 + get_byte(sha256(convert_to(partition_key, 'UTF8')), 1)) % $1::int + CASE WHEN bucket >= 1024 THEN 1024 ELSE 0 END
WHERE  bucket >= 0;

-- name: move_blocked
UPDATE public.waybill_outbox_blocked
SET    bucket = (get_byte(sha256(convert_to(partition_key, 'UTF8')), 0) * 256 + get_byte(sha256(convert_to(partition_key, 'UTF8')), 1)) % $1::int + CASE WHEN bucket >= 1024 THEN 1024 ELSE 0 END
WHERE  route = '' AND partition_key <> '';

-- name: add
INSERT INTO public.waybill_outbox_bucket (lane, bucket)
SELECT l.id, b FROM public.waybill_outbox_lane AS l, generate_series(0, $1::int - 1) AS b ON CONFLICT DO NOTHING;

-- name: remove
DELETE FROM public.waybill_outbox_bucket WHERE bucket >= $1::int;

-- name: bump
-- What relays remember of waiting keys is worth nothing.
UPDATE public.waybill_outbox_lane SET blocked_version = blocked_version + 1;

-- name: record
UPDATE public.waybill_meta SET value = $1::text WHERE name = 'buckets';

-- name: unconstrain
ALTER TABLE public.waybill_outbox DROP CONSTRAINT waybill_outbox_bucket_of_key;

-- name: constrain
-- %d is the number of buckets: DDL takes no parameters.
ALTER TABLE public.waybill_outbox ADD CONSTRAINT waybill_outbox_bucket_of_key CHECK (
    CASE WHEN partition_key = '' THEN bucket = -1
         ELSE bucket < 2048 AND bucket % 1024 = (get_byte(sha256(convert_to(partition_key, 'UTF8')), 0) * 256 + get_byte(sha256(convert_to(partition_key, 'UTF8')), 1)) % %d END) NOT VALID;

-- name: any_unserialized
SELECT EXISTS (SELECT 1 FROM public.waybill_outbox WHERE bucket >= 1024) OR EXISTS (SELECT 1 FROM public.waybill_delayed WHERE bucket >= 1024);

-- name: lock_failed
-- Nobody parks anything after this.
LOCK TABLE public.waybill_outbox_blocked, public.waybill_failed IN ACCESS EXCLUSIVE MODE;

-- name: any_failed
SELECT EXISTS (SELECT 1 FROM public.waybill_failed WHERE state <> 'removed') OR EXISTS (SELECT 1 FROM public.waybill_outbox_blocked WHERE state <> 'retrying');
