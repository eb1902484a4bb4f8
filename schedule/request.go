package schedule

import (
	"context"
	"log/slog"
	"time"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// RequestHeader is on messages that an operator has requested: the time of the request, in the
// form of time.RFC3339Nano, in UTC.
const RequestHeader = "schedule-requested-at"

// RequestID returns the id of the message of a request, a UUIDv5 of the name and its exact time. It is not
// that of a tick in the same second, which is another message.
func RequestID(name string, requested time.Time) waybill.MessageID {
	return waybill.MessageID(uuid.NewV5(namespace, name+"\x00requested "+requested.UTC().Format(time.RFC3339Nano)))
}

// sendRequest dispatches the message that an operator has requested and clears the request, in
// one transaction. It fails with errTaken if another process has changed the row meanwhile.
func (s *Scheduler[TX]) sendRequest(ctx context.Context, one Schedule, row admin.Schedule) error {
	requested := row.RequestedAt.UTC()
	next := row
	next.RequestedAt = nil
	err := s.replace(ctx, row, next, func(ctx context.Context, tx TX) error {
		_, err := s.out.Dispatch(ctx, tx, one.message(requested.Truncate(time.Second)).With(RequestID(one.Name, requested),
			waybill.Header(RequestHeader, requested.Format(time.RFC3339Nano))))
		return err
	})
	if err == nil {
		s.log.LogAttrs(ctx, slog.LevelInfo, "requested message sent", slog.String("schedule", one.Name), slog.Time("requested_at", requested))
	}
	return err
}
