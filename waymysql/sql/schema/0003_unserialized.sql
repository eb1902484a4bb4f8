-- Messages of those who take no dispatch lock wait in buckets of their own: that
-- of the key and 1024, whatever the number of buckets is. Relays of the version
-- before leave them where they are, and their schema rebucket must not be used.
ALTER TABLE app.waybill_outbox COMMENT = 'waybill: write with waybill_dispatch, or as docs/schema.md says: bucket = first two bytes of SHA-256(partition_key) mod buckets of waybill_meta, 1024 more for who takes no gate';
