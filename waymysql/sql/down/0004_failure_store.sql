-- From here on nothing can be given up, and what was since the command looked makes
-- this fail: the server commits each statement on its own.
ALTER TABLE app.waybill_failed ADD CONSTRAINT waybill_failed_gone CHECK (state = 'removed');

ALTER TABLE app.waybill_outbox_blocked
    DROP KEY waybill_outbox_blocked_by_release,
    DROP CONSTRAINT waybill_outbox_blocked_state,
    DROP COLUMN state, DROP COLUMN policy, DROP COLUMN release_at;

DROP TABLE app.waybill_failed;
