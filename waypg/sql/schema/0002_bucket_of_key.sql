-- A row in another bucket than its key's would be sent out of order: by a
-- program that computes buckets wrongly, or knows another number of them than
-- there are. NOT VALID: rows that are there are not read again.
ALTER TABLE public.waybill_outbox ADD CONSTRAINT waybill_outbox_bucket_of_key CHECK (
    bucket = CASE WHEN partition_key = '' THEN -1
             ELSE (get_byte(sha256(convert_to(partition_key, 'UTF8')), 0) * 256 + get_byte(sha256(convert_to(partition_key, 'UTF8')), 1)) % 64 END) NOT VALID;
