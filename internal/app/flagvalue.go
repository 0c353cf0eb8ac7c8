package app

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// optional is a flag for a field that is nil while nobody has said anything.
type optional[T any] struct {
	field  **T
	unset  T // what help shows as the default
	kind   string
	parse  func(string) (T, error)
	format func(T) string
}

// String returns the value in force.
func (v optional[T]) String() string {
	switch {
	case v.field == nil:
		return "" // pflag makes a zero value to see what it prints
	case *v.field == nil:
		return v.format(v.unset)
	default:
		return v.format(**v.field)
	}
}

// Set reads a value.
func (v optional[T]) Set(s string) error {
	value, err := v.parse(s)
	if err != nil {
		return err
	}
	*v.field = &value
	return nil
}

// Type returns the kind of value.
func (v optional[T]) Type() string { return v.kind }

func optionalInt(field **int32, unset int32) pflag.Value {
	return optional[int32]{
		field: field, unset: unset, kind: "int32",
		parse: func(s string) (int32, error) {
			n, err := strconv.ParseInt(s, 0, 32)
			return int32(n), err
		},
		format: func(n int32) string { return strconv.Itoa(int(n)) },
	}
}

func optionalBool(field **bool, unset bool) pflag.Value {
	return optional[bool]{field: field, unset: unset, kind: "bool", parse: strconv.ParseBool, format: strconv.FormatBool}
}

func optionalTime(field **metav1.Duration, unset time.Duration) pflag.Value {
	return optional[metav1.Duration]{
		field: field, unset: metav1.Duration{Duration: unset}, kind: "duration",
		parse: func(s string) (metav1.Duration, error) {
			d, err := time.ParseDuration(s)
			return metav1.Duration{Duration: d}, err
		},
		format: func(d metav1.Duration) string { return fmt.Sprint(d.Duration) },
	}
}
