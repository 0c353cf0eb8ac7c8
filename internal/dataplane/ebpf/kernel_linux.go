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

// format names the layout of the pinned maps, and the directory they are pinned in.
// Programs built for another layout have their own maps.
const format = "maps-4"

// unpinned are the maps that only cache what other maps say, so that the next daemon
// does not need them.
var unpinned = []string{"decisions", "targets"}

// kernel holds the maps and programs of the mode.
type kernel struct {
	Services    *ebpf.Map `ebpf:"services"`
	Endpoints   *ebpf.Map `ebpf:"endpoints"`
	Members     *ebpf.Map `ebpf:"members"`
	NodeAddrs   *ebpf.Map `ebpf:"node_addrs"`
	Spaces      *ebpf.Map `ebpf:"spaces"`
	Settings    *ebpf.Map `ebpf:"settings"`
	Generation  *ebpf.Map `ebpf:"generation"`
	Counters    *ebpf.Map `ebpf:"counters"`
	Connections *ebpf.Map `ebpf:"connections"`
	Recent      *ebpf.Map `ebpf:"recent"`
	TCP         *ebpf.Map `ebpf:"tcp_sockets"`
	UDP         *ebpf.Map `ebpf:"udp_sockets"`
	Asked       *ebpf.Map `ebpf:"asked_sockets"`
	Questions   *ebpf.Map `ebpf:"questions"`

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
	Flush        *ebpf.Program `ebpf:"flush"`
	LiveTCP      *ebpf.Program `ebpf:"live_tcp"`
	LiveUDP      *ebpf.Program `ebpf:"live_udp"`
	Sources      *ebpf.Program `ebpf:"sources"`
	Stale        *ebpf.Program `ebpf:"stale"`

	paths
	flags         uint32 // of the settings, as the next write of them has them
	generationMem []byte // the mapped memory of the map generation
	newMaps       bool   // the maps were created by this process and have no rows yet
}

// paths are the directories that the mode uses.
type paths struct {
	cgroup string // the programs act on the sockets of this cgroup and those below it
	pins   string // keeps maps and programs when no daemon runs; empty if nothing is pinned
}

// The causes when the kernel refuses to load programs for lack of privileges, or of features.
var (
	errPrivileges = errors.New("mode ebpf needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and a kernel that is not locked down")
	errKernel     = errors.New("the kernel lacks what mode ebpf needs (Linux 6.2 with BTF, CONFIG_CGROUP_BPF)")
)

// missingCapabilities returns the names of required capabilities that the process lacks.
// It is called before loading, because without some of them the kernel rejects the
// programs with an error that does not mention privileges.
func missingCapabilities() (names []string) {
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

// readObject parses the embedded object file.
func readObject() (*ebpf.CollectionSpec, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	return spec, nil
}

// load loads the programs and opens the pinned maps, or creates and pins them. Limits
// replace the sizes of maps, by name. If load fails, it removes the pin directory if it
// has created it.
func load(p paths, limits map[string]uint32) (_ *kernel, err error) {
	spec, err := readObject()
	if err != nil {
		return nil, err
	}
	if names := missingCapabilities(); len(names) > 0 {
		return nil, fmt.Errorf("%w: %s is missing", errPrivileges, strings.Join(names, ", "))
	}
	for name, limit := range limits {
		spec.Maps[name].MaxEntries = limit
	}
	k := &kernel{paths: p, newMaps: p.pins == ""}
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
		k.newMaps = errors.Is(absent, fs.ErrNotExist)
		if err := os.MkdirAll(opts.Maps.PinPath, 0o700); err != nil {
			return nil, fmt.Errorf("create a directory for maps: %w", err)
		}
		for name, m := range spec.Maps {
			if !slices.Contains(unpinned, name) {
				m.Pinning = ebpf.PinByName
			}
		}
	}
	switch err := spec.LoadAndAssign(k, &opts); {
	case errors.Is(err, ebpf.ErrMapIncompatible):
		return nil, fmt.Errorf("%w: the maps below %s are of another version; remove them with sluice --cleanup", err, p.pins)
	case errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("%w: %w", errPrivileges, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errKernel, err)
	}
	k.generationMem, err = unix.Mmap(k.Generation.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map the memory of map generation: %w", err), k.close())
	}
	return k, nil
}

// loadProgram loads a single program that uses no maps.
func loadProgram(name string) (*ebpf.Program, error) {
	spec, err := readObject()
	if err != nil {
		return nil, err
	}
	return ebpf.NewProgram(spec.Programs[name])
}

