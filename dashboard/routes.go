package dashboard

import (
	"context"
	"embed"
	"net/http"
	"strings"

	"github.com/waybill-go/waybill/admin"
)

// apiPath begins the paths of the JSON API.
const apiPath = "/api/v1/"

// A request is one authenticated request of a route.
type request struct {
	*http.Request
	w   http.ResponseWriter
	who who
}

// A who is the user of a request, with the limits of the dashboard.
type who struct {
	Principal
	ReadOnly bool
}

// May reports whether the user has the rights of a role's changes.
func (w who) May(role string) bool {
	needed, err := ParseRole(role)
	return err == nil && !w.ReadOnly && w.Role >= needed
}

// A handler answers a request, or returns the error to answer.
type handler func(r *request) error

// A route is a method and a path, the role that it needs, and its handler.
type route struct {
	pattern string
	role    Role
	handle  handler
}

// table lists the routes. Every change is a POST; it and the page that asks before it need
// more than a Viewer, and all else no more.
func (d *Dashboard) table() []route {
	return []route{
		{"GET /{$}", Viewer, d.overview},
		{"GET /outbox", Viewer, d.outboxPage},
		{"GET /outbox/release", Operator, d.confirmRelease},
		{"POST /outbox/release", Operator, d.release},
		{"GET /failed", Viewer, d.groupsPage},
		{"GET /failed/list", Viewer, d.failedPage},
		{"GET /failed/{number}", Viewer, d.messagePage},
		{"GET /failed/{number}/edit", Operator, d.editPage},
		{"POST /failed/{number}/edit", Operator, d.edit},
		{"GET /failed/retry", Operator, d.confirmRetry},
		{"POST /failed/retry", Operator, d.retry},
		{"GET /failed/remove", Admin, d.confirmRemove},
		{"POST /failed/remove", Admin, d.remove},
		{"GET /retries", Viewer, d.retriesPage},
		{"GET /retries/{transport}/{id}", Viewer, d.attemptsPage},
		{"GET /retries/release", Operator, d.confirmParked},
		{"POST /retries/release", Operator, d.releaseParked},
		{"GET /inbox", Viewer, d.inboxPage},
		{"GET /workers", Viewer, d.workersPage},
		{"POST /workers/{id}/stop", Admin, d.stopWorker},
		{"POST /workers/pause", Admin, d.pauseTransport},
		{"POST /workers/resume", Admin, d.resumeTransport},
		{"GET /schedules", Viewer, d.schedulesPage},
		{"POST /schedules/trigger", Operator, d.triggerSchedule},
		{"GET /audit", Viewer, d.auditPage},
		{"GET /system", Viewer, d.systemPage},
		{"GET /operations", Viewer, d.operationsPage},
		{"GET /operations/{id}", Viewer, d.operationPage},
		{"POST /operations/{id}/cancel", Operator, d.cancelOperation},
	}
}

//go:embed static
var static embed.FS

// routes returns the handler of all paths.
func (d *Dashboard) routes() http.Handler {
	mux := http.NewServeMux()
	for _, route := range append(d.table(), d.apiRoutes()...) {
		mux.Handle(route.pattern, d.serve(route))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		d.fail(w, r, &Error{http.StatusNotFound, "there is no such page", ""})
	})
	guarded := http.NewCrossOriginProtection()
	guarded.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.fail(w, r, &Error{http.StatusForbidden, "a page of another site has sent this request", "open the dashboard itself"})
	}))
	front := http.NewServeMux()
	front.HandleFunc("GET /static/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable") // its address has a hash
		http.ServeFileFS(w, r, static, strings.TrimPrefix(r.URL.Path, "/"))
	})
	front.Handle("/", d.authenticated(guarded.Handler(mux)))
	if d.cfg.Prefix == "" {
		return secured(front)
	}
	// It redirects to the prefix with a slash; behind StripPrefix a mux would redirect to "/".
	mounted := http.NewServeMux()
	mounted.Handle(d.cfg.Prefix+"/", http.StripPrefix(d.cfg.Prefix, secured(front)))
	return mounted
}

// secured sets the headers of every answer: nothing is loaded from elsewhere, and no script
// runs.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

type whoKey struct{}

func whoOf(r *http.Request) who {
	w, _ := r.Context().Value(whoKey{}).(who)
	return w
}

// authenticated refuses requests without a user.
func (d *Dashboard) authenticated(next http.Handler) http.Handler {
	authenticate := d.cfg.Authenticate
	if authenticate == nil {
		authenticate = local
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := authenticate(r)
		if err == nil && (p.Name == "" || p.Role.String() == "") {
			err = &Error{http.StatusForbidden, "this user has no rights here", "a role is required: viewer, operator or admin"}
		}
		if err != nil {
			d.fail(w, r, err)
			return
		}
		user := who{p, d.cfg.ReadOnly}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), whoKey{}, user)))
	})
}

// maxForm bounds the body of a request: that of a message is 1 MiB, and a form encodes it.
const maxForm = 8 << 20

// serve checks the role of a request, and runs its handler with the time and the connections
// that a page has.
func (d *Dashboard) serve(route route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := whoOf(r)
		if user.ReadOnly && route.role > Viewer {
			d.fail(w, r, &Error{http.StatusForbidden, "this dashboard is read-only", "use one that is not, or the command line"})
			return
		}
		if user.Role < route.role {
			d.fail(w, r, &Error{http.StatusForbidden, "this needs the role " + route.role.String() + ", and " + user.Name + " is " + user.Role.String(), "ask for the role"})
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := parseForm(r); err != nil {
			d.fail(w, r, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
		defer cancel()
		release, err := acquire(ctx, d.slots)
		if err != nil {
			d.fail(w, r, err)
			return
		}
		defer release()
		if err := route.handle(&request{r.WithContext(ctx), releasingWriter{w, release}, user}); err != nil {
			d.fail(w, r, err)
		}
		if r.Method == http.MethodPost {
			d.counts.outdate() // before the answer, which is short, is sent
		}
	})
}

// parseForm reads the form of a change. A slow client has no connection to the database meanwhile.
func parseForm(r *http.Request) error {
	if r.Method == http.MethodPost && r.ParseForm() != nil {
		return bad("the form cannot be read", "send application/x-www-form-urlencoded")
	}
	return nil
}

// A releasingWriter gives the connection of its request back when the answer begins: a slow client
// keeps none.
type releasingWriter struct {
	http.ResponseWriter
	release func()
}

// WriteHeader implements http.ResponseWriter.
func (w releasingWriter) WriteHeader(status int) {
	w.release()
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w releasingWriter) Write(b []byte) (int, error) {
	w.release()
	return w.ResponseWriter.Write(b)
}

// action returns the Action of a change by the user of r.
func (r *request) action(filter []byte) admin.Action {
	actor := r.who.Name
	if !strings.Contains(actor, "@") {
		actor += "@dashboard"
	}
	return admin.Action{Actor: actor, Filter: filter}
}

// redirect has the browser load another page after a change.
func (d *Dashboard) redirect(r *request, to string) error {
	http.Redirect(r.w, r.Request, d.cfg.Prefix+to, http.StatusSeeOther)
	return nil
}
