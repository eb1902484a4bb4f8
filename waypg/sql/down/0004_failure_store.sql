DROP INDEX public.waybill_outbox_blocked_by_release;
ALTER TABLE public.waybill_outbox_blocked DROP CONSTRAINT waybill_outbox_blocked_state, DROP COLUMN state, DROP COLUMN policy, DROP COLUMN release_at;
DROP TABLE public.waybill_failed;
