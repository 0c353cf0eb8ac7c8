package process

import "testing"

func TestParseStat(t *testing.T) {
	tests := []struct {
		name, text string
		want       stat
		fails      bool
	}{
		{"plain", "12 (etcd) S 1 11 12 0 -1 4194304 1 2 3 4 100 20 7 3 20 0 9 0", stat{group: 11, ticks: 130}, false},
		{"a name with parentheses", "12 (a) b) S 1 12 12 0 -1 4194304 1 2 3 4 1 2 3 4 20 0 9 0", stat{group: 12, ticks: 10}, false},
		{"cut off", "12 (etcd) S 1 12", stat{}, true},
		{"not a number", "12 (etcd) S 1 12 12 0 -1 4194304 1 2 3 4 1 2 x 3 20 0", stat{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseStat(tt.text)
			if (err != nil) != tt.fails || err == nil && got != tt.want {
				t.Errorf("parseStat: got %+v, %v, want %+v, an error: %v", got, err, tt.want, tt.fails)
			}
		})
	}
}

// TestMachine reads the machine's own files.
func TestMachine(t *testing.T) {
	sizes, err := Sizes("/proc/meminfo")
	if err != nil || sizes["MemTotal"] < 1<<20 {
		t.Errorf("Sizes: got MemTotal %d, %v", sizes["MemTotal"], err)
	}
	if busy, err := MachineCPU(); err != nil || busy <= 0 {
		t.Errorf("MachineCPU: got %v, %v", busy, err)
	}
}
