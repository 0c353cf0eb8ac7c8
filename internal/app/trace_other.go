//go:build !linux

package app

import (
	"context"
	"errors"
	"io"

	"sluice/internal/statusapi"
)

func (o *explainOptions) runTrace(context.Context, io.Writer, *statusapi.Explanation) (*statusapi.Trace, error) {
	return nil, errors.New("--trace: only Linux has nf_tables, run it on the node")
}
