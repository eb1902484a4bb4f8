DROP INDEX waybill_outbox_blocked_by_release;
ALTER TABLE waybill_outbox_blocked DROP COLUMN release_at;
ALTER TABLE waybill_outbox_blocked DROP COLUMN policy;
ALTER TABLE waybill_outbox_blocked DROP COLUMN state;
DROP TABLE waybill_failed;
