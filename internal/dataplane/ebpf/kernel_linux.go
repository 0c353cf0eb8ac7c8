package ebpf

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

//go:embed bpf/sockets.o
var object []byte

// format names the layout of the maps: programs of another one need maps of their own.
const format = "maps-4"

// unpinned are the maps that programs keep for themselves.
var unpinned = []string{"decisions", "targets"}

// kernel is what the mode has in the kernel.
type kernel struct {
	Services   *ebpf.Map `ebpf:"services"`
	Endpoints  *ebpf.Map `ebpf:"endpoints"`
	Members    *ebpf.Map `ebpf:"members"`
	NodeAddrs  *ebpf.Map `ebpf:"node_addrs"`
	Spaces     *ebpf.Map `ebpf:"spaces"`
	Settings   *ebpf.Map `ebpf:"settings"`
	Generation *ebpf.Map `ebpf:"generation"`
	Counters   *ebpf.Map `ebpf:"counters"`
	Routes     *ebpf.Map `ebpf:"connections"`
	TCP        *ebpf.Map `ebpf:"tcp_sockets"`
	UDP        *ebpf.Map `ebpf:"udp_sockets"`
	Asked      *ebpf.Map `ebpf:"asked_sockets"`
	Questions  *ebpf.Map `ebpf:"questions"`

	Connect4     *ebpf.Program `ebpf:"connect4"`
	Connect6     *ebpf.Program `ebpf:"connect6"`
	Sendmsg4     *ebpf.Program `ebpf:"sendmsg4"`
	Sendmsg6     *ebpf.Program `ebpf:"sendmsg6"`
	Recvmsg4     *ebpf.Program `ebpf:"recvmsg4"`
	Recvmsg6     *ebpf.Program `ebpf:"recvmsg6"`
	Getpeername4 *ebpf.Program `ebpf:"getpeername4"`
	Getpeername6 *ebpf.Program `ebpf:"getpeername6"`
	Release      *ebpf.Program `ebpf:"release"`
	Cut          *ebpf.Program `ebpf:"cut"`
	Ends         *ebpf.Program `ebpf:"ends"`
	Sent         *ebpf.Program `ebpf:"sent"`
	Received     *ebpf.Program `ebpf:"received"`
	LiveTCP      *ebpf.Program `ebpf:"live_tcp"`
	LiveUDP      *ebpf.Program `ebpf:"live_udp"`
	Sources      *ebpf.Program `ebpf:"sources"`
	Stale        *ebpf.Program `ebpf:"stale"`

	places
	says   uint32 // to programs, beside until when they may act
	shared []byte // with programs: the generation
	fresh  bool   // maps have nothing yet
}

// places are where the mode meets the rest of the host.
type places struct {
	cgroup string // whose sockets it acts on
	pins   string // the folder that keeps maps and programs while nobody runs
}

// What is missing when the kernel says no, and when it does not know what is asked.
var (
	errPrivileges = errors.New("mode ebpf needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and a kernel that is not locked down")
	errKernel     = errors.New("the kernel lacks what mode ebpf needs (Linux 6.2 with BTF, CONFIG_CGROUP_BPF)")
)

// missing names the capabilities that the process lacks: without them the kernel finds
// fault with the programs, and says that.
func missing() (names []string) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if unix.Capget(&header, &have[0]) != nil || have[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0 {
		return nil
	}
	for _, c := range []struct {
		name string
		bit  int
	}{{"CAP_BPF", unix.CAP_BPF}, {"CAP_NET_ADMIN", unix.CAP_NET_ADMIN}, {"CAP_PERFMON", unix.CAP_PERFMON}} {
		if have[c.bit/32].Effective&(1<<(c.bit%32)) == 0 {
			names = append(names, c.name)
		}
	}
	return names
}

// load brings maps and programs into the kernel, with the maps that are pinned. An
// empty folder pins nothing. After an error nothing is pinned that was not.
func load(p places, limits map[string]uint32) (_ *kernel, err error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	if names := missing(); len(names) > 0 {
		return nil, fmt.Errorf("%w: %s is missing", errPrivileges, strings.Join(names, ", "))
	}
	for name, most := range limits {
		spec.Maps[name].MaxEntries = most
	}
	k := &kernel{places: p, fresh: p.pins == ""}
	var opts ebpf.CollectionOptions
	if p.pins != "" {
		opts.Maps.PinPath = filepath.Join(p.pins, format)
		if _, absent := os.Stat(p.pins); absent != nil {
			defer func() {
				if err != nil {
					err = errors.Join(err, os.RemoveAll(p.pins))
				}
			}()
		}
		_, absent := os.Stat(opts.Maps.PinPath)
		k.fresh = errors.Is(absent, fs.ErrNotExist)
		if err := os.MkdirAll(opts.Maps.PinPath, 0o700); err != nil {
			return nil, fmt.Errorf("make a folder for maps: %w", err)
		}
		for name, m := range spec.Maps {
			if !slices.Contains(unpinned, name) {
				m.Pinning = ebpf.PinByName
			}
		}
	}
	switch err := spec.LoadAndAssign(k, &opts); {
	case errors.Is(err, ebpf.ErrMapIncompatible):
		return nil, fmt.Errorf("%w: the maps below %s are of another version: sluice --cleanup removes them", err, p.pins)
	case errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("%w: %w", errPrivileges, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errKernel, err)
	}
	k.shared, err = unix.Mmap(k.Generation.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("share the generation of maps with programs: %w", err), k.close())
	}
	return k, nil
}

