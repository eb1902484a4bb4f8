// Package events holds the messages that the order service and the billing
// service exchange. Both import it; neither imports the other.
package events

import "time"

// OrderPlaced says that a customer has ordered.
type OrderPlaced struct {
	OrderID    int       `json:"orderId"`
	CustomerID string    `json:"customerId"`
	EmployeeID int       `json:"employeeId"`
	PlacedAt   time.Time `json:"placedAt"`
	RequiredAt time.Time `json:"requiredAt"`
	Freight    float64   `json:"freight"`
	ShipTo     Address   `json:"shipTo"`
	Lines      []Line    `json:"lines"`
}

// MessageName is the name under which the message travels.
func (OrderPlaced) MessageName() string { return "order.placed" }

// PartitionKey keeps the events of one customer in order.
func (m OrderPlaced) PartitionKey() string { return m.CustomerID }

// An Address is where an order goes. Not every country has regions or postal
// codes.
type Address struct {
	Name       string  `json:"name"`
	Address    string  `json:"address"`
	City       string  `json:"city"`
	Region     *string `json:"region"`
	PostalCode *string `json:"postalCode"`
	Country    string  `json:"country"`
}

// A Line is one product of an order. Discount is a share of the price, 0 to 1.
type Line struct {
	ProductID int     `json:"productId"`
	UnitPrice float64 `json:"unitPrice"`
	Quantity  int     `json:"quantity"`
	Discount  float64 `json:"discount"`
}

// OrderShipped says that an order has left the house.
type OrderShipped struct {
	OrderID    int       `json:"orderId"`
	CustomerID string    `json:"customerId"`
	ShippedAt  time.Time `json:"shippedAt"`
	Shipper    int       `json:"shipper"`
}

// MessageName is the name under which the message travels.
func (OrderShipped) MessageName() string { return "order.shipped" }

// PartitionKey keeps the events of one customer in order.
func (m OrderShipped) PartitionKey() string { return m.CustomerID }
