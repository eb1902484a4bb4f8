package dashboard_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/waysqlite"
)

func ExampleNew() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "waybill-example-")
	check(err)
	defer os.RemoveAll(dir)
	db, err := waysqlite.Open(ctx, filepath.Join(dir, "shop.db"), waysqlite.Config{})
	check(err)
	defer db.Close()
	_, err = db.SchemaUp(ctx)
	check(err)

	pages, err := dashboard.New(dashboard.Config{
		Database: db,
		Prefix:   "/waybill",
		Authenticate: func(r *http.Request) (dashboard.Principal, error) {
			return dashboard.Principal{Name: "ann", Role: dashboard.Operator}, nil // of the application's session
		},
		Redact: dashboard.Redaction{Paths: []string{"card.number"}},
	})
	check(err)
	defer pages.Close()
	mux := http.NewServeMux()
	mux.Handle("/waybill/", pages)

	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest("GET", "/waybill/", nil))
	fmt.Println(answer.Code)
	// Output: 200
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
