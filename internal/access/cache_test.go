package access

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cache[int, int]{limit: 10}
		c.set(-1, 1, time.Hour)
		for i := range 9 {
			c.set(i, i, time.Second)
		}
		time.Sleep(time.Second)
		c.set(9, 9, time.Hour)
		if _, counts := c.get(-1); !counts {
			t.Error("what still counts was forgotten before what does not")
		}
		for i := range 1000 {
			c.set(i, i, time.Hour)
			if v, counts := c.get(i); v != i || !counts {
				t.Fatalf("%d is %d, %v: the value just set is missing", i, v, counts)
			}
			if n := len(c.entries); n > c.limit {
				t.Fatalf("%d values, want at most %d", n, c.limit)
			}
		}
	})
}
