package dashboard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/waybill-go/waybill/admin"
)

// editView is the data of the page that edits a body.
type editView struct {
	admin.FailedMessage
	Body    string
	Hash    string // of the body that is edited
	JSON    bool
	Problem string
}

func (d *Dashboard) editPage(r *request) error {
	m, content, err := d.editable(r)
	if err != nil {
		return err
	}
	return d.page(r, "edit", fmt.Sprintf("Edit dead letter %d", m.Number), editView{m, string(content.Body), hashOf(content.Body), isJSON(content), ""})
}

func hashOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// editable returns a message whose body the user can see whole and change.
func (d *Dashboard) editable(r *request) (m admin.FailedMessage, content admin.FailedContent, err error) {
	if m, err = d.oneFailed(r); err != nil {
		return m, content, err
	}
	if !changeable(m) {
		return m, content, &Error{http.StatusConflict, fmt.Sprintf("dead letter %d is %s", m.Number, m.State), "only skipped and failed ones can be edited"}
	}
	content, hidden, err := d.content(r.Context(), r.who, m)
	if err != nil {
		return m, content, err
	}
	if hidden != "" {
		return m, content, &Error{http.StatusForbidden, hidden, "a body can be edited by those who see it"}
	}
	shown := d.show(content, "")
	if !shown.Whole || !shown.Text {
		return m, content, &Error{http.StatusConflict, "the body cannot be shown as a text, or has hidden fields", fmt.Sprintf("`%s failed edit %d` edits it", d.cfg.Command, m.Number)}
	}
	return m, content, nil
}

// edited reads the form of an edit: which message it changes, and its content as it is.
func (d *Dashboard) edited(r *request) (m admin.FailedMessage, content admin.FailedContent, err error) {
	if m, content, err = d.editable(r); err != nil {
		return m, content, err
	}
	if r.PostForm.Get("hash") != hashOf(content.Body) {
		return m, content, &Error{http.StatusConflict, "the body was changed meanwhile", "look at it again, and edit it as it is now"}
	}
	return m, content, nil
}

// apiEdit is edit without a page: a form with the new body, and the hash of the old one.
func (d *Dashboard) apiEdit(r *request) error {
	m, content, err := d.edited(r)
	if err != nil {
		return err
	}
	body := []byte(r.PostForm.Get("body"))
	if isJSON(content) && !json.Valid(body) {
		return bad("the new body is not JSON", "mend it, and send it again")
	}
	if err := d.editBody(r.Context(), r, m, content.Body, body); err != nil {
		return err
	}
	writeJSON(r.w, http.StatusOK, map[string]int64{"number": m.Number})
	return nil
}

func (d *Dashboard) edit(r *request) error {
	m, content, err := d.edited(r)
	if err != nil {
		return err
	}
	body := []byte(r.PostForm.Get("body"))
	if !bytes.Contains(content.Body, []byte("\r\n")) {
		body = bytes.ReplaceAll(body, []byte("\r\n"), []byte("\n")) // forms send lines so
	}
	if isJSON(content) && !json.Valid(body) {
		var v any
		problem := json.Unmarshal(body, &v)
		v2 := editView{m, string(body), hashOf(content.Body), true, "The new body is not JSON: " + problem.Error()}
		return d.pages.render(r.w, http.StatusUnprocessableEntity, "edit", view{Title: fmt.Sprintf("Edit dead letter %d", m.Number), Data: v2, who: r.who})
	}
	if err := d.editBody(r.Context(), r, m, content.Body, body); err != nil {
		return err
	}
	return d.redirect(r, fmt.Sprintf("/failed/%d", m.Number))
}

// editBody changes a body, unless it is the same.
func (d *Dashboard) editBody(ctx context.Context, r *request, m admin.FailedMessage, from, to []byte) error {
	if bytes.Equal(from, to) {
		return nil
	}
	action := r.action(nil)
	return d.db.EditFailed(admin.WithAction(ctx, action), m.Number, from, to)
}

// Rows is how many lines the text area has.
func (v editView) Rows() int { return min(30, 3+strings.Count(v.Body, "\n")) }
