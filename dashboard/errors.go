package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// An Error is a refusal that tells the user what to do.
type Error struct {
	Status  int    `json:"-"`
	Problem string `json:"error"`
	Remedy  string `json:"hint,omitempty"`
}

// Error implements error.
func (e *Error) Error() string { return e.Problem }

// bad is the Error about a wrong value.
func bad(problem, remedy string) *Error {
	return &Error{http.StatusBadRequest, problem, remedy}
}

// problemOf returns err as an answer. The text of an error of a database stays in the log: it
// may name hosts and users.
func problemOf(err error) *Error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e
	}
	switch {
	case errors.Is(err, ErrUnauthenticated):
		return &Error{http.StatusUnauthorized, "sign in", "a name and a password, or a token, are required"}
	case errors.Is(err, waybill.ErrNotFound):
		return &Error{http.StatusNotFound, "there is no such thing", "it may have been handled or removed meanwhile"}
	case errors.Is(err, admin.ErrChanged):
		return &Error{http.StatusConflict, "it was changed meanwhile", "look at it again"}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{http.StatusServiceUnavailable, "the database has not answered within " + queryTimeout.String(), "narrow the filter down, or try again"}
	case errors.Is(err, waybill.ErrUnavailable):
		return &Error{http.StatusServiceUnavailable, "the database cannot be reached", "the log of the dashboard has the error; try again"}
	case errors.Is(err, admin.ErrSchema):
		return &Error{http.StatusServiceUnavailable, "the tables do not fit this version", "run `waybill schema up`"}
	}
	return &Error{http.StatusInternalServerError, "an error of the dashboard or its database", "the log of the dashboard has it"}
}

// fail answers a request with an error: as JSON below /api/, as a page elsewhere.
func (d *Dashboard) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := problemOf(err)
	if e.Status >= http.StatusInternalServerError && r.Context().Err() == nil || e.Status >= http.StatusInternalServerError && errors.Is(err, context.DeadlineExceeded) {
		d.log.LogAttrs(r.Context(), slog.LevelError, "dashboard request failed", slog.String("path", r.URL.Path), slog.Int("status", e.Status), slog.Any("err", err))
	}
	if e.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="waybill", charset="UTF-8"`)
	}
	if strings.HasPrefix(r.URL.Path, apiPath) {
		writeJSON(w, e.Status, e)
		return
	}
	if err := d.pages.render(w, e.Status, "error", view{Title: "Error", Data: e, who: whoOf(r)}); err != nil {
		d.log.LogAttrs(r.Context(), slog.LevelError, "the page of an error failed", slog.Any("err", err))
	}
}
