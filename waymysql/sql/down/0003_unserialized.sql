DELETE FROM app.waybill_meta WHERE name = 'unserialized';

ALTER TABLE app.waybill_outbox COMMENT = 'waybill: write with waybill_dispatch, or as docs/schema.md says: bucket = first two bytes of SHA-256(partition_key) mod buckets of waybill_meta';
