package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/waypg"
)

// An Order is the body of a customer's request.
type Order struct {
	OrderID    int     `json:"orderId"`
	CustomerID string  `json:"customerId"`
	Email      string  `json:"email"`
	Freight    float64 `json:"freight"`
	ShipTo     struct {
		Country string `json:"country"`
	} `json:"shipTo"`
	Lines []Line `json:"lines"`
}

// A Line is one product of an order. Discount is a share of the price, 0 to 1.
type Line struct {
	ProductID int     `json:"productId"`
	UnitPrice float64 `json:"unitPrice"`
	Quantity  int     `json:"quantity"`
	Discount  float64 `json:"discount"`
}

func (o Order) cents() int {
	total := o.Freight
	for _, line := range o.Lines {
		total += line.UnitPrice * float64(line.Quantity) * (1 - line.Discount)
	}
	return int(math.Round(100 * total))
}

// server takes orders, payments and the feed of the warehouse at SHOP_LISTEN.
func (s *shop) server() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", answer(s.placeOrder))
	mux.HandleFunc("POST /orders/{id}/payment", answer(s.pay))
	mux.HandleFunc("POST /products/{id}/availability", answer(s.availabilityChanged))
	return &http.Server{Addr: cmp.Or(os.Getenv("SHOP_LISTEN"), "127.0.0.1:8080"), Handler: mux, ReadHeaderTimeout: 10 * time.Second}
}

// placeOrder writes the order and dispatches its messages, in one transaction.
func (s *shop) placeOrder(r *http.Request) error {
	var o Order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		return fmt.Errorf("%w: %w", errBadRequest, err)
	}
	return s.out.InTx(r.Context(), func(ctx context.Context, tx waypg.Tx) error {
		_, err := tx.SQL().Exec(ctx, "INSERT INTO orders (id, customer, email, cents) VALUES ($1, $2, $3, $4)", o.OrderID, o.CustomerID, o.Email, o.cents())
		if err != nil {
			return err
		}
		for _, line := range o.Lines {
			if _, err := tx.Dispatch(ctx, StockSold{o.OrderID, line.ProductID, line.Quantity}); err != nil {
				return err
			}
		}
		_, err = tx.Dispatch(ctx, confirmationOf(o))
		return err
	})
}

// pay has the order charged. A form that is submitted twice, or a request that is repeated,
// has the same keys: they come from the order, not from the dispatch. The unique key makes
// one message of all within a day; the idempotency key one effect of later messages, too.
func (s *shop) pay(r *http.Request) error {
	id, err := number(r)
	if err != nil {
		return err
	}
	return s.out.InTx(r.Context(), func(ctx context.Context, tx waypg.Tx) error {
		key := fmt.Sprintf("order-%d", id)
		_, err := tx.Dispatch(ctx, ChargePayment{id}, waybill.Unique{Key: key, For: 24 * time.Hour}, waybill.IdempotencyKey(key))
		return err
	})
}

func (s *shop) availabilityChanged(r *http.Request) error {
	id, err := number(r)
	if err != nil {
		return err
	}
	return s.out.InTx(r.Context(), func(ctx context.Context, tx waypg.Tx) error {
		_, err := tx.Dispatch(ctx, AvailabilityChanged{id})
		return err
	})
}

// number returns the number in the path.
func number(r *http.Request) (int, error) {
	n, err := strconv.Atoi(r.PathValue("id"))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errBadRequest, err)
	}
	return n, nil
}

var errBadRequest = errors.New("bad request")

// answer turns an error into a status.
func answer(handle func(*http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := handle(r)
		var refused *pgconn.PgError
		switch {
		case err == nil:
			w.WriteHeader(http.StatusAccepted)
		case errors.Is(err, errBadRequest):
			http.Error(w, err.Error(), http.StatusBadRequest)
		case errors.As(err, &refused) && refused.Code == "23505": // unique_violation
			http.Error(w, "the order exists", http.StatusConflict)
		default:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}
