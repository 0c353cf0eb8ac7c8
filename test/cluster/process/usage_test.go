package process

import "testing"

func TestParseTicks(t *testing.T) {
	tests := []struct {
		name, stat string
		want       int64
		fails      bool
	}{
		{"plain", "12 (etcd) S 1 12 12 0 -1 4194304 1 2 3 4 100 20 7 3 20 0 9 0", 130, false},
		{"a name with parentheses", "12 (a) b) S 1 12 12 0 -1 4194304 1 2 3 4 1 2 3 4 20 0 9 0", 10, false},
		{"cut off", "12 (etcd) S 1 12", 0, true},
		{"not a number", "12 (etcd) S 1 12 12 0 -1 4194304 1 2 3 4 x 20 7 3 20 0", 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseTicks(tt.stat)
			if got != tt.want || (err != nil) != tt.fails {
				t.Errorf("parseTicks: got %d, %v, want %d, an error: %v", got, err, tt.want, tt.fails)
			}
		})
	}
}
