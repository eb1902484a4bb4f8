-- Messages of those who take no dispatch lock wait in buckets of their own: that
-- of the key and 1024, whatever the number of buckets is. NOT VALID: rows that are
-- there are not read again.
ALTER TABLE public.waybill_outbox DROP CONSTRAINT waybill_outbox_bucket_of_key;

DO $$
BEGIN
    EXECUTE format('ALTER TABLE public.waybill_outbox ADD CONSTRAINT waybill_outbox_bucket_of_key CHECK (
        CASE WHEN partition_key = '''' THEN bucket = -1
             ELSE bucket < 2048 AND bucket %% 1024 = (get_byte(sha256(convert_to(partition_key, ''UTF8'')), 0) * 256 + get_byte(sha256(convert_to(partition_key, ''UTF8'')), 1)) %% %s END) NOT VALID',
        (SELECT m.value::int FROM public.waybill_meta AS m WHERE m.name = 'buckets'));
END $$;
