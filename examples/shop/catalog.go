package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
)

// AvailabilityChanged says that the warehouse has another number of a product.
type AvailabilityChanged struct {
	ProductID int `json:"productId"`
}

func (AvailabilityChanged) MessageName() string { return "availability.changed" }

// StockSold takes the sold pieces from the stock.
type StockSold struct {
	OrderID   int `json:"orderId"`
	ProductID int `json:"productId"`
	Quantity  int `json:"quantity"`
}

func (StockSold) MessageName() string { return "stock.sold" }

// handleCatalog registers the handlers of the catalog. Their messages have no key, so that
// workers take them in parallel.
func (s *shop) handleCatalog(bus *waybill.Bus) {
	// Writing a number twice does no harm: this handler needs no inbox, and holds no
	// transaction while the warehouse is slow.
	waybill.Handle(bus, "availability", s.updateAvailability)
	// Taking from a number twice does: the inbox has it happen once for each message.
	inbox.Handle(bus, s.db, "stock", s.takeStock)
}

func (s *shop) updateAvailability(ctx context.Context, m AvailabilityChanged) error {
	available, err := askWarehouse(ctx, m.ProductID)
	if err != nil {
		return err
	}
	done, err := s.db.Pool().Exec(ctx, "UPDATE products SET available = $2 WHERE id = $1", m.ProductID, available)
	if err == nil && done.RowsAffected() == 0 {
		return waybill.Unrecoverable(errNoProduct)
	}
	return err
}

func (s *shop) takeStock(ctx context.Context, tx pgx.Tx, m StockSold) error {
	done, err := tx.Exec(ctx, "UPDATE products SET available = available - $2 WHERE id = $1 AND available >= $2", m.ProductID, m.Quantity)
	if err == nil && done.RowsAffected() == 0 {
		return waybill.Unrecoverable(errSoldOut)
	}
	return err
}

// Errors that no retry mends. Their texts have no numbers, which groups them in `shop
// failed groups`; the message has these.
var (
	errNoProduct = errors.New("the catalog has no such product")
	errSoldOut   = errors.New("the product is sold out, or not in the catalog")
	errUnknown   = errors.New("the warehouse does not know the product")
)

// askWarehouse returns how many of a product the warehouse has. Its errors say whether
// asking again makes sense.
func askWarehouse(ctx context.Context, product int) (available int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/products/%d", os.Getenv("SHOP_WAREHOUSE_URL"), product), nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	switch res.StatusCode {
	case http.StatusOK:
		err = json.NewDecoder(res.Body).Decode(&available)
		return available, err
	case http.StatusNotFound:
		return 0, waybill.Unrecoverable(errUnknown)
	case http.StatusTooManyRequests:
		seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
		return 0, waybill.RetryAfter(errors.New("the warehouse limits our rate"), max(time.Second, time.Duration(seconds)*time.Second))
	}
	return 0, fmt.Errorf("warehouse: %s", res.Status)
}