// loadOne brings a program into the kernel that has no maps.
func loadOne(name string) (*ebpf.Program, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	return ebpf.NewProgram(spec.Programs[name])
}

// hook is where a program is attached.
type hook struct {
	name    string
	at      ebpf.AttachType
	program *ebpf.Program
}

// hooks returns where programs are attached, in the order in which to do it: what
// forgets and translates back comes before what translates.
func (k *kernel) hooks() []hook {
	return []hook{
		{"release", ebpf.AttachCgroupInetSockRelease, k.Release},
		{"getpeername4", ebpf.AttachCgroupInet4GetPeername, k.Getpeername4},
		{"getpeername6", ebpf.AttachCgroupInet6GetPeername, k.Getpeername6},
		{"recvmsg4", ebpf.AttachCGroupUDP4Recvmsg, k.Recvmsg4},
		{"recvmsg6", ebpf.AttachCGroupUDP6Recvmsg, k.Recvmsg6},
		{"sendmsg4", ebpf.AttachCGroupUDP4Sendmsg, k.Sendmsg4},
		{"sendmsg6", ebpf.AttachCGroupUDP6Sendmsg, k.Sendmsg6},
		{"connect4", ebpf.AttachCGroupInet4Connect, k.Connect4},
		{"connect6", ebpf.AttachCGroupInet6Connect, k.Connect6},
	}
}

// meters returns where programs are attached that count bytes.
func (k *kernel) meters() []hook {
	return []hook{
		{"ends", ebpf.AttachCGroupSockOps, k.Ends},
		{"sent", ebpf.AttachCGroupInetEgress, k.Sent},
		{"received", ebpf.AttachCGroupInetIngress, k.Received},
	}
}

// cut is attached only while something is to be cut.
func (k *kernel) cut() hook { return hook{"cut", ebpf.AttachCGroupInetEgress, k.Cut} }

// attach has programs act on sockets. Those of a former daemon are exchanged,
// one by one, so that none is missing. After an error, none is that was not there.
func (k *kernel) attach() error {
	if err := k.attachAll(k.hooks()); err != nil {
		return err
	}
	return k.removeOthers()
}

// meter has programs count bytes.
func (k *kernel) meter() error {
	k.says &^= countBytes // unless all are there
	if err := k.attachAll(k.meters()); err != nil {
		return err
	}
	k.says |= countBytes
	return nil
}

// stopMeter has none do that.
func (k *kernel) stopMeter() (err error) {
	k.says &^= countBytes
	for _, h := range k.meters() {
		err = errors.Join(err, k.detach(h.name))
	}
	return err
}

func (k *kernel) attachAll(hooks []hook) (err error) {
	var done []string
	defer func() {
		for i := 0; err != nil && i < len(done); i++ {
			err = errors.Join(err, k.detach(done[i]))
		}
	}()
	for _, h := range hooks {
		fresh, err := k.attachOne(h)
		if err != nil {
			return err
		}
		if fresh {
			done = append(done, h.name)
		}
	}
	return nil
}

