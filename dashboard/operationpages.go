package dashboard

import (
	"context"
	"net/http"
)

func (d *Dashboard) operationsPage(r *request) error {
	return d.livePage(r, "operations", "Operations", d.operations.list())
}

func (d *Dashboard) operationPage(r *request) error {
	op, err := d.readOperation(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	v := view{Title: "Operation " + r.PathValue("id"), Data: op, who: r.who}
	if op.State == running {
		v.Refresh = 1
	}
	return d.pages.render(r.w, http.StatusOK, "operation", v)
}

// readOperation returns an operation, and how many of its messages have failed again.
func (d *Dashboard) readOperation(ctx context.Context, id string) (Operation, error) {
	op, err := d.operations.find(id)
	if err != nil || len(op.retried) == 0 || op.State == running {
		return op, err
	}
	op.Again, err = d.db.FailedAgain(ctx, op.retried...)
	return op, err
}

func (d *Dashboard) cancelOperation(r *request) error {
	if err := d.cancel(r); err != nil {
		return err
	}
	return d.redirect(r, "/operations/"+r.PathValue("id"))
}

// cancel cancels the operation of a path, with the right that has begun it.
func (d *Dashboard) cancel(r *request) error {
	op, err := d.operations.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	if op.Kind == removeKind && r.who.Role < Admin {
		return &Error{http.StatusForbidden, "this needs the role admin", "ask for the role"}
	}
	d.operations.stop(op.ID)
	return nil
}
