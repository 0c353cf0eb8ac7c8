package main

// machine is how many processors the steps that run at the same time may keep busy on average. It
// is a little more than the two of CI, because no step is busy all the time.
const machine = 2.5

// builds is the step that builds the programs under test, for those that run after it.
const builds = "programs"

// sets are the steps of targets, in the order in which they start: the longest ones first. Correct
// their cores by that column of the table that a run ends with. What they share does not keep them
// apart: each test makes its own network namespaces, cgroups and BPF file systems; ports are of these
// namespaces or chosen by the kernel; and who fills a folder of .cache holds a lock, or moves it into
// place complete. The page runs alone because Chromium has to show things soon.
var sets = map[string][]step{
	"test": {
		{name: builds, make: []string{"test-programs"}, cores: 2.5, plain: true},
		{name: "daemon", make: []string{"test-daemon"}, cores: 0.7, after: []string{builds}},
		{name: "go", make: []string{"test-go"}, cores: 1.3, after: []string{builds}},
		{name: "modes", make: []string{"test-modes"}, cores: 1},
		{name: "packets", make: []string{"test-packets"}, cores: 1.1},
		{name: "cluster", make: []string{"test-cluster"}, cores: 0.8, after: []string{builds}},
		{name: "guest", make: []string{"test-guest"}, cores: 1, after: []string{builds}},
		{name: "vm", make: []string{"test-vm"}, cores: 0.9, after: []string{builds}},
		{name: "lint", make: []string{"lint"}, cores: 1.5},
		{name: "deploy", make: []string{"test-deploy"}, cores: 0.9, after: []string{builds}},
		{name: "image", make: []string{"test-image"}, cores: 1},
		{name: "windows", make: []string{"test-windows"}, cores: 0.4, after: []string{builds}},
		{name: "arm64", make: []string{"test-arm64"}, cores: 1.3},
		{name: "page", make: []string{"test-page"}, cores: 0.8, after: []string{builds}, alone: true},
		{name: "demo", make: []string{"demo", "ONCE=1"}, cores: 0.5, plain: true},
		{name: "fuzz", make: []string{"fuzz", "FUZZTOTAL=30"}, cores: 2, plain: true},
		{name: "bpf", make: []string{"check-bpf"}, cores: 1, plain: true},
	},
	"check": {
		{name: "vet", make: []string{"vet"}, cores: 1, plain: true},
		{name: "short", make: []string{"test-short"}, cores: 1},
	},
}