// attachOne attaches a program, or exchanges the one that is there.
func (k *kernel) attachOne(h hook) (fresh bool, err error) {
	pin := filepath.Join(k.pins, h.name)
	former, err := link.LoadPinnedLink(pin, nil)
	if err == nil {
		defer func() { _ = former.Close() }()
		if same, err := k.sameCgroup(former); err != nil {
			return false, err
		} else if same {
			if err := former.Update(h.program); err != nil {
				return false, fmt.Errorf("exchange program %s: %w", h.name, err)
			}
			return false, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("open %s: %w", pin, err)
	}
	now, err := link.AttachCgroup(link.CgroupOptions{Path: k.cgroup, Attach: h.at, Program: h.program})
	switch {
	case errors.Is(err, unix.EPERM):
		return false, fmt.Errorf("attach %s to cgroup %s, where a program of somebody else may tolerate no other: %w", h.name, k.cgroup, err)
	case err != nil:
		return false, fmt.Errorf("attach %s to cgroup %s: %w", h.name, k.cgroup, err)
	}
	defer func() { _ = now.Close() }()
	if err := os.Remove(pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := now.Pin(pin); err != nil {
		return false, fmt.Errorf("pin %s: %w", pin, err)
	}
	return former == nil, nil
}

// sameCgroup reports whether a link is that of our cgroup.
func (k *kernel) sameCgroup(l link.Link) (bool, error) {
	info, err := l.Info()
	if err != nil {
		return false, fmt.Errorf("look at a link: %w", err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(k.cgroup, &stat); err != nil {
		return false, fmt.Errorf("look at cgroup %s: %w", k.cgroup, err)
	}
	c := info.Cgroup()
	return c != nil && c.CgroupId == stat.Ino, nil
}

// detach ends a program's work.
func (k *kernel) detach(name string) error { return detach(filepath.Join(k.pins, name)) }

// removeOthers removes the maps of other versions, which no program uses any more.
func (k *kernel) removeOthers() error {
	all, err := filepath.Glob(filepath.Join(k.pins, "maps-*"))
	for _, name := range unpinned { // which they were once
		if failed := os.Remove(filepath.Join(k.pins, format, name)); !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	for _, dir := range all {
		if filepath.Base(dir) != format {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	return err
}

// close releases handles; what is pinned stays in force.
func (k *kernel) close() (err error) {
	for _, c := range []io.Closer{
		k.Services, k.Endpoints, k.Members, k.NodeAddrs, k.Spaces, k.Settings, k.Generation, k.Counters, k.Routes, k.TCP, k.UDP, k.Asked, k.Questions,
		k.Connect4, k.Connect6, k.Sendmsg4, k.Sendmsg6, k.Recvmsg4, k.Recvmsg6, k.Getpeername4, k.Getpeername6, k.Release, k.Cut, k.Sources, k.Stale,
		k.Ends, k.Sent, k.Received, k.LiveTCP, k.LiveUDP,
	} {
		err = errors.Join(err, c.Close())
	}
	if k.shared != nil {
		err = errors.Join(err, unix.Munmap(k.shared))
		k.shared = nil
	}
	return err
}

// run has an iterator look at the sockets that a map knows, and returns what it
// tells: records of one size.
func run(p *ebpf.Program, m *ebpf.Map, size int) (out [][]byte, err error) {
	it, err := link.AttachIter(link.IterOptions{Program: p, Map: m})
	if err != nil {
		return nil, err
	}
	defer func() { _ = it.Close() }()
	r, err := it.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	all, err := io.ReadAll(r)
	for ; len(all) >= size; all = all[size:] {
		out = append(out, all[:size])
	}
	return out, err
}

// counter returns how often programs did something.
func (k *kernel) counter(which uint32) (sum uint64) {
	var each []uint64
	if k.Counters.Lookup(which, &each) == nil {
		for _, n := range each {
			sum += n
		}
	}
	return sum
}

// allow lets programs act until a time since boot.
func (k *kernel) allow(node, until uint64) error {
	var s settings
	binary.NativeEndian.PutUint64(s[:], node)
	binary.NativeEndian.PutUint64(s[8:], until)
	binary.NativeEndian.PutUint32(s[16:], k.says)
	if err := k.change(func() error { return k.Settings.Update(uint32(0), s, ebpf.UpdateAny) }); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}

// change has f write to maps that programs keep something of. Meanwhile they keep nothing,
// also if the daemon is killed, and then not what they have found before: a random number
// is none that any daemon has written before.
func (k *kernel) change(f func() error) error {
	generation := (*atomic.Uint64)(unsafe.Pointer(&k.shared[0]))
	generation.Store(0)
	defer generation.Store(max(1, rand.Uint64()))
	return f()
}

// sinceBoot returns the time that programs go by, in nanoseconds.
func sinceBoot() (uint64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	return uint64(t.Nano()), nil
}

// ownCookie returns the cookie of the calling thread's network namespace.
func ownCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("make a socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("%w: ask for the cookie of the network namespace: %w", errKernel, err)
	}
	return cookie, nil
}

// find completes places: the cgroup is found among the mounts of the host.
func (p places) find(mounts string) (places, error) {
	if p.cgroup == "" {
		for line := range strings.Lines(mounts) {
			// ID parent device root mountpoint options ... - type source
			fields := strings.Fields(line)
			if _, kind, ok := strings.Cut(line, " - "); ok && strings.HasPrefix(kind, "cgroup2 ") && len(fields) > 4 && fields[3] == "/" {
				p.cgroup = fields[4]
				break
			}
		}
		// Only the root of all cgroups has no type.
		if _, err := os.Stat(filepath.Join(p.cgroup, "cgroup.type")); p.cgroup != "" && err == nil {
			return p, fmt.Errorf("%s has the cgroups of this container alone: mount the host's and name it (--cgroup-root)", p.cgroup)
		}
	}
	var at unix.Statfs_t
	switch {
	case p.cgroup == "":
		return p, errors.New("no cgroup2 is mounted here (--cgroup-root)")
	case unix.Statfs(p.cgroup, &at) != nil || at.Type != unix.CGROUP2_SUPER_MAGIC:
		return p, fmt.Errorf("%s is no cgroup2 (--cgroup-root)", p.cgroup)
	case unix.Statfs(existing(p.pins), &at) != nil || at.Type != unix.BPF_FS_MAGIC:
		return p, fmt.Errorf("%s is in no BPF file system (--bpf-root): mount -t bpf bpf /sys/fs/bpf", p.pins)
	}
	return p, nil
}

// existing returns the lowest folder of a path that is there.
func existing(path string) string {
	for path != "/" && path != "." {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	return path
}
