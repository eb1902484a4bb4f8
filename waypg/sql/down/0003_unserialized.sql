DELETE FROM public.waybill_meta WHERE name = 'unserialized';

ALTER TABLE public.waybill_outbox DROP CONSTRAINT waybill_outbox_bucket_of_key;

DO $$
BEGIN
    EXECUTE format('ALTER TABLE public.waybill_outbox ADD CONSTRAINT waybill_outbox_bucket_of_key CHECK (
        bucket = CASE WHEN partition_key = '''' THEN -1
                 ELSE (get_byte(sha256(convert_to(partition_key, ''UTF8'')), 0) * 256 + get_byte(sha256(convert_to(partition_key, ''UTF8'')), 1)) %% %s END) NOT VALID',
        (SELECT m.value::int FROM public.waybill_meta AS m WHERE m.name = 'buckets'));
END $$;
