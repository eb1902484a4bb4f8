package main

import (
	"time"

	"github.com/waybill-go/waybill/config"
)

// A duration is a flag that knows days and weeks, as those of waycli do.
type duration time.Duration

// String implements pflag.Value.
func (d *duration) String() string { return config.FormatDuration(time.Duration(*d)) }

// Set implements pflag.Value.
func (d *duration) Set(s string) error {
	v, err := config.ParseDuration(s)
	*d = duration(v)
	return err
}

// Type implements pflag.Value.
func (d *duration) Type() string { return "duration" }
