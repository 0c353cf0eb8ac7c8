//go:build !linux

package app

import (
	"context"
	"errors"
	"net/netip"

	"sluice/internal/statusapi"
)

func traceOne(context.Context, func(), traced, func()) ([]tracedStep, error) {
	return nil, errors.New("--trace: only Linux has nf_tables, run it on the node")
}

func ruleText(context.Context, statusapi.TraceStep) string { return "" }

func untraceable(netip.Addr) string { return "" }