// hook is a program with the place it is attached to. The name is also that of its pin.
type hook struct {
	name    string
	attach  ebpf.AttachType
	program *ebpf.Program
}

// translationHooks returns the hooks of the programs that translate sockets, in the order
// to attach them: programs that forget sockets and translate back come before those that
// translate.
func (k *kernel) translationHooks() []hook {
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

// meterHooks returns the hooks of the programs that count bytes.
func (k *kernel) meterHooks() []hook {
	return []hook{
		{"ends", ebpf.AttachCGroupSockOps, k.Ends},
		{"sent", ebpf.AttachCGroupInetEgress, k.Sent},
		{"received", ebpf.AttachCGroupInetIngress, k.Received},
	}
}

// cutHook returns the hook of the program that drops packets to endpoints that are gone.
// It is attached only while there are sockets that send such packets.
func (k *kernel) cutHook() hook { return hook{"cut", ebpf.AttachCGroupInetEgress, k.Cut} }

// attach attaches the programs that translate sockets, and then removes the maps of other
// formats, which no program uses any more.
func (k *kernel) attach() error {
	if err := k.attachAll(k.translationHooks()); err != nil {
		return err
	}
	return k.removeOldMaps()
}

// attachMeters attaches the programs that count bytes.
func (k *kernel) attachMeters() error {
	k.flags &^= flagCountBytes // which is wrong unless all are attached
	if err := k.attachAll(k.meterHooks()); err != nil {
		return err
	}
	k.flags |= flagCountBytes
	return nil
}

// detachMeters detaches the programs that count bytes.
func (k *kernel) detachMeters() (err error) {
	k.flags &^= flagCountBytes
	for _, h := range k.meterHooks() {
		err = errors.Join(err, k.detach(h.name))
	}
	return err
}

// attachAll attaches programs. Those that a former daemon has attached are replaced one
// by one, so that there is always one. After an error it detaches those that it has attached
// anew.
func (k *kernel) attachAll(hooks []hook) (err error) {
	var attached []string
	defer func() {
		for i := 0; err != nil && i < len(attached); i++ {
			err = errors.Join(err, k.detach(attached[i]))
		}
	}()
	for _, h := range hooks {
		isNew, err := k.attachOne(h)
		if err != nil {
			return err
		}
		if isNew {
			attached = append(attached, h.name)
		}
	}
	return nil
}

// attachOne attaches and pins a program. If one is pinned there already, it is replaced,
// and isNew is false.
func (k *kernel) attachOne(h hook) (isNew bool, err error) {
	pin := filepath.Join(k.pins, h.name)
	former, err := link.LoadPinnedLink(pin, nil)
	if err == nil {
		defer func() { _ = former.Close() }()
		if same, err := k.sameCgroup(former); err != nil {
			return false, err
		} else if same {
			if err := former.Update(h.program); err != nil {
				return false, fmt.Errorf("replace program %s: %w", h.name, err)
			}
			return false, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("open %s: %w", pin, err)
	}
	attached, err := link.AttachCgroup(link.CgroupOptions{Path: k.cgroup, Attach: h.attach, Program: h.program})
	switch {
	case errors.Is(err, unix.EPERM):
		return false, fmt.Errorf("attach %s to cgroup %s, where another program may be attached exclusively: %w", h.name, k.cgroup, err)
	case err != nil:
		return false, fmt.Errorf("attach %s to cgroup %s: %w", h.name, k.cgroup, err)
	}
	defer func() { _ = attached.Close() }()
	if err := os.Remove(pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := attached.Pin(pin); err != nil {
		return false, fmt.Errorf("pin %s: %w", pin, err)
	}
	return former == nil, nil
}

// sameCgroup reports whether a link attaches its program to our cgroup. A detached link
// does not.
func (k *kernel) sameCgroup(l link.Link) (bool, error) {
	info, err := l.Info()
	if err != nil {
		return false, fmt.Errorf("read a link: %w", err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(k.cgroup, &stat); err != nil {
		return false, fmt.Errorf("read cgroup %s: %w", k.cgroup, err)
	}
	c := info.Cgroup()
	return c != nil && c.CgroupId == stat.Ino, nil
}

// detach detaches a program by the name of its pin.
func (k *kernel) detach(name string) error { return detach(filepath.Join(k.pins, name)) }

// removeOldMaps removes the pins of maps of other formats, and of maps of this format that
// earlier versions pinned.
func (k *kernel) removeOldMaps() error {
	all, err := filepath.Glob(filepath.Join(k.pins, "maps-*"))
	for _, name := range unpinned {
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

// close releases handles; what is pinned stays in force. Nil maps and programs are ignored.
func (k *kernel) close() (err error) {
	for _, c := range []io.Closer{
		k.Services, k.Endpoints, k.Members, k.NodeAddrs, k.Spaces, k.Settings, k.Generation, k.Counters, k.Connections, k.Recent, k.TCP, k.UDP, k.Asked, k.Questions,
		k.Connect4, k.Connect6, k.Sendmsg4, k.Sendmsg6, k.Recvmsg4, k.Recvmsg6, k.Getpeername4, k.Getpeername6, k.Release, k.Cut, k.Sources, k.Stale,
		k.Ends, k.Sent, k.Received, k.Flush, k.LiveTCP, k.LiveUDP,
	} {
		err = errors.Join(err, c.Close())
	}
	if k.generationMem != nil {
		err = errors.Join(err, unix.Munmap(k.generationMem))
		k.generationMem = nil
	}
	return err
}

// runIterator runs an iterator program over the entries of a map, and returns the records
// that it writes, which are size bytes each.
func runIterator(p *ebpf.Program, m *ebpf.Map, size int) (out [][]byte, err error) {
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

// counter returns the value of a counter, or 0 if it cannot be read.
func (k *kernel) counter(which uint32) (sum uint64) {
	var perCPU []uint64
	if k.Counters.Lookup(which, &perCPU) == nil {
		for _, n := range perCPU {
			sum += n
		}
	}
	return sum
}

// writeSettings lets the programs act until a monotonic time, and tells them the cookie
// of the node's network namespace.
func (k *kernel) writeSettings(node, until uint64) error {
	var s settings
	binary.NativeEndian.PutUint64(s[:], node)
	binary.NativeEndian.PutUint64(s[8:], until)
	binary.NativeEndian.PutUint32(s[16:], k.flags)
	if err := k.writeMaps(func() error { return k.Settings.Update(uint32(0), s, ebpf.UpdateAny) }); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}

// writeMaps calls f, which writes to maps whose contents programs cache. While f runs the
// generation is 0, so that programs cache nothing; it stays 0 if the daemon is killed.
// Afterwards the generation is new, which makes everything cached before invalid: it is
// random, so no daemon has used it before.
func (k *kernel) writeMaps(f func() error) error {
	generation := (*atomic.Uint64)(unsafe.Pointer(&k.generationMem[0]))
	generation.Store(0)
	defer generation.Store(max(1, rand.Uint64()))
	return f()
}

// monotonicNow returns the time of the clock that programs compare with, in nanoseconds.
func monotonicNow() (uint64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	return uint64(t.Nano()), nil
}

// netnsCookie returns the cookie of the calling thread's network namespace.
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("create a socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("%w: read the cookie of the network namespace: %w", errKernel, err)
	}
	return cookie, nil
}

// resolve checks the paths. If the cgroup is not set, it is found in mountinfo, which has
// the format of /proc/self/mountinfo.
func (p paths) resolve(mountinfo string) (paths, error) {
	if p.cgroup == "" {
		for line := range strings.Lines(mountinfo) {
			// ID parent device root mountpoint options ... - type source
			fields := strings.Fields(line)
			if _, kind, ok := strings.Cut(line, " - "); ok && strings.HasPrefix(kind, "cgroup2 ") && len(fields) > 4 && fields[3] == "/" {
				p.cgroup = fields[4]
				break
			}
		}
		// Only the root of the hierarchy has no file cgroup.type.
		if _, err := os.Stat(filepath.Join(p.cgroup, "cgroup.type")); p.cgroup != "" && err == nil {
			return p, fmt.Errorf("cgroup2 at %s has only the cgroups of this container: mount that of the host, and set --cgroup-root to it", p.cgroup)
		}
	}
	var fsInfo unix.Statfs_t
	switch {
	case p.cgroup == "":
		return p, errors.New("no cgroup2 is mounted: mount it, or set --cgroup-root")
	case unix.Statfs(p.cgroup, &fsInfo) != nil || fsInfo.Type != unix.CGROUP2_SUPER_MAGIC:
		return p, fmt.Errorf("%s is not in a cgroup2 file system: set --cgroup-root", p.cgroup)
	case unix.Statfs(nearestExisting(p.pins), &fsInfo) != nil || fsInfo.Type != unix.BPF_FS_MAGIC:
		return p, fmt.Errorf("%s is not in a BPF file system: run mount -t bpf bpf /sys/fs/bpf, or set --bpf-root", p.pins)
	}
	return p, nil
}

// nearestExisting returns the path, or the nearest parent of it that exists.
func nearestExisting(path string) string {
	for path != "/" && path != "." {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	return path
}
